"""b-min-sep: what coins with rests leak, by Monte Carlo of the exact ratio, beside the bound.

    python simulations/studies/b_min_sep.py [--draws 200000]

Each client tosses a coin in every round, but rests for b − 1 rounds after taking part. The
package's bound is that of coins of which the first head of each block of b rounds counts (proof:
docs/notes/unknown-rounds.md). Here the likelihood ratio itself is computed, by a forward recursion
over when a client took part last, of drawn scores: ε of it with its 99.9% interval, by drawn
losses. Beside it stand ε of the bound, and of Poisson sampling at the same rate. No bound may lie
below an interval.

Expected output, half a minute on one core: the table in docs/notes/unknown-rounds.md.
"""

import argparse

import numpy as np

from fl_epe.accounting import poisson_epsilon, tightest, upper_bounds
from fl_epe.accounting.drawn_losses import secret_rounds
from fl_epe.schedules import Schedule, make_schedule
from simulations.studies.drawn_losses import epsilon_of

DELTA = 1e-3
ERRORS = 3.29  # standard errors of an interval of 99.9%
# Rounds, participations, separation, noise.
GRID = (
    (24, 1.2, 4, 1.0),
    (24, 3.0, 4, 1.0),
    (24, 4.8, 4, 1.0),
    (24, 5.8, 4, 1.0),
    (96, 1.0, 24, 0.7),
    (96, 3.0, 24, 0.7),
    (96, 4.0, 8, 0.7),
    (96, 4.0, 8, 2.0),
    (96, 9.6, 8, 1.0),
    (200, 4.0, 10, 0.6),
    (200, 10.0, 10, 1.0),
    (200, 10.0, 10, 3.0),
)


def by_drawing(
    schedule: Schedule, noise: float, draws: int
) -> tuple[float, float]:
    """ε by drawn privacy losses, the larger of both directions, and its standard error."""
    rounds = secret_rounds(schedule.law(draws), None, noise)
    assert rounds is not None
    losses = rounds.losses(draws, np.random.default_rng(44))
    return max(epsilon_of(direction, DELTA) for direction in losses)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200_000)
    draws = parser.parse_args().draws
    print(
        "| rounds | participations | b | z | Monte Carlo, 99.9% | the bound | Poisson |"
    )
    print("|---|---|---|---|---|---|---|")
    for rounds, often, separation, noise in GRID:
        schedule = make_schedule(
            f"b-min-sep:separation={separation}", rounds, often
        )
        bounds = upper_bounds(schedule.law(1000), noise, DELTA)
        bound = tightest(bounds, rounds_known=False).epsilon
        coins = poisson_epsilon(noise, often / rounds, rounds, DELTA)
        epsilon, error = by_drawing(schedule, noise, draws)
        reach = ERRORS * error
        verdict = "" if epsilon - reach <= bound else " BELOW"
        print(
            f"| {rounds} | {often:g} | {separation} | {noise:g} | {epsilon:.3f} ± {reach:.3f}"
            f" | {bound:.3f}{verdict} | {coins:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
