"""A twin of EMNIST by writer: characters drawn with strokes, each writer in a hand of their own.

What is like the real data: 3,383 writers with 241 characters on average (814,000 in all), the 62
classes, half of them digits by number, ink 1 on paper 0, characters that look alike (0 O o, 1 l I).
What is not: each character has one model (`fl_epe.data.glyphs`), which a writer slants, turns,
stretches, bends and draws with a pen of some width, every time a little differently.

    >>> images, labels = drawings(seed=0, writer=7, most=5)
    >>> images.shape, labels.shape
    ((5, 1, 28, 28), (5,))

How long it takes: see ``docs/notes/data-sets.md``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fl_epe.data.examples import CHARACTERS, SIDE
from fl_epe.data.glyphs import distances
from fl_epe.seeding import generator

WRITERS = 3383

_MEAN, _SPREAD, _FEWEST, _MOST = 240.6, 89.0, 20, 461
_REACH, _RESOLUTION = 20, 3
_SHARES = np.repeat([0.5 / 10, 0.27 / 26, 0.23 / 26], [10, 26, 26])


def drawings(
    seed: int, writer: int, most: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The examples of a writer.

    Args:
        seed: of the whole twin.
        writer: any integer >= 0.
        most: how many to draw at most; 0 for as many as the writer has.

    Returns:
        Images of shape (n, 1, 28, 28) with ink 1 and paper 0, and labels of shape (n,).
    """
    random = generator(seed, 1, writer)
    return _draw(random, _count(random, most))


def size(seed: int, writer: int, most: int = 0) -> int:
    """How many `drawings` a writer has, without making them."""
    return _count(generator(seed, 1, writer), most)


def _count(random: np.random.Generator, most: int) -> int:
    count = int(np.clip(round(_MEAN + _SPREAD * random.standard_normal()), _FEWEST, _MOST))
    return min(count, most) if most else count


def held_out_drawings(seed: int, count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """``count`` examples of other writers, ten of each."""
    random = generator(seed, 2)
    parts = [_draw(random, min(10, count - done)) for done in range(0, count, 10)]
    images, labels = zip(*parts, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def _draw(random: np.random.Generator, count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Characters by one writer, whose hand is drawn first."""
    hand = random.standard_normal(6, np.float32)
    labels = random.choice(len(_SHARES), count, p=_SHARES)
    own = random.standard_normal((6, count, 1, 1), np.float32)
    x, y = _points(hand, own, random.random((4, count, 1, 1), np.float32))
    glyphs, side = (
        distances(_REACH, _RESOLUTION).reshape(len(CHARACTERS), -1),
        2 * _REACH * _RESOLUTION,
    )
    rows = _nearest(y, side)
    columns = _nearest(x, side)
    distance = glyphs[labels[:, None, None], rows * (side + 1) + columns]
    width = 1.2 + 0.3 * np.tanh(hand[5]) + 0.1 * np.tanh(own[5])
    images = np.clip((width - distance) / 1.2 + 0.5, 0, 1).astype(np.float32)
    return images[:, None], labels.astype(np.int64)


def _points(
    hand: NDArray[np.float32], own: NDArray[np.float32], phase: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Where on the model each pixel of each image lies: x and y, shape (n, 28, 28)."""
    slant, turn, wide, high = (
        size * (np.tanh(hand[i]) + 0.4 * np.tanh(own[i]))
        for i, size in enumerate((0.35, 0.15, 0.18, 0.18))
    )
    bend = 0.5 + 0.4 * np.tanh(hand[4])
    axis = np.arange(SIDE, dtype=np.float32) - np.float32((SIDE - 1) / 2)
    x, y = axis[None, None, :], axis[None, :, None]
    x, y = x - own[3] * 0.7, y - own[4] * 0.7
    x, y = x + turn * y, y - turn * x
    x = x + slant * y + bend * np.sin(2 * np.pi * (y / (14 + 14 * phase[2]) + phase[0]))
    y = y + bend * np.sin(2 * np.pi * (x / (14 + 14 * phase[3]) + phase[1]))
    return x * (1 + wide), y * (1 + high)


def _nearest(values: NDArray[np.float32], last: int) -> NDArray[np.int32]:
    scaled = values * _RESOLUTION + np.float32(last / 2 + 0.5)
    result: NDArray[np.int32] = np.clip(scaled, 0, last).astype(np.int32)
    return result
