"""k out of t: how much less noise than Poisson sampling it needs for the same ε.

    python simulations/studies/random_allocation.py [--draws 200000]

Each client takes part in exactly k of t rounds, a uniform subset that nobody sees (Feldman and
Shenfeld 2025). The package's bound is that of one uniform round in each of k blocks, which loses at
least as much. For each k, t and ε it prints the noise that Poisson sampling needs at the rate k/t,
the noise by the bound, and how much less that is; then at that noise ε of the exact likelihood
ratio, by drawn scores (elementary symmetric polynomials), with its standard error: no bound may be
below it. The rest of the way from there to ε is what the bound gives up.

Expected output, about five minutes on one core: the table in docs/notes/unknown-rounds.md.
"""

import argparse
import math

import numpy as np
from numpy.typing import NDArray

from fl_epe.accounting import noise_at, poisson_epsilon, tightest, upper_bounds
from fl_epe.schedules import make_schedule
from simulations.studies.drawn_losses import epsilon_of

Floats = NDArray[np.float64]

DELTA = 1e-3
GRID = ((12, 1), (12, 3), (12, 6), (64, 1), (64, 4), (64, 16), (256, 4))
TARGETS = (0.5, 2.0, 8.0)


def log_ratio(scores: Floats, signal: float, count: int) -> Floats:
    """Logarithm of the likelihood ratio of a uniform subset, from scores ``(draws, t)``."""
    draws, rounds = scores.shape
    sums = np.full((count + 1, draws), -np.inf)
    sums[0] = 0.0
    for t in range(rounds):
        term = signal * scores[:, t] - signal**2 / 2
        for j in range(min(count, t + 1), 0, -1):
            sums[j] = np.logaddexp(sums[j], sums[j - 1] + term)
    return np.asarray(sums[count] - math.log(math.comb(rounds, count)))


def exact(
    rounds: int, count: int, noise: float, draws: int
) -> tuple[float, float]:
    """ε by drawn privacy losses in both directions, and its standard error."""
    rng = np.random.default_rng(44)
    scores = rng.standard_normal((draws, rounds))
    chosen = np.argsort(rng.random((draws, rounds)), axis=1)[:, :count]
    present = scores.copy()
    np.put_along_axis(
        present, chosen, np.take_along_axis(present, chosen, 1) + 1 / noise, 1
    )
    losses = (
        log_ratio(present, 1 / noise, count),
        -log_ratio(scores, 1 / noise, count),
    )
    return max(epsilon_of(direction, DELTA) for direction in losses)


def noises(rounds: int, count: int, epsilon: float) -> tuple[float, float]:
    """The noise that Poisson sampling and the bound need for an ε."""
    law = make_schedule("k-out-of-t", rounds, count).law(1000)

    def bound(noise: float) -> float:
        return tightest(
            upper_bounds(law, noise, DELTA), rounds_known=False
        ).epsilon

    def coins(noise: float) -> float:
        return poisson_epsilon(noise, count / rounds, rounds, DELTA)

    return noise_at(coins, epsilon), noise_at(bound, epsilon)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200_000)
    draws = parser.parse_args().draws
    print("   t   k    ε  noise: Poisson  bound  less   exact ε there")
    for rounds, count in GRID:
        for target in TARGETS:
            coins, ours = noises(rounds, count, target)
            epsilon, error = exact(rounds, count, ours, draws)
            print(
                f"{rounds:4} {count:3} {target:4g}  {coins:14.3f}  {ours:5.3f}"
                f"  {1 - ours / coins:5.1%}  {epsilon:6.3f} ± {error:5.3f}"
                f"{'' if epsilon - 3 * error <= target else '  ABOVE'}",
                flush=True,
            )


if __name__ == "__main__":
    main()
