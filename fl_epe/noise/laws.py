"""The laws of noise that can be claimed, Gaussian and Laplace, and their draws from known seeds.

All is for values over their claimed standard deviation. A scale is an estimate of the standard
deviation of n values whose distribution is exact under the law: the root mean square for Gaussian
noise, √2 times the mean size for Laplace noise.

Examples:
    >>> values = np.array([1.0, -1.0, 2.0, 0.0])
    >>> float(LAWS["laplace"].scales(LAWS["laplace"].amounts(values).sum(), 4))
    1.4142135623730951
    >>> round(float(LAWS["gaussian"].below(10_000, 0.98)), 4)  # so small a scale by chance
    0.0023
"""

import dataclasses
import functools
import math
import sys
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import scipy

from fl_epe.checks import Floats

Distribution = Literal["gaussian", "laplace"]
"""A law that noise can be claimed to have."""

ROUNDING = 1e-3
"""Of the standard deviation: what rounding, or the grid of floating-point numbers, may change."""

PREFIX = 8
"""Values by which noise from a known seed is found."""

_ROOT2 = math.sqrt(2)
_POPULAR = (
    4242,
    9999,
    10000,
    12345,
    31337,
    99999,
    123456,
    424242,
    1234567,
    12345678,
)
_LARGE = (123456789, 2**31 - 1, 0xDEADBEEF, 2**32 - 1)
_SEEDS = (*range(2051), *_POPULAR, *_LARGE)


@dataclasses.dataclass(frozen=True)
class Law:
    """A law of noise with mean 0 and standard deviation 1.

    Attributes:
        name: in texts; in small letters, where it is claimed.
        root: whether a scale is the root of a mean of squares, as for Gaussian noise, or a mean of
            sizes.
    """

    name: str
    root: bool

    @property
    def _distribution(self) -> Any:
        if self.root:
            return scipy.stats.norm()
        return scipy.stats.laplace(scale=1 / _ROOT2)

    def cdf(self, values: Floats) -> Floats:
        """Distribution function."""
        return np.asarray(self._distribution.cdf(values))

    def beyond(self, sizes: Floats) -> Floats:
        """Probability of a larger size."""
        return np.asarray(2 * self._distribution.sf(sizes))

    def amounts(self, values: Floats) -> Floats:
        """What each value adds to a scale, of the same shape."""
        if self.root:
            return np.square(values)
        return np.abs(values) * _ROOT2

    def scales(self, amounts: Any, counts: Any) -> Any:
        """The scales of ``counts`` values whose amounts add up to ``amounts``."""
        means = np.asarray(amounts) / np.maximum(counts, 1)
        if self.root:
            return np.sqrt(means)
        return means

    def below(self, counts: Any, scales: Any) -> Any:
        """Probability that so many values have no larger scale: χ² or gamma law, exact."""
        means = np.square(scales) if self.root else np.asarray(scales)
        shapes = self._shape(counts)
        return scipy.special.gammainc(shapes, shapes * means)

    def lowest(self, count: int, chance: float) -> float:
        """The scale that `below` has this probability for."""
        shape = self._shape(count)
        mean = float(scipy.special.gammaincinv(shape, chance) / shape)
        if self.root:
            return math.sqrt(mean)
        return mean

    def _shape(self, counts: Any) -> Any:
        """The shape parameter of the gamma law of a mean of so many values."""
        return np.asarray(counts) * (0.5 if self.root else 1.0)


LAWS = {
    "gaussian": Law("Gaussian", root=True),
    "laplace": Law("Laplace", root=False),
}
"""By the name that a user gives."""

_LEGACY_GENERATOR = np.random.RandomState(0)


def _first_values(seed: int, law: Law) -> Iterator[tuple[str, Any]]:
    """The first values that generators with a seed give, and how each is made."""
    _LEGACY_GENERATOR.seed(seed)
    rng: Any
    for maker, rng in (
        ("default_rng", np.random.default_rng(seed)),
        ("RandomState", _LEGACY_GENERATOR),
    ):
        draw = rng.normal if law.root else rng.laplace
        scale = 1.0 if law.root else math.sqrt(0.5)
        yield f"numpy.random.{maker}({seed})", draw(0, scale, PREFIX)
    torch = sys.modules.get("torch")
    if torch is None:
        return
    text = f"torch.manual_seed({seed})"
    rng = torch.Generator()  # the global one stays as it is
    if not law.root:
        rng.manual_seed(seed)
        uniform = torch.empty(PREFIX).uniform_(2**-23 - 1, 1, generator=rng)
        yield text, np.log1p(-np.abs(uniform.double().numpy())) / _ROOT2
        return
    # Torch makes 16 values or more in another way than fewer.
    for size, kind in (
        (PREFIX, torch.float32),
        (32, torch.float32),
        (32, torch.float64),
    ):
        rng.manual_seed(seed)
        values = torch.randn(size, generator=rng, dtype=kind)
        yield text, values[:PREFIX].numpy()


@functools.cache
def seeded(
    law: Law, with_torch: bool
) -> "tuple[list[str], scipy.spatial.KDTree]":
    """How the first values from each known seed are made, and a tree of their sizes.

    Args:
        law: of the values.
        with_torch: whether torch is loaded, so that its generators are among them.
    """
    texts = []
    sizes = []
    for seed in _SEEDS:
        for text, values in _first_values(seed, law):
            texts.append(text)
            sizes.append(np.abs(values))
    return texts, scipy.spatial.KDTree(sizes)
