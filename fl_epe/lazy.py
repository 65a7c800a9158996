"""Names of a room that are imported when they are first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any


def lazy_names(
    room: str,
    modules: Mapping[str, Collection[str]],
    load: Callable[[str], Any] = importlib.import_module,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of a room's ``__init__``.

    Args:
        room: the ``__name__`` of the room.
        modules: names by the module that has them, or that is meant itself.
        load: imports a module by its name.
    """
    places = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        module = load(places[name])
        return module if places[name] == f"{room}.{name}" else getattr(module, name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[room]), *places})

    return get, names
