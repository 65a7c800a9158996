"""Our ε of secret rounds beside jax_privacy's and dp_accounting's, in 20 settings.

    python -m venv peers && peers/bin/pip install jax-privacy==2.0.0
    PYTHONPATH=. peers/bin/python simulations/studies/peer_accountants.py [--draws 100000]

In an environment of its own, as the package needs no jax; its development head is compared in the
same way, with a checkout first on the path. Theirs is the privacy loss distribution of coins, of
coins in cyclic order under banded noise, and of units of several records (mixtures of Gaussians),
or ε of drawn losses of balls-in-bins and b-min-sep, with and without banded noise. Numbers agree if
they are within 1%, or within three standard errors of both where losses are drawn.

Expected output, a quarter of an hour on one core: the table in docs/notes/unknown-rounds.md, and
"20 of 20 agree".
"""

import argparse
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from fl_epe.accounting import (
    drawn_epsilon,
    hidden_rounds_epsilon,
    poisson_epsilon,
    strategy_bounds,
    tightest,
)
from fl_epe.accounting.drawn_losses import secret_rounds
from fl_epe.schedules import Events, ParticipationLaw, make_schedule
from simulations.studies.drawn_losses import epsilon_of

Floats = NDArray[np.float64]
# Name; theirs and its standard error; ours and its standard error; our bound with 99.9% confidence.
Setting = tuple[str, float, float, float, float, float]

CLIENTS = 9600
CLOSE = 0.01
ERRORS = 3.0

COINS = (
    (1.0, 0.1, 60, 1e-5),
    (0.6, 0.01, 500, 1e-6),
    (2.0, 0.3, 200, 1e-5),
    (0.8, 0.5, 10, 1e-3),
)
BANDED_COINS = (
    (64, 2, 16, 0.5, 1.0, 1e-5),
    (96, 3, 8, 0.75, 0.7, 1e-6),
    (120, 5, 12, 0.5, 2, 1e-4),
)
RECORDS = (
    (3, 0.1, 20, 1.5, 1e-5),
    (5, 0.02, 100, 2.0, 1e-5),
    (2, 0.3, 10, 0.8, 1e-4),
)
BINS = (
    (16, 1, 0.8, 1e-2),
    (64, 1, 0.6, 1e-3),
    (64, 4, 0.8, 1e-2),
    (128, 8, 0.6, 1e-3),
)
# Rounds, participations, separation, bands, noise, δ.
SEPARATED = (
    (24, 3.0, 4, 1, 1.0, 1e-3),
    (96, 4.0, 8, 1, 0.7, 1e-3),
    (96, 4.0, 8, 8, 0.7, 1e-3),
    (96, 9.6, 8, 4, 1.0, 1e-3),
    (200, 10.0, 10, 10, 1.0, 1e-3),
    (200, 10.0, 10, 4, 3.0, 1e-2),
)


def banded_column(bands: int) -> Floats:
    """The first column of the square root of prefix sums, cut to some bands, of length 1."""
    column = np.cumprod(
        [1.0, *((2 * k - 1) / (2 * k) for k in range(1, bands))]
    )
    return np.asarray(column / np.linalg.norm(column))


def strategy_of(bands: int, rounds: int) -> Floats:
    column = np.append(banded_column(bands), np.zeros(rounds - bands))
    return np.asarray(scipy.linalg.toeplitz(column, np.zeros(rounds)))


def by_distribution(accounting: Any, dp_accounting: Any) -> Iterator[Setting]:
    """Settings in which theirs is a privacy loss distribution."""

    def epsilon(event: Any, delta: float) -> float:
        accountant = dp_accounting.pld.PLDAccountant(
            value_discretization_interval=1e-4
        )
        return float(accountant.compose(event).get_epsilon(delta))

    for z, rate, rounds, delta in COINS:
        event = accounting.dpsgd_event(z, rounds, sampling_prob=rate)
        ours = poisson_epsilon(z, rate, rounds, delta)
        yield (
            f"coins {rate:g}, T = {rounds}, z = {z:g}",
            epsilon(event, delta),
            0,
            ours,
            0,
            0,
        )
    for rounds, often, bands, rate, z, delta in BANDED_COINS:
        event = accounting.amplified_bandmf_event(
            z, rounds, num_bands=bands, sampling_prob=1 - rate
        )
        law = make_schedule(
            f"drop-out:of=cyclic,rate={rate}", rounds, often
        ).law(CLIENTS)
        bounds = strategy_bounds(law, strategy_of(bands, rounds), z, delta)
        ours = tightest(bounds, rounds_known=False).epsilon
        name = (
            f"cyclic coins {1 - rate:g}, T = {rounds}, {bands} bands, z = {z:g}"
        )
        yield name, epsilon(event, delta), 0, ours, 0, 0
    for records, rate, rounds, z, delta in RECORDS:
        times = np.arange(records + 1.0)
        chances = scipy.stats.binom.pmf(times, records, rate)
        mixture = dp_accounting.dp_event.MixtureOfGaussiansDpEvent(
            z, times.tolist(), chances.tolist()
        )
        event = dp_accounting.SelfComposedDpEvent(mixture, rounds)
        events = Events.steps([np.ones(1)] * rounds, [rate] * rounds, records)
        ours = hidden_rounds_epsilon(events, np.full(rounds, 1 / z), delta)
        name = f"{records} records, coins {rate:g}, T = {rounds}, z = {z:g}"
        yield name, epsilon(event, delta), 0, ours, 0, 0


def by_drawing(
    selection: Any, generation: Any, draws: int
) -> Iterator[Setting]:
    """Settings in which theirs is drawn."""

    def theirs(
        strategy: Any, z: float, bands: int, delta: float
    ) -> tuple[float, float]:
        losses = [
            np.concatenate(
                [
                    np.asarray(
                        generation.get_privacy_loss_sample(
                            strategy,
                            z,
                            banded_column(bands),
                            seed,
                            present,
                            20_000,
                        )[0]
                    )
                    for seed in range(
                        2 * int(not present), 2 * draws // 20_000, 2
                    )
                ]
            )
            for present in (True, False)
        ]
        return max(epsilon_of(direction, delta) for direction in losses)

    def ours(
        law: ParticipationLaw, z: float, bands: int, delta: float
    ) -> tuple[float, ...]:
        strategy = strategy_of(bands, law.rounds)
        chain = secret_rounds(law, strategy, z)
        assert chain is not None
        losses = chain.losses(draws, np.random.default_rng(5))
        bound = drawn_epsilon(law, strategy, z, delta, draws=draws, seed=0)
        assert bound is not None
        return (
            *max(epsilon_of(direction, delta) for direction in losses),
            bound,
        )

    for rounds, bands, z, delta in BINS:
        strategy = selection.BallsInBinsSampling(
            cycle_length=rounds, iterations=rounds
        )
        law = make_schedule("balls-in-bins", rounds, 1).law(CLIENTS)
        name = f"one round of {rounds}, {bands} bands, z = {z:g}"
        setting = z, bands, delta
        yield (name, *theirs(strategy, *setting), *ours(law, *setting))  # type: ignore[misc]
    for rounds, often, separation, bands, z, delta in SEPARATED:
        rate = often / rounds
        coin = rate / (1 - (separation - 1) * rate)
        strategy = selection.BMinSepSampling(
            sampling_prob=coin, iterations=rounds, min_sep=separation
        )
        law = make_schedule(
            f"b-min-sep:separation={separation}", rounds, often
        ).law(CLIENTS)
        name = f"b-min-sep {separation}, {often:g} of {rounds}, {bands} bands, z = {z:g}"
        setting = z, bands, delta
        yield (name, *theirs(strategy, *setting), *ours(law, *setting))  # type: ignore[misc]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=100_000)
    draws = parser.parse_args().draws
    import dp_accounting
    from jax_privacy import batch_selection
    from jax_privacy.experimental.monte_carlo import sample_generation

    try:
        from jax_privacy.experimental import accounting
    except ImportError:  # its development head
        from jax_privacy import accounting
    agree = 0
    print("| setting | theirs | ours | our bound, 99.9% |\n|---|---|---|---|")
    settings = itertools.chain(
        by_distribution(accounting, dp_accounting),
        by_drawing(batch_selection, sample_generation, draws),
    )
    count = 0
    for name, their, their_error, our, our_error, bound in settings:
        count += 1
        alike = abs(our - their) <= max(
            CLOSE * their, ERRORS * math.hypot(their_error, our_error)
        )
        agree += alike
        spread = [
            f" ± {error:.3f}" if error else ""
            for error in (their_error, our_error)
        ]
        limit = f"{bound:.3f}" if bound else "–"
        print(
            f"| {name} | {their:.3f}{spread[0]} | {our:.3f}{spread[1]} | {limit} |"
            f"{'' if alike else ' DIFFERS'}",
            flush=True,
        )
    print(f"{agree} of {count} agree")


if __name__ == "__main__":
    main()
