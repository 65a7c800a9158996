"""Do intervals and bounds hold where rounds are correlated, for one participation and for many?

Runs with noise of which a share of the energy is the same in every round, server momentum, and 40
canaries in R random rounds of 30. In 650 and 4,000 dimensions they are those of `RunAuditor` with
vectors. In 10⁶ dimensions what it would see is drawn from its law (`by_law`): the canaries' inner
products, the lengths of the rounds and 16,381 sums of their sketches are normal. With ``--vectors``
there are 10⁶ numbers instead, which takes two seconds a run. Canaries are less than a thousandth of
such a round, and so are left in it, which costs 0.2% of the mean where all take part in all rounds.

The truth is ε of one of the run's canaries drawn at random (`known_expected_score_epsilon`), with
the products of the rounds as they are on average. Every cell has random numbers of its own.

"mean" is the mean score's shift over theory, "null" the deviation of canaries that took no part,
"covers" the 95% interval, "so far" runs in which the lower end that is shown is above the truth of
its moment after 10, 20 or 30 rounds (2.5% allowed), "proved" bounds at 95% above the truth at the
end (5% allowed, with two standard errors of chance; of coverage, three in a cell and two in all).

    python simulations/studies/whitened_runs.py    # 2,000 runs a cell, fifty minutes on one core

Expected, of ``--dims 650`` with 2,000 runs, and of the others with ``--runs 1000``::

        dim  R shared momentum |  mean        null          covers  so far  proved     gdp
        650  1    0.0      0.0 | 0.9970±0.0018 1.0016±0.0020  94.75%   0.55%   0.05%   1.45%
        650  1    0.1      0.9 | 0.9998±0.0017 1.0021±0.0021  94.75%   0.65%   0.05%   1.95%
        650  1    0.5     0.95 | 0.9986±0.0013 0.9972±0.0021  94.65%   0.85%   0.00%   1.95%
        650  5    0.0      0.0 | 1.0001±0.0008 0.9972±0.0021  94.85%   1.15%   0.00%   0.35%
        650  5    0.1      0.9 | 1.0012±0.0009 0.9942±0.0020  93.90%   1.15%   0.00%   1.00%
        650  5    0.5     0.95 | 1.0002±0.0007 1.0005±0.0021  94.40%   0.35%   0.00%   0.35%
        650 30    0.0      0.0 | 1.0014±0.0007 0.9991±0.0021  95.05%   0.40%   0.00%   0.00%
        650 30    0.1      0.9 | 1.0021±0.0009 0.9961±0.0020  95.25%   0.10%   0.00%   0.05%
        650 30    0.5     0.95 | 1.0004±0.0015 1.0004±0.0020  95.05%   0.00%   0.00%   0.75%
       4000  1    0.0      0.0 | 0.9996±0.0025 0.9991±0.0029  95.00%   1.20%   0.20%   3.50%
       4000  1    0.1      0.9 | 0.9972±0.0024 1.0043±0.0029  94.70%   0.70%   0.30%   2.80%
       4000  1    0.5     0.95 | 0.9987±0.0019 1.0027±0.0028  94.20%   0.60%   0.20%   3.00%
       4000  5    0.0      0.0 | 1.0003±0.0012 1.0038±0.0029  94.40%   1.20%   0.10%   2.40%
       4000  5    0.1      0.9 | 0.9996±0.0011 1.0022±0.0028  95.70%   0.70%   0.00%   2.50%
       4000  5    0.5     0.95 | 0.9991±0.0008 1.0009±0.0029  95.20%   0.30%   0.00%   1.30%
       4000 30    0.0      0.0 | 1.0008±0.0006 0.9992±0.0029  95.10%   0.60%   0.00%   0.00%
       4000 30    0.1      0.9 | 1.0004±0.0010 1.0004±0.0029  95.30%   0.10%   0.00%   0.40%
       4000 30    0.5     0.95 | 1.0006±0.0018 1.0022±0.0029  96.20%   0.00%   0.00%   1.10%
    1000000  1    0.0      0.0 | 1.0028±0.0025 1.0036±0.0028  95.50%   0.60%   0.20%   3.60%
    1000000  1    0.1      0.9 | 0.9995±0.0024 1.0043±0.0030  94.10%   1.50%   0.20%   3.70%
    1000000  1    0.5     0.95 | 1.0002±0.0018 0.9960±0.0029  95.60%   0.20%   0.10%   3.30%
    1000000  5    0.0      0.0 | 0.9993±0.0011 1.0020±0.0027  94.70%   1.00%   0.00%   1.90%
    1000000  5    0.1      0.9 | 1.0001±0.0012 0.9989±0.0028  94.20%   1.00%   0.00%   2.80%
    1000000  5    0.5     0.95 | 0.9997±0.0009 0.9971±0.0029  94.80%   0.80%   0.00%   2.10%
    1000000 30    0.0      0.0 | 0.9984±0.0005 1.0001±0.0030  95.80%   0.70%   0.00%   0.40%
    1000000 30    0.1      0.9 | 1.0002±0.0009 0.9995±0.0029  95.10%   0.10%   0.00%   1.00%
    1000000 30    0.5     0.95 | 1.0021±0.0019 1.0072±0.0030  94.00%   0.00%   0.00%   3.00%
    covered, all together: 94.74% ± 0.16%, 95.09% ± 0.23%, 94.87% ± 0.23%

And of ``--dims 1000000 --often 5 --vectors --runs 40``::

    1000000  5    0.0      0.0 | 0.9953±0.0052 0.9900±0.0146  95.00%   0.00%   0.00%   0.00%
    1000000  5    0.1      0.9 | 1.0097±0.0051 0.9773±0.0126  95.00%   2.50%   0.00%   2.50%
    1000000  5    0.5     0.95 | 1.0073±0.0040 1.0088±0.0151  95.00%   0.00%   0.00%   0.00%
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fl_epe import RoundFacts, RunAuditor
from fl_epe.accounting import delta_two_gaussians, known_expected_score_epsilon
from fl_epe.auditing import (
    EVERY_ROUND,
    AuditRecord,
    CanaryCosines,
    EpsilonEstimate,
    Mechanism,
    Norms,
    ServerStep,
    scores_of,
    seen_by,
)
from fl_epe.auditing.answer.epsilon_so_far import EpsilonSoFar
from fl_epe.auditing.answer.ladder_fit import ladder_fit
from fl_epe.auditing.bounds import lower_bound
from fl_epe.auditing.record.parts import RunningScores
from fl_epe.auditing.record.round_correlation import (
    SKETCH_PARTS,
    Residual,
    RoundCorrelation,
    Whitener,
    whitened_row,
)
from fl_epe.auditing.scoring.scores import residual_norm, shift_scores
from fl_epe.canaries import CanarySet
from fl_epe.mechanism import ServerSGD, norm
from fl_epe.schedules import ParticipationLaw

Floats = NDArray[np.float64]
Shown = list[tuple[int, EpsilonEstimate | None]]  # after so many rounds

ROUNDS, NOISE, DELTA, LEVEL = 30, 0.5, 1e-5, 0.05
METHODS = ("weighted", "gdp")
SHARED = ((0.0, 0.0), (0.1, 0.9), (0.5, 0.95))  # with momentum
UNOBSERVED, EVERY = 60, 10
_HELD = (
    1 << 20
)  # numbers of canaries that are kept; of more, transforms are faster
_LARGE = 1 << 17  # dimensions of which vectors take too long


def hold(canaries: CanarySet) -> None:
    """Make its canaries once: products with few short ones are faster than transforms."""
    rows = np.array(
        [canaries.vector(i) for i in range(canaries.count)], np.float64
    )

    def dot(x: Floats, *, numbers: Sequence[int] | None = None) -> Floats:
        return np.asarray(
            x @ (rows if numbers is None else rows[list(numbers)]).T
        )

    def combine(
        weights: Floats, *, numbers: Sequence[int]
    ) -> NDArray[np.float32]:
        return np.asarray(weights @ rows[list(numbers)], np.float32)

    vars(canaries).update(dot=dot, combine=combine)


def expected_scores(here: NDArray[np.bool_], shared: float) -> Floats:
    """Of those who take part in the rounds of a row of ``here``; other rounds come later."""
    rounds = here.shape[1]
    inverse = np.linalg.inv((1 - shared) * np.eye(rounds) + shared)
    energies = np.sum(here @ inverse * here, axis=1)
    return np.asarray(np.sqrt(energies[energies > 0]) / NOISE)


@functools.cache
def truth_of(often: int, shared: float) -> tuple[float, float]:
    """Expected score of each canary and its ε; whichever its rounds are, they are the same."""
    score = float(expected_scores(np.arange(ROUNDS)[None] < often, shared)[0])
    return score, known_expected_score_epsilon([score], DELTA)


def noises(
    rng: np.random.Generator, size: int, shared: float
) -> Iterator[Floats]:
    """Of each round, shape ``(size,)``."""
    always = np.sqrt(shared) * rng.standard_normal(size)
    for _ in range(ROUNDS):
        yield NOISE * (np.sqrt(1 - shared) * rng.standard_normal(size) + always)


def by_vectors(
    rng: np.random.Generator,
    here: NDArray[np.bool_],
    dim: int,
    shared: float,
    momentum: float,
) -> tuple[AuditRecord, Shown]:
    """The record of a run, and what was shown during it."""
    auditor = RunAuditor(
        len(here),
        UNOBSERVED,
        seed=int(rng.integers(1 << 62)),
        delta=DELTA,
        server=ServerSGD(1.0, momentum),
        planned=here.sum(),
    )
    theta, velocity, shown = np.zeros(dim), np.zeros(dim), []
    auditor.begin(theta)
    if auditor.canaries.count * dim <= _HELD:
        hold(auditor.canaries)
    for t, noise in enumerate(noises(rng, dim, shared)):
        present = np.flatnonzero(here[:, t]).tolist()
        total = auditor.canaries.combine(
            np.ones((1, len(present))), numbers=present
        )[0]
        velocity = momentum * velocity + noise + total
        theta = theta + velocity
        auditor.observe(
            theta, RoundFacts(present, 1.0, clip_norm=1.0, replies=1.0)
        )
        if (t + 1) % EVERY == 0:
            shown.append((t + 1, auditor.epsilon_so_far()))
    return auditor.record(
        noise_multiplier=NOISE, sum_noise_multiplier=NOISE
    ), shown


def by_law(
    rng: np.random.Generator, here: NDArray[np.bool_], dim: int, shared: float
) -> tuple[AuditRecord, Shown]:
    """As `by_vectors` in many dimensions, where canaries are orthogonal to all else.

    They are too small a part of a round to be taken out, so they are in its sketch. Momentum is
    undone exactly, and so it is not there. The rounds' lengths are those on average.
    """
    count = len(here)
    dots = np.array(
        list(noises(rng, count + UNOBSERVED, shared))
    )  # in units of coordinates
    dots[:, :count] += here.T
    lengths = np.sqrt(NOISE**2 * dim + here.sum(axis=0))
    signals = (
        np.sqrt(dim)
        / residual_norm(lengths, here.any(axis=0))[:, None]
        * here.T
    )
    scores = shift_scores(dots[:, :count] / lengths[:, None], dim)
    directions = rng.standard_normal((count, SKETCH_PARTS), np.float32)
    directions /= np.float32(np.sqrt(SKETCH_PARTS))
    whitener, rows, shown = Whitener(SKETCH_PARTS), [], []
    running = EpsilonSoFar(dim, count, here.sum(), whitener.window)
    for t, noise in enumerate(noises(rng, SKETCH_PARTS, shared)):
        canary_sum = here[:, t].astype(np.float32) @ directions
        sketch = np.sqrt(dim / SKETCH_PARTS) * noise + canary_sum
        rows.append(norm(sketch) / lengths[t] * whitener.add(Residual(sketch)))
        for values in (scores, signals):
            values[t] = whitened_row(rows[t], values[t], values[:t])
        running.add(np.flatnonzero(here[:, t]), scores[t], signals[t])
        if (t + 1) % EVERY == 0:
            shown.append((t + 1, running.estimate(DELTA)))
    sides = [
        CanaryCosines(
            means, means[0], means[0], canary_sums=np.zeros_like(means)
        )
        for means in np.split(dots / lengths[:, None], [count], axis=1)
    ]
    record = AuditRecord(
        dim=dim,
        delta=DELTA,
        observed=sides[0],
        unobserved=sides[1],
        presence=here.T,
        norms=Norms(lengths, lengths, 1.0, 1.0, canary_sums=np.zeros(ROUNDS)),
        mechanism=Mechanism(
            cohort_size=1.0,
            noise_multiplier=NOISE,
            sum_noise_multiplier=NOISE,
            participation=ParticipationLaw(ROUNDS),
            canary_participations=here.sum() / count,
            server=ServerStep("sgd", np.ones(ROUNDS)),
            clip_norms=np.ones(ROUNDS),
        ),
        correlation=RoundCorrelation.of(rows, dim),
        running=RunningScores(scores, signals, here.sum()),
    )
    return record, shown


def mean_delta(sizes: Floats, epsilon: float) -> float:
    """δ of a client drawn from those with these expected scores."""
    return float(
        np.mean(
            [
                delta_two_gaussians(0.0, 1.0, size, 1.0, epsilon)
                for size in sizes
            ]
        )
    )


def run(
    seed: int,
    dim: int,
    canaries: int,
    often: int,
    shared: float,
    momentum: float,
    law: bool,
) -> tuple[float, ...]:
    """Mean over theory, squared deviation of the null, covered, ever above, proved above."""
    rng = np.random.default_rng(
        (seed, dim, often, round(100 * shared), round(100 * momentum))
    )
    presences = np.array(
        [rng.permutation(ROUNDS) < often for _ in range(canaries)]
    )
    record, shown = (
        by_law(rng, presences, dim, shared)
        if law
        else by_vectors(rng, presences, dim, shared, momentum)
    )
    above = False
    for after, estimate in shown:
        if (
            estimate is not None
        ):  # and its lower end has a smaller δ than the truth
            sizes = expected_scores(presences[:, :after], shared)
            above |= mean_delta(sizes, estimate.low) < DELTA
    view, (theory, truth) = (
        seen_by(record, EVERY_ROUND),
        truth_of(often, shared),
    )
    scores = scores_of(view)
    fit = ladder_fit(view, scores)
    # Whether the truth is in the interval of κ, in terms of ε, whose ends need not be solved.
    ends = [
        mean_delta(
            max(scale, 0.0) * scores.unit * view.expected_scores.observed, truth
        )
        for scale in (fit.low, fit.high)
    ]
    assert scores.unobserved is not None
    proved = [
        lower_bound(scores, DELTA, method=method) > truth for method in METHODS
    ]
    return (
        scores.observed.mean() * scores.unit / theory,
        float(np.mean(scores.unobserved**2)),
        ends[0] <= DELTA <= ends[1],
        above,
        *proved,
    )


def error_of(share: float, runs: int) -> float:
    """Standard error of a share that is expected."""
    return float(np.sqrt(share * (1 - share) / runs))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--canaries", type=int, default=40)
    parser.add_argument(
        "--dims", type=int, nargs="+", default=[650, 4000, 10**6]
    )
    parser.add_argument("--often", type=int, nargs="+", default=[1, 5, 30])
    parser.add_argument(
        "--vectors", action="store_true", help="in every dimension"
    )
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    print(
        "    dim  R shared momentum |  mean        null          covers  so far  proved     gdp"
    )
    covered, failed = [], 0
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for dim in options.dims:
            for often in options.often:
                for shared, momentum in SHARED:
                    run_one = functools.partial(
                        run,
                        dim=dim,
                        canaries=options.canaries,
                        often=often,
                        shared=shared,
                        momentum=momentum,
                        law=dim > _LARGE and not options.vectors,
                    )
                    rows = np.array(
                        pool.map(run_one, range(options.runs), chunksize=10)
                    )
                    mean, square, *shares = rows.mean(axis=0)
                    errors = rows[:, :2].std(axis=0) / np.sqrt(options.runs)
                    null, wide = (
                        np.sqrt(square),
                        errors[1] / np.sqrt(square) / 2,
                    )
                    bad = abs(shares[0] - 1 + LEVEL) > 3 * error_of(
                        LEVEL, options.runs
                    )
                    bad |= max(shares[2:]) > LEVEL + 2 * error_of(
                        LEVEL, options.runs
                    )
                    failed += bad
                    covered.append(shares[0])
                    listed = "".join(f"{share:8.2%}" for share in shares)
                    print(
                        f"{dim:7}{often:3}{shared:7}{momentum:9} | {mean:.4f}±{errors[0]:.4f}"
                        f" {null:.4f}±{wide:.4f}{listed}{' !' if bad else ''}",
                        flush=True,
                    )
    print(
        f"{options.runs} runs a cell; cells with more than chance: {failed} of {len(covered)}"
    )
    error = error_of(LEVEL, options.runs * len(covered))
    print(f"covered, all together: {np.mean(covered):.2%}, 95% ± {error:.2%}")


if __name__ == "__main__":
    main()
