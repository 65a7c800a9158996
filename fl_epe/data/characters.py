"""Shakespeare by speaker: windows of 80 characters and the one that follows."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fl_epe.data.encoding import CLIENT, Columns, Encoder, RawBatch
from fl_epe.data.examples import ALPHABET, WINDOW


class Characters(Encoder):
    """An example is 81 ids: 80 characters and the next one; what is not in the alphabet is a space.

    Two windows of a speaker that are less than 80 rows apart share text.
    """

    kind: ClassVar[str] = "shakespeare"
    columns: ClassVar[Columns] = {
        CLIENT: ("character_id", "client_id", "user_id"),
        "x": ("x",),
        "y": ("y",),
    }
    width: ClassVar[int] = WINDOW + 1
    dtype: ClassVar[str] = "uint8"
    overlap: ClassVar[int] = WINDOW

    def encode(self, batch: RawBatch) -> np.ndarray:
        """See `Encoder.encode`: shape (rows, 81)."""
        before = _ids(batch.columns["x"], WINDOW, batch.place)
        after = _ids(batch.columns["y"], 1, batch.place)
        return np.concatenate([before, after], axis=1)


# The id of each Unicode character.
_TABLE = np.full(0x110000, ALPHABET.index(" "), np.uint8)
_TABLE[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))


def _ids(column: pa.Array, length: int, place: str) -> NDArray[np.uint8]:
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise ValueError(f"Expected texts in {place}, found {column.type}.")
    texts = column.to_pylist()
    for text in texts:
        if len(text) != length:
            raise ValueError(
                f"Expected texts of {length} characters in {place}, found {text!r:.100}."
            )
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "replace"), "<u4")
    ids: NDArray[np.uint8] = _TABLE[codes].reshape(-1, length)
    return ids
