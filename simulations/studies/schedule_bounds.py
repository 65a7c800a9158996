"""Is every analytical ε of a schedule above the exact ε, and do drawn clients agree with it?

    python simulations/studies/schedule_bounds.py    # a minute on one core

Ten schedules, four noise multipliers, three numbers P of participations, in T = P rounds (everybody
in every round) and in more. For each of them the analytical ε must not be below
ε of the same adversary and the same client, a client drawn at random. ε itself is compared with
clients that the schedule draws: the mean of their δ is at most the target at ε, and at least the
target at 99.9% of it (laws are rounded up), within three standard errors of that mean over
independent populations.

Expected::

    P    T     cells  impossible  below exact  beyond 3 errors
    1    1        40           8            0                0
    1    4        40           0            0                0
    4    4        40           8            0                0
    4    16       40           0            0                0
    16   16       40           8            0                0
    16   64       40           0            0                0
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from fl_epe.accounting import delta_two_gaussians
from fl_epe.schedules import log_of, make_schedule, presence, trace_of
from simulations.studies.average_clients import (
    Epsilon,
    Row,
    rows_of,
    weights_of,
)

NOISES, PARTICIPATIONS, MORE = (0.5, 1.0, 2.0, 5.0), (1, 4, 16), (1, 4)
CLIENTS, DELTA, MOMENTUM = 120, 1e-3, 0.9


def schedules(
    participations: int, rounds: int, folder: Path
) -> tuple[str, ...]:
    """One specification of each of the 12 kinds; a log with the same participations."""
    path = folder / f"log-{participations}-{rounds}.csv"
    rng = np.random.default_rng(1)
    share = (
        rng.permutation(np.linspace(0.5, 1.5, CLIENTS))
        if rounds > participations
        else 1.0
    )
    is_present = rng.random((rounds, CLIENTS)) < share * participations / rounds
    is_present[0, ~is_present.any(axis=0)] = True
    rows = "".join(
        f"{t},{client}\n" for t, client in np.argwhere(is_present).tolist()
    )
    path.write_text("round,client_id\n" + rows)
    pause = max(rounds // participations // 2, 1)
    return (
        "epochs", "poisson", "fixed-size", f"min-separation:separation={pause}", "cyclic",
        'device-classes:{"rates": [2, 1], "shares": [0.2, 0.8]}', "balls-in-bins",
        f"trace:path={path}", "drop-out:of=epochs,rate=0.2", "capped:of=poisson,per_run=6",
    )  # fmt: skip


def measure(spec: str, participations: int, rounds: int) -> list[Row]:
    """The rows of one schedule, one for each noise; of a log at its own numbers."""
    mean: float = participations
    if (log := log_of(spec)) is not None:
        rounds, mean = log[0].rounds, log[1]
    return list(
        rows_of(
            (spec,),
            NOISES,
            mean,
            rounds,
            clients=CLIENTS,
            delta=DELTA,
            momentum=MOMENTUM,
        )
    )


def deviations(row: Row, rounds: int, runs: int) -> list[float]:
    """Standard errors by which drawn clients have an ε outside of 99.9% to 100% of the row's."""
    schedule = make_schedule(row.schedule, rounds, row.participations)
    trace = trace_of(schedule)
    clients = CLIENTS if trace is None else trace.population
    rng = np.random.default_rng(7)
    final, all_rounds = weights_of(
        schedule, row.noise_multiplier, DELTA, MOMENTUM
    )
    presences = np.array(
        [presence(schedule, clients, rng) for _ in range(runs)]
    )
    deviations_of = []
    for value, sizes in (
        (row.final, np.tensordot(final, presences, (0, 1))),
        (row.every_round, np.sqrt(np.tensordot(all_rounds, presences, (0, 1)))),
    ):
        assert value is not None
        for epsilon, side in (
            (value.epsilon, 1),
            (0.999 * value.epsilon, -1),
        ):  # rounded up
            means = np.asarray(
                delta_two_gaussians(0, 1, sizes, 1, epsilon)
            ).mean(axis=1)
            error = max(float(means.std(ddof=1)) / np.sqrt(runs), 1e-9 * DELTA)
            if value.epsilon > 0 or side > 0:
                deviations_of.append(
                    max(side * float(means.mean() - DELTA) / error, 0.0)
                )
    return deviations_of


def below(row: Row) -> int:
    """How many analytical ε of a row are below the exact one of the same adversary."""
    parts: list[Epsilon | None] = [
        row.final,
        row.every_round,
        row.unknown_rounds,
    ]
    return sum(
        part is not None and part.analytical.epsilon < part.epsilon * (1 - 1e-7)
        for part in parts
    )


def main(
    participations: Iterable[int] = PARTICIPATIONS,
    more: Iterable[int] = MORE,
    runs: int = 200,
    say: Callable[[str], object] = print,
) -> int:
    """Print the table; the number of cells in which something is wrong."""
    say(
        f"{'P':<5}{'T':<6}{'cells':>5}{'impossible':>12}{'below exact':>13}{'beyond 3 errors':>17}"
    )
    wrong = 0
    for times in participations:
        for factor in more:
            rounds = times * factor
            with tempfile.TemporaryDirectory() as folder:
                rows, far, low = [], 0, 0
                for spec in schedules(times, rounds, Path(folder)):
                    result = measure(spec, times, rounds)
                    rows += result
                    log = log_of(spec)
                    length = rounds if log is None else log[0].rounds
                    for row in result:
                        if row.skipped is None:
                            low += below(row)
                            far += sum(
                                t > 3 for t in deviations(row, length, runs)
                            )
            skipped = sum(row.skipped is not None for row in rows)
            say(
                f"{times:<5}{rounds:<6}{len(rows):>5}{skipped:>12}{low:>13}{far:>17}"
            )
            wrong += low + far
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--runs", type=int, default=200, help="populations that are drawn"
    )
    main(runs=parser.parse_args().runs)
