"""A function of an object that is replaced for a while."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def stand_in(owner: Any, name: str, call: Callable[..., Any]) -> Iterator[None]:
    """While this lasts, ``call`` stands in the place of ``owner``'s function of that name.

    If other code has put another function there since, that one stays.
    """
    original = getattr(owner, name)
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
