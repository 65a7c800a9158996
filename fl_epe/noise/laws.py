"""The laws of noise that can be claimed, Gaussian and Laplace, and their draws from known seeds.

All is for values over their claimed standard deviation. A scale is the estimate of the standard
deviation that a law's n values are exact for: root mean square, or mean size times √2.

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
from typing import Any, Literal, assert_never

import numpy as np
import scipy

from fl_epe.checks import Floats

ROUNDING = 1e-3
"""Of the standard deviation: what rounding, or the grid of floating-point numbers, may change."""

PREFIX = 8
"""Values by which noise from a known seed is found."""

_ROOT2 = math.sqrt(2)
_SEEDS = (
    *range(2051),
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


@dataclasses.dataclass(frozen=True)
class Law:
    """A law of noise with mean 0 and standard deviation 1.

    Attributes:
        name: in texts; in small letters, where it is claimed.
        root: whether a scale is the root of a mean of squares, or a mean of sizes.
    """

    name: str
    root: bool

    @property
    def _distribution(self) -> Any:
        return (
            scipy.stats.norm() if self.root else scipy.stats.laplace(scale=1 / _ROOT2)
        )

    def cdf(self, values: Floats) -> Floats:
        """Distribution function."""
        return np.asarray(self._distribution.cdf(values))

    def beyond(self, sizes: Floats) -> Floats:
        """Probability of a larger size."""
        return np.asarray(2 * self._distribution.sf(sizes))

    def amounts(self, values: Floats) -> Floats:
        """What each value adds to a scale, of the same shape."""
        return np.square(values) if self.root else np.abs(values) * _ROOT2

    def scales(self, amounts: Any, counts: Any) -> Any:
        """Of so many values with these amounts together."""
        means = np.asarray(amounts) / np.maximum(counts, 1)
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


Distribution = Literal["gaussian", "laplace"]


def _first_values(seed: int, distribution: Distribution) -> Iterator[tuple[str, Any]]:
    """The first values that generators with a seed give, and how each is made."""
    match distribution:
        case "gaussian":
            is_normal = True
        case "laplace":
            is_normal = False
        case _:
            assert_never(distribution)
    _OLD.seed(seed)
    rng: Any
    for maker, rng in (
        ("default_rng", np.random.default_rng(seed)),
        ("RandomState", _OLD),
    ):
        values = (
            rng.standard_normal(PREFIX)
            if is_normal
            else rng.laplace(0, math.sqrt(0.5), PREFIX)
        )
        yield f"numpy.random.{maker}({seed})", values
    if (torch := sys.modules.get("torch")) is None:
        return
    text, rng = (
        f"torch.manual_seed({seed})",
        torch.Generator(),
    )  # the global one stays as it is
    if not is_normal:
        uniform = torch.empty(PREFIX).uniform_(
            2**-23 - 1, 1, generator=rng.manual_seed(seed)
        )
        yield text, np.log1p(-np.abs(uniform.double().numpy())) / _ROOT2
        return
    for size, kind in ((PREFIX, "float32"), (32, "float32"), (32, "float64")):
        rng.manual_seed(seed)  # 16 values or more are made in another way
        yield (
            text,
            torch.randn(size, generator=rng, dtype=getattr(torch, kind))[
                :PREFIX
            ].numpy(),
        )


_OLD = np.random.RandomState(0)


LAWS = {"gaussian": Law("Gaussian", root=True), "laplace": Law("Laplace", root=False)}
"""By the name that a user gives."""


@functools.cache
def seeded(
    distribution: Distribution, with_torch: bool
) -> "tuple[list[str], scipy.spatial.KDTree]":
    """Sizes of the first values from known seeds, ``(m, PREFIX)``, and how each was made.

    Args:
        distribution: name of their law.
        with_torch: whether torch is loaded, so that its generators are among them.
    """
    found = [
        one for seed in (*_SEEDS, *_LARGE) for one in _first_values(seed, distribution)
    ]
    return [text for text, _ in found], scipy.spatial.KDTree(
        np.abs([each for _, each in found])
    )
