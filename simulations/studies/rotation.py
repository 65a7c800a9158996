"""Are canaries by rotation as good as independent ones? Every statistic, over 200 seeds.

    python simulations/studies/rotation.py                # all parts: half an hour on one core
    python simulations/studies/rotation.py training       # one part
    python simulations/studies/rotation.py --quick        # few seeds, small: half a minute

Each part makes the same runs twice, with canaries of both kinds and seeds of their own, and
compares mean and spread of every statistic over the seeds: Welch's test for means, the
Brown–Forsythe test for spreads. A part has many comparisons, so its last line has the smallest of
their p-values, times their number (Bonferroni), and how many are below 0.05: 5% are expected.

- "mechanism": one release, the sum of k canaries and Gaussian noise, with k unobserved canaries.
- "limit": 20 rounds of noise and canaries, through `RunAuditor`; three ways, the third being
  `limit_record`, which knows no vectors at all. d = 70,000, and d = 65,536, where rotated canaries
  are orthogonal; one participation, and three with server momentum 0.9.
- "training": softmax regression on the digits through `DPFedAvg`, 10 rounds of 12 clients, 60
  canaries in three rounds each, with noise and without. Bounds for several rounds are left out:
  those of rotated canaries compare with the exact null, the others with unobserved scores.
- "embedding": one release of the sum of real updates of synthetic StackOverflow's embedding, of
  which 1% to 10% of the entries are not 0, and canaries.

Independent canaries are `CanarySet` with "sphere" up to 4 million entries, and else drawn from
their exact law: in coordinates whose first axis is the noise, the canaries' matrix is
lower triangular, with normal entries and chi-distributed ones (Bartlett).

Measured (2026-11-22, two cores shared with other work, 200 seeds): the tables "both kinds beside
each other" of docs/notes/rotation.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import numpy as np
import scipy
import torch
from numpy.typing import NDArray

from fl_epe import (
    AuditRecord,
    CanarySet,
    epsilon_from_cosines,
    epsilon_from_record,
)
from fl_epe.auditing import (
    EVERY_ROUND,
    FINAL_MODEL,
    Adversary,
    RoundFacts,
    RunAuditor,
    Scores,
    epsilon_of,
    ladder_fit,
    scores_of,
    seen_by,
)
from fl_epe.auditing.bounds import lower_bound
from fl_epe.auditing.scoring.assumptions import anderson_darling
from fl_epe.canaries import CanaryKind
from fl_epe.config import RunConfig
from fl_epe.limit import limit_record
from fl_epe.mechanism import ServerSGD
from fl_epe.schedules import ShuffledEpochs
from fl_epe.seeding import Seeds, generator
from fl_epe.simulation import Job, simulate
from fl_epe.tasks import load_task
from fl_epe.tasks.images import Digits
from fl_epe.training import Execution, LocalTraining
from fl_epe.training.local import Trainer
from simulations.studies.one_release import epsilon_together

Floats = NDArray[np.float64]
Statistics = dict[str, float]
Hidden = Callable[[np.random.Generator], NDArray[np.float32]]

DELTA = 1e-6
SIZES = ((10_000, 100), (100_000, 316), (1_000_000, 1000))
NOISES = ((4.22, 1.0), (1.54, 3.0), (0.541, 10.0))  # z, and ε at DELTA
QUICK_SEEDS = 12
ENTRIES = 4_000_000  # of independent canaries that are made as vectors
BOUNDS = ("clopper-pearson", "gdp")
HEADLINE = "weighted"  # takes a hundred times longer, so not in every table
KINDS: tuple[CanaryKind, CanaryKind] = ("rotation", "sphere")
ROTATION, SPHERE = range(2)  # streams
ATTACKS: tuple[tuple[Adversary, str], ...] = (
    (FINAL_MODEL, "displacement"),
    (EVERY_ROUND, "matched-filter"),
    (EVERY_ROUND, "maximum"),
)


@dataclasses.dataclass(frozen=True)
class Row:
    """One statistic under two kinds: means, deviations, and p-values that they are equal."""

    name: str
    means: tuple[float, float]
    deviations: tuple[float, float]
    p_mean: float
    p_spread: float
    runs: int

    @classmethod
    def of(cls, name: str, one: Floats, other: Floats) -> Row:
        """Compare the values of two kinds; equal constants agree."""
        pair = one, other
        p_mean = p_spread = 1.0
        if np.ptp(np.concatenate(pair)) > 0:
            p_mean = float(
                scipy.stats.ttest_ind(one, other, equal_var=False).pvalue
            )
            p_spread = float(
                scipy.stats.levene(one, other, center="median").pvalue
            )
        means = float(one.mean()), float(other.mean())
        spreads = float(one.std(ddof=1)), float(other.std(ddof=1))
        return cls(
            name, means, spreads, p_mean, p_spread, min(len(one), len(other))
        )

    def __str__(self) -> str:
        cells = [
            f"{mean:>10.4f} ± {deviation:<8.4f}"
            for mean, deviation in zip(self.means, self.deviations, strict=True)
        ]
        return f"    {self.name:<24}{''.join(cells)}{self.p_mean:>7.3f}{self.p_spread:>7.3f}"


def compared(one: list[Statistics], other: list[Statistics]) -> list[Row]:
    """A row for each statistic."""
    return [
        Row.of(
            name,
            *(np.array([run[name] for run in runs]) for runs in (one, other)),
        )
        for name in one[0]
    ]


def verdict(rows: list[Row]) -> str:
    """One line for all comparisons of a part."""
    p_values = np.array([p for row in rows for p in (row.p_mean, row.p_spread)])
    least = min(1.0, float(p_values.min()) * len(p_values))
    return (
        f"    {len(p_values)} comparisons: smallest p × number {least:.2f}; "
        f"{np.mean(p_values < 0.05):.1%} below 0.05, {np.mean(p_values < 0.01):.1%} below 0.01"
    )


# One release.


def of_cosines(
    found: Floats, dim: int, bounds: Sequence[str] = BOUNDS
) -> Statistics:
    """Every statistic of one release, whose first half of cosines is that of observed canaries."""
    observed, unobserved = np.split(found, 2)
    scores, null = np.sqrt(dim) * observed, np.sqrt(dim) * unobserved
    exact = Scores.from_cosines(observed, dim)
    return {
        "score: mean": float(scores.mean()),
        "score: deviation": float(scores.std(ddof=1)),
        "score: Anderson–Darling": anderson_darling(scores),
        "ε, known variance": epsilon_of(exact, DELTA).epsilon,
        "ε, fitted (the paper)": epsilon_from_cosines(
            observed, dim, DELTA, variance="fitted"
        ).epsilon,
        "ε, together": epsilon_together(
            Scores.from_cosines(observed, dim), DELTA
        ).epsilon,
        "ε, two fitted": epsilon_of(Scores(scores, null), DELTA).epsilon,
        **{
            f"bound: {name}": lower_bound(exact, DELTA, method=name)
            for name in bounds
        },
        "null: mean": float(null.mean()),
        "null: deviation": float(null.std(ddof=1)),
        "null: KS distance": float(scipy.stats.kstest(null, "norm").statistic),
        "null: largest": float(null.max()),
    }


def products(
    canaries: CanarySet, taking_part: int, hidden: NDArray[np.float32]
) -> Floats:
    """Inner products of all canaries with the sum of the first ones, and with the residual.

    Shape ``(2, count)``, and two columns more for the products of the two vectors themselves.
    """
    weights = np.ones((1, taking_part), np.float32)
    total = canaries.combine(weights, numbers=range(taking_part))[0]
    vectors = np.stack([total, hidden])
    gram = vectors.astype(np.float64) @ vectors.T.astype(np.float64)
    return np.concatenate([canaries.dot(vectors, threads=1), gram], axis=1)


def independent_products(
    rng: np.random.Generator,
    dim: int,
    count: int,
    taking_part: int,
    length: float,
) -> Floats:
    """The same for independent canaries and a vector of this length, from their exact law."""
    matrix = np.zeros((count, count + 1))
    rows, columns = np.tril_indices(count)
    matrix[rows, columns] = rng.standard_normal(len(rows))
    matrix[np.arange(count), np.arange(count) + 1] = np.sqrt(
        rng.chisquare(dim - 1 - np.arange(count))
    )
    matrix /= np.linalg.norm(matrix, axis=1)[:, None]
    vectors = np.zeros((2, count + 1))
    vectors[0], vectors[1, 0] = matrix[:taking_part].sum(axis=0), length
    return np.concatenate([vectors @ matrix.T, vectors @ vectors.T], axis=1)


def cosines(found: Floats, scale: float) -> Floats:
    """Of all canaries with the release: their sum plus ``scale`` times the residual."""
    weights = np.array([1.0, scale])
    return np.asarray(
        weights @ found[:, :-2] / np.sqrt(weights @ found[:, -2:] @ weights)
    )


def release(
    kind: int, dim: int, count: int, seed: int, hidden: Hidden
) -> Floats:
    """`products` of one run of ``count`` observed and as many unobserved canaries."""
    rng = generator(seed, kind, dim)
    if kind == SPHERE and 2 * count * dim > ENTRIES:
        vector_length = float(np.linalg.norm(hidden(rng)))
        return independent_products(rng, dim, 2 * count, count, vector_length)
    canary_seed = int(rng.integers(1 << 62))
    return products(
        CanarySet(dim, 2 * count, canary_seed, KINDS[kind]), count, hidden(rng)
    )


def mechanism(seeds: int, *, quick: bool) -> Iterator[tuple[str, list[Row]]]:
    """The Gaussian mechanism."""
    for dim, count in SIZES[:1] if quick else SIZES:

        def noise(
            rng: np.random.Generator, dim: int = dim
        ) -> NDArray[np.float32]:
            return rng.standard_normal(dim, np.float32)

        runs = [
            [release(kind, dim, count, seed, noise) for seed in range(seeds)]
            for kind in (ROTATION, SPHERE)
        ]
        for z, epsilon in NOISES:
            of_kinds = []
            for kind in runs:
                bounds = (HEADLINE, *BOUNDS) if epsilon == 3 else BOUNDS
                of_kinds.append(
                    [of_cosines(cosines(run, z), dim, bounds) for run in kind]
                )
            yield (
                f"d = {dim:,}, {count} canaries, ε = {epsilon:g}",
                compared(*of_kinds),
            )


# Several rounds.


def of_record(record: AuditRecord) -> Statistics:
    """Every statistic of a run."""
    statistics: Statistics = {}
    for adversary, statistic in ATTACKS:
        scores = scores_of(seen_by(record, adversary), statistic)
        name = "final" if adversary.sees == "final" else statistic
        if scores.unobserved is None:
            raise ValueError(
                f"Expected unobserved canaries in the record, got {scores}."
            )
        statistics[f"{name}: mean"] = float(scores.observed.mean())
        statistics[f"{name}: deviation"] = float(scores.observed.std(ddof=1))
        statistics[f"{name}: null's mean"] = float(scores.unobserved.mean())
        statistics[f"{name}: null's deviation"] = float(
            scores.unobserved.std(ddof=1)
        )
        statistics[f"{name}: null's largest"] = float(scores.unobserved.max())
        statistics[f"{name}: ε"] = epsilon_from_record(
            record, adversary=adversary, statistic=statistic
        ).epsilon
        if statistic != "maximum":
            for method in BOUNDS:
                bound = lower_bound(scores, record.delta, method=method)
                statistics[f"{name}: bound, {method}"] = bound
    statistics["final: ε, fitted"] = epsilon_from_record(
        record, statistic="displacement", variance="fitted"
    ).epsilon
    statistics["final: ε, raw"] = epsilon_from_record(
        record, statistic="displacement", leave_one_out=False
    ).epsilon
    statistics["κ, final"] = _scale(record)
    statistics["κ, every round"] = _scale(record, EVERY_ROUND)
    return statistics


def _scale(record: AuditRecord, adversary: Adversary = FINAL_MODEL) -> float:
    """κ of all canaries."""
    view = seen_by(record, adversary)
    return ladder_fit(view).scale


def noisy_run(
    kind: CanaryKind,
    dim: int,
    schedule: ShuffledEpochs,
    momentum: float,
    count: int,
    seed: int,
) -> AuditRecord:
    """A run of noise of deviation 1 and canaries, through `RunAuditor`."""
    rng = generator(seed, KINDS.index(kind), dim)
    server = ServerSGD(1.0, momentum)
    canary_seed = int(rng.integers(1 << 62))
    auditor = RunAuditor(
        count, count, seed=canary_seed, delta=1e-5, server=server, kind=kind
    )
    theta = np.zeros(dim, np.float32)
    auditor.begin(theta)
    velocity, cohorts = np.zeros(dim, np.float32), schedule.cohorts(count, rng)
    for cohort in cohorts:
        mean = rng.standard_normal(dim, np.float32)
        vectors = auditor.canaries.vectors(cohort.tolist())
        mean += vectors.sum(axis=0)
        velocity = momentum * velocity + mean
        theta = theta + velocity
        facts = RoundFacts(cohort.tolist(), contribution=1.0, clip_norm=1.0)
        auditor.observe(theta, facts, vectors)
    return auditor.record(
        participation=schedule.law(1000),
        canary_participations=schedule.participations(),
        sum_noise_multiplier=1.0,
        noise_multiplier=1.0,
        cohort_size=1.0,
    )


def limit(seeds: int, *, quick: bool) -> Iterator[tuple[str, list[Row]]]:
    """Runs of noise and canaries, against each other and against the limit."""
    count = 40
    for dim, participations, momentum in ((70_000, 1, 0.0), (65_536, 3, 0.9)):
        schedule = ShuffledEpochs(20, participations)
        runs = {
            kind: [
                of_record(noisy_run(kind, dim, schedule, momentum, count, seed))
                for seed in range(seeds)
            ]
            for kind in KINDS
        }
        limits = [
            of_record(
                limit_record(
                    schedule,
                    1.0,
                    1e-5,
                    num_canaries=count,
                    unobserved=count,
                    momentum=momentum,
                    seed=seed,
                )
            )
            for seed in range(2 * seeds)
        ]
        for run in limits:  # cosines in another dimension
            for name in [
                name
                for name in run
                if name.startswith("maximum: ") and "ε" not in name
            ]:
                run[name] *= np.sqrt(10**9 / dim)
        title = f"d = {dim:,}, {participations} participations, momentum {momentum:g}"
        yield (
            f"{title}: rotation, sphere",
            compared(runs["rotation"], runs["sphere"]),
        )
        yield (
            f"{title}: rotation, the limit",
            compared(runs["rotation"], limits),
        )


class Softmax(torch.nn.Module):
    """Softmax regression on images of 784 pixels; 7,850 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(784, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits of images of shape (n, 1, 28, 28)."""
        logits: torch.Tensor = self.linear(images.flatten(1))
        return logits


class SmallDigits(Digits):
    """The digits for a small model."""

    name: ClassVar[str] = "digits-softmax"

    def model(self) -> torch.nn.Module:
        """A fresh model."""
        return Softmax()


_UNLIKE = "matched-filter: bound"  # of several participations


def training(seeds: int, *, quick: bool) -> Iterator[tuple[str, list[Row]]]:
    """Real training."""
    for z in (0.3,) if quick else (0.3, 0.0):
        of_kinds = []
        for stream, kind in enumerate(KINDS):
            config = RunConfig(
                clients=24,
                rounds=10,
                clients_per_round=12,
                num_canaries=60,
                unobserved=60,
                canary_kind=kind,
                canary_participations=2 if z else 1,
                noise_multiplier=z,
                clipping="fixed",
                local_epochs=1,
                local_batch_size=64,
                delta=1e-5,
            )
            task = SmallDigits(num_clients=24)
            of_kinds.append(
                [
                    of_record(
                        simulate(
                            Job(
                                task,
                                config,
                                Seeds.derive(2 * seed + stream),
                                10,
                            ),
                            workers=1,
                        )
                    )
                    for seed in range(seeds)
                ]
            )
        alike = [
            [
                {n: v for n, v in one.items() if not n.startswith(_UNLIKE)}
                for one in kind
            ]
            for kind in of_kinds
        ]
        yield f"digits, d = 7,850, z = {z:g}", compared(*alike)


# Sparse updates.


def embedding_update(clients: int) -> NDArray[np.float32]:
    """The embedding's part of the sum of real updates of clients of synthetic StackOverflow."""
    task = load_task("synthetic-stackoverflow", max_examples=16)
    theta = task.initial(seed=1)
    local = LocalTraining(learning_rate=0.5, epochs=1, batch_size=16)
    trainer, start = Trainer(task, Execution("cpu")), torch.tensor(theta)
    size = next(task.model().parameters()).numel()
    total = np.zeros(size, np.float32)
    for client in range(clients):
        update, _ = trainer.train(
            start, task.client(client), local, generator(1, 0, client)
        )
        total += update[:size].numpy()
    return total


def embedding(seeds: int, *, quick: bool) -> Iterator[tuple[str, list[Row]]]:
    """One release of a sparse update and canaries."""
    count = 50 if quick else 316
    for clients in (1,) if quick else (10,):
        update = embedding_update(clients)
        dim, share = len(update), np.count_nonzero(update) / len(update)
        update *= np.float32(
            np.sqrt(dim) / 4 / np.linalg.norm(update)
        )  # scores of mean 4

        def hidden(
            _: np.random.Generator, update: NDArray[np.float32] = update
        ) -> NDArray[np.float32]:
            return update

        of_kinds = []
        for kind in (ROTATION, SPHERE):
            runs = (
                release(kind, dim, count, seed, hidden) for seed in range(seeds)
            )
            of_kinds.append(
                [of_cosines(cosines(run, 1.0), dim) for run in runs]
            )
        title = f"embedding, d = {dim:,}, {clients} clients, {share:.1%} not 0"
        yield title, compared(*of_kinds)


PARTS = {
    "mechanism": mechanism,
    "limit": limit,
    "training": training,
    "embedding": embedding,
}


def main(
    arguments: list[str] | None = None, say: Callable[[str], object] = print
) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "parts", nargs="*", help=f"of {', '.join(PARTS)}; all by default"
    )
    parser.add_argument("--quick", action="store_true", help="few seeds, small")
    parser.add_argument(
        "--seeds",
        type=int,
        default=200,
        help="runs of each kind (default: 200)",
    )
    options = parser.parse_args(arguments)
    warnings.filterwarnings(
        "ignore", message=".*precision loss.*"
    )  # of constants
    for part in options.parts or PARTS:
        rows = []
        for title, table in PARTS[part](
            QUICK_SEEDS if options.quick else options.seeds, quick=options.quick
        ):
            say(f"{part}: {title}; mean ± deviation, p of means, p of spreads")
            for row in table:
                say(str(row))
            rows += table
            say(verdict(table))
        say(f"  {part}, all:\n{verdict(rows)}")


if __name__ == "__main__":
    main()
