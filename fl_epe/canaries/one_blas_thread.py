"""One thread per matrix product, where our own threads share the work."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """While this lasts a product uses one thread: more would compete with ours, ten times slower.

    Without threadpoolctl nothing is limited.
    """
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:  # a machine with NumPy and torch alone
        yield
        return
    with threadpool_limits(1, user_api="blas"):
        yield
