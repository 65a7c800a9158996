"""The data sets that `convert` knows, their sources, and the meaning of an example's integers."""

import os
import re
from pathlib import Path
from typing import Literal

import numpy as np

from fl_epe.checks import Floats32, Integers

DataKind = Literal["emnist", "stackoverflow"]
"""The published data sets that `fl_epe.data.convert` knows."""

SIDE = 28
PIXELS = SIDE * SIDE
CLASSES = 62
CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""EMNIST: 784 bytes of ink, 0 for paper and 255 for full ink, then the label, a place in this."""

WORDS = 10_000
PAD = 0
OOV = WORDS + 1
BOS = WORDS + 2
EOS = WORDS + 3
VOCABULARY = WORDS + 4
LENGTH = 20
"""StackOverflow: 21 ids, BOS, then up to 20 words, EOS where there is room, and PAD. Ids as TFF has
them: PAD 0, the words from 1 by falling frequency, OOV 10,001, BOS 10,002, EOS 10,003."""


def images_and_labels(examples: np.ndarray) -> tuple[Floats32, Integers]:
    """EMNIST: images of shape (n, 1, 28, 28), ink 1 and paper 0, and labels of shape (n,)."""
    images = examples[:, :PIXELS].reshape(-1, 1, SIDE, SIDE).astype(np.float32)
    images /= np.float32(255)
    return images, examples[:, PIXELS].astype(np.int64)


def words_and_next(examples: np.ndarray) -> tuple[Integers, Integers]:
    """StackOverflow: ids of shape (n, 20), all but the last, and for each the one that follows."""
    ids = examples.astype(np.int64)
    return ids[:, :-1], ids[:, 1:]


def is_hub_id(source: str) -> bool:
    """Whether ``source`` is no local path and looks like ``owner/name`` of a hub."""
    match = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", source)
    return match is not None and not Path(source).exists()


def absolute(source: str | os.PathLike[str]) -> str:
    """A local path as an absolute one, as workers start in other folders; a hub's id unchanged."""
    path = Path(source).expanduser()
    is_path = path.exists() or isinstance(source, os.PathLike)
    return str(path.absolute() if is_path else source)
