"""Does the high-dimensional limit predict real training? Eleven schedules, two levels of noise.

    python simulations/studies/limit_vs_digits.py              # train and compare: 20 to 40 minutes
    python simulations/studies/limit_vs_digits.py --theory     # what needs no training: seconds
    python simulations/studies/limit_vs_digits.py --keep DIR   # keep records, and use them again

The first part needs no training. For one participation the limit is the exact Gaussian mechanism,
with noise z·√T for an adversary who sees the final model and z for one who sees every round's. It
also gives ε-final of the paper's Table 3.

The second part trains on Flower, in process: the digits of 60 clients, 20 rounds of 12 clients and
about 150 of 1,000 canaries, three participations of each canary, adaptive clip norm, momentum 0.9.
Held-out accuracy ends between 22% and 88%. The limit is given the schedule, the clip norms and the
norms of what was released, but draws its own participations (20,000 canaries) and noise.

The columns:

- "real": the share of the released norm that is updates and not noise (of θ_T − θ_0 for "final", of
  a round's mean for "all");
- κ: the scale of `ladder_fit`, which knows the run's own participations; it is 1 if they
explain
  the scores;
- "score": the mean score of the run's canaries; "limit": the prediction; "/se": their difference in
  standard errors, from the spread of both and the error of the rounds' correlations; ✓: the
  difference is at most 2 standard errors;
- the same three for ε with known variance.

Where a schedule balances participations, the canaries' scores are not independent. The standard
error is then too large, and χ² too small. The last lines ask whether training undoes canaries: they
give the mean score of canaries that are absent but took part before, in standard deviations of the
null distribution (a canary that takes part has 3.2 at z = 0.3).

Where real updates hide canaries too (z = 0.02) rounds are correlated, which the limit does not
know: κ still fits in each of 44 cells, and 42 of 44 mean scores are as predicted; the others
are 0.6% above and 1.8% below.

Expected (2026-11-24, 2 cores shared with other work; check-in and time-of-day, then two more kinds
of schedule, are logs today, see docs/schedules.md, and no longer trained)::

    one participation, constant clip norm, expected scores alone: ε and the exact one
      T =   16  z =    0.2  final     4.1454    4.1454
      T =   16  z =    0.2  all      27.1760   27.1760
      T =   60  z =    0.5  final     0.9597    0.9597
      T =   60  z =    0.5  all       9.9973    9.9973
      T = 2048  z = 0.0496  final     2.0052    2.0052
      T = 2048  z = 0.0496  all     298.9814  298.9813
    Table 3, ε-final: expected; from scores, known variance, 20 seeds, mean ± sd; the paper
      z = 0.0496  2.01  2.05 ± 0.18  1.97
      z = 0.0986  0.95  0.96 ± 0.14  1.18
      z = 0.2317  0.38  0.41 ± 0.13  0.57
    schedule          z sees  real      κ   /se   score   limit   /se         ε   limit   /se
    epochs          0.3 final   3% 1.0077 +0.50   2.072   2.056 +0.47 ✓    6.22    6.15 +0.47
    epochs          0.3 all     3% 0.9960 -0.71   5.575   5.596 -0.66 ✓   27.46   27.63 -0.66
    epochs         0.02 final  38% 0.9978 -1.76  29.172  29.239 -0.68 ✓  491.61  493.41 -0.58
    epochs         0.02 all    22% 0.9989 -1.48  84.379  84.463 -1.37 ✓ 3752.01 3759.30 -1.37
    poisson         0.3 final   0% 1.0037 +0.28   2.127   2.060 +1.40 ✓    6.46    6.17 +1.40
    poisson         0.3 all     2% 0.9935 -1.14   5.525   5.516 +0.15 ✓   27.07   27.00 +0.15
    poisson        0.02 final  41% 0.9991 -0.75  29.159  28.813 +0.66 ✓  491.41  480.06 +0.69
    poisson        0.02 all    23% 0.9998 -0.25  83.135  83.351 -0.32 ✓ 3644.97 3663.44 -0.32
    fixed-size      0.3 final   0% 1.0030 +0.22   2.049   2.056 -0.14 ✓    6.12    6.15 -0.14
    fixed-size      0.3 all     2% 0.9990 -0.18   5.499   5.538 -0.67 ✓   26.87   27.18 -0.67
    fixed-size     0.02 final  40% 1.0004 +0.32  28.982  28.944 +0.07 ✓  485.86  484.13 +0.11
    fixed-size     0.02 all    22% 1.0003 +0.35  83.294  83.604 -0.46 ✓ 3658.56 3685.08 -0.46
    min-separation  0.3 final   2% 1.0055 +0.37   2.067   2.053 +0.38 ✓    6.20    6.14 +0.38
    min-separation  0.3 all     2% 0.9937 -1.10   5.527   5.551 -0.65 ✓   27.09   27.28 -0.65
    min-separation 0.02 final  40% 1.0006 +0.50  29.105  29.084 +0.10 ✓  489.53  488.52 +0.15
    min-separation 0.02 all    21% 1.0004 +0.48  83.981  84.078 -0.29 ✓ 3717.59 3725.96 -0.29
    cyclic          0.3 final   4% 0.9848 -1.00   2.029   2.061 -0.93 ✓    6.04    6.17 -0.93
    cyclic          0.3 all     3% 0.9950 -0.87   5.566   5.587 -0.63 ✓   27.40   27.56 -0.63
    cyclic         0.02 final  41% 1.0002 +0.17  29.008  28.998 +0.09 ✓  486.46  485.84 +0.19
    cyclic         0.02 all    20% 0.9999 -0.09  84.761  84.777 -0.14 ✓ 3785.16 3786.51 -0.14
    balls-in-bins   0.3 final   0% 0.9940 -0.38   2.003   2.021 -0.54 ✓    5.93    6.01 -0.54
    balls-in-bins   0.3 all     2% 0.9981 -0.33   5.568   5.598 -0.90 ✓   27.41   27.64 -0.90
    balls-in-bins  0.02 final  39% 1.0017 +1.37  29.037  28.901 +1.41 ✓  487.38  482.80 +1.52
    balls-in-bins  0.02 all    23% 0.9999 -0.12  84.851  84.371 +7.28 ✗ 3792.98 3751.25 +7.28
    check-in        0.3 final   4% 0.9936 -0.43   2.019   2.078 -1.52 ✓    6.00    6.25 -1.52
    check-in        0.3 all     3% 0.9923 -1.33   5.453   5.530 -1.78 ✓   26.51   27.11 -1.78
    check-in       0.02 final  41% 1.0013 +1.08  28.950  28.756 +0.61 ✓  484.72  478.29 +0.65
    check-in       0.02 all    21% 1.0004 +0.55  83.571  83.613 -0.09 ✓ 3682.25 3685.92 -0.09
    time-of-day     0.3 final   0% 0.9931 -0.49   2.037   2.055 -0.40 ✓    6.07    6.15 -0.40
    time-of-day     0.3 all     2% 0.9978 -0.38   5.500   5.520 -0.40 ✓   26.87   27.03 -0.40
    time-of-day    0.02 final  41% 1.0007 +0.56  28.861  28.838 +0.05 ✓  482.01  480.83 +0.09
    time-of-day    0.02 all    21% 0.9999 -0.11  82.729  83.452 -1.20 ✓ 3610.32 3672.11 -1.20
    device-classes  0.3 final   4% 1.0197 +1.70   2.089   2.056 +0.49 ✓    6.30    6.15 +0.49
    device-classes  0.3 all     3% 1.0089 +1.53   5.624   5.612 +0.14 ✓   27.84   27.75 +0.14
    device-classes 0.02 final  38% 1.0010 +0.95  28.765  29.209 -0.52 ✓  479.52  492.46 -0.49
    device-classes 0.02 all    21% 0.9997 -0.29  83.983  85.163 -1.11 ✓ 3717.70 3820.23 -1.11
    capped          0.3 final   4% 0.9902 -0.58   1.718   1.738 -0.51 ✓    4.78    4.86 -0.51
    capped          0.3 all     3% 0.9875 -1.96   4.925   5.015 -2.14 ✗   22.58   23.23 -2.14
    capped         0.02 final  32% 0.9987 -0.99  24.890  25.409 -1.46 ✓  365.99  379.99 -1.44
    capped         0.02 all    18% 0.9997 -0.40  75.965  76.209 -0.58 ✓ 3058.16 3077.31 -0.58
    drop-out        0.3 final   2% 0.9926 -0.50   2.032   2.075 -1.09 ✓    6.05    6.23 -1.09
    drop-out        0.3 all     2% 0.9939 -1.06   5.467   5.542 -1.72 ✓   26.62   27.21 -1.72
    drop-out       0.02 final  40% 0.9995 -0.38  28.692  28.906 -0.67 ✓  476.69  482.96 -0.63
    drop-out       0.02 all    21% 1.0000 -0.02  83.534  83.582 -0.10 ✓ 3679.08 3683.20 -0.10
    final 22 of 22 scores within 2 se; χ², p:  score 13.8, 0.91  epsilon 14.0, 0.90  κ 15.0, 0.86
    all   20 of 22 scores within 2 se; χ², p:  score 71.7, 0.00  epsilon 71.7, 0.00  κ 16.3, 0.80
    both  42 of 44 scores within 2 se; χ², p:  score 85.5, 0.00  epsilon 85.7, 0.00  κ 31.3, 0.92
    z = 0.3: score in rounds after a canary's own +0.0013 ± 0.0027
    z = 0.02: score in rounds after a canary's own +0.0013 ± 0.0027
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fl_epe import AuditRecord, epsilon_from_record, epsilon_two_gaussians
from fl_epe.accounting import gaussian_epsilon
from fl_epe.auditing import (
    EVERY_ROUND,
    FINAL_MODEL,
    Adversary,
    ladder_fit,
    scores_of,
    seen_by,
)
from fl_epe.config import RunConfig
from fl_epe.limit import limit_record
from fl_epe.limit.simulated_record import RealUpdates
from fl_epe.schedules import ShuffledEpochs, parse_schedule
from fl_epe.seeding import Seeds

Floats = NDArray[np.float64]

SCHEDULES = (
    "epochs",
    "poisson",
    "fixed-size",
    "min-separation:separation=5",
    "cyclic",
    "balls-in-bins",
    'device-classes:{"rates": [1, 4], "shares": [0.7, 0.3]}',
    "capped:of=poisson,per_run=3",
    'drop-out:{"rate": 0.2, "of": "min-separation:separation=4"}',
)
NOISE = (0.3, 0.02)
ADVERSARIES = (FINAL_MODEL, EVERY_ROUND)
LIMIT_CANARIES = 20_000
_STEP = 1e-4  # for the derivative of ε


@dataclasses.dataclass(frozen=True)
class Row:
    """A run beside its prediction: mean scores and ε, and their difference in standard errors.

    ``scale`` is κ of `ladder_fit`, which knows the run's own participations.
    """

    schedule: str
    noise_multiplier: float
    sees: str
    real_share: float
    scale: float
    scale_z: float
    scores: tuple[float, float]
    score_z: float
    epsilons: tuple[float, float]
    epsilon_z: float

    def __str__(self) -> str:
        """A line of the table."""
        mark = "✓" if abs(self.score_z) <= 2 else "✗"
        (real, limit), (epsilon, predicted) = self.scores, self.epsilons
        return (
            f"{self.schedule:14} {self.noise_multiplier:4g} {self.sees:5} {self.real_share:4.0%} "
            f"{self.scale:6.4f} {self.scale_z:+5.2f} {real:7.3f} {limit:7.3f} {self.score_z:+5.2f} "
            f"{mark} {epsilon:7.2f} {predicted:7.2f} {self.epsilon_z:+5.2f}"
        )


HEADER = (
    f"{'schedule':14} {'z':>4} {'sees':5} real {'κ':>6} {'/se':>5} {'score':>7} {'limit':>7} "
    f"{'/se':>5}   {'ε':>7} {'limit':>7} {'/se':>5}"
)


def settings(spec: str, noise_multiplier: float) -> RunConfig:
    """A run on the digits of 60 clients: 12 of them and about 150 of 1,000 canaries a round."""
    return RunConfig(
        clients=60,
        rounds=20,
        clients_per_round=12,
        participation=spec,
        num_canaries=1000,
        unobserved=0,
        canary_participations=3,
        noise_multiplier=noise_multiplier,
        server_learning_rate=2.0,
    )


def train(config: RunConfig, seed: int, path: Path) -> AuditRecord:
    """Train on Flower, in process, or load the record if the file exists."""
    if path.exists():
        return AuditRecord.load(path)
    from fl_epe.simulation import Job, simulate
    from fl_epe.tasks import load_task

    task = load_task("digits", num_clients=config.clients)
    record = simulate(
        Job(task, config, Seeds.derive(seed), config.rounds), workers=2
    )
    record.save(path)
    return record


def predict(record: AuditRecord, config: RunConfig, seed: int) -> AuditRecord:
    """The same run in the limit; its canaries draw their own participations."""
    return limit_record(
        config.canary_schedule(),
        record.mechanism.sum_noise_multiplier or 0.0,
        record.delta,
        num_canaries=LIMIT_CANARIES,
        unobserved=0,
        clip_norms=record.mechanism.clip_norms,
        momentum=config.server_momentum,
        real=RealUpdates.of(record),
        seed=seed,
    )


def compare(
    record: AuditRecord, limit: AuditRecord, adversary: Adversary
) -> Row:
    """Compare the mean scores and ε of the run's canaries with the limit's."""
    pairs = [scores_of(seen_by(r, adversary)) for r in (record, limit)]
    means = (
        pairs[0].unit * pairs[0].observed.mean(),
        pairs[1].unit * pairs[1].observed.mean(),
    )
    squares = [
        scores.unit**2 * scores.observed.var(ddof=1) / len(scores.observed)
        + (scores.unit_error * mean) ** 2
        for scores, mean in zip(pairs, means, strict=True)
    ]
    error = float(np.sqrt(sum(squares)))
    statistic = (
        "displacement" if adversary.sees == "final" else "matched-filter"
    )
    epsilons = [
        epsilon_from_record(r, statistic=statistic).epsilon
        for r in (record, limit)
    ]
    middle = max(sum(means) / 2, 0.0) + _STEP * np.array([-1.0, 1.0])
    near = np.asarray(
        epsilon_two_gaussians(0.0, 1.0, middle, 1.0, record.delta)
    )
    slope = float(np.diff(near)[0]) / (2 * _STEP)
    view = seen_by(record, adversary)
    fit = ladder_fit(view)
    return Row(
        parse_schedule(str(record.design.schedule))[0],
        record.mechanism.noise_multiplier or 0.0,
        adversary.sees,
        real_share(record, adversary),
        fit.scale,
        (fit.scale - 1) * 2 * stats.norm.ppf(0.975) / (fit.high - fit.low),
        means,
        (means[0] - means[1]) / error,
        (epsilons[0], epsilons[1]),
        (epsilons[0] - epsilons[1]) / (slope * error),
    )


def real_share(record: AuditRecord, adversary: Adversary) -> float:
    """The share √(r / (z² + r)) of the released norm that is updates, of clients and canaries.

    The norm is that of θ_T − θ_0 for "final", and of a round's mean for "all".
    """
    real, noise = (
        RealUpdates.of(record),
        (record.mechanism.sum_noise_multiplier or 0.0) ** 2,
    )
    added = (
        real.final
        if adversary.sees == "final"
        else float(real.every_round.mean())
    )
    return float(np.sqrt(added / (noise + added)))


def reactions(record: AuditRecord) -> Floats:
    """Scores in each round of the canaries that are absent but took part before.

    They are N(0, 1). If training undid what canaries did to the model, they would lie below zero.
    """
    present = record.presence
    before = np.cumsum(present, axis=0) - present > 0
    return np.asarray(
        record.observed.means[~present & before] * np.sqrt(record.dim)
    )


def runs(
    directory: Path, specs: Sequence[str]
) -> Iterator[tuple[AuditRecord, list[Row]]]:
    """Train, predict and compare, schedule by schedule."""
    for number, spec in enumerate(SCHEDULES):
        for level, z in enumerate(NOISE):
            if spec not in specs:
                continue
            seed = len(NOISE) * number + level
            config = settings(spec, z)
            record = train(
                config, seed, directory / f"{parse_schedule(spec)[0]}-{z}.npz"
            )
            limit = predict(record, config, 1000 + seed)
            yield (
                record,
                [
                    compare(record, limit, adversary)
                    for adversary in ADVERSARIES
                ],
            )


def show_runs(directory: Path, specs: Sequence[str]) -> None:
    print(HEADER)
    rows: list[Row] = []
    undone: dict[float, list[Floats]] = {z: [] for z in NOISE}
    for record, new in runs(directory, specs):
        rows += new
        undone[record.mechanism.noise_multiplier or 0.0].append(
            reactions(record)
        )
        print(*new, sep="\n", flush=True)
    for adversary in ADVERSARIES:
        print(
            _verdict(
                adversary.sees,
                [row for row in rows if row.sees == adversary.sees],
            )
        )
    print(_verdict("both", rows))
    for z, parts in undone.items():
        scores = np.concatenate(parts)
        error = 1 / np.sqrt(len(scores))
        print(
            f"z = {z}: score in rounds after a canary's own {scores.mean():+.4f} ± {error:.4f}"
        )


def _verdict(name: str, rows: Sequence[Row]) -> str:
    inside = sum(abs(row.score_z) <= 2 for row in rows)
    line = f"{name:5} {inside} of {len(rows)} scores within 2 se; χ², p:"
    for quantity in ("score", "epsilon", "scale"):
        chi2 = sum(getattr(row, f"{quantity}_z") ** 2 for row in rows)
        line += f"  {'κ' if quantity == 'scale' else quantity} {chi2:.1f}, "
        line += f"{stats.chi2.sf(chi2, len(rows)):.2f}"
    return line


def show_theory() -> None:
    """Compare expected expected scores with the exact mechanism, and print ε-final of Table 3."""
    print(
        "one participation, constant clip norm, expected scores alone: ε and the exact one"
    )
    for rounds, z, delta in (
        (16, 0.2, 1e-3),
        (60, 0.5, 1e-5),
        (2048, 0.0496, 341_000**-1.1),
    ):
        schedule = ShuffledEpochs(rounds, 1)
        record = limit_record(
            schedule, z, delta, num_canaries=rounds, unobserved=0
        )
        noises: dict[Adversary, float] = {
            FINAL_MODEL: z * np.sqrt(rounds),
            EVERY_ROUND: z,
        }
        for adversary, noise in noises.items():
            shift = float(
                seen_by(record, adversary).expected_scores.observed.mean()
            )
            got, exact = _epsilon(shift, delta), gaussian_epsilon(noise, delta)
            assert abs(got / exact - 1) < 0.01, (rounds, adversary, got, exact)
            print(
                f"  T = {rounds:4}  z = {z:6}  {adversary.sees:6} {got:9.4f} {exact:9.4f}"
            )
    print(
        "Table 3, ε-final: expected; from scores, known variance, 20 seeds, mean ± sd; the paper"
    )
    delta = 341_000**-1.1
    schedule = ShuffledEpochs(2048, 1)
    for row, (z, paper) in enumerate(
        ((0.0496, 1.97), (0.0986, 1.18), (0.2317, 0.569))
    ):
        make = functools.partial(limit_record, schedule, z, delta, unobserved=0)
        seeds = range(20 * row, 20 * row + 20)
        values = [
            epsilon_from_record(
                make(seed=seed), statistic="displacement"
            ).epsilon
            for seed in seeds
        ]
        final = seen_by(make()).expected_scores.by_round
        expected = _epsilon(
            float(final.mean() * schedule.participations()), delta
        )
        spread = f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"
        print(f"  z = {z:6}  {expected:.2f}  {spread}  {paper:.2f}", flush=True)


def _epsilon(shift: float, delta: float) -> float:
    return float(epsilon_two_gaussians(0.0, 1.0, shift, 1.0, delta))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--theory", action="store_true", help="only what needs no training"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep the records there"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="SPEC", default=SCHEDULES, help="schedules"
    )
    options = parser.parse_args()
    show_theory()
    if options.theory:
        return
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        show_runs(options.keep, options.only)
    else:
        with tempfile.TemporaryDirectory() as directory:
            show_runs(Path(directory), options.only)


if __name__ == "__main__":
    main()
