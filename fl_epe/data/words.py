"""StackOverflow by user: sentences as word ids, with TensorFlow Federated's preprocessing.

A sentence is split at single spaces and cut to 20 words. BOS comes before it, EOS after it if it
has fewer than 20 words, then PAD up to 21 ids. An empty text is one empty word, which is out of the
vocabulary, as in TFF. See `fl_epe.data.examples` for the ids.
"""

from __future__ import annotations

import collections
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fl_epe.archive import UNREADABLE, one_line
from fl_epe.data.encoding import CLIENT, Columns, Encoder, RawBatch
from fl_epe.data.examples import BOS, EOS, LENGTH, OOV, WORDS

WORD_COUNT = "stackoverflow.word_count"

_MOST_COUNTED = 2_000_000
_LARGEST = 256 << 20  # bytes of a list of words; TFF's has 90 million


class Words(Encoder):
    """An example is 21 ids: BOS, up to 20 words, EOS and PAD where there is room."""

    kind: ClassVar[str] = "stackoverflow"
    columns: ClassVar[Columns] = {CLIENT: ("user_id", "client_id"), "tokens": ("tokens",)}
    width: ClassVar[int] = LENGTH + 1
    dtype: ClassVar[str] = "uint16"

    def __init__(self, vocabulary: Sequence[bytes]) -> None:
        """Make an encoder.

        Args:
            vocabulary: words by falling frequency; those after the first 10,000 are not used.

        Raises:
            ValueError: for an empty vocabulary or one that has a word twice.
        """
        self._words = list(vocabulary[:WORDS])
        if not self._words or len(set(self._words)) < len(self._words):
            raise ValueError(
                f"Expected a vocabulary of distinct words, got {len(self._words)} words, "
                f"{len(set(self._words))} distinct."
            )
        self._array = pa.array(self._words, pa.large_binary())

    def encode(self, batch: RawBatch) -> np.ndarray:
        """See `Encoder.encode`: shape (rows, 21)."""
        words, lengths = _split(batch.columns["tokens"], batch.place)
        found = pc.index_in(words, value_set=self._array)
        ids = pc.fill_null(pc.add(found, 1), OOV).to_numpy(zero_copy_only=False)
        out = np.zeros((len(batch), self.width), np.uint16)
        out[:, 0] = BOS
        place = np.arange(LENGTH)
        out[:, 1:][place < lengths[:, None]] = ids
        out[:, 1:][place == lengths[:, None]] = EOS
        return out

    def facts(self) -> dict[str, Any]:
        """The vocabulary; word i has the id i + 1."""
        return {"vocabulary": [word.decode(errors="replace") for word in self._words]}


def read_vocabulary(path: Path) -> list[bytes]:
    """The first 10,000 words of TFF's ``stackoverflow.word_count``: lines of a word and its count.

    Args:
        path: the file, or the archive (``.tar.bz2``) in which it is published.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: for a file without such lines.
    """
    if not path.is_file():
        raise FileNotFoundError(f"Expected vocabulary={str(path)!r} to be a file.")
    words = []
    try:
        lines = _lines(path)
    except (*UNREADABLE, tarfile.TarError) as error:
        raise ValueError(
            f"Expected {path} to be lines 'word count', or an archive of them: {one_line(error)}."
        ) from error
    for line in lines:
        parts = line.split()
        if len(parts) != 2 or not parts[1].isdigit():
            raise ValueError(f"Expected lines 'word count' in {path}, found {line!r:.60}.")
        words.append(parts[0])
        if len(words) == WORDS:
            break
    if not words:
        raise ValueError(f"Expected lines 'word count' in {path}, found none.")
    return words


def _lines(path: Path) -> list[bytes]:
    if not tarfile.is_tarfile(path):
        with path.open("rb") as plain:
            return plain.read(_LARGEST).splitlines()
    with tarfile.open(path) as archive:
        for member in archive:
            if member.name.endswith(WORD_COUNT) and (file := archive.extractfile(member)):
                return file.read(_LARGEST).splitlines()
    raise ValueError(f"Expected {path} to contain {WORD_COUNT}.")


def count_words(batches: Iterable[RawBatch]) -> list[bytes]:
    """The 10,000 most frequent words, of equal ones the alphabetically first.

    Every word counts, also those after the 20th of a sentence. (TFF's list counts users who have
    the word.) Memory is bounded: past two million different words the rarer half is forgotten.
    """
    counts: collections.Counter[bytes] = collections.Counter()
    for batch in batches:
        words, _ = _split(batch.columns["tokens"], batch.place, most=None)
        for item in pc.value_counts(words).to_pylist():
            counts[item["values"]] += item["counts"]
        if len(counts) > _MOST_COUNTED:
            counts = collections.Counter(dict(counts.most_common(_MOST_COUNTED // 2)))
    del counts[b""]
    return sorted(counts, key=lambda word: (-counts[word], word))[:WORDS]


def _split(
    column: pa.Array, place: str, most: int | None = LENGTH
) -> tuple[pa.Array, NDArray[np.int64]]:
    """All words of all rows one after another, at most ``most`` of a row; how many of each row."""
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):  # split already
        lists = column
    elif any(test(kind) for test in _TEXTS):
        lists = pc.split_pattern(column.cast(pa.large_binary()), " ")
    else:
        raise ValueError(f"Expected tokens in {place} to be text, found {kind}.")
    if most is not None:
        lists = pc.list_slice(lists, 0, most)
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False).astype(np.int64)
    return lists.flatten().cast(pa.large_binary()), lengths


_TEXTS = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
)
