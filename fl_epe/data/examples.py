"""The data sets that are known, where they can be, and what the integers of an example mean."""

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
PAD, OOV, BOS, EOS = 0, WORDS + 1, WORDS + 2, WORDS + 3
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
    named = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", source)
    return named is not None and not Path(source).exists()


def absolute(source: str | os.PathLike[str]) -> str:
    """A local path as seen from any folder, as workers start in others; a hub's id as it is."""
    path = Path(source).expanduser()
    there = path.exists() or isinstance(source, os.PathLike)
    return str(path.absolute() if there else source)
