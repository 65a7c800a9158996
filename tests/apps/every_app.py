"""The apps of this folder, by the name of their file."""

from __future__ import annotations

import importlib
from pathlib import Path

from app_case import AppCase

_SHARED = {"app_case", "digits_task", "every_app"}
NAMES = sorted({path.stem for path in Path(__file__).parent.glob("*.py")} - _SHARED)
CASES: dict[str, AppCase] = {name: importlib.import_module(name).CASE for name in NAMES}
