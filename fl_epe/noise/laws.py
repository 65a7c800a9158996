"""The laws of noise that can be claimed, Gaussian and Laplace, and their draws from known seeds.

All values are divided by the claimed standard deviation. The scale of n values is an estimate of
their standard deviation, the distribution of which is known exactly under the law: the root mean
square for Gaussian noise, and √2 times the mean absolute value for Laplace noise.

Examples:
    >>> laplace = LAWS["laplace"]
    >>> terms = laplace.moment_terms(np.array([1.0, -1.0, 2.0, 0.0]))
    >>> float(laplace.scales(terms.sum(), 4))
    1.4142135623730951
    >>> round(float(LAWS["gaussian"].scale_cdf(10_000, 0.98)), 4)  # P[scale ≤ 0.98] by chance
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

Distribution = Literal["gaussian", "laplace"]
"""A law that noise can be claimed to have."""

ROUNDING = 1e-3
"""Largest error by rounding of a standard deviation, relative to the claimed one."""

PREFIX = 8
"""Number of first values by which noise from a known seed is detected.

By chance, so many values are close to none of the known ones.
"""

_ROOT2 = math.sqrt(2)

# Seeds that are tried: small numbers, which include years up to 2050, popular numbers, and limits
# of types.
_SMALL_SEEDS = range(2051)
_POPULAR_SEEDS = (
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
_LARGE_SEEDS = (123456789, 2**31 - 1, 0xDEADBEEF, 2**32 - 1)
_SEEDS = (*_SMALL_SEEDS, *_POPULAR_SEEDS, *_LARGE_SEEDS)

# torch.distributions.Laplace transforms uniform values between this one, just above −1, and 1.
_LOWEST_UNIFORM = 2**-23 - 1

# For 16 or more values, torch.randn uses a vectorized method, whose values differ from those of the
# other method with the same seed. It draws the last 16 values again if the size is no multiple of
# 16. So the first 8 values are the same for all sizes of at least 24, and 32 stands for them.
_VECTORIZED_SIZE = 32


@dataclasses.dataclass(frozen=True)
class Law:
    """A law of noise with mean 0 and standard deviation 1.

    Attributes:
        distribution: the distribution.
    """

    distribution: Distribution

    @property
    def name(self) -> str:
        """The name in reports."""
        return self.distribution.capitalize()

    @property
    def uses_squares(self) -> bool:
        """Whether a scale is the root of a mean of squares.

        Otherwise it is √2 times a mean of absolute values.
        """
        match self.distribution:
            case "gaussian":
                return True
            case "laplace":
                return False
        assert_never(self.distribution)

    @property
    def _distribution(self) -> Any:
        match self.distribution:
            case "gaussian":
                return scipy.stats.norm()
            case "laplace":
                return scipy.stats.laplace(scale=1 / _ROOT2)
        assert_never(self.distribution)

    def draw(self, rng: Any, size: int) -> Floats:
        """Values of a numpy generator."""
        match self.distribution:
            case "gaussian":
                return np.asarray(rng.normal(0, 1.0, size))
            case "laplace":
                return np.asarray(rng.laplace(0, math.sqrt(0.5), size))
        assert_never(self.distribution)

    def cdf(self, values: Floats) -> Floats:
        """The distribution function."""
        return np.asarray(self._distribution.cdf(values))

    def tail_probability(self, thresholds: Floats) -> Floats:
        """Probability that the absolute value of a draw exceeds each of ``thresholds``."""
        return np.asarray(2 * self._distribution.sf(thresholds))

    def moment_terms(self, values: Floats) -> Floats:
        """The terms whose mean determines a scale: the squares, or √2 times the absolute values."""
        if self.uses_squares:
            return np.square(values)
        return np.abs(values) * _ROOT2

    def scales(self, sums: Any, counts: Any) -> Any:
        """The scales of ``counts`` values whose `moment_terms` add up to ``sums``."""
        means = np.asarray(sums) / np.maximum(counts, 1)
        if self.uses_squares:
            return np.sqrt(means)
        return means

    def scale_cdf(self, counts: Any, scales: Any) -> Any:
        """Probability that the scale of ``counts`` values is at most ``scales``.

        It is exact: the mean of the `moment_terms` has a gamma distribution, which is a scaled χ²
        distribution for Gaussian noise.
        """
        means = np.square(scales) if self.uses_squares else np.asarray(scales)
        shapes = self._shape(counts)
        return scipy.special.gammainc(shapes, shapes * means)

    def scale_quantile(self, count: int, probability: float) -> float:
        """The scale at which `scale_cdf` has this probability."""
        shape = self._shape(count)
        mean = float(scipy.special.gammaincinv(shape, probability) / shape)
        if self.uses_squares:
            return math.sqrt(mean)
        return mean

    def _shape(self, counts: Any) -> Any:
        """Shape parameter of the gamma distribution of the mean of ``counts`` `moment_terms`."""
        return np.asarray(counts) * (0.5 if self.uses_squares else 1.0)


LAWS: dict[Distribution, Law] = {
    "gaussian": Law("gaussian"),
    "laplace": Law("laplace"),
}
"""The laws, by the name of the distribution in the settings."""

# A `RandomState` that is seeded again for each known seed, as making a new one takes much longer.
_LEGACY_GENERATOR = np.random.RandomState(0)


def _first_magnitudes(seed: int, law: Law) -> Iterator[tuple[str, Any]]:
    """Yields for each generator the code that makes it, and its first values without their signs.

    Signs are left out, as seeds are looked up by absolute values.

    Args:
        seed: the seed of the generators.
        law: the law of the values.
    """
    _LEGACY_GENERATOR.seed(seed)
    rng: Any
    for maker, rng in (
        ("default_rng", np.random.default_rng(seed)),
        ("RandomState", _LEGACY_GENERATOR),
    ):
        yield f"numpy.random.{maker}({seed})", np.abs(law.draw(rng, PREFIX))
    torch = sys.modules.get("torch")
    if torch is None:
        return
    text = f"torch.manual_seed({seed})"
    rng = torch.Generator()  # the state of the global one must not change
    if law.distribution == "laplace":
        rng.manual_seed(seed)
        uniform = torch.empty(PREFIX)
        uniform.uniform_(_LOWEST_UNIFORM, 1, generator=rng)
        log_tails = np.log1p(-np.abs(uniform.double().numpy()))
        yield text, -log_tails / _ROOT2
        return
    for size, dtype in (
        (PREFIX, torch.float32),
        (_VECTORIZED_SIZE, torch.float32),
        (_VECTORIZED_SIZE, torch.float64),
    ):
        rng.manual_seed(seed)
        values = torch.randn(size, generator=rng, dtype=dtype)
        yield text, values[:PREFIX].abs().numpy()


@functools.cache
def known_first_values(
    law: Law, with_torch: bool
) -> "tuple[list[str], scipy.spatial.KDTree]":
    """The first values that are drawn from each known seed.

    Args:
        law: the law of the values.
        with_torch: whether torch is imported. If so, its generators are tried as well. The function
            does not read this argument, but the cache needs it: the result without torch must not
            be returned after torch has been imported.

    Returns:
        The code that makes each generator with each seed, and a tree of the absolute values, in
        the same order.
    """
    texts = []
    magnitudes = []
    for seed in _SEEDS:
        for text, first_magnitudes in _first_magnitudes(seed, law):
            texts.append(text)
            magnitudes.append(first_magnitudes)
    return texts, scipy.spatial.KDTree(magnitudes)
