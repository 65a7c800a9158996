"""b-min-sep: what coins with rests leak, by Monte Carlo of the exact ratio, beside the bound.

    python simulations/studies/b_min_sep.py [--draws 200000]

Each client tosses a coin in every round, but rests for b − 1 rounds after taking part. The
package's bound is that of coins of which the first head of each block of b rounds counts (proof:
docs/notes/unknown-rounds.md). Here the likelihood ratio itself is computed, by a forward recursion
over when a client took part last, of drawn scores: ε of it with its 99.9% interval, by drawn
losses. Beside it stand ε of the bound, and of Poisson sampling at the same rate. No bound may lie
below an interval.

Expected output, about four minutes on one core: the table in docs/notes/unknown-rounds.md.
"""

import argparse

import numpy as np
from drawn_losses import epsilon_of
from numpy.typing import NDArray

from fl_epe.accounting import poisson_epsilon, tightest, upper_bounds
from fl_epe.schedules import Schedule, make_schedule, presence

Floats = NDArray[np.float64]

DELTA = 1e-3
AT_ONCE = 20_000
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


def log_ratios(scores: Floats, chances: Floats, separation: int, signal: float) -> Floats:
    """Logarithm of the likelihood ratio of a client who rests after taking part.

    Args:
        scores: of each round, N(0, 1) without the client, ``(T, draws)``.
        chances: of the coin of a client who has rested, ``(T,)``.
        separation: b.
        signal: what the client adds to the score of its rounds.
    """
    rested = np.ones(scores.shape[1])
    resting = [np.zeros(scores.shape[1])] * (separation - 1)
    logs = np.zeros(scores.shape[1])
    for score, chance in zip(scores, chances, strict=True):
        resting.append(rested * chance * np.exp(signal * score - signal**2 / 2))
        rested = rested * (1 - chance) + resting.pop(0)
        total = rested + sum(resting)
        logs += np.log(total)
        rested = rested / total
        resting = [part / total for part in resting]
    return logs


def by_drawing(schedule: Schedule, noise: float, draws: int) -> tuple[float, float]:
    """ε by drawn privacy losses, the larger of both directions, and its standard error."""
    events = schedule.law(draws).events
    assert events is not None
    rng = np.random.default_rng(44)
    losses: list[list[Floats]] = [[], []]
    for _ in range(-(-draws // AT_ONCE)):
        scores = rng.standard_normal((schedule.rounds, AT_ONCE))
        rounds = presence(schedule, AT_ONCE, rng)
        law = events.chances, events.rest, 1 / noise
        losses[0].append(log_ratios(scores + rounds / noise, *law))
        losses[1].append(-log_ratios(scores, *law))
    return max(epsilon_of(np.concatenate(each), DELTA) for each in losses)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200_000)
    draws = parser.parse_args().draws
    print("| rounds | participations | b | z | Monte Carlo, 99.9% | the bound | Poisson |")
    print("|---|---|---|---|---|---|---|")
    for rounds, often, separation, noise in GRID:
        schedule = make_schedule(f"b-min-sep:separation={separation}", rounds, often)
        found = upper_bounds(schedule.law(1000), noise, DELTA)
        bound = tightest(found, rounds_known=False).epsilon
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
