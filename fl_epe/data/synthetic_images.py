"""Synthetic EMNIST: characters that are drawn with strokes, in the handwriting of each writer.

Like the real data, it has 3,383 writers with 241 characters on average (814,000 in all), the 62
classes, digits as half of the characters, ink 1 on paper 0, and characters that look alike (0 O
o, 1 l I). Unlike the real data, each class has a single shape (`distances`). A writer slants,
turns, stretches and bends it, and has a pen of some width; all of these vary a little in each
character.

    >>> images, labels = examples(seed=0, writer=7, most=5)
    >>> images.shape, labels.shape
    ((5, 1, 28, 28), (5,))

The time that this takes is in ``docs/notes/data-sets.md``.
"""

import functools
import itertools

import numpy as np
from numpy.typing import NDArray

from fl_epe.checks import Floats, Floats32, Integers
from fl_epe.data.examples import CHARACTERS, EMNIST_SIDE
from fl_epe.seeding import generator

WRITERS = 3383

# The number of characters of a writer is Gaussian, clipped to a range.
_MEAN_CHARACTERS = 240.6
_STD_CHARACTERS = 89.0
_MIN_CHARACTERS = 20
_MAX_CHARACTERS = 461
# The grid of `distances`: the number of points per pixel, and the index of the middle point.
_POINTS_PER_PIXEL = 3
_CENTRE = 20 * _POINTS_PER_PIXEL
# The probability of each digit, each capital letter and each other letter.
_CLASS_PROBABILITIES = np.repeat([0.5 / 10, 0.27 / 26, 0.23 / 26], [10, 26, 26])

# The strokes of each character are polylines through points "xy". x goes from 0 to 6
# rightwards, and y downwards: 0 is the top of capitals, 6 the base line, and 8 the bottom of
# descenders.
_STROKES = """
0 204052544626141220 | 1 123036 | 2 12204052531656 | 3 1120405152335455462615 | 4 46401454
5 501012425355462615 | 6 5030131526465554432314 | 7 105026 | 8 23121120405152432314152646555443
9 52432312112040515346 | A 063066 1454 | B 1016 104051524313 4354554616 | C 6140200204264665
D 1016 103052543616 | E 50101656 1343 | F 501016 1343 | G 61402002042646656434 | H 1016 5056 1353
I 3036 1050 1656 | J 5054462614 | K 1016 501356 | L 101656 | M 0600346066 | N 16105650
O 204062644626040220 | P 161040515243 4313 | Q 204062644626040220 4466 | R 161040515243 4313 3356
S 514020111223435455462615 | T 0060 3036 | U 101526465550 | V 003660 | W 0016325660 | X 0066 6006
Y 003360 3336 | Z 00600666 | a 5342221315264655 5256 | b 1016 1322425355462615
c 5342221315264655 | d 5056 5342221315264655 | e 14545342221315264655 | f 51403136 1353
g 5342221315264655 5257482817 | h 1016 1322425356 | i 3236 3030 | j 42473818 4040 | k 1016 521456
l 3036 | m 0206 0312223336 3342526366 | n 1216 1322425356 | o 224253554626151322
p 1218 1322425355462615 | q 5258 5342221315264655 | r 1216 14224253 | s 53422213244455462615
t 30354656 1252 | u 1215264655 5256 | v 123652 | w 0216335662 | x 1256 5216 | y 1236 5218
z 12521656
"""
# The largest slant, turn, widening and heightening of a writer's characters.
_DISTORTIONS = (0.35, 0.15, 0.18, 0.18)
# The scale of the strokes in a picture, and the point of a character that is in its middle.
_PIXELS_PER_UNIT = 2.6
_MIDDLE = np.array([3.0, 3.8])


def examples(
    seed: int, writer: int, most: int = 0
) -> tuple[Floats32, Integers]:
    """The examples of a writer.

    Args:
        seed: the seed of the whole data set.
        writer: the writer's number, any integer >= 0.
        most: the largest number of examples; 0 for all examples of the writer.

    Returns:
        Images of shape (n, 1, 28, 28) with ink 1 and paper 0, and labels of shape (n,).
    """
    random = generator(seed, 1, writer)
    return _draw(random, _count(random, most))


def size(seed: int, writer: int, most: int = 0) -> int:
    """The number of a writer's `examples`, without drawing them."""
    return _count(generator(seed, 1, writer), most)


def _count(random: np.random.Generator, most: int) -> int:
    """The number of characters of a new writer, at most ``most`` (0: no limit)."""
    gaussian = round(
        _MEAN_CHARACTERS + _STD_CHARACTERS * random.standard_normal()
    )
    count = min(max(gaussian, _MIN_CHARACTERS), _MAX_CHARACTERS)
    if most:
        return min(count, most)
    return count


def held_out(seed: int, count: int) -> tuple[Floats32, Integers]:
    """``count`` examples of further writers, ten of each writer."""
    random = generator(seed, 2)
    writers = [
        _draw(random, min(10, count - first)) for first in range(0, count, 10)
    ]
    images, labels = zip(*writers, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def _draw(random: np.random.Generator, count: int) -> tuple[Floats32, Integers]:
    """Images and labels of ``count`` characters of a new writer."""
    # Of the writer, and of each character: slant, turn, width, height, bend, and width of the pen.
    hand = random.standard_normal(6, np.float32)
    labels = random.choice(
        len(_CLASS_PROBABILITIES), count, p=_CLASS_PROBABILITIES
    )
    variation = random.standard_normal((6, count, 1, 1), np.float32)
    x, y = _points(hand, variation, random.random((4, count, 1, 1), np.float32))
    distance = distances()[labels[:, None, None], _nearest(y), _nearest(x)]
    # Half of the pen's width in pixels. Ink fades over 1.2 pixels around it.
    width = 1.2 + 0.3 * np.tanh(hand[5]) + 0.1 * np.tanh(variation[5])
    images = np.clip((width - distance) / 1.2 + 0.5, 0, 1).astype(np.float32)
    return images[:, None], labels.astype(np.int64)


def _points(
    hand: Floats32, variation: Floats32, phase: Floats32
) -> tuple[Floats32, Floats32]:
    """The point of the character's shape that each pixel shows: x and y, shape (n, 28, 28)."""
    # A character differs from the writer's hand by up to 40% of the largest distortion.
    slant, turn, wide, high = (
        largest * (np.tanh(hand[i]) + 0.4 * np.tanh(variation[i]))
        for i, largest in enumerate(_DISTORTIONS)
    )
    bend = 0.5 + 0.4 * np.tanh(hand[4])  # the amplitude of the waves, in pixels
    axis = np.arange(EMNIST_SIDE, dtype=np.float32) - np.float32(
        (EMNIST_SIDE - 1) / 2
    )
    # A character is also shifted, by an amount that follows from its height and bend.
    x = axis[None, None, :] - variation[3] * 0.7
    y = axis[None, :, None] - variation[4] * 0.7
    turned_x = x + turn * y
    y = y - turn * x
    # The character bends in waves with a length of 14 to 28 pixels.
    x = (
        turned_x
        + slant * y
        + bend * np.sin(2 * np.pi * (y / (14 + 14 * phase[2]) + phase[0]))
    )
    y = y + bend * np.sin(2 * np.pi * (x / (14 + 14 * phase[3]) + phase[1]))
    return x * (1 + wide), y * (1 + high)


def _nearest(values: Floats32) -> NDArray[np.int32]:
    """The index of the nearest point of an axis of `distances`."""
    # Adding 0.5 makes the conversion to integers round.
    places = np.clip(
        values * _POINTS_PER_PIXEL + np.float32(_CENTRE + 0.5), 0, 2 * _CENTRE
    )
    return np.asarray(places.astype(np.int32))


@functools.cache
def distances() -> Floats32:
    """The distance of points to the strokes of each character, in pixels of a 28×28 picture.

    Returns:
        An array of shape (62, 121, 121): character, y, x. The grid has three points per pixel,
        from −20 to 20 pixels around the picture's middle.
    """
    axis = np.arange(-_CENTRE, _CENTRE + 1) / _POINTS_PER_PIXEL
    points = np.stack(np.meshgrid(axis, axis, indexing="xy"), axis=-1)
    entries = _STROKES.strip().replace("\n", "|").split("|")
    strokes = dict(entry.split(maxsplit=1) for entry in entries)
    characters = [
        _distance(points, strokes[character]) for character in CHARACTERS
    ]
    return np.stack(characters).astype(np.float32)


def _distance(points: Floats, strokes: str) -> Floats:
    """The distance of points, shape (121, 121, 2), to the nearest stroke of a character."""
    nearest = np.full(points.shape[:-1], np.inf)
    for stroke in strokes.split():
        corners = np.array([int(digit) for digit in stroke], float).reshape(
            -1, 2
        )
        corners = (corners - _MIDDLE) * _PIXELS_PER_UNIT
        for start, end in itertools.pairwise(corners):
            along = end - start
            # A stroke of length 0 is a dot.
            squared_length = max(float(along @ along), 1e-9)
            share = np.clip((points - start) @ along / squared_length, 0, 1)
            gap = points - start - share[..., None] * along
            nearest = np.minimum(nearest, np.hypot(gap[..., 0], gap[..., 1]))
    return nearest
