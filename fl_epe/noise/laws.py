"""The laws of noise that can be claimed, Gaussian and Laplace, and their draws from known seeds.

All is for values over their claimed standard deviation. A scale is the estimate of the standard
deviation that a law's n values are exact for: root mean square, or mean size times √2.

Examples:
    >>> values = np.array([1.0, -1.0, 2.0, 0.0])
    >>> float(LAWS["laplace"].scales(LAWS["laplace"].amounts(values).sum(), 4))
    1.4142135623730951
    >>> round(float(LAWS["gaussian"].below(10_000, 0.98)), 4)  # so small a scale by chance
    0.0017
"""

import dataclasses
import functools
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy

from fl_epe.checks import Floats

ROUNDING = 1e-3
"""Of the standard deviation: what rounding, or the grid of floating-point numbers, may change."""

PREFIX = 8
"""Values by which noise from a known seed is found."""

_ROOT2 = math.sqrt(2)
_SEEDS = (*range(2051), 4242, 9999, 10000, 12345, 31337, 99999, 123456, 424242, 1234567, 12345678)
_LARGE = (123456789, 2**31 - 1, 0xDEADBEEF, 2**32 - 1)


@dataclasses.dataclass(frozen=True)
class Law:
    """A law of noise with mean 0 and standard deviation 1.

    Attributes:
        key: its name where it is claimed.
        name: its name in texts.
        root: whether a scale is the root of a mean of squares, or a mean of sizes.
        cdf: distribution function.
        beyond: probability of a larger size.
        draws: the first values of some generators, by how to call them with a seed.
    """

    key: str
    name: str
    root: bool
    cdf: Callable[[Floats], Floats]
    beyond: Callable[[Floats], Floats]
    draws: Callable[[int], Iterator[tuple[str, Any]]]

    def amounts(self, values: Floats) -> Floats:
        """What each value adds to a scale, of the same shape."""
        return np.square(values) if self.root else np.abs(values) * _ROOT2

    def scales(self, amounts: Any, counts: Any) -> Any:
        """Of so many values with these amounts together."""
        means = np.asarray(amounts) / counts
        return np.sqrt(means) if self.root else means

    def below(self, counts: Any, scales: Any) -> Any:
        """Probability that so many values have no larger scale: χ² or gamma law, exact."""
        means = np.square(scales) if self.root else np.asarray(scales)
        counts = np.asarray(counts) * (0.5 if self.root else 1.0)
        return scipy.special.gammainc(counts, counts * means)

    def lowest(self, count: int, chance: float) -> float:
        """The scale that `below` has this probability for."""
        half = count * (0.5 if self.root else 1.0)
        mean = scipy.special.gammaincinv(half, chance) / half
        return math.sqrt(mean) if self.root else float(mean)


def _numpy(seed: int, method: str, *arguments: Any) -> Iterator[tuple[str, Any]]:
    for maker in ("default_rng", "RandomState"):
        if maker == "default_rng" or seed < 2**32:
            rng = getattr(np.random, maker)(seed)
            yield f"numpy.random.{maker}({seed})", getattr(rng, method)(*arguments)


def _torch(seed: int) -> Iterator[tuple[str, Any]]:
    """A generator of torch with this seed, where torch is loaded; the global one stays as it is."""
    if (torch := sys.modules.get("torch")) is not None:
        yield f"torch.manual_seed({seed})", torch


def _gaussian(seed: int) -> Iterator[tuple[str, Any]]:
    yield from _numpy(seed, "standard_normal", PREFIX)
    for text, torch in _torch(seed):
        for size, kind in ((PREFIX, "float32"), (32, "float32"), (32, "float64")):
            rng = torch.Generator().manual_seed(seed)  # other values for fewer than 16
            values = torch.randn(size, generator=rng, dtype=getattr(torch, kind))
            yield text, values[:PREFIX].numpy()


def _laplace(seed: int) -> Iterator[tuple[str, Any]]:
    yield from _numpy(seed, "laplace", 0.0, math.sqrt(0.5), PREFIX)
    for text, torch in _torch(seed):
        rng = torch.Generator().manual_seed(seed)
        uniform = torch.empty(PREFIX).uniform_(2**-23 - 1, 1, generator=rng).double().numpy()
        yield text, np.sign(uniform) * np.log1p(-np.abs(uniform)) * -math.sqrt(0.5)


def _laplace_cdf(values: Floats) -> Floats:
    tail = np.exp(-math.sqrt(2) * np.abs(values)) / 2
    return np.where(values < 0, tail, 1 - tail)


LAWS = {
    "gaussian": Law(
        "gaussian",
        "Gaussian",
        True,
        scipy.special.ndtr,
        lambda x: np.asarray(scipy.special.erfc(x / _ROOT2)),
        _gaussian,
    ),
    "laplace": Law(
        "laplace", "Laplace", False, _laplace_cdf, lambda x: np.exp(-_ROOT2 * x), _laplace
    ),
}
"""By the name that a user gives."""


@functools.cache
def seeded(distribution: str, with_torch: bool) -> tuple[list[str], scipy.spatial.KDTree]:
    """Sizes of the first values from known seeds, ``(m, PREFIX)``, and how each was made.

    Args:
        distribution: name of their law.
        with_torch: whether torch is loaded, so that its generators are among them.
    """
    law = LAWS[distribution]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the old generator
        found = [one for seed in (*_SEEDS, *_LARGE) for one in law.draws(seed)]
    return [text for text, _ in found], scipy.spatial.KDTree(np.abs([each for _, each in found]))
