"""How true ε of secret rounds is where rounds are unequal or correlated: coverage of the interval.

    python simulations/studies/secret_rounds.py [--runs 100]

Each cell is a schedule that hides rounds, with the expected scores of its rounds and the
correlation of its residuals in them. The truth is exact up to its standard error: with at
most 12 rounds all sets of rounds that a client may have are enumerated for the likelihood ratio,
whose distribution is by importance sampling. A run is 60 canaries in 3,000 dimensions, audited from
its models by `RunAuditor`. Printed are the truth, how many runs were measured, the coverage of
their 95% intervals and the mean of the estimates over the truth. "square" is the truth of signals
that all are the root mean square, in independent rounds, which was said before.

Expected (100 runs)::

    rounds                        truth square measured  covered   mean
    coins, 0.4 to 3.9             32.00  27.42      100    95.0%  1.005
    coins, 0.3 to 3               19.80  12.77      100    92.0%  0.994
    coins, 4 once                 20.13   7.04      100    94.0%  0.995
    coins, 0.5 or 2               21.76  18.72      100    92.0%  1.007
    two epochs, 0.5 to 3          13.83   8.41      100    97.0%  1.007
    three epochs, 1 or 2          14.44  10.86      100    89.0%  0.995
    coins, half shared             6.07  14.48        0        –      –
    coins, 10% shared              4.58   6.76        0        –      –
    rare, 10% shared              10.31  12.53        0        –      –
    rare and unequal, 1% shared   15.89  11.05      100    93.0%  1.016
    coins, neighbours              6.71   9.75        0        –      –
    rare, neighbours              11.57  12.76        0        –      –
"""

import argparse
import dataclasses
import itertools

import numpy as np
import scipy

from fl_epe import RoundFacts, RunAuditor
from fl_epe.auditing import EVERY_ROUND, Adversary, answer
from fl_epe.canaries import CanarySet
from fl_epe.checks import Floats
from fl_epe.schedules import make_schedule, presence

DELTA, DIM, CANARIES = 1e-5, 3000, 60
SECRET = dataclasses.replace(EVERY_ROUND, knows_rounds=False)


@dataclasses.dataclass(frozen=True, eq=False)
class Cell:
    """Rounds that a client may have, and what is seen of it in them.

    Attributes:
        name: of the cell.
        schedule: its kind.
        participations: of a client, on average.
        signals: expected score of each round, ``(T,)``.
        cosines: of the residuals in the rounds, ``(T, T)``.
    """

    name: str
    schedule: str
    participations: float
    signals: Floats
    cosines: Floats

    def sets(self) -> tuple[Floats, Floats]:
        """All sets of rounds as rows of 0 and 1, ``(sets, T)``, and their probabilities."""
        rounds = len(self.signals)
        if self.schedule == "poisson":
            rate = self.participations / rounds
            chosen_sets = np.array(
                list(itertools.product((0.0, 1.0), repeat=rounds))
            )
            sizes = chosen_sets.sum(axis=1)
            return chosen_sets, rate**sizes * (1 - rate) ** (rounds - sizes)
        blocks = np.array_split(np.arange(rounds), round(self.participations))
        chosen = list(itertools.product(*blocks))
        chosen_sets = np.zeros((len(chosen), rounds))
        for row, places in zip(chosen_sets, chosen, strict=True):
            row[list(places)] = 1.0
        return chosen_sets, np.full(len(chosen), 1 / len(chosen))


def shared(rounds: int, share: float) -> Floats:
    """Cosines of rounds with this share of their energy in one direction."""
    return (1 - share) * np.eye(rounds) + share


def neighbours(rounds: int, cosine: float) -> Floats:
    """Cosines that fall with the distance of the rounds."""
    return np.asarray(scipy.linalg.toeplitz(cosine ** np.arange(rounds)))


CELLS = (
    Cell(
        "coins, 0.4 to 3.9", "poisson", 4, np.geomspace(0.4, 3.9, 8), np.eye(8)
    ),
    Cell("coins, 0.3 to 3", "poisson", 3, np.geomspace(0.3, 3, 12), np.eye(12)),
    Cell(
        "coins, 4 once", "poisson", 1.2, np.append(np.ones(11), 4.0), np.eye(12)
    ),
    Cell("coins, 0.5 or 2", "poisson", 5, np.tile([0.5, 2.0], 5), np.eye(10)),
    Cell(
        "two epochs, 0.5 to 3",
        "balls-in-bins",
        2,
        np.geomspace(0.5, 3, 12),
        np.eye(12),
    ),
    Cell(
        "three epochs, 1 or 2",
        "balls-in-bins",
        3,
        np.tile([1.0, 2.0], 6),
        np.eye(12),
    ),
    Cell("coins, half shared", "poisson", 4, np.ones(8), shared(8, 0.5)),
    Cell("coins, 10% shared", "poisson", 3, np.ones(12), shared(12, 0.1)),
    Cell("rare, 10% shared", "poisson", 1, np.full(12, 2.0), shared(12, 0.1)),
    Cell(
        "rare and unequal, 1% shared",
        "poisson",
        1,
        np.geomspace(1, 3, 12),
        shared(12, 0.01),
    ),
    Cell("coins, neighbours", "poisson", 3, np.ones(12), neighbours(12, 0.5)),
    Cell(
        "rare, neighbours", "poisson", 1, np.full(12, 2.0), neighbours(12, 0.2)
    ),
)


def exact_epsilon(cell: Cell, draws: int = 100_000, seed: int = 0) -> float:
    """ε of the mixture of all sets of rounds against none, by importance sampling.

    Scores are drawn as those of clients with up to three times as many rounds and signals up to
    half larger, and of nobody. Each of these laws has its likelihood ratio by enumeration.
    """
    sets, chances = cell.sets()
    half = np.linalg.cholesky(cell.cosines)
    means = scipy.linalg.solve_triangular(
        half, (sets * cell.signals).T, lower=True
    ).T
    energies = np.sum(means**2, axis=1) / 2
    rng = np.random.default_rng(seed)
    more = chances * 3.0 ** sets.sum(axis=1)
    laws, scales = np.array([chances, more / more.sum()]), (1.0, 1.5)
    count = draws // 5
    drawn = [rng.standard_normal((count, means.shape[1]))]  # nobody's
    for law, scale in itertools.product(laws, scales):
        sampled = means[rng.choice(len(sets), count, p=law)]
        drawn.append(rng.standard_normal(sampled.shape) + scale * sampled)
    ratios = []
    for scores in np.array_split(np.concatenate(drawn), 100):
        products = scores @ means.T
        losses = [np.zeros(len(scores))]
        for scale in scales:
            terms = scale * products - scale**2 * energies
            top = terms.max(axis=1, keepdims=True)
            losses.extend(np.log(laws @ np.exp(terms - top).T) + top[:, 0])
        ratios.append(np.array(losses))
    logs = np.concatenate(ratios, axis=1)
    ratio = logs[1]
    proposed = scipy.special.logsumexp(logs, axis=0) - np.log(len(logs))

    def delta(epsilon: float) -> float:
        removed = np.maximum(
            np.exp(ratio - proposed) - np.exp(epsilon - proposed), 0
        )
        added = np.maximum(
            np.exp(-proposed) - np.exp(epsilon + ratio - proposed), 0
        )
        return float(max(removed.mean(), added.mean()))

    return float(
        scipy.optimize.brentq(lambda e: delta(e) - DELTA, 0.0, 400.0, xtol=1e-4)
    )


def audited(cell: Cell, seed: int) -> tuple[float, float, float] | None:
    """ε and its interval of a simulated run; ``None`` if it was not measured."""
    rounds, rng = len(cell.signals), np.random.default_rng(seed)
    schedule = make_schedule(cell.schedule, rounds, cell.participations)
    participation = presence(schedule, CANARIES, rng)
    canaries = CanarySet(DIM, CANARIES, seed)
    hidden = np.linalg.cholesky(cell.cosines) @ rng.standard_normal(
        (rounds, DIM)
    )
    vectors = np.stack([canaries.vector(i) for i in range(CANARIES)])
    auditor = RunAuditor(CANARIES, 0, seed=seed, delta=DELTA)
    theta = np.zeros(DIM, np.float32)
    auditor.begin(theta)
    for signal, row, residual in zip(
        cell.signals, participation, hidden, strict=True
    ):
        theta = np.asarray(
            theta + residual + signal * (row @ vectors), np.float32
        )
        auditor.observe(
            theta,
            RoundFacts(np.flatnonzero(row).tolist(), signal, signal, replies=1),
        )
    record = auditor.record(
        participation=schedule.law(CANARIES),
        canary_participations=schedule.participations(),
    )
    estimate = answer(record, Adversary("all", knows_rounds=False)).estimate
    return (
        None
        if estimate is None
        else (estimate.epsilon, estimate.low, estimate.high)
    )


def line(cell: Cell, runs: int, draws: int = 100_000) -> str:
    """A line of the table."""
    truth = exact_epsilon(cell, draws)
    signals = np.full(len(cell.signals), np.sqrt(np.mean(cell.signals**2)))
    inverse = np.sqrt(np.mean(np.diag(np.linalg.inv(cell.cosines))))
    square = dataclasses.replace(
        cell, signals=signals * inverse, cosines=np.eye(len(cell.signals))
    )
    before = exact_epsilon(square, draws)
    estimates = [
        estimate
        for seed in range(runs)
        if (estimate := audited(cell, seed)) is not None
    ]
    start = f"{cell.name:28} {truth:6.2f} {before:6.2f} {len(estimates):8d}"
    if not estimates:
        return f"{start}        –      –"
    epsilon, low, high = np.array(estimates).T
    covered = float(np.mean((low <= truth) & (truth <= high)))
    return f"{start} {covered:8.1%} {np.mean(epsilon) / truth:6.3f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--runs", type=int, default=100, help="of each cell (default: 100)"
    )
    parser.add_argument(
        "--draws", type=int, default=100_000, help="for the truth"
    )
    args = parser.parse_args()
    print(
        f"{'rounds':28} {'truth':>6} {'square':>6} {'measured':>8} {'covered':>8} {'mean':>6}"
    )
    for cell in CELLS:
        print(line(cell, args.runs, args.draws), flush=True)


if __name__ == "__main__":
    main()
