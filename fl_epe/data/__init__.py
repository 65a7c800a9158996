"""Real federated data sets by client, EMNIST and StackOverflow, and synthetic ones.

`convert` reads a published data set (from the Hugging Face hub, SQLite, HDF5, Parquet, LEAF's JSON
or a folder of the `datasets` library) and writes a folder that a `ClientStore` maps into memory;
both need the extra ``data``. `synthetic_text` and `synthetic_images` draw data of the same shape
from a seed.

Nothing in this package was run on the published data sets, which could not be reached. The tests
write small files with the same schemas. See ``docs/notes/data-sets.md``.

Examples:
    >>> from fl_epe.data import synthetic_text
    >>> sentences = synthetic_text.examples(seed=1, user=7, most=5)
    >>> sentences.shape  # words by number, with a mark before the first and after the last
    (5, 21)
"""

from typing import TYPE_CHECKING

from fl_epe.data.examples import absolute
from fl_epe.data.leaf import LEAF, read_leaf
from fl_epe.lazy import lazy_names

if TYPE_CHECKING:
    from fl_epe.data.conversion import ClientStore, convert, open_data

__all__ = [
    "LEAF",
    "ClientStore",
    "absolute",
    "convert",
    "open_data",
    "read_leaf",
]


__getattr__, __dir__ = lazy_names(  # what needs Arrow
    __name__,
    {"fl_epe.data.conversion": ("ClientStore", "convert", "open_data")},
)
