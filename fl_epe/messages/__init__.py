"""What both the plug-in and the simulation need of Flower messages: records, arrays and errors.

Arrays are encoded with one copy of their values and decoded with none. `error_kind`, which says
what kind of fault an error reply is, is loaded when it is first used, so that a client's process
does not load what a server needs.

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
