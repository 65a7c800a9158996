"""Encodes rows of the published data sets as examples, which are vectors of whole numbers.

An encoder has the names of the columns that it needs, and encodes batches of rows with these
columns.
"""

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fl_epe.archive import UNREADABLE, one_line
from fl_epe.checks import raise_invalid
from fl_epe.data.examples import (
    BOS,
    EMNIST_CLASSES,
    EMNIST_PIXELS,
    EMNIST_SIDE,
    EOS,
    MAX_WORDS,
    NUM_WORDS,
    OOV,
    DataKind,
)

CLIENT = "client"
WORD_COUNT = "stackoverflow.word_count"

# The pixels at the border of an image.
_BORDER = np.ones((EMNIST_SIDE, EMNIST_SIDE), bool)
_BORDER[1:-1, 1:-1] = False
# A mean brightness of borders between these does not show whether paper is dark or bright.
_MAX_DARK = 0.25
_MIN_BRIGHT = 0.75
# The largest number of bytes that are read of a list of words. TFF's list has 90 million.
_MAX_VOCABULARY = 256 << 20


class Images:
    """EMNIST: 784 bytes of ink, 0 for paper and 255 for full ink, and a label from 0 to 61.

    Labels are 0–9 for digits, 10–35 for A–Z, 36–61 for a–z, as in every source. Some sources have
    bright paper (as TFF's, with 1.0 for paper), others bright ink (as MNIST). Borders are nearly
    all paper; those of the first images decide whether all images are inverted.

    Attributes:
        kind: the name of the data set.
        columns: the needed columns, and the names that they may have in a source.
        width: the number of integers of an example.
        dtype: the NumPy name of the integers' type.
        facts: further values for the description of a converted data set, see `ClientStore.about`.
    """

    kind = "emnist"
    columns: ClassVar = {
        CLIENT: ("writer_id", "client_id", "user_id"),
        "image": ("image", "pixels", "x"),
        "label": ("character", "label", "y"),
    }
    width = EMNIST_PIXELS + 1
    dtype = "uint8"
    facts: ClassVar[Mapping[str, Any]] = {}

    def __init__(self) -> None:
        self._is_inverted: bool | None = None  # unknown before the first images

    def encode(self, rows: pa.RecordBatch) -> np.ndarray:
        """Examples of shape (rows, 785), the label last.

        Raises:
            ValueError: for columns that hold something else.
        """
        images = _pixels(rows["image"])
        if self._is_inverted is None and len(images):
            self._is_inverted = _paper_is_bright(images)
        examples = np.empty((len(images), self.width), np.uint8)
        examples[:, :EMNIST_PIXELS] = ~images if self._is_inverted else images
        examples[:, EMNIST_PIXELS] = _labels(rows["label"])
        return examples


def _paper_is_bright(images: NDArray[np.uint8]) -> bool:
    """Whether paper is bright, from the borders of images of shape (rows, 784)."""
    brightness = float(
        images.reshape(-1, EMNIST_SIDE, EMNIST_SIDE)[:, _BORDER].mean() / 255
    )
    if _MAX_DARK < brightness < _MIN_BRIGHT:
        raise ValueError(
            f"Expected dark or bright borders of images, found {brightness:.2f} of 1."
        )
    return brightness >= _MIN_BRIGHT


def _pixels(column: pa.Array) -> NDArray[np.uint8]:
    """Images of shape (rows, 784), 0 to 255, from encoded pictures or from numbers in [0, 1]."""
    if pa.types.is_struct(column.type):
        pictures = [
            _decode_picture(picture["bytes"]) for picture in column.to_pylist()
        ]
        return np.array(pictures, np.uint8).reshape(-1, EMNIST_PIXELS)
    lengths = pc.list_value_length(column).unique().to_pylist()
    if lengths not in ([], [EMNIST_PIXELS]):  # without rows there is no length
        raise ValueError(
            f"Expected {EMNIST_PIXELS} numbers an image, found {lengths[:2]}."
        )
    numbers = column.flatten().to_numpy(zero_copy_only=False)
    in_range = not len(numbers) or 0 <= numbers.min() <= numbers.max() <= 1
    if numbers.dtype.kind != "f" or not in_range:
        raise ValueError(
            f"Expected pixels in [0, 1], found {numbers.min()} to {numbers.max()}."
        )
    return np.asarray(
        np.rint(numbers * 255).astype(np.uint8).reshape(-1, EMNIST_PIXELS)
    )


def _decode_picture(content: bytes) -> np.ndarray:
    """The pixels of an encoded picture, such as a PNG file, in grey: shape (28, 28)."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as image:
            # The size is checked before the pixels are decompressed.
            if image.size != (EMNIST_SIDE, EMNIST_SIDE):
                raise ValueError(f"found one of {image.size}")
            return np.asarray(image.convert("L"))
    except (*UNREADABLE, Image.DecompressionBombError) as error:
        raise ValueError(
            f"Expected images of ({EMNIST_SIDE}, {EMNIST_SIDE}): {one_line(error)}."
        ) from error


def _labels(column: pa.Array) -> NDArray[np.uint8]:
    """The labels, shape (rows,), after a check of their type and range."""
    labels = column.to_numpy(zero_copy_only=False)
    if labels.dtype.kind not in "iu":
        raise ValueError(
            f"Expected labels to be integers, found {column.type}."
        )
    outside = labels[(labels < 0) | (labels >= EMNIST_CLASSES)]
    if len(outside):
        raise ValueError(
            f"Expected labels in [0, {EMNIST_CLASSES}), found {outside[0]}."
        )
    return np.asarray(labels.astype(np.uint8))


class Words:
    """StackOverflow, with TensorFlow Federated's preprocessing: 21 ids, see `fl_epe.data.examples`.

    A sentence is split at single spaces and truncated to 20 words. BOS comes before it. If it
    has fewer than 20 words, EOS comes after it, and then PAD. As in TFF, an empty text is one empty
    word, which is not in the vocabulary.

    Args:
        vocabulary: the words in order of descending frequency; only the first 10,000 are used.
    """

    kind = "stackoverflow"
    columns: ClassVar = {
        CLIENT: ("user_id", "client_id"),
        "tokens": ("tokens",),
    }
    width = MAX_WORDS + 1
    dtype = "uint16"

    def __init__(self, vocabulary: list[bytes]) -> None:
        words = vocabulary[:NUM_WORDS]
        self._words = pa.array(words, pa.large_binary())
        self.facts = {
            "vocabulary": [word.decode(errors="replace") for word in words]
        }

    def encode(self, rows: pa.RecordBatch) -> np.ndarray:
        """Examples of shape (rows, 21); it raises the errors of `Images.encode`."""
        texts = rows["tokens"].cast(pa.large_binary())
        sentences = pc.list_slice(pc.split_pattern(texts, " "), 0, MAX_WORDS)
        lengths = pc.list_value_length(sentences).to_numpy(zero_copy_only=False)
        indices = pc.index_in(sentences.flatten(), value_set=self._words)
        ids = pc.fill_null(pc.add(indices, 1), OOV).to_numpy(
            zero_copy_only=False
        )
        # The rest of a sentence is PAD, which is 0.
        examples = np.zeros((len(lengths), self.width), np.uint16)
        examples[:, 0] = BOS
        place = np.arange(MAX_WORDS)
        examples[:, 1:][place < lengths[:, None]] = ids
        examples[:, 1:][place == lengths[:, None]] = EOS
        return examples


Encoder: TypeAlias = Images | Words


def read_vocabulary(path: Path) -> list[bytes]:
    """The first 10,000 words of TFF's ``stackoverflow.word_count``, with lines "word count".

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: for a file without such lines.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"Expected vocabulary={str(path)!r} to be a file."
        )
    with path.open("rb") as file:
        content = file.read(_MAX_VOCABULARY)
    lines = [line.split() for line in content.splitlines()[:NUM_WORDS]]
    if not lines or not all(
        len(line) == 2 and line[1].isdigit() for line in lines
    ):
        raise ValueError(
            f"Expected {path} to be lines 'word count', found other lines or none."
        )
    return [word for word, _ in lines]


def encoder_of(
    kind: DataKind, source: str, vocabulary: str | os.PathLike[str] | None
) -> Encoder:
    """The encoder of a kind of data.

    Args:
        kind: the kind of data.
        source: the source; a vocabulary is searched beside it.
        vocabulary: a file with the vocabulary of "stackoverflow".

    Raises:
        ValueError: if a vocabulary is missing, or is given for another kind.
    """
    match kind:
        case "emnist":
            if vocabulary is not None:
                raise_invalid(
                    "vocabulary",
                    vocabulary,
                    "only for kind='stackoverflow'",
                )
            return Images()
        case "stackoverflow":
            if vocabulary is None:
                path = Path(source).expanduser()
                folder = path if path.is_dir() else path.parent
                vocabulary = folder / WORD_COUNT
                if not vocabulary.is_file():
                    raise_invalid(
                        "source",
                        source,
                        f"to have {WORD_COUNT} beside it: unpack it there, or name the vocabulary",
                    )
            return Words(read_vocabulary(Path(vocabulary)))
    assert_never(kind)
