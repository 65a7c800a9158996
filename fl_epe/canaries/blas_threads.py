"""One thread per matrix product, where our own threads share the work."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """While this lasts a product uses one thread: more would compete with ours, ten times slower.

    Without threadpoolctl nothing is limited.
    """
    controller = _controller()
    if controller is None:
        yield
        return
    with controller.limit(limits=1, user_api="blas"):
        yield


@functools.cache
def _controller() -> Any:
    """Of the libraries that are loaded when it is first asked for; looking for them is slow."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:  # a machine with NumPy and torch alone
        return None
    return ThreadpoolController()
