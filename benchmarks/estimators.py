"""Bias, spread and coverage of the estimates of ε, and failures of the lower bounds.

    python benchmarks/estimators.py             # the whole table, about ten minutes on one core
    python benchmarks/estimators.py --runs 200  # a quick look

k = 1000 observed scores N(μ, 1) against the exact null N(0, 1), δ = 10⁻⁶, μ such that ε is true.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from fl_epe import epsilon_from_cosines, epsilon_two_gaussians

DELTA, COUNT, DIM = 1e-6, 1000, 10**6
TRUE = (0.0, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


def shift_of(epsilon: float) -> float:
    """The μ at which two unit Gaussians have that ε."""
    if epsilon == 0:
        return 0.0

    def gap(shift: float) -> float:
        return float(np.asarray(epsilon_two_gaussians(0, 1, shift, 1, DELTA))) - epsilon

    return float(optimize.brentq(gap, 1e-6, 60.0, xtol=1e-13))


def simulate(shift: float, variance: str, runs: int) -> NDArray[np.float64]:
    """Estimate, low and high of each run, shape ``(runs, 3)``."""
    rng = np.random.default_rng((int(1e6 * shift), len(variance)))
    rows = []
    for _ in range(runs):
        cosines = rng.normal(shift, 1, COUNT) / np.sqrt(DIM)
        estimate = epsilon_from_cosines(cosines, DIM, DELTA, variance=variance)
        rows.append((estimate.epsilon, estimate.low, estimate.high))
    return np.array(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=2000, help="simulated runs a cell")
    runs = parser.parse_args().runs
    print(f"{runs} runs, k = {COUNT}, δ = {DELTA:g}")
    print("true ε   variance      bias       sd      rmse   ratio   coverage")
    for epsilon in TRUE:
        errors = {}
        for variance in ("known", "fitted"):
            rows = simulate(shift_of(epsilon), variance, runs)
            values, low, high = rows.T
            errors[variance] = np.sqrt(np.mean((values - epsilon) ** 2))
            ratio = errors[variance] / errors["known"]
            cover = np.mean((low <= epsilon) & (epsilon <= high))
            print(
                f"{epsilon:6g}   {variance:8} {values.mean() - epsilon:+9.4f} "
                f"{values.std(ddof=1):8.4f} {errors[variance]:9.4f} {ratio:7.2f} {cover:10.4f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
