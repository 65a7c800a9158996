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
"""The characters of EMNIST by label.

An example has 784 bytes of ink, 0 for paper and 255 for full ink, and then the label.
"""

WORDS = 10_000
PAD = 0
OOV = WORDS + 1
BOS = WORDS + 2
EOS = WORDS + 3
VOCABULARY = WORDS + 4
LENGTH = 20
"""The largest number of words of an example of StackOverflow.

An example has 21 ids: BOS, then up to 20 words, EOS if there is room, and PAD. The ids are
TFF's: PAD 0, the words from 1 by falling frequency, OOV 10,001, BOS 10,002, EOS 10,003.
"""


def images_and_labels(examples: np.ndarray) -> tuple[Floats32, Integers]:
    """The images of EMNIST, shape (n, 1, 28, 28), ink 1 and paper 0, and labels, shape (n,)."""
    images = examples[:, :PIXELS].reshape(-1, 1, SIDE, SIDE).astype(np.float32)
    images /= np.float32(255)
    return images, examples[:, PIXELS].astype(np.int64)


def words_and_next(examples: np.ndarray) -> tuple[Integers, Integers]:
    """The ids of StackOverflow without the last, shape (n, 20), and the successor of each."""
    ids = examples.astype(np.int64)
    return ids[:, :-1], ids[:, 1:]


def is_hub_id(source: str) -> bool:
    """Whether ``source`` is no local path and looks like ``owner/name`` of a hub."""
    match = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", source)
    return match is not None and not Path(source).exists()


def absolute(source: str | os.PathLike[str]) -> str:
    """The absolute path of a local source, as workers start in other folders; or the hub id."""
    path = Path(source).expanduser()
    is_path = path.exists() or isinstance(source, os.PathLike)
    return str(path.absolute() if is_path else source)
