"""The apps of this folder, by the name of their file; a second case of a file has a longer name."""

from __future__ import annotations

import importlib
from pathlib import Path

from app_case import AppCase

_NO_APPS = {"app_case", "digits_task", "every_app"}
_BESIDE_THEM = {
    "app_runs",
    "app_server",
    "no_harm",
}  # in a folder made for a SuperLink
NAMES = sorted(
    {path.stem for path in Path(__file__).parent.glob("*.py")}
    - _NO_APPS
    - _BESIDE_THEM
)
CASES: dict[str, AppCase] = {
    name + suffix: case
    for name in NAMES
    for suffix, kind in (("", "CASE"), ("_unannounced", "UNANNOUNCED"))
    if (case := getattr(importlib.import_module(name), kind, None)) is not None
}


def case_named(name: str) -> AppCase:
    """One of these, or that of a module such as ``frameworks.table``."""
    found = CASES.get(name) or importlib.import_module(name).CASE
    assert isinstance(found, AppCase)
    return found
