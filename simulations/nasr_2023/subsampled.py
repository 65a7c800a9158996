"""How often do the bounds of Nasr et al. (2023) exceed the truth, with sampling and without?

    python simulations/nasr_2023/subsampled.py    # minutes on one core; --quick: seconds

Every audit is simulated, at 95% confidence and δ = 10⁻⁵; "above" is the share of audits whose bound
exceeds the true ε, which a valid bound has in 5% of them at most. "mean" is the mean bound.

1. f-DP by the accountant's curve (`subsampled_lower_bound`): runs of T steps with Poisson sampling
   at rate q and noise multiplier z, each a score; 1,000 scores of each world. Beside
   it the bounds that know nothing of sampling: GDP, whose curve is another, and (ε, δ)-CP.
2. Bayes and Katz: randomised response, whose error rates lie on the corner of the (ε, 0) region,
   and the Gaussian mechanism (z = 1), with few and with many scores of each world.

Measured (2026-11-23, two shared cores)::

    1. 1000 audits         true ε   f-DP above  mean   GDP above  mean    CP above  mean
       z=1.0 q= 1.0 T= 1     4.38        0.3%   3.51       0.3%   3.51       0.0%   1.39
       z=1.0 q= 1.0 T=10    17.86        0.2%  15.94       0.2%  15.94       0.0%   4.46
       z=0.5 q=0.25 T= 1     7.95        0.0%   4.93       0.0%   0.68       0.0%   0.54
       z=1.0 q= 0.1 T=10     2.85        0.0%   0.71       0.0%   0.51       0.0%   0.16 †
    2. 1000 audits             n=   30 above  mean
       response, CP                     0.0%  1.54
       response, Bayes                  7.7%  2.48
       response, Katz                   0.0%  1.07
       Gaussian, GDP-CP                 0.0%  0.35
       Gaussian, GDP-Bayes              4.8%  1.76

†: 400 audits. The second table's columns of 100 and 1,000 scores were not run to the end.
"""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Callable

import numpy as np

from fl_epe.accounting import gaussian_epsilon
from fl_epe.auditing import Scores
from fl_epe.auditing.bounds import lower_bound
from simulations.nasr_2023.other_bounds import any_lower_bound
from simulations.nasr_2023.sampled_gaussian import poisson_epsilon_below
from simulations.nasr_2023.subsampled_bounds import subsampled_lower_bound

DELTA = 1e-5
RUNS = ((1.0, 1.0, 1), (1.0, 1.0, 10), (0.5, 0.25, 1), (1.0, 0.1, 10))
"""z, q and T of the first table."""

ANSWER = 3.0
"""ε of randomised response."""

COUNTS = (30, 100, 1000)
"""Scores of each world in the second table."""

Found = tuple[float, float]


def sampled_runs(
    noise: float, rate: float, steps: int, count: int, rng: np.random.Generator
) -> Scores:
    """One score for each of ``count`` runs in each world: the sum of the noisy steps."""
    participations = rng.binomial(steps, rate, count)
    spread = noise * math.sqrt(steps)
    return Scores(
        participations + spread * rng.standard_normal(count),
        spread * rng.standard_normal(count),
    )


def answers(epsilon: float, count: int, rng: np.random.Generator) -> Scores:
    """Randomised response: a right answer with probability e^ε / (1 + e^ε), a little blurred."""
    right = 1 / (1 + math.exp(-epsilon))
    blur = 1e-3 * rng.standard_normal((2, count))
    return Scores(
        (rng.random(count) < right) + blur[0],
        (rng.random(count) >= right) + blur[1],
    )


def share(
    truth: float,
    audits: int,
    draw: Callable[[], Scores],
    bound: Callable[[Scores], float],
) -> Found:
    """Share of audits whose bound exceeds the truth, and the mean bound."""
    bounds = [bound(draw()) for _ in range(audits)]
    return float(np.mean([epsilon > truth for epsilon in bounds])), float(
        np.mean(bounds)
    )


def subsampled(
    noise: float, rate: float, steps: int, audits: int
) -> dict[str, Found]:
    """Each bound's shares for runs with sampling."""
    truth = poisson_epsilon_below(noise, rate, steps, DELTA)
    bounds: dict[str, Callable[[Scores], float]] = {
        "f-DP": lambda s: subsampled_lower_bound(
            s, DELTA, sampling_rate=rate, steps=steps
        ),
        "GDP": lambda s: lower_bound(s, DELTA, method="gdp"),
        "CP": lambda s: lower_bound(s, DELTA),
    }
    shares = {}
    for name, bound in bounds.items():
        rng = np.random.default_rng(1)
        draw = functools.partial(sampled_runs, noise, rate, steps, 1000, rng)
        shares[name] = share(truth, audits, draw, bound)
    return shares


def credible(count: int, audits: int) -> dict[str, Found]:
    """Shares of bounds that are not valid, and of a valid one, with ``count`` scores a world."""
    shares = {}
    for name, method, delta in (
        ("response, CP", "clopper-pearson", DELTA),
        ("response, Bayes", "bayesian", DELTA),
        ("response, Katz", "katz-log", 0.0),
        ("Gaussian, GDP-CP", "gdp", DELTA),
        ("Gaussian, GDP-Bayes", "bayesian-gdp", DELTA),
    ):
        rng = np.random.default_rng(2)
        truth = (
            ANSWER
            if name.startswith("response")
            else gaussian_epsilon(1.0, DELTA)
        )

        def draw(name: str = name, rng: np.random.Generator = rng) -> Scores:
            if name.startswith("response"):
                return answers(ANSWER, count, rng)
            return sampled_runs(1.0, 1.0, 1, count, rng)

        def bound(
            scores: Scores, method: str = method, delta: float = delta
        ) -> float:
            return any_lower_bound(scores, delta, method=method)

        shares[name] = share(truth, audits, draw, bound)
    return shares


def main(audits: int = 1000, say: Callable[[str], None] = print) -> None:
    """Print both tables.

    Args:
        audits: of each row.
        say: takes a line.
    """
    say(
        f"1. {audits} audits         true ε   f-DP above  mean   GDP above  mean    CP above  mean"
    )
    for noise, rate, steps in RUNS:
        truth = poisson_epsilon_below(noise, rate, steps, DELTA)
        cells = subsampled(noise, rate, steps, audits).values()
        row = "".join(f"  {above:9.1%} {mean:6.2f}" for above, mean in cells)
        say(f"   z={noise:3} q={rate:4} T={steps:2} {truth:8.2f} {row}")
    say(
        f"2. {audits} audits           "
        + "".join(f"  n={count:5} above  mean" for count in COUNTS)
    )
    columns = [credible(count, audits) for count in COUNTS]
    for name in columns[0]:
        pairs = [column[name] for column in columns]
        row = "".join(f"  {above:13.1%} {mean:5.2f}" for above, mean in pairs)
        say(f"   {name:20} {row}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="How often do bounds exceed the truth?"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a few audits of each kind"
    )
    main(20 if parser.parse_args().quick else 1000)
