"""The published data sets, the names of their sources, and the meaning of an example's integers.

An example of EMNIST is 784 bytes of ink, 0 for paper and 255 for full ink, and then the label.

An example of StackOverflow is 21 ids: BOS (begin of sentence), then up to 20 words, then EOS (end
of sentence) if there is room, and then PAD. The ids are TFF's: PAD 0, the words from 1 in order of
descending frequency, OOV (out of vocabulary) 10,001, BOS 10,002, EOS 10,003.
"""

import os
import re
from pathlib import Path
from typing import Literal

import numpy as np

from fl_epe.checks import Floats32, Integers

DataKind = Literal["emnist", "stackoverflow"]
"""The published data sets that `fl_epe.data.convert` knows."""

EMNIST_SIDE = 28
"""The height and the width of an image of EMNIST."""

EMNIST_PIXELS = EMNIST_SIDE * EMNIST_SIDE
"""The number of pixels of an image of EMNIST."""

EMNIST_CLASSES = 62
"""The number of classes of EMNIST."""

CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""The characters of EMNIST by label."""

NUM_WORDS = 10_000
"""The number of words of StackOverflow that have ids of their own."""

# The ids of StackOverflow that are no words.
PAD = 0
OOV = NUM_WORDS + 1
BOS = NUM_WORDS + 2
EOS = NUM_WORDS + 3

VOCABULARY = NUM_WORDS + 4
"""The number of ids of StackOverflow."""

MAX_WORDS = 20
"""The largest number of words of an example of StackOverflow, which has one id more, for BOS."""


def images_and_labels(examples: np.ndarray) -> tuple[Floats32, Integers]:
    """EMNIST's images of shape (n, 1, 28, 28), ink 1 and paper 0, and labels of shape (n,)."""
    images = (
        examples[:, :EMNIST_PIXELS]
        .reshape(-1, 1, EMNIST_SIDE, EMNIST_SIDE)
        .astype(np.float32)
    )
    images /= np.float32(255)
    return images, examples[:, EMNIST_PIXELS].astype(np.int64)


def words_and_next(examples: np.ndarray) -> tuple[Integers, Integers]:
    """The first 20 ids of each example of StackOverflow, and the ids that follow, shape (n, 20)."""
    ids = examples.astype(np.int64)
    return ids[:, :-1], ids[:, 1:]


def is_hub_id(source: str) -> bool:
    """Whether ``source`` has the form ``owner/name`` of a hub's data set, and is no local path."""
    match = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", source)
    return match is not None and not Path(source).exists()


def absolute(source: str | os.PathLike[str]) -> str:
    """The absolute path of a local source; other text, such as a hub id, is returned unchanged.

    Workers start in other folders, so they need absolute paths.
    """
    path = Path(source).expanduser()
    is_path = path.exists() or isinstance(source, os.PathLike)
    return str(path.absolute() if is_path else source)
