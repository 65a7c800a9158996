"""EMNIST by writer: 28×28 images from PNG files or numbers, always with ink 255 and paper 0."""

from __future__ import annotations

import io
import pathlib
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fl_epe.archive import UNREADABLE, one_line
from fl_epe.data.encoding import CLIENT, Columns, Encoder, RawBatch
from fl_epe.data.examples import CLASSES, PIXELS, SIDE
from fl_epe.data.places import optional

_LARGEST = 1 << 20  # bytes of a picture of 28 × 28
_BORDER = np.ones((SIDE, SIDE), bool)
_BORDER[1:-1, 1:-1] = False


class Images(Encoder):
    """An example is 784 bytes of ink, 0 for paper and 255 for full ink, and a label from 0 to 61.

    Labels are 0–9 for digits, 10–35 for A–Z, 36–61 for a–z, as in every source. Sources differ in
    what is bright: TFF's have 1.0 for paper, MNIST has it for ink. So the borders of the first
    rows, which are nearly all paper, decide whether all images are inverted.
    """

    kind: ClassVar[str] = "emnist"
    columns: ClassVar[Columns] = {
        CLIENT: ("writer_id", "client_id", "user_id"),
        "image": ("image", "pixels"),
        "label": ("character", "label"),
    }
    width: ClassVar[int] = PIXELS + 1
    dtype: ClassVar[str] = "uint8"

    def __init__(self) -> None:
        self._inverted: bool | None = None

    def encode(self, batch: RawBatch) -> np.ndarray:
        """See `Encoder.encode`: shape (rows, 785), the label last."""
        images = _decode(batch.columns["image"], batch.place)
        if self._inverted is None and len(images):
            self._inverted = _paper_is_bright(images, batch.place)
        out = np.empty((len(images), self.width), np.uint8)
        out[:, :PIXELS] = ~images if self._inverted else images
        out[:, PIXELS] = _labels(batch.columns["label"], batch.place)
        return out

    def facts(self) -> dict[str, Any]:
        """Whether the source had bright paper."""
        return {"inverted": bool(self._inverted)}


def _paper_is_bright(images: NDArray[np.uint8], place: str) -> bool:
    brightness = float(images.reshape(-1, SIDE, SIDE)[:, _BORDER].mean() / 255)
    if 0.25 < brightness < 0.75:
        raise ValueError(
            f"Expected the images' borders in {place} to be dark or bright, "
            f"mean brightness {brightness:.2f} of 1."
        )
    return brightness > 0.5


def _decode(column: pa.Array, place: str) -> NDArray[np.uint8]:
    """Images of shape (rows, 784), 0 to 255, as the source has them."""
    if pa.types.is_struct(column.type):  # how the datasets library keeps images
        column = _contents(column, place)
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        pictures = [_decode_file(value, place) for value in column.to_pylist()]
        return np.array(pictures, np.uint8).reshape(-1, PIXELS)
    return _from_numbers(column, place)


def _contents(column: pa.Array, place: str) -> pa.Array:
    """The bytes in pictures of the datasets library, or in the files that they name."""
    contents = [
        _read(pathlib.Path(picture["path"]), place)
        if picture["bytes"] is None and picture["path"]
        else picture["bytes"]
        for picture in column.to_pylist()
    ]
    return pa.array(contents, pa.large_binary())


def _read(path: pathlib.Path, place: str) -> bytes:
    """A picture that a data set names: a file, and not one without end."""
    if not path.is_file() or path.stat().st_size > _LARGEST:
        raise ValueError(f"Expected {str(path)!r} in {place} to be a file of a small picture.")
    return path.read_bytes()


def _decode_file(content: bytes | None, place: str) -> np.ndarray:
    pil = optional("PIL.Image")
    try:
        with pil.open(io.BytesIO(content or b"")) as picture:
            shape = picture.size[::-1]  # before anything is unpacked
            pixels = np.asarray(picture.convert("L")) if shape == (SIDE, SIDE) else None
    except (*UNREADABLE, pil.DecompressionBombError) as error:
        raise ValueError(f"Expected images in {place}: {one_line(error)}.") from error
    if pixels is None:
        raise ValueError(f"Expected images.shape={shape} == ({SIDE}, {SIDE}) in {place}.")
    return pixels


def _from_numbers(column: pa.Array, place: str) -> NDArray[np.uint8]:
    """Fractions of 1, or whole numbers up to 255, in lists of 784 or 28 × 28."""
    rows, values = len(column), column
    while _is_list(values.type):
        lengths = pc.list_value_length(values).unique().to_pylist()
        if len(lengths) > 1:
            raise ValueError(f"Expected images of one size in {place}, found {lengths[:2]}.")
        values = values.flatten()
    numbers = values.to_numpy(zero_copy_only=False)
    if len(numbers) != rows * PIXELS or numbers.dtype.kind not in "fiu":
        raise ValueError(
            f"Expected {PIXELS} numbers an image in {place}, "
            f"found {len(numbers)} of type {values.type} in {rows} rows."
        )
    top = 1 if numbers.dtype.kind == "f" else 255
    if rows and not (numbers.min() >= 0 and numbers.max() <= top):
        raise ValueError(
            f"Expected pixels in [0, {top}] in {place}, found {numbers.min()} to {numbers.max()}."
        )
    scaled = np.rint(numbers * 255) if top == 1 else numbers
    pixels: NDArray[np.uint8] = scaled.astype(np.uint8).reshape(rows, PIXELS)
    return pixels


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _labels(column: pa.Array, place: str) -> NDArray[np.uint8]:
    while _is_list(column.type):  # a list of one label
        column = column.flatten()
    if not pa.types.is_integer(column.type):
        raise ValueError(f"Expected labels in {place} to be integers, found {column.type}.")
    labels = column.to_numpy(zero_copy_only=False)
    outside = labels[(labels < 0) | (labels >= CLASSES)]
    if len(outside):
        raise ValueError(f"Expected labels in {place} in [0, {CLASSES}), found {outside[0]}.")
    result: NDArray[np.uint8] = labels.astype(np.uint8)
    return result
