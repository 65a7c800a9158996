"""Which data sets there are, where they can be, and the packages that it takes to read them."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path
from typing import Any

KINDS = ("emnist", "stackoverflow")
"""The published data sets that `fl_epe.data.convert` knows."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def is_hub_id(source: str) -> bool:
    """Whether ``source`` is no local path and looks like ``owner/name`` of a hub."""
    return _HUB_ID.fullmatch(source) is not None and not Path(source).exists()


def absolute(source: str) -> str:
    """A path as seen from any folder; a hub id as it is."""
    return source if is_hub_id(source) else os.path.abspath(os.path.expanduser(source))


def optional(module: str) -> Any:
    """A module that only the extra ``data`` installs.

    Raises:
        RuntimeError: if it is not there, saying how to get it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RuntimeError(
            f"Reading data sets needs {error.name}: pip install 'fl-epe[data]'."
        ) from error
