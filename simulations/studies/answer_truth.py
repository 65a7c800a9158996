"""How true the answer of an audit is: coverage, mean and proof in thousands of simulated runs.

Each cell is a schedule with its real clients and the default canaries beside them, at most 10% of a
round, in the high-dimensional limit (`fl_epe.limit.limit_record`). The truth is ε of the client of
the answer at κ = 1. Printed are the coverage of the 95% interval, the mean of the estimate of μ
(known rounds) or ε over the truth, how often the 95% proof is above it, and how often the tests of
the ladder find something where nothing is to be found.

    python simulations/studies/answer_truth.py [--runs 2000] [--power]

With ``--power`` the final model forgets half over the run, or scores grow half as much with the
number of participations: how often the two tests find it, and what power they said.
"""

import argparse
import dataclasses
import math
import multiprocessing
from collections.abc import Callable

import numpy as np

from fl_epe.auditing import (
    EVERY_ROUND,
    FINAL_MODEL,
    AuditedClient,
    AuditRecord,
    RoundCorrelation,
    answers,
    client_epsilon,
    seen_by,
)
from fl_epe.limit import limit_record
from fl_epe.schedules import Schedule, make_schedule

DELTA, NOISE = 1e-5, 1.0


@dataclasses.dataclass(frozen=True)
class Cell:
    """A schedule and its clients; ``places`` of canaries beside them."""

    name: str
    schedule: str
    rounds: int
    participations: float
    clients: int = 120
    places: int = 13

    def made(self) -> Schedule:
        """Its schedule."""
        return make_schedule(self.schedule, self.rounds, self.participations)


CELLS = (
    Cell("R = 0.3", "epochs", 60, 0.3, 1200, 130),
    Cell("R = 1", "epochs", 60, 1),
    Cell("R = 4", "epochs", 60, 4),
    Cell("R = 12", "epochs", 60, 12),
    Cell("R = 30, everyone", "epochs", 30, 30),
    Cell("R = 30, one place", "epochs", 30, 30, 10, 1),
    Cell(
        "uneven",
        'device-classes:{"rates": [1, 4], "shares": [0.5, 0.5]}',
        60,
        6,
    ),
    Cell("min-separation", "min-separation:separation=5", 60, 6),
    Cell("Poisson", "poisson", 60, 6),
    Cell("fixed-size", "fixed-size", 60, 6),
    Cell("balls-in-bins", "balls-in-bins", 60, 6),
    Cell("many, R = 1", "epochs", 60, 1, 12_000, 1300),
    Cell("many, R = 4", "epochs", 60, 4, 12_000, 1300),
    Cell("many, Poisson", "poisson", 60, 6, 12_000, 1300),
)


def record_of(cell: Cell, seed: int) -> AuditRecord:
    """A simulated run."""
    return limit_record(
        cell.made(),
        NOISE,
        DELTA,
        num_canaries=cell.places,
        unobserved=1000
        if cell.schedule in ("poisson", "fixed-size", "balls-in-bins")
        else 2,
        beside=cell.clients,
        momentum=0.0,
        seed=seed,
    )


def run(task: tuple[Cell, int]) -> list[tuple[float, ...]]:
    """Of both adversaries: truth, ε, low, high, proof, and both tests' p-values."""
    cell, seed = task
    record = record_of(cell, seed)
    rows: list[tuple[float, ...]] = []
    client = AuditedClient.of(record)
    for answer, adversary in zip(
        answers(record), (FINAL_MODEL, EVERY_ROUND), strict=True
    ):
        view = seen_by(record, adversary)
        truth = client_epsilon(view, client, 1.0, DELTA)
        fit, estimate = answer.fit, answer.estimate
        if fit is None or estimate is None:
            raise ValueError(answer.reason)
        rows.append(
            (
                truth,
                estimate.epsilon,
                estimate.low,
                estimate.high,
                answer.proved or 0.0,
                1.0
                if fit.intercept_test is None
                else fit.intercept_test.p_value,
                1.0 if fit.trend_test is None else fit.trend_test.p_value,
            )
        )
    return rows


def table(cell: Cell, runs: int, pool: "multiprocessing.pool.Pool") -> None:
    """Print the two lines of a cell."""
    values = np.array(
        pool.map(run, [(cell, seed) for seed in range(runs)], chunksize=20)
    )
    for sees, rows in zip(
        ("final", "every"), values.transpose(1, 0, 2), strict=True
    ):
        truth, epsilon, low, high, proved, number, time = rows.T
        covered = np.mean((low <= truth) & (truth <= high))
        ratio = epsilon / truth
        print(
            f"{cell.name:18s} {sees:6s} truth {truth.mean():7.3f}  mean/truth "
            f"{epsilon.mean() / truth.mean():.3f} ± {ratio.std() / math.sqrt(runs):.3f}  "
            f"coverage {covered:.1%}  proved {np.median(proved):6.2f}  above "
            f"{np.mean(proved > truth):.1%}  tests {np.mean(number < 0.01):.1%} "
            f"{np.mean(time < 0.01):.1%}",
            flush=True,
        )


def changed(
    record: AuditRecord, factor: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> AuditRecord:
    """The record with what canaries added times a factor of their expected scores and rounds.

    Expected scores are in units of one participation: n for the final model, √n for every round's.
    """
    presence, root = record.presence, math.sqrt(record.dim)
    count = np.maximum(presence.sum(axis=0), 1)
    times = ((np.arange(record.rounds) + 0.5) / record.rounds)[:, None]
    final = (
        seen_by(record).expected_scores.by_round[:, None]
        * presence
        * (factor(count, times) - 1)
    )
    every = presence * (factor(np.sqrt(count), times) - 1)
    every = (
        every
        * np.sqrt(seen_by(record, EVERY_ROUND).expected_scores.by_round)[
            :, None
        ]
    )
    return record.with_values(
        **{
            "observed.displacement": record.observed.displacement
            + final.sum(axis=0) / root,
            "observed.means": record.observed.means + every / root,
            "correlation": RoundCorrelation(np.ones((record.rounds, 1))),
        }
    )


def forgets(_: np.ndarray, time: np.ndarray) -> np.ndarray:
    """The first round leaves half of what the last one does."""
    return 0.5 + 0.5 * time


def grows(expected: np.ndarray, _: np.ndarray) -> np.ndarray:
    """Half of the growth from one participation on is left."""
    return np.asarray((1 + (expected - 1) / 2) / expected)


def power(task: tuple[Cell, int]) -> list[float]:
    """Of both adversaries and both changes: whether it was found, and the power that was said."""
    cell, seed = task
    record, powers = record_of(cell, seed), []
    for name, change in (("trend_test", forgets), ("intercept_test", grows)):
        for answer in answers(changed(record, change)):
            test = getattr(answer.fit, name)
            powers += (
                [math.nan, math.nan]
                if test is None
                else [test.rejects(), test.power]
            )
    return powers


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--power", action="store_true")
    parser.add_argument(
        "--cells", nargs="*", help="beginnings of names; all by default"
    )
    options = parser.parse_args()
    cells = [
        c
        for c in CELLS
        if not options.cells or c.name.startswith(tuple(options.cells))
    ]
    with multiprocessing.Pool() as pool:
        for cell in cells:
            if not options.power:
                table(cell, options.runs, pool)
                continue
            tasks = [(cell, seed) for seed in range(options.runs)]
            mean = np.mean(pool.map(power, tasks, chunksize=20), axis=0)
            words = (
                "forgets, final",
                "forgets, every",
                "half growth, final",
                "half growth, every",
            )
            for word, (measured, stated) in zip(
                words, mean.reshape(4, 2), strict=True
            ):
                print(
                    f"{cell.name:18s} {word:20s} found {measured:.1%}, power said {stated:.1%}"
                )


if __name__ == "__main__":
    main()
