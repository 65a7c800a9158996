"""How often does each bound exceed the true ε, by enumeration of every data set of few values?

    python simulations/studies/exact_levels.py --values 2    # an hour of processor time
    python simulations/studies/exact_levels.py --values 3    # an hour of processor time
    python simulations/studies/exact_levels.py --quick       # seconds

A bound with 95% confidence exceeds the true ε with probability at most 5%, in every mechanism and
at every size. Where scores have two or three values, a data set is how often each group of canaries
has each value. All of them are listed, the bound of each is computed, and the probabilities of
those whose bound is above the true ε are added up: a level without chance. Data sets that have a
probability of 10⁻⁴ together are not computed, but count as above.

Mechanisms, each with a grid of shares:

- "pure": the extreme laws of ε-DP, at ε = 0, 0.3, 1 and 2 and δ = 0;
- "leaks": the same, and a score of 1 with probability δ = 0.01, if the canary took part;
- "Gaussian": N(μ, 1) and N(0, 1) cut at thresholds, for μ = 0, 0.5, 1 and 2 at δ = 10⁻⁵.

Groups have n scores each, n from 2 to 80 for two values and to 30 for three. Canaries of a bound
that needs coins are 2·n, each included with probability ½ (n to 20, and to 6 for three values).
A line has the largest level of any mechanism, at which n, and the mechanism.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator

import numpy as np
import scipy
from numpy.typing import NDArray

from fl_epe.accounting import epsilon_of_shift
from fl_epe.auditing.bounds import BOUNDS

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
ALPHA = 0.05
_LEFT_OUT = 1e-4
_EPSILONS = (0.0, 0.3, 1.0, 2.0)
_SHIFTS = (0.0, 0.5, 1.0, 2.0)
_SHARES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95)
_LEAK = 0.01


@dataclasses.dataclass(frozen=True, eq=False)
class Mechanism:
    """The laws of one score.

    Attributes:
        name: for a line of the table.
        member: probabilities of the values 0, 1, … if the canary took part.
        other: the same if it did not.
        epsilon: the true ε at ``delta``.
        delta: of that ε.
    """

    name: str
    member: Floats
    other: Floats
    epsilon: float
    delta: float


def mechanisms(family: str, values: int) -> Iterator[Mechanism]:
    """The mechanisms of one family, for scores of two or three values."""
    if family == "Gaussian":
        for shift, share in itertools.product(_SHIFTS, _SHARES):
            cut = -float(scipy.special.ndtri(share))
            cuts = np.array([cut] if values == 2 else [cut - 1.0, cut])
            member, non_member = (
                -np.diff(
                    scipy.special.ndtr(mean - cuts), prepend=1.0, append=0.0
                )
                for mean in (shift, 0.0)
            )
            epsilon = float(epsilon_of_shift(shift, 1e-5))
            yield Mechanism(
                f"Gaussian {shift:g}, cut {cut:.2f}",
                member,
                non_member,
                epsilon,
                1e-5,
            )
        return
    delta = _LEAK if family == "leaks" else 0.0
    for epsilon, share in itertools.product(_EPSILONS, _SHARES):
        for name, member, non_member in _pure(epsilon, share, values):
            leaked = (1 - delta) * member
            leaked[-1] += delta
            yield Mechanism(
                f"{name} {epsilon:g}, share {share:g}",
                leaked,
                non_member,
                epsilon,
                delta,
            )


def _pure(
    epsilon: float, share: float, values: int
) -> Iterator[tuple[str, Floats, Floats]]:
    """Laws at the ends of ε-DP: members have e^ε times a share, or others have."""
    ratio, right = math.exp(epsilon), float(scipy.special.expit(epsilon))
    if values == 3:  # a middle value that says nothing
        member = np.array(
            [(1 - share) * (1 - right), share, (1 - share) * right]
        )
        yield "response or nothing", member, member[::-1]
        several = np.array([1.0, 1.0, ratio]) / (2 + ratio)
        if share == _SHARES[0]:
            yield "response of three", several, several[::-1]
        return
    if share * ratio <= right:
        yield (
            "ones",
            np.array([1 - ratio * share, ratio * share]),
            np.array([1 - share, share]),
        )
        yield (
            "zeros",
            np.array([share, 1 - share]),
            np.array([ratio * share, 1 - ratio * share]),
        )


@functools.cache
def counts(size: int, values: int) -> Counts:
    """Every way in which ``size`` scores have ``values`` values, shape (ways, values)."""
    if values == 1:
        return np.array([[size]])
    parts = []
    for first in range(size + 1):
        remaining = counts(size - first, values - 1)
        parts.append(
            np.column_stack([np.full(len(remaining), first), remaining])
        )
    return np.concatenate(parts)


def probabilities(ways: Counts, law: Floats) -> Floats:
    """Of each way, by the multinomial law."""
    return np.asarray(
        scipy.stats.multinomial.pmf(ways, ways[0].sum(), law / law.sum())
    )


def groups(method: str, size: int) -> Iterator[tuple[int, int, float]]:
    """Sizes of both groups, and their probability."""
    if not BOUNDS[method].needs_coins:
        yield size, size, 1.0
        return
    for heads in range(
        2, 2 * size - 1
    ):  # with fewer than two there is no bound
        yield (
            heads,
            2 * size - heads,
            float(scipy.stats.binom.pmf(heads, 2 * size, 0.5)),
        )


def levels(method: str, size: int, cases: list[Mechanism]) -> Floats:
    """The probability of each mechanism, of one δ, that the bound is above its ε."""
    failures = np.zeros(len(cases))
    values = len(cases[0].member)
    for observed, unobserved, chance in groups(method, size):
        ways, others = counts(observed, values), counts(unobserved, values)
        likely = np.array(
            [
                np.outer(
                    probabilities(ways, case.member),
                    probabilities(others, case.other),
                )
                for case in cases
            ]
        )
        largest = likely.max(axis=0)
        order = np.argsort(largest, axis=None)
        below = np.cumsum(largest.ravel()[order]) <= _LEFT_OUT
        left_out = np.zeros(largest.size, bool)
        left_out[order] = below
        bounds = np.full(largest.shape, math.inf)
        for index in np.flatnonzero(~left_out):
            row, column = np.unravel_index(index, largest.shape)
            bounds[row, column] = bound_of(
                method, ways[row], others[column], cases[0].delta
            )
        above = np.array([bounds > case.epsilon + 1e-9 for case in cases])
        failures += chance * (likely * above).sum(axis=(1, 2))
    return failures


def bound_of(
    method: str, observed: Counts, unobserved: Counts, delta: float
) -> float:
    """The bound of scores that have the values 0, 1, … as often as is said."""
    places = np.arange(len(observed), dtype=np.float64)
    scores = np.repeat(places, observed), np.repeat(places, unobserved)
    return BOUNDS[method](*scores, delta, confidence=1 - ALPHA)


def sizes_of(method: str, values: int) -> list[int]:
    """Every n to the largest for two values; a part of them for three."""
    coins = BOUNDS[method].needs_coins
    if values == 2:
        return list(range(2, 21 if coins else 81))
    return (
        [2, 3, 4, 5, 6]
        if coins
        else [2, 3, 4, 5, 6, 7, 8, 10, 12, 13, 16, 20, 30]
    )


def main(arguments: list[str] | None = None) -> None:
    """Print a line for each bound that is called valid and each family."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--values", type=int, choices=(2, 3), help="2 or 3; both by default"
    )
    parser.add_argument("--only", help="one method")
    parser.add_argument(
        "--sizes", type=int, nargs="+", help="n, instead of all"
    )
    parser.add_argument("--quick", action="store_true", help="two small sizes")
    options = parser.parse_args(arguments)
    print(
        f"{'method':17}{'values':>6}  {'family':10}{'sizes':>6}{'largest':>9}{'n':>5}  mechanism"
    )
    for values in (options.values,) if options.values else (2, 3):
        for method, bound in BOUNDS.items():
            if not bound.valid or options.only not in (None, method):
                continue
            sizes = (
                [3, 5]
                if options.quick
                else options.sizes or sizes_of(method, values)
            )
            for family in (
                ("Gaussian",)
                if bound.gaussian
                else ("pure", "leaks", "Gaussian")
            ):
                cases = list(mechanisms(family, values))
                levels_of_sizes = np.array(
                    [levels(method, size, cases) for size in sizes]
                )
                size, case = np.unravel_index(
                    levels_of_sizes.argmax(), levels_of_sizes.shape
                )
                print(
                    f"{method:17}{values:>6}  {family:10}{len(sizes):>6}"
                    f"{levels_of_sizes.max():>9.2%}{sizes[size]:>5}  {cases[case].name}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
