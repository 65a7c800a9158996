"""`lazy_names`: names of a package whose modules are imported when the names are first used."""

import importlib
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any


def lazy_names(
    room: str, modules: Mapping[str, Collection[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of a package that imports names when they are first used.

    Args:
        room: the ``__name__`` of the package.
        modules: the names by module.
    """
    module_of = {
        name: module for module, names in modules.items() for name in names
    }

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        return getattr(importlib.import_module(module_of[name]), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[room]), *module_of})

    return get, names
