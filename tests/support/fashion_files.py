"""Files like Fashion-MNIST's."""

import gzip
import pathlib
import struct

import numpy as np


def idx_bytes(array: np.ndarray) -> bytes:
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return head + array.astype(np.uint8).tobytes()


def write_fashion(
    folder: pathlib.Path, train: int = 200, test: int = 30
) -> None:
    """Four small files, the training ones packed and the test ones not."""
    random = np.random.default_rng(0)
    for prefix, count, suffix in (("train", train, ".gz"), ("t10k", test, "")):
        for kind, shape in (
            ("images-idx3", (count, 28, 28)),
            ("labels-idx1", (count,)),
        ):
            values = random.integers(
                0, 256 if kind.startswith("images") else 10, shape
            )
            raw = (
                gzip.compress(idx_bytes(values), mtime=0)
                if suffix
                else idx_bytes(values)
            )
            (folder / f"{prefix}-{kind}-ubyte{suffix}").write_bytes(raw)
