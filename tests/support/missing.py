"""Processes in which a package is not installed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent


class _Hidden:
    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> None:
        if name.split(".")[0] in self._names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def hide(*names: str) -> None:
    """Let imports of these packages fail from here on, in this process."""
    sys.meta_path.insert(0, _Hidden(names))


def environment() -> dict[str, str]:
    """For a process that finds `fl_epe` and this file from any working directory."""
    path = os.pathsep.join([str(HERE.parents[1]), str(HERE)])
    return os.environ | {"PYTHONPATH": path, "FLWR_TELEMETRY_ENABLED": "0"}
