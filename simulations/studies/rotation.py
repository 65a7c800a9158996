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

Expected (2026-11-22, two cores shared with other work, 200 seeds; some rows)::

    mechanism: d = 10,000, 100 canaries, ε = 1
        ε, known variance           0.9802 ± 0.4232      0.9966 ± 0.4468    0.706  0.170
        ε, fitted (the paper)       2.2707 ± 1.2947      2.2271 ± 1.2147    0.728  0.870
        bound: gdp                  0.1816 ± 0.3351      0.1710 ± 0.2607    0.725  0.724
        null: deviation             0.9900 ± 0.0752      0.9995 ± 0.0662    0.181  0.173
        28 comparisons: smallest p × number 1.00; 0.0% below 0.05, 0.0% below 0.01
    mechanism: d = 10,000, 100 canaries, ε = 3
        ε, known variance           2.9700 ± 0.4824      2.9925 ± 0.5046    0.650  0.215
        ε, fitted (the paper)       4.5178 ± 1.5253      4.4729 ± 1.4189    0.761  0.932
        bound: gdp                  1.7580 ± 0.6290      1.7933 ± 0.6133    0.570  0.656
        null: deviation             0.9901 ± 0.0752      0.9993 ± 0.0662    0.197  0.131
        30 comparisons: smallest p × number 1.00; 0.0% below 0.05, 0.0% below 0.01
    mechanism: d = 10,000, 100 canaries, ε = 10
        ε, known variance           9.7479 ± 0.6126      9.7926 ± 0.6211    0.470  0.494
        ε, fitted (the paper)      12.0520 ± 2.2488     11.9843 ± 2.0440    0.753  0.719
        bound: gdp                  8.1793 ± 0.7765      8.2035 ± 0.8077    0.760  0.662
        null: deviation             0.9892 ± 0.0746      0.9989 ± 0.0661    0.173  0.091
        28 comparisons: smallest p × number 1.00; 0.0% below 0.05, 0.0% below 0.01
    mechanism: d = 100,000, 316 canaries, ε = 1
        ε, known variance           1.0164 ± 0.2675      0.9992 ± 0.2673    0.522  0.597
        ε, fitted (the paper)       1.6485 ± 0.6206      1.7279 ± 0.6515    0.213  0.573
        bound: gdp                  0.4363 ± 0.3279      0.3966 ± 0.3021    0.209  0.144
        null: deviation             1.0014 ± 0.0406      1.0028 ± 0.0410    0.742  0.938
        28 comparisons: smallest p × number 0.19; 25.0% below 0.05, 3.6% below 0.01
    mechanism: d = 100,000, 316 canaries, ε = 3
        ε, known variance           3.0221 ± 0.3019      3.0023 ± 0.3034    0.514  0.617
        ε, fitted (the paper)       3.7926 ± 0.7474      3.8823 ± 0.7768    0.240  0.638
        bound: gdp                  2.3769 ± 0.3818      2.3077 ± 0.3965    0.076  0.463
        null: deviation             1.0010 ± 0.0405      1.0028 ± 0.0407    0.645  0.999
        30 comparisons: smallest p × number 0.31; 26.7% below 0.05, 0.0% below 0.01
    mechanism: d = 100,000, 316 canaries, ε = 10
        ε, known variance           9.9571 ± 0.3773      9.9313 ± 0.3837    0.498  0.705
        ε, fitted (the paper)      11.1621 ± 1.1792     11.2317 ± 1.1622    0.552  0.959
        bound: gdp                  9.1597 ± 0.4913      9.0369 ± 0.4979    0.013  0.837
        null: deviation             0.9973 ± 0.0404      1.0030 ± 0.0400    0.158  0.848
        28 comparisons: smallest p × number 0.38; 28.6% below 0.05, 0.0% below 0.01
    mechanism: d = 1,000,000, 1000 canaries, ε = 1
        ε, known variance           1.0135 ± 0.1495      1.0182 ± 0.1480    0.748  0.686
        ε, fitted (the paper)       1.3470 ± 0.2951      1.3686 ± 0.3088    0.476  0.654
        bound: gdp                  0.6968 ± 0.1836      0.7046 ± 0.1954    0.683  0.535
        null: deviation             0.9991 ± 0.0231      0.9999 ± 0.0216    0.753  0.266
        28 comparisons: smallest p × number 0.16; 3.6% below 0.05, 3.6% below 0.01
    mechanism: d = 1,000,000, 1000 canaries, ε = 3
        ε, known variance           3.0209 ± 0.1687      3.0267 ± 0.1669    0.728  0.679
        ε, fitted (the paper)       3.4249 ± 0.3474      3.4526 ± 0.3654    0.438  0.740
        bound: gdp                  2.6602 ± 0.2115      2.6749 ± 0.2253    0.501  0.424
        null: deviation             0.9990 ± 0.0231      0.9999 ± 0.0216    0.684  0.266
        30 comparisons: smallest p × number 1.00; 0.0% below 0.05, 0.0% below 0.01
    mechanism: d = 1,000,000, 1000 canaries, ε = 10
        ε, known variance           9.9970 ± 0.2113     10.0060 ± 0.2094    0.671  0.690
        ε, fitted (the paper)      10.5928 ± 0.5094     10.6314 ± 0.5282    0.457  0.901
        bound: gdp                  9.5441 ± 0.2705      9.5637 ± 0.2826    0.478  0.571
        null: deviation             0.9975 ± 0.0230      0.9999 ± 0.0216    0.278  0.264
        28 comparisons: smallest p × number 1.00; 0.0% below 0.05, 0.0% below 0.01
        258 comparisons: smallest p × number 1.00; 9.3% below 0.05, 0.8% below 0.01
    embedding: embedding, d = 960,384, 10 clients, 6.2% not 0
        ε, known variance          26.2833 ± 0.5198     26.2672 ± 0.4912    0.751  0.392
        ε, fitted (the paper)      28.3005 ± 1.9688     28.0471 ± 1.5704    0.156  0.229
        bound: gdp                 25.1985 ± 0.7339     25.1419 ± 0.6167    0.405  0.014
        null: deviation             0.9993 ± 0.0391      1.0010 ± 0.0402    0.665  0.231
        28 comparisons: smallest p × number 0.39; 10.7% below 0.05, 0.0% below 0.01
        28 comparisons: smallest p × number 0.39; 10.7% below 0.05, 0.0% below 0.01
    limit: d = 70,000, 1 participations, momentum 0: rotation, sphere
        final: null's deviation     0.9805 ± 0.1164      0.9980 ± 0.1275    0.152  0.250
        final: ε                    0.8545 ± 0.5832      0.8401 ± 0.5669    0.802  0.758
        matched-filter: null's deviation    0.9942 ± 0.1200      1.0044 ± 0.1096    0.375  0.372
        matched-filter: ε           4.4351 ± 0.8241      4.4291 ± 0.8314    0.942  0.831
        60 comparisons: smallest p × number 1.00; 0.0% below 0.05, 0.0% below 0.01
    limit: d = 70,000, 1 participations, momentum 0: rotation, the limit
        final: null's deviation     0.9805 ± 0.1164      0.9869 ± 0.1098    0.514  0.386
        final: ε                    0.8545 ± 0.5832      0.8455 ± 0.5803    0.859  0.972
        matched-filter: null's deviation    0.9942 ± 0.1200      0.9911 ± 0.1137    0.757  0.313
        matched-filter: ε           4.4351 ± 0.8241      4.4585 ± 0.8630    0.747  0.562
        60 comparisons: smallest p × number 1.00; 1.7% below 0.05, 0.0% below 0.01
    limit: d = 65,536, 3 participations, momentum 0.9: rotation, sphere
        final: null's deviation     0.9911 ± 0.1165      0.9970 ± 0.1249    0.622  0.256
        final: ε                    2.5200 ± 0.7472      2.5376 ± 0.8560    0.826  0.050
        matched-filter: null's deviation    0.9997 ± 0.1095      0.9890 ± 0.1186    0.351  0.351
        matched-filter: ε           8.3308 ± 0.9523      8.4433 ± 1.0038    0.251  0.424
        60 comparisons: smallest p × number 1.00; 3.3% below 0.05, 0.0% below 0.01
    limit: d = 65,536, 3 participations, momentum 0.9: rotation, the limit
        final: null's deviation     0.9911 ± 0.1165      0.9924 ± 0.1147    0.898  0.937
        final: ε                    2.5200 ± 0.7472      2.5452 ± 0.6930    0.689  0.178
        matched-filter: null's deviation    0.9997 ± 0.1095      1.0016 ± 0.1089    0.840  0.993
        matched-filter: ε           8.3308 ± 0.9523      8.3226 ± 0.8975    0.920  0.527
        60 comparisons: smallest p × number 1.00; 3.3% below 0.05, 0.0% below 0.01
        240 comparisons: smallest p × number 1.00; 2.1% below 0.05, 0.0% below 0.01
    training: digits, d = 7,850, z = 0.3
        final: null's deviation     0.9932 ± 0.0807      0.9984 ± 0.0892    0.545  0.097
        final: ε                    9.2522 ± 0.7953      9.2556 ± 0.8581    0.968  0.296
        matched-filter: null's deviation    0.9930 ± 0.0919      0.9926 ± 0.0962    0.965  0.243
        matched-filter: ε          30.2274 ± 1.0952     30.2636 ± 1.1941    0.752  0.195
        60 comparisons: smallest p × number 0.88; 1.7% below 0.05, 0.0% below 0.01
    training: digits, d = 7,850, z = 0
        final: null's deviation     0.9961 ± 0.0926      0.9873 ± 0.0938    0.345  0.719
        final: ε                   24.4762 ± 1.5523     24.2415 ± 1.7035    0.151  0.111
        matched-filter: null's deviation    0.9976 ± 0.0913      0.9955 ± 0.0930    0.814  0.596
        matched-filter: ε         550.5964 ± 48.4202   543.8156 ± 48.1506   0.161  0.718
        60 comparisons: smallest p × number 1.00; 3.3% below 0.05, 0.0% below 0.01
        120 comparisons: smallest p × number 1.00; 2.5% below 0.05, 0.0% below 0.01
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

from fl_epe import AuditRecord, CanarySet, epsilon_from_cosines, epsilon_from_record
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
            p_mean = float(scipy.stats.ttest_ind(one, other, equal_var=False).pvalue)
            p_spread = float(scipy.stats.levene(one, other, center="median").pvalue)
        means = float(one.mean()), float(other.mean())
        spreads = float(one.std(ddof=1)), float(other.std(ddof=1))
        return cls(name, means, spreads, p_mean, p_spread, min(len(one), len(other)))

    def __str__(self) -> str:
        cells = [
            f"{mean:>10.4f} ± {deviation:<8.4f}"
            for mean, deviation in zip(self.means, self.deviations, strict=True)
        ]
        return f"    {self.name:<24}{''.join(cells)}{self.p_mean:>7.3f}{self.p_spread:>7.3f}"


def compared(one: list[Statistics], other: list[Statistics]) -> list[Row]:
    """A row for each statistic."""
    return [
        Row.of(name, *(np.array([run[name] for run in runs]) for runs in (one, other)))
        for name in one[0]
    ]


def verdict(rows: list[Row]) -> str:
    """One line for all comparisons of a part."""
    found = np.array([p for row in rows for p in (row.p_mean, row.p_spread)])
    least = min(1.0, float(found.min()) * len(found))
    return (
        f"    {len(found)} comparisons: smallest p × number {least:.2f}; "
        f"{np.mean(found < 0.05):.1%} below 0.05, {np.mean(found < 0.01):.1%} below 0.01"
    )


# One release.


def of_cosines(found: Floats, dim: int, bounds: Sequence[str] = BOUNDS) -> Statistics:
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
        **{f"bound: {name}": lower_bound(exact, DELTA, method=name) for name in bounds},
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
    rng: np.random.Generator, dim: int, count: int, taking_part: int, length: float
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


def release(kind: int, dim: int, count: int, seed: int, hidden: Hidden) -> Floats:
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

        def noise(rng: np.random.Generator, dim: int = dim) -> NDArray[np.float32]:
            return rng.standard_normal(dim, np.float32)

        runs = [
            [release(kind, dim, count, seed, noise) for seed in range(seeds)]
            for kind in (ROTATION, SPHERE)
        ]
        for z, epsilon in NOISES:
            both = []
            for kind in runs:
                bounds = (HEADLINE, *BOUNDS) if epsilon == 3 else BOUNDS
                both.append([of_cosines(cosines(one, z), dim, bounds) for one in kind])
            yield f"d = {dim:,}, {count} canaries, ε = {epsilon:g}", compared(*both)


# Several rounds.


def of_record(record: AuditRecord) -> Statistics:
    """Every statistic of a run."""
    found: Statistics = {}
    for adversary, statistic in ATTACKS:
        scores = scores_of(seen_by(record, adversary), statistic)
        name = "final" if adversary.sees == "final" else statistic
        if scores.unobserved is None:
            raise ValueError(
                f"Expected unobserved canaries in the record, got {scores}."
            )
        found[f"{name}: mean"] = float(scores.observed.mean())
        found[f"{name}: deviation"] = float(scores.observed.std(ddof=1))
        found[f"{name}: null's mean"] = float(scores.unobserved.mean())
        found[f"{name}: null's deviation"] = float(scores.unobserved.std(ddof=1))
        found[f"{name}: null's largest"] = float(scores.unobserved.max())
        found[f"{name}: ε"] = epsilon_from_record(
            record, adversary=adversary, statistic=statistic
        ).epsilon
        if statistic != "maximum":
            for method in BOUNDS:
                bound = lower_bound(scores, record.delta, method=method)
                found[f"{name}: bound, {method}"] = bound
    found["final: ε, fitted"] = epsilon_from_record(
        record, statistic="displacement", variance="fitted"
    ).epsilon
    found["final: ε, raw"] = epsilon_from_record(
        record, statistic="displacement", leave_one_out=False
    ).epsilon
    found["κ, final"] = _scale(record)
    found["κ, every round"] = _scale(record, EVERY_ROUND)
    return found


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
                name for name in run if name.startswith("maximum: ") and "ε" not in name
            ]:
                run[name] *= np.sqrt(10**9 / dim)
        what = f"d = {dim:,}, {participations} participations, momentum {momentum:g}"
        yield f"{what}: rotation, sphere", compared(runs["rotation"], runs["sphere"])
        yield f"{what}: rotation, the limit", compared(runs["rotation"], limits)


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
        both = []
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
            both.append(
                [
                    of_record(
                        simulate(
                            Job(task, config, Seeds.derive(2 * seed + stream), 10),
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
            for kind in both
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

        both = []
        for kind in (ROTATION, SPHERE):
            runs = (release(kind, dim, count, seed, hidden) for seed in range(seeds))
            both.append([of_cosines(cosines(run, 1.0), dim) for run in runs])
        what = f"embedding, d = {dim:,}, {clients} clients, {share:.1%} not 0"
        yield what, compared(*both)


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
        "--seeds", type=int, default=200, help="runs of each kind (default: 200)"
    )
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore", message=".*precision loss.*")  # of constants
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
