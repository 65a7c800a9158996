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
- κ: the scale of `expected_score_fit`, which knows the run's own participations; it is 1 if they
explain
  the scores;
- "score": the mean score of the run's canaries; "limit": the prediction; "/se": their difference in
  standard errors, from the spread of both; ✓: the difference is at most 2 standard errors;
- the same three for ε with known variance.

Where a schedule balances participations, the canaries' scores are not independent. The standard
error is then too large, and χ² too small. The last lines ask whether training undoes canaries: they
give the mean score of canaries that are absent but took part before, in standard deviations of the
null distribution (a canary that takes part has 3.2 at z = 0.3).

Expected (2026-11-21, 2 cores shared with other work)::

    one participation, constant clip norm, expected scores alone: ε and the exact one
      T =   16  z =    0.2  final     4.1454    4.1454
      T =   16  z =    0.2  all      27.1760   27.1760
      T =   60  z =    0.5  final     0.9597    0.9597
      T =   60  z =    0.5  all       9.9973    9.9973
      T = 2048  z = 0.0496  final     2.0052    2.0052
      T = 2048  z = 0.0496  all     298.9813  298.9813
    Table 3, ε-final: expected; from scores, known variance, 20 seeds, mean ± sd; the paper
      z = 0.0496  2.01  2.05 ± 0.18  1.97
      z = 0.0986  0.95  0.96 ± 0.14  1.18
      z = 0.2317  0.38  0.41 ± 0.13  0.57
    schedule          z sees  real      κ   /se   score   limit   /se         ε   limit   /se
    epochs          0.3 final   6% 0.9796 -1.33   2.010   2.053 -1.38 ✓    5.96    6.14 -1.38
    epochs          0.3 all     4% 0.9907 -1.65   5.534   5.593 -1.83 ✓   27.14   27.60 -1.83
    epochs         0.02 final  71% 0.9989 -0.76  22.310  22.335 -0.32 ✓  298.96  299.57 -0.32
    epochs         0.02 all    51% 1.0003 +0.80  74.293  74.257 +1.04 ✓ 2928.70 2925.97 +1.04
    poisson         0.3 final   6% 1.0040 +0.31   2.097   2.056 +0.81 ✓    6.33    6.16 +0.81
    poisson         0.3 all     4% 1.0070 +1.25   5.605   5.513 +1.62 ✓   27.70   26.98 +1.62
    poisson        0.02 final  75% 1.0003 +0.22  21.040  20.789 +0.66 ✓  268.53  262.70 +0.66
    poisson        0.02 all    52% 0.9996 -0.92  73.421  73.271 +0.25 ✓ 2862.32 2850.99 +0.25
    fixed-size      0.3 final   6% 1.0166 +1.23   2.096   2.054 +0.87 ✓    6.33    6.14 +0.87
    fixed-size      0.3 all     4% 1.0003 +0.05   5.512   5.536 -0.43 ✓   26.97   27.16 -0.43
    fixed-size     0.02 final  75% 0.9994 -0.44  20.934  20.935 -0.00 ✓  266.06  266.10 -0.00
    fixed-size     0.02 all    51% 1.0000 +0.08  73.740  73.490 +0.41 ✓ 2886.55 2867.54 +0.41
    min-separation  0.3 final   7% 0.9958 -0.28   2.043   2.051 -0.23 ✓    6.10    6.13 -0.23
    min-separation  0.3 all     3% 0.9979 -0.36   5.535   5.549 -0.36 ✓   27.15   27.26 -0.36
    min-separation 0.02 final  72% 1.0015 +1.10  22.130  22.094 +0.23 ✓  294.55  293.66 +0.23
    min-separation 0.02 all    51% 1.0001 +0.19  73.856  73.887 -0.11 ✓ 2895.39 2897.73 -0.11
    cyclic          0.3 final   7% 0.9926 -0.48   2.049   2.057 -0.26 ✓    6.12    6.16 -0.26
    cyclic          0.3 all     4% 0.9968 -0.57   5.567   5.584 -0.51 ✓   27.40   27.53 -0.51
    cyclic         0.02 final  71% 0.9981 -1.33  22.178  22.219 -0.48 ✓  295.73  296.74 -0.48
    cyclic         0.02 all    51% 0.9995 -1.25  74.445  74.479 -0.93 ✓ 2940.37 2942.98 -0.93
    balls-in-bins   0.3 final   5% 0.9915 -0.54   2.002   2.020 -0.57 ✓    5.92    6.00 -0.57
    balls-in-bins   0.3 all     4% 0.9905 -1.67   5.534   5.595 -1.85 ✓   27.14   27.62 -1.85
    balls-in-bins  0.02 final  71% 0.9988 -0.86  22.170  22.130 +0.53 ✓  295.53  294.55 +0.53
    balls-in-bins  0.02 all    52% 0.9999 -0.32  74.122  74.172 -1.33 ✓ 2915.65 2919.50 -1.33
    check-in        0.3 final   7% 1.0009 +0.06   2.027   2.076 -1.24 ✓    6.03    6.24 -1.24
    check-in        0.3 all     4% 0.9992 -0.15   5.475   5.527 -1.17 ✓   26.69   27.09 -1.17
    check-in       0.02 final  73% 0.9987 -0.91  21.698  21.620 +0.33 ✓  284.09  282.22 +0.33
    check-in       0.02 all    51% 0.9994 -1.48  73.658  73.466 +0.47 ✓ 2880.27 2865.71 +0.47
    time-of-day     0.3 final   6% 0.9998 -0.01   2.071   2.052 +0.42 ✓    6.22    6.14 +0.42
    time-of-day     0.3 all     4% 0.9983 -0.30   5.513   5.517 -0.09 ✓   26.98   27.01 -0.09
    time-of-day    0.02 final  74% 1.0004 +0.29  21.284  21.258 +0.08 ✓  274.26  273.65 +0.08
    time-of-day    0.02 all    51% 1.0002 +0.49  73.151  73.344 -0.36 ✓ 2841.94 2856.53 -0.36
    device-classes  0.3 final   9% 0.9964 -0.31   2.066   2.049 +0.25 ✓    6.20    6.13 +0.25
    device-classes  0.3 all     4% 0.9969 -0.55   5.582   5.609 -0.34 ✓   27.52   27.73 -0.34
    device-classes 0.02 final  79% 1.0014 +1.14  19.246  19.459 -0.38 ✓  228.29  232.90 -0.38
    device-classes 0.02 all    51% 0.9999 -0.33  74.593  74.988 -0.41 ✓ 2951.71 2982.18 -0.41
    capped          0.3 final   6% 0.9694 -1.82   1.673   1.737 -1.60 ✓    4.61    4.86 -1.60
    capped          0.3 all     4% 1.0027 +0.43   4.999   5.013 -0.32 ✓   23.12   23.22 -0.32
    capped         0.02 final  67% 1.0015 +1.03  19.658  19.993 -1.20 ✓  237.24  244.66 -1.20
    capped         0.02 all    46% 1.0001 +0.18  68.179  68.407 -0.61 ✓ 2479.19 2495.28 -0.61
    drop-out        0.3 final   7% 1.0008 +0.05   2.043   2.071 -0.70 ✓    6.10    6.22 -0.70
    drop-out        0.3 all     4% 0.9987 -0.22   5.482   5.540 -1.33 ✓   26.74   27.19 -1.33
    drop-out       0.02 final  72% 0.9997 -0.23  21.603  21.760 -0.65 ✓  281.82  285.58 -0.65
    drop-out       0.02 all    51% 0.9997 -0.61  73.543  73.478 +0.16 ✓ 2871.59 2866.67 +0.16
    final 22 of 22 scores within 2 se; χ², p:  score 11.8, 0.96  epsilon 11.8, 0.96  κ 15.3, 0.85
    all   22 of 22 scores within 2 se; χ², p:  score 18.2, 0.69  epsilon 18.2, 0.69  κ 14.3, 0.89
    both  44 of 44 scores within 2 se; χ², p:  score 30.0, 0.95  epsilon 30.0, 0.95  κ 29.6, 0.95
    z = 0.3: score in rounds after a canary's own -0.0001 ± 0.0027
    z = 0.02: score in rounds after a canary's own +0.0008 ± 0.0027
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
from fl_epe.auditing import EVERY_ROUND, FINAL_MODEL, Adversary, expected_score_fit, seen_by
from fl_epe.config import RunConfig
from fl_epe.limit import limit_record
from fl_epe.limit.simulated_record import RealUpdates, limit_weights
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
    "check-in:window=5",
    "time-of-day:rounds_per_day=10",
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

    ``scale`` is κ of `expected_score_fit`, which knows the run's own participations.
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
    record = simulate(Job(task, config, Seeds.derive(seed), config.rounds), workers=2)
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


def compare(record: AuditRecord, limit: AuditRecord, adversary: Adversary) -> Row:
    """Compare the mean scores and ε of the run's canaries with the limit's."""
    pairs = [seen_by(r, adversary).scores().observed for r in (record, limit)]
    means = (float(pairs[0].mean()), float(pairs[1].mean()))
    error = float(np.sqrt(sum(scores.var(ddof=1) / len(scores) for scores in pairs)))
    epsilons = [epsilon_from_record(r, adversary=adversary).epsilon for r in (record, limit)]
    middle = max(sum(means) / 2, 0.0) + _STEP * np.array([-1.0, 1.0])
    near = np.asarray(epsilon_two_gaussians(0.0, 1.0, middle, 1.0, record.delta))
    slope = float(np.diff(near)[0]) / (2 * _STEP)
    fit = expected_score_fit(seen_by(record, adversary))
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
    real, noise = RealUpdates.of(record), (record.mechanism.sum_noise_multiplier or 0.0) ** 2
    added = real.final if adversary.sees == "final" else float(real.every_round.mean())
    return float(np.sqrt(added / (noise + added)))


def reactions(record: AuditRecord) -> Floats:
    """Scores in each round of the canaries that are absent but took part before.

    They are N(0, 1). If training undid what canaries did to the model, they would lie below zero.
    """
    present = record.presence
    before = np.cumsum(present, axis=0) - present > 0
    return np.asarray(record.observed.means[~present & before] * np.sqrt(record.dim))


def runs(directory: Path, specs: Sequence[str]) -> Iterator[tuple[AuditRecord, list[Row]]]:
    """Train, predict and compare, schedule by schedule."""
    for number, spec in enumerate(SCHEDULES):
        for level, z in enumerate(NOISE):
            if spec not in specs:
                continue
            seed = len(NOISE) * number + level
            config = settings(spec, z)
            record = train(config, seed, directory / f"{parse_schedule(spec)[0]}-{z}.npz")
            limit = predict(record, config, 1000 + seed)
            yield record, [compare(record, limit, adversary) for adversary in ADVERSARIES]


def show_runs(directory: Path, specs: Sequence[str]) -> None:
    print(HEADER)
    rows: list[Row] = []
    undone: dict[float, list[Floats]] = {z: [] for z in NOISE}
    for record, new in runs(directory, specs):
        rows += new
        undone[record.mechanism.noise_multiplier or 0.0].append(reactions(record))
        print(*new, sep="\n", flush=True)
    for adversary in ADVERSARIES:
        print(_verdict(adversary.sees, [row for row in rows if row.sees == adversary.sees]))
    print(_verdict("both", rows))
    for z, parts in undone.items():
        scores = np.concatenate(parts)
        error = 1 / np.sqrt(len(scores))
        print(f"z = {z}: score in rounds after a canary's own {scores.mean():+.4f} ± {error:.4f}")


def _verdict(name: str, rows: Sequence[Row]) -> str:
    inside = sum(abs(row.score_z) <= 2 for row in rows)
    line = f"{name:5} {inside} of {len(rows)} scores within 2 se; χ², p:"
    for what in ("score", "epsilon", "scale"):
        chi2 = sum(getattr(row, f"{what}_z") ** 2 for row in rows)
        line += f"  {'κ' if what == 'scale' else what} {chi2:.1f}, "
        line += f"{stats.chi2.sf(chi2, len(rows)):.2f}"
    return line


def show_theory() -> None:
    """Compare expected expected scores with the exact mechanism, and print ε-final of Table 3."""
    print("one participation, constant clip norm, expected scores alone: ε and the exact one")
    for rounds, z, delta in ((16, 0.2, 1e-3), (60, 0.5, 1e-5), (2048, 0.0496, 341_000**-1.1)):
        schedule = ShuffledEpochs(rounds, 1)
        record = limit_record(schedule, z, delta, num_canaries=rounds, unobserved=0)
        noises: dict[Adversary, float] = {FINAL_MODEL: z * np.sqrt(rounds), EVERY_ROUND: z}
        for adversary, noise in noises.items():
            shift = float(seen_by(record, adversary).expected_scores.mean())
            got, exact = _epsilon(shift, delta), gaussian_epsilon(noise, delta)
            assert abs(got / exact - 1) < 0.01, (rounds, adversary, got, exact)
            print(f"  T = {rounds:4}  z = {z:6}  {adversary.sees:6} {got:9.4f} {exact:9.4f}")
    print("Table 3, ε-final: expected; from scores, known variance, 20 seeds, mean ± sd; the paper")
    delta = 341_000**-1.1
    schedule = ShuffledEpochs(2048, 1)
    for row, (z, paper) in enumerate(((0.0496, 1.97), (0.0986, 1.18), (0.2317, 0.569))):
        make = functools.partial(limit_record, schedule, z, delta, unobserved=0)
        seeds = range(20 * row, 20 * row + 20)
        values = [epsilon_from_record(make(seed=seed)).epsilon for seed in seeds]
        final, _ = limit_weights(schedule.rounds, z)
        expected = _epsilon(float(final.mean() * schedule.participations()), delta)
        spread = f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"
        print(f"  z = {z:6}  {expected:.2f}  {spread}  {paper:.2f}", flush=True)


def _epsilon(shift: float, delta: float) -> float:
    return float(epsilon_two_gaussians(0.0, 1.0, shift, 1.0, delta))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--theory", action="store_true", help="only what needs no training")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the records there")
    parser.add_argument("--only", nargs="+", metavar="SPEC", default=SCHEDULES, help="schedules")
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
