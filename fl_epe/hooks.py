"""Replaces a function of an object temporarily."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def stand_in(owner: Any, name: str, call: Callable[..., Any]) -> Iterator[None]:
    """In this context, ``call`` replaces the function ``name`` of ``owner``.

    If other code replaces the function in the meantime, the function of that code stays.
    """
    original = getattr(owner, name)
    # If it is no attribute of the object itself, it is a method of its class. At the end, removing
    # ``call`` from the object makes the method visible again.
    is_attribute = name in vars(owner)
    setattr(owner, name, call)
    try:
        yield
    finally:
        if vars(owner).get(name) is call:
            if is_attribute:
                setattr(owner, name, original)
            else:
                delattr(owner, name)
