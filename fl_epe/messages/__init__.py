"""Records, arrays and errors in Flower messages, for the plug-in and the simulation.

Arrays are encoded with one copy of their values and decoded with none. `error_kind` maps an
error reply to a kind of fault. It is loaded when it is first used, as a client's process does
not need it.

Examples:
    >>> import numpy as np
    >>> record = pack(weight=np.array([1.0, 2.0]))
    >>> read_only(record["weight"])
    array([1., 2.])
"""

from typing import TYPE_CHECKING

from fl_epe.lazy import lazy_names
from fl_epe.messages.arrays import (
    NUMPY,
    DecodedArray,
    encoded,
    pack,
    read_only,
    records_of,
    share,
)

if TYPE_CHECKING:
    from fl_epe.messages.errors import error_kind

__all__ = [
    "NUMPY",
    "DecodedArray",
    "encoded",
    "error_kind",
    "pack",
    "read_only",
    "records_of",
    "share",
]

__getattr__, __dir__ = lazy_names(
    __name__, {"fl_epe.messages.errors": ("error_kind",)}
)
