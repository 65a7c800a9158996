"""The strokes of the 62 characters of `image_twin`, and each point's distance to them."""

from __future__ import annotations

import functools
import itertools

import numpy as np
from numpy.typing import NDArray

from fl_epe.data.examples import CHARACTERS

# Polylines through points "xy": x from 0 to 6 rightwards, y from 0 (top of capitals) by 6 (the line
# that is written on) to 8 (what hangs below) downwards.
_STROKES = """
0 204052544626141220
1 123036
2 12204052531656
3 1120405152335455462615
4 46401454
5 501012425355462615
6 5030131526465554432314
7 105026
8 23121120405152432314152646555443
9 52432312112040515346
A 063066 1454
B 1016 104051524313 4354554616
C 6140200204264665
D 1016 103052543616
E 50101656 1343
F 501016 1343
G 61402002042646656434
H 1016 5056 1353
I 3036 1050 1656
J 5054462614
K 1016 501356
L 101656
M 0600346066
N 16105650
O 204062644626040220
P 161040515243 4313
Q 204062644626040220 4466
R 161040515243 4313 3356
S 514020111223435455462615
T 0060 3036
U 101526465550
V 003660
W 0016325660
X 0066 6006
Y 003360 3336
Z 00600666
a 5342221315264655 5256
b 1016 1322425355462615
c 5342221315264655
d 5056 5342221315264655
e 14545342221315264655
f 51403136 1353
g 5342221315264655 5257482817
h 1016 1322425356
i 3236 3030
j 42473818 4040
k 1016 521456
l 3036
m 0206 0312223336 3342526366
n 1216 1322425356
o 224253554626151322
p 1218 1322425355462615
q 5258 5342221315264655
r 1216 14224253
s 53422213244455462615
t 30354656 1252
u 1215264655 5256
v 123652
w 0216335662
x 1256 5216
y 1236 5218
z 12521656
"""

PIXELS_PER_UNIT = 2.6
_MIDDLE = np.array([3.0, 3.8])


@functools.lru_cache(maxsize=2)
def distances(reach: int, resolution: int) -> NDArray[np.float32]:
    """The distance of points to the strokes of each character, in pixels of a 28×28 picture.

    Args:
        reach: the points go from ``-reach`` to ``reach`` pixels around the picture's middle.
        resolution: points a pixel.

    Returns:
        Shape (62, 2·reach·resolution + 1, the same): character, y, x.
    """
    axis = np.arange(-reach * resolution, reach * resolution + 1) / resolution
    points = np.stack(np.meshgrid(axis, axis, indexing="xy"), axis=-1)
    lines = dict(line.split(maxsplit=1) for line in _STROKES.split("\n") if line)
    glyphs = [_distance(points, lines[character]) for character in CHARACTERS]
    return np.stack(glyphs).astype(np.float32)


def _distance(points: NDArray[np.float64], strokes: str) -> NDArray[np.float64]:
    """To the nearest of the segments of all strokes."""
    nearest = np.full(points.shape[:-1], np.inf)
    for stroke in strokes.split():
        corners = np.array([int(digit) for digit in stroke], float).reshape(-1, 2)
        corners = (corners - _MIDDLE) * PIXELS_PER_UNIT
        for start, end in itertools.pairwise(corners):
            along = end - start
            length = max(float(along @ along), 1e-9)
            share = np.clip((points - start) @ along / length, 0, 1)
            gap = points - start - share[..., None] * along
            nearest = np.minimum(nearest, np.hypot(gap[..., 0], gap[..., 1]))
    return nearest
