"""What `assert_private` says of true and of false claims: false alarms, and power.

Runs are simulated in the high-dimensional limit (`fl_epe.limit.limit_record`): scores are drawn
from their law, nothing is trained. DP-SGD has 1,000 canaries and Poisson sampling; other runs are
of 100 clients and 11 places for canaries. All claim the analytical ε of noise multiplier 1 for the
client that takes part most often, at δ = 10⁻⁵, against the adversary of the accounting.

- "false": false claims, of half of the noise, or of 0.9 of it: how many of 20 are called violated.
- "at-claim": runs that are exactly at their claim. A test may call 1% of them violated.
- "more-private": more noise (z = 1.3), or canaries of half the length.
- "power": so much less noise that ε is twice the claim: how many runs are called violated, beside
  the power that a run at its claim states. Nodes and rounds are those of a federation in which
  everybody takes part in a fifth of the rounds, with the default share of canaries.

Last come bare scores of the Laplace mechanism at its own ε.

    python simulations/studies/false_convictions.py [--runs 250] [--seeds 20] [--table false]

Measured (2026-11-27). False claims: violated 20 of 20 in each of six cells; DP-SGD with z = 0.9,
q = 0.05 and T = 60 by the estimate alone (lower ends 3.24 for a claim of 2.86). At the claim: 9 of
1,020 runs of DP-SGD (6, 1 and 2 of 340), 11 of 1,000 of epochs, 1 of 1,000 of two classes of
devices, 1 of 340 of Poisson and 0 of 340 of fixed-size cohorts. More private: 0 of 1,020, 170 of
each cell. In 0.3 to 2% of right runs a law is rejected, so that the claim is left undecided.
Power (40 runs): the table of docs/guides/plug-in.md. Every run is called violated beside 50 nodes
in 60 rounds or more, beside 100 in 30, and with 1,000 canaries of DP-SGD.
"""

import argparse
import dataclasses
import functools
import itertools
import math
import unittest.mock
from collections.abc import Iterator

import numpy as np
import scipy

from fl_epe import accounting
from fl_epe.auditing import (
    AuditedClient,
    AuditRecord,
    Evidence,
    Scores,
    analytical,
    claim_adversary,
    find_evidence,
)
from fl_epe.limit import limit_record
from fl_epe.schedules import Poisson, Schedule, make_schedule

DELTA = 1e-5


@dataclasses.dataclass(frozen=True)
class Cell:
    """Runs that claim a noise multiplier of 1.

    Attributes:
        name: in words.
        schedule: of clients and canaries.
        noise: the noise multiplier that they have.
        length: of a canary's update over the clip norm.
        clients: beside the canaries; 0 for DP-SGD.
        canaries: their number, or that of their places beside clients.
    """

    name: str
    schedule: Schedule
    noise: float = 1.0
    length: float = 1.0
    clients: int = 0
    canaries: int = 1000

    def record(self, seed: int) -> AuditRecord:
        """A run."""
        record = limit_record(
            self.schedule,
            self.noise / self.length,
            DELTA,
            num_canaries=self.canaries,
            unobserved=self.canaries if not self.clients else 20,
            beside=self.clients,
            seed=seed,
        )
        scale = self.length  # the noise is as it was, and updates are shorter
        return record.with_values(
            **{
                "noise_multiplier": 1.0,
                "sum_noise_multiplier": 1.0,
                "norms.means": scale * record.norms.means,
                "norms.model_updates": scale * record.norms.model_updates,
            }
        )

    def evidence(self, seed: int, *, power: bool = False) -> Evidence:
        """What a run says of its claim."""
        record = self.record(seed)
        adversary = claim_adversary(record)
        client = AuditedClient.of(record, adversary, worst_case=True)
        claim = analytical(record.mechanism, client, DELTA).epsilon
        if claim is None:
            raise ValueError(f"Expected a theorem for {self.name}.")
        return find_evidence(
            record, claim, DELTA, adversary=adversary, power=power
        )


def dp_sgd(
    rate: float, steps: int, noise: float = 1.0, length: float = 1.0
) -> Cell:
    """DP-SGD with Poisson sampling."""
    return Cell(
        f"DP-SGD, q = {rate:g}, T = {steps}",
        Poisson(steps, rate),
        noise,
        length,
    )


def federation(
    schedule: str,
    participations: float,
    noise: float = 1.0,
    length: float = 1.0,
) -> Cell:
    """A run of 60 rounds and 100 clients."""
    name = f"{schedule.partition(':')[0]}, {participations:g} of 60 rounds"
    participation = make_schedule(schedule, 60, participations)
    return Cell(name, participation, noise, length, clients=100, canaries=11)


DEFAULT_SHARE = 0.1  # of canaries among all that take part
_RUNS_OF_POWER = 5  # at the claim, as their powers hardly differ

UNEVEN = 'device-classes:{"rates": [1, 4], "shares": [0.5, 0.5]}'
SETTINGS = ((0.05, 60), (0.01, 300), (0.01, 100))
AT_CLAIM = (
    *(dp_sgd(*setting) for setting in SETTINGS),
    federation("epochs", 12),
    federation(UNEVEN, 6),
    federation("poisson", 6),
    federation("fixed-size", 6),
    federation("balls-in-bins", 6),
)
BELOW = (
    *(dp_sgd(*setting, noise=1.3) for setting in SETTINGS),
    dp_sgd(0.05, 60, length=0.5),
    federation("epochs", 12, noise=1.3),
    federation("epochs", 12, length=0.5),
)
FALSE = (
    *(dp_sgd(*setting, noise=0.5) for setting in SETTINGS),
    dp_sgd(0.05, 60, noise=0.9),
    federation("epochs", 12, noise=0.5),
    federation("poisson", 6, noise=0.5),
)


def noise_of_twice_the_claim(schedule: Schedule) -> float:
    """The noise multiplier of an ε twice as large as that of 1."""

    def epsilon(z: float) -> float:
        if isinstance(schedule, Poisson):
            return poisson_epsilon(z, schedule.rate, schedule.rounds, DELTA)
        return float(
            accounting.epsilon_of_shift(
                math.sqrt(schedule.participations()) / z, DELTA
            )
        )

    twice = 2 * epsilon(1.0)
    return float(
        scipy.optimize.brentq(lambda z: epsilon(z) - twice, _NOISES[0], 1.0)
    )


def power_cells() -> Iterator[Cell]:
    """Runs of twice the claimed ε: federations by nodes and rounds, and DP-SGD by canaries."""
    for nodes, rounds in itertools.product((20, 50, 100, 1000), (30, 60, 200)):
        schedule = make_schedule("epochs", rounds, rounds / 5)
        noise = noise_of_twice_the_claim(schedule)
        places = round(nodes * DEFAULT_SHARE / (1 - DEFAULT_SHARE))
        name = f"{nodes:,} nodes, {rounds} rounds"
        yield Cell(name, schedule, noise, clients=nodes, canaries=places)
    for canaries, (rate, steps) in itertools.product(
        (30, 100, 300, 1000), SETTINGS
    ):
        cell = dp_sgd(
            rate, steps, noise_of_twice_the_claim(Poisson(steps, rate))
        )
        yield dataclasses.replace(cell, canaries=canaries)


def power_lines(runs: int) -> Iterator[str]:
    """A line for each of `power_cells`, with the power that runs at their claim state."""
    yield f"  {'runs':28}{'canaries':>9}{'claim':>8}{'true ε':>8}{'violated':>10}{'stated':>8}"
    for cell in power_cells():
        evidence = [cell.evidence(seed) for seed in range(runs)]
        right = [
            dataclasses.replace(cell, noise=1.0).evidence(seed, power=True)
            for seed in range(min(runs, _RUNS_OF_POWER))
        ]
        stated = np.median(
            [run.power for run in right if run.power is not None]
        )
        claim = float(np.median([run.claimed for run in evidence]))
        yield (
            f"  {cell.name:28}{evidence[0].observed:>9}{claim:>8.3g}{2 * claim:>8.3g}"
            f"{sum(run.violated for run in evidence) / runs:>10.0%}{stated:>8.0%}"
        )


TABLES = {"false": FALSE, "at-claim": AT_CLAIM, "more-private": BELOW}
"""By their names on the command line."""


def laplace(epsilon: float, count: int, seed: int) -> Scores:
    """Scores of the Laplace mechanism of that ε."""
    rng = np.random.default_rng((17, seed))
    return Scores(
        rng.laplace(1, 1 / epsilon, count), rng.laplace(0, 1 / epsilon, count)
    )


@functools.cache
def _table(
    rate: float, rounds: int, delta: float
) -> scipy.interpolate.CubicSpline:
    """Logarithm of ε of Poisson sampling by ln z; off by less than 10⁻⁴ between its points."""
    logs = np.linspace(np.log(_NOISES[0]), np.log(_NOISES[1]), 33)
    epsilons = [_exact(float(np.exp(log)), rate, rounds, delta) for log in logs]
    return scipy.interpolate.CubicSpline(logs, np.log(epsilons))


_NOISES = 0.4, 4.0
_exact = accounting.poisson_epsilon


def poisson_epsilon(z: float, rate: float, rounds: int, delta: float) -> float:
    """`fl_epe.accounting.poisson_epsilon`, which takes a second, from a table."""
    if not _NOISES[0] <= z <= _NOISES[1]:
        return _exact(z, rate, rounds, delta)
    return float(np.exp(_table(round(rate, 12), rounds, delta)(np.log(z))))


def lines(cells: tuple[Cell, ...], runs: int) -> Iterator[str]:
    """A line for each cell."""
    for cell in cells:
        evidence = [cell.evidence(seed) for seed in range(runs)]
        lows = [
            run.estimate.low for run in evidence if run.estimate is not None
        ]
        yield (
            f"  {cell.name:34} z = {cell.noise:3g}, length {cell.length:3g}: claim"
            f" {np.median([run.claimed for run in evidence]):6.3f},"
            f" lower ends {np.median(lows):6.3f}, proved"
            f" {np.median([run.lower_bound for run in evidence]):6.3f};"
            f" violated {sum(run.violated for run in evidence):3d} of {runs}"
            f" ({sum(run.refuted_by_bound for run in evidence)} proved,"
            f" {sum(bool(run.laws.objection) for run in evidence)} laws rejected)"
        )


def main(argv: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=250)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--table", choices=[*TABLES, "power"], help="one alone")
    options = parser.parse_args(argv)
    tables = {
        name: TABLES[name] for name in TABLES if options.table in (None, name)
    }
    with unittest.mock.patch.object(
        accounting, "poisson_epsilon", poisson_epsilon
    ):
        for name, cells in tables.items():
            print(name)
            for line in lines(
                cells, options.seeds if name == "false" else options.runs
            ):
                print(line, flush=True)
        if options.table in (None, "power"):
            print("power")
            for line in power_lines(options.seeds):
                print(line, flush=True)
    if options.table is not None:
        return
    print("Bare scores of the Laplace mechanism at its ε")
    for epsilon in (1.0, 3.0):
        for count in (100, 1000):
            scores = (
                laplace(epsilon, count, seed) for seed in range(options.runs)
            )
            evidence = [
                find_evidence(run, epsilon, DELTA, power=False)
                for run in scores
            ]
            violated = sum(run.violated for run in evidence)
            print(
                f"  ε = {epsilon:g}, {count} + {count}: violated {violated} of {options.runs}"
            )


if __name__ == "__main__":
    main()
