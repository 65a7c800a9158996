"""Bias, spread and coverage of the estimates of ε, and failures of the lower bounds.

    python benchmarks/estimators.py                     # estimates: about five minutes on one core
    python benchmarks/estimators.py --dims              # estimates by dimension: three minutes
    python benchmarks/estimators.py --bounds --runs 300 # bounds: about ten minutes
    python benchmarks/estimators.py --runs 100          # a quick look

k = 1000 observed scores N(μ, 1), δ = 10⁻⁶, and μ such that ε has the given true value. Estimates
use the exact null. For bounds, the table has the share of runs in which the 95% bound exceeds the
true ε: with the exact null, and with 1,000 unobserved scores (with 2,000 canaries drawn by fair
coins for the bounds that need coins). A valid bound fails in 0.050 of all runs at most, so in these
tables in 0.050 plus three binomial standard errors: 0.088 at 300 runs.

Two cores, CPU, 2026-11-21::

    2000 runs, k = 1000, δ = 1e-06
    true ε   variance      bias       sd      rmse   ratio   coverage
         0   known      +0.0476   0.0700    0.0846    1.00     0.9745
         0   fitted     +0.3512   0.2563    0.4347    5.14     0.9570
       0.3   known      +0.0011   0.1296    0.1295    1.00     0.9515
       0.3   fitted     +0.3315   0.3022    0.4486    3.46     0.9565
         1   known      +0.0026   0.1443    0.1442    1.00     0.9450
         1   fitted     +0.3712   0.3337    0.4991    3.46     0.9520
         3   known      +0.0028   0.1638    0.1638    1.00     0.9405
         3   fitted     +0.4619   0.3918    0.6056    3.70     0.9540
        10   known      -0.0053   0.1992    0.1992    1.00     0.9595
        10   fitted     +0.6643   0.5566    0.8665    4.35     0.9540
        30   known      +0.0096   0.2958    0.2958    1.00     0.9465
        30   fitted     +1.1325   1.0442    1.5402    5.21     0.9540
       100   known      +0.0013   0.4704    0.4703    1.00     0.9495
       100   fitted     +2.7987   2.8037    3.9610    8.42     0.9575
       300   known      -0.0031   0.7831    0.7829    1.00     0.9505
       300   fitted     +6.8692   8.0684   10.5949   13.53     0.9610

    2000 runs, k = 100: shift / true one, coverage; the same of √d·cosine; refused
    d =      10 ε =    3   0.998  0.953    0.957  0.953   0.0000
    d =      10 ε =   50   1.000  0.947    0.447  0.000   0.0020
    d =     100 ε =    3   1.002  0.948    0.998  0.950   0.0005
    d =     100 ε =   50   1.000  0.951    0.843  0.000   0.0005
    d =     650 ε =    3   1.004  0.951    1.004  0.951   0.0005
    d =     650 ε =   50   1.001  0.941    0.970  0.524   0.0005
    d =   10000 ε =    3   0.996  0.954    0.996  0.954   0.0010
    d =   10000 ε =   50   1.000  0.947    0.998  0.947   0.0005
    d = 1000000 ε =    3   1.001  0.957    1.001  0.957   0.0010
    d = 1000000 ε =   50   1.000  0.940    1.000  0.940   0.0000
    share of scores refused as too wide, for k = (25, 100, 300, 1000)
    deviation  1.0    0.001  0.002  0.001  0.001
    deviation  1.1    0.011  0.057  0.255  0.883
    deviation 1.18    0.039  0.285  0.849  1.000
    deviation  1.3    0.168  0.787  1.000  1.000
    deviation  2.0    0.966  1.000  1.000  1.000

    300 runs: share of 95% bounds above the true ε
    bound            null        0    0.3      1      3     10     30    100    300
    clopper-pearson  exact   0.040  0.017  0.000  0.000  0.000  0.000  0.000  0.000
    clopper-pearson  sample  0.000  0.000  0.000  0.000  0.000  0.000  0.000  0.000
    simultaneous     exact   0.033  0.027  0.007  0.007  0.007  0.000  0.000  0.000
    simultaneous     sample  0.000  0.000  0.000  0.000  0.000  0.000  0.000  0.000
    weighted         exact   0.043  0.000  0.000  0.003  0.003  0.007  0.000  0.000
    weighted         sample  0.030  0.000  0.000  0.000  0.000  0.000  0.000  0.000
    gdp              exact   0.033  0.043  0.070  0.040  0.040  0.040  0.043  0.053
    gdp              sample  0.000  0.000  0.000  0.003  0.003  0.003  0.000  0.000
    one-run          sample  0.063  0.003  0.000  0.000  0.000  0.000  0.000  0.000
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from fl_epe import epsilon_two_gaussians
from fl_epe.auditing import NotMeasured, Scores, epsilon_of
from fl_epe.auditing.bounds import BOUNDS
from fl_epe.auditing.scoring.assumptions import check_known_variance

DELTA, COUNT, DIM = 1e-6, 1000, 10**6
TRUE = (0.0, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


def shift_of(epsilon: float) -> float:
    """The μ at which two unit Gaussians have that ε."""
    if epsilon == 0:
        return 0.0

    def gap(shift: float) -> float:
        return (
            float(np.asarray(epsilon_two_gaussians(0, 1, shift, 1, DELTA)))
            - epsilon
        )

    return float(optimize.brentq(gap, 1e-6, 60.0, xtol=1e-13))


def simulate(shift: float, variance: str, runs: int) -> NDArray[np.float64]:
    """Estimate, low and high of each run, shape ``(runs, 3)``."""
    rng = np.random.default_rng((int(1e6 * shift), len(variance)))
    rows = []
    for _ in range(runs):
        cosines = rng.normal(shift, 1, COUNT) / np.sqrt(DIM)
        estimate = epsilon_of(
            Scores.from_cosines(cosines, DIM), DELTA, variance
        )
        rows.append((estimate.epsilon, estimate.low, estimate.high))
    return np.array(rows)


def by_dimension(
    dim: int, epsilon: float, runs: int
) -> tuple[float, float, float, float, float]:
    """Of cosines of canaries in Gaussian noise, each in a release of its own (k = 100).

    Returns:
        The mean shift over the true one; that of √d·cosine; coverage of the 95% interval, and of
        the mean of √d·cosine ± 1.96/√k; and the share that `check_known_variance` refuses.
    """
    rng, shift, count = (
        np.random.default_rng((dim, int(10 * epsilon))),
        shift_of(epsilon),
        100,
    )
    half = 1.96 / np.sqrt(count)
    rows, refused = [], 0
    for _ in range(runs):
        along = rng.normal(shift, 1, count)
        scores = Scores.from_cosines(
            along / np.sqrt(along**2 + rng.chisquare(dim - 1, count)), dim
        )
        mean = float(scores.observed.mean())
        inside = scores.shift(half) <= shift <= scores.shift(-half)
        rows.append(
            (
                scores.shift() / shift,
                mean / shift,
                inside,
                abs(mean - shift) <= half,
            )
        )
        try:
            check_known_variance(scores)
        except NotMeasured:
            refused += 1
    ratio, plain, inside, plainly = np.mean(rows, axis=0).tolist()
    return ratio, plain, inside, plainly, refused / runs


def found_wide(width: float, count: int, runs: int) -> float:
    """Share of runs in which `check_known_variance` refuses scores of that deviation."""
    rng, refused = np.random.default_rng((int(100 * width), count)), 0
    for _ in range(runs):
        try:
            check_known_variance(
                Scores(rng.normal(2.0, width, count), standard_null=True)
            )
        except NotMeasured:
            refused += 1
    return refused / runs


def print_dimensions(runs: int) -> None:
    """A row for each dimension and true ε, and one for each width of scores."""
    print(
        f"{runs} runs, k = 100: shift / true one, coverage; the same of √d·cosine; refused"
    )
    for dim in (10, 30, 100, 650, 10**4, 10**6):
        for epsilon in (0.3, 3.0, 20.0, 50.0):
            ratio, plain, inside, plainly, refused = by_dimension(
                dim, epsilon, runs
            )
            print(
                f"d = {dim:7} ε = {epsilon:4g}  {ratio:6.3f} {inside:6.3f}   {plain:6.3f} "
                f"{plainly:6.3f}   {refused:6.4f}",
                flush=True,
            )
    counts = (25, 100, 300, 1000)
    print(f"share of scores refused as too wide, for k = {counts}")
    for width in (1.0, 1.1, 1.18, 1.3, 2.0):
        print(
            f"deviation {width:4}  ",
            *(f"{found_wide(width, k, runs):6.3f}" for k in counts),
        )


def failures(
    method: str, shift: float, epsilon: float, runs: int, exact_null: bool
) -> float:
    """Share of runs in which a bound exceeds the true ε."""
    rng = np.random.default_rng((int(1e6 * shift), int(exact_null)))
    failed = 0
    for _ in range(runs):
        if exact_null:
            scores = rng.normal(shift, 1, COUNT) / np.sqrt(DIM)
            bound = BOUNDS[method](scores, None, DELTA, dim=DIM)
        else:
            inside = (
                rng.binomial(2 * COUNT, 0.5)
                if BOUNDS[method].needs_coins
                else COUNT
            )
            observed = rng.normal(shift, 1, inside)
            others = rng.normal(0, 1, 2 * COUNT - inside)
            bound = BOUNDS[method](observed, others, DELTA)
        failed += bound > epsilon * (1 + 1e-9)
    return failed / runs


def print_bounds(runs: int) -> None:
    """A row for each bound that is called valid, a column for each true ε."""
    print(f"{runs} runs: share of 95% bounds above the true ε")
    print(
        f"{'bound':16} {'null':6} "
        + " ".join(f"{epsilon:6g}" for epsilon in TRUE)
    )
    for method, bound in BOUNDS.items():
        if not bound.valid:
            continue
        for exact_null in (True, False):
            if exact_null and bound.needs_coins:
                continue
            shares = [
                failures(method, shift_of(e), e, runs, exact_null) for e in TRUE
            ]
            cells = " ".join(f"{share:6.3f}" for share in shares)
            print(
                f"{method:16} {'exact' if exact_null else 'sample':6} {cells}",
                flush=True,
            )


def print_estimates(runs: int) -> None:
    """Bias, spread and coverage of both estimates, a row for each true ε."""
    print(f"{runs} runs, k = {COUNT}, δ = {DELTA:g}")
    print("true ε   variance      bias       sd      rmse   ratio   coverage")
    for epsilon in TRUE:
        errors = {}
        for variance in ("known", "fitted"):
            rows = simulate(shift_of(epsilon), variance, runs)
            values, low, high = rows.T
            errors[variance] = np.sqrt(np.mean((values - epsilon) ** 2))
            ratio = errors[variance] / errors["known"]
            cover = np.mean((low <= epsilon) & (epsilon <= high))
            print(
                f"{epsilon:6g}   {variance:8} {values.mean() - epsilon:+9.4f} "
                f"{values.std(ddof=1):8.4f} {errors[variance]:9.4f} {ratio:7.2f} {cover:10.4f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--runs", type=int, default=2000, help="simulated runs a cell"
    )
    parser.add_argument(
        "--bounds", action="store_true", help="failures of the bounds instead"
    )
    parser.add_argument(
        "--dims", action="store_true", help="estimates by dimension instead"
    )
    options = parser.parse_args()
    if options.dims:
        print_dimensions(options.runs)
    else:
        (print_bounds if options.bounds else print_estimates)(options.runs)


if __name__ == "__main__":
    main()
