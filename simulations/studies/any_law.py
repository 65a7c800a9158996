"""What does an estimate from scores say where the scores are not Gaussian?

    python simulations/studies/any_law.py            # a minute
    python simulations/studies/any_law.py --quick    # seconds

Scores of n canaries that took part and of n that did not. `epsilon_from_scores` fits a Gaussian to
each side, unless `not_gaussian` refuses them.

Table 1, at δ = 10⁻⁵: the true ε of the scores; the mean of the two fitted Gaussians' ε; in how many
runs the scores are refused (of Gaussian scores 0.1%, by design); and in how many a number is given
whose interval does not cover the true ε.

Table 2: `epsilon_of_thresholds`, which needs no law, for every law. ε of the best threshold, by
quadrature; means of the estimate and of both ends of its 95% interval; how often that covers.
"none" is the share of runs with too few scores. Coverage is far above 95%, as limits hold at all
thresholds together. Of few scores the law is hardly tested: a number from 50 Laplace scores is as
wrong as from 1,000, where it is refused. So the answer says "if they are Gaussian".

Measured (200 runs)::

    law            n  true ε    fitted  refused  wrong
    Gaussian      50    4.38     7.938     0.0%   5.5%
    Gaussian     200    4.38     5.935     0.0%   4.5%
    Gaussian    1000    4.38     4.938     0.0%   3.0%
    Laplace       50       1     8.301    35.0%  48.0%
    Laplace      200       1     4.751    98.5%   1.5%
    Laplace     1000       1      3.86   100.0%   0.0%
    Cauchy        50   0.693      6249   100.0%   0.0%
    Cauchy       200   0.693 1.502e+05   100.0%   0.0%
    Cauchy      1000   0.693 1.218e+04   100.0%   0.0%
    response      50       1     6.803   100.0%   0.0%
    response     200       1     5.535   100.0%   0.0%
    response    1000       1     5.084   100.0%   0.0%
    exposed       50     122     38.58    62.5%  37.5%
    exposed      200     122     36.95    99.5%   0.5%
    exposed     1000     122     35.33   100.0%   0.0%

    law            δ     n  true ε      ε  interval       covers   none
    Gaussian     0.1   200    1.16   1.50  0.20 – 9.55    100.0%  88.0%
    Gaussian     0.1  1000    1.16   1.37  0.61 – 3.90    100.0%   0.5%
    Gaussian    0.01  1000    2.32    nan  nan – nan        nan% 100.0%
    Gaussian    0.01  5000    2.32   2.65  1.55 – 10.52   100.0%  64.5%
    Laplace      0.1   200   0.789   0.98  0.20 – 6.06    100.0%  22.0%
    Laplace      0.1  1000   0.789   0.85  0.47 – 1.49    100.0%   0.0%
    Laplace     0.01  1000    0.98   1.16  0.69 – 9.05    100.0%  93.5%
    Laplace     0.01  5000    0.98   1.03  0.81 – 2.28    100.0%   0.0%
    Cauchy       0.1   200   0.484   0.60  0.01 – 2.75    100.0%   0.5%
    Cauchy       0.1  1000   0.484   0.53  0.20 – 1.00    100.0%   0.0%
    Cauchy      0.01  1000   0.673   0.72  0.39 – 7.01    100.0%  73.0%
    Cauchy      0.01  5000   0.673   0.69  0.53 – 1.01    100.0%   0.0%
    response     0.1   200   0.853   0.90  0.27 – 1.58    100.0%   0.0%
    response     0.1  1000   0.853   0.87  0.55 – 1.20    100.0%   0.0%
    response    0.01  1000   0.986   1.00  0.70 – 1.33    100.0%   0.0%
    response    0.01  5000   0.986   0.99  0.82 – 1.18    100.0%   0.0%
    exposed      0.1   200    1.27   1.61  0.22 – 10.30   100.0%  94.5%
    exposed      0.1  1000    1.27   1.46  0.66 – 4.89    100.0%   2.5%
    exposed     0.01  1000    79.6    nan  nan – nan        nan% 100.0%
    exposed     0.01  5000    79.6    nan  nan – nan        nan% 100.0%
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np
import scipy
from numpy.typing import NDArray

from fl_epe.auditing import NotMeasured, Scores, epsilon_from_scores, epsilon_of
from fl_epe.auditing.answer.estimators import epsilon_of_thresholds
from fl_epe.auditing.bounds.error_rates import epsilon_from_rates

Floats = NDArray[np.float64]
Draw = Callable[[int, np.random.Generator], tuple[Floats, Floats]]
Tails = Callable[[Floats], tuple[Floats, Floats]]
SMALL = 1e-5


def gaussian(count: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """N(1, 1) and N(0, 1)."""
    return rng.normal(1, 1, count), rng.normal(0, 1, count)


def laplace(count: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """The Laplace mechanism at ε = 1."""
    return rng.laplace(1, 1, count), rng.laplace(0, 1, count)


def cauchy(count: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Cauchy noise around 1 and 0."""
    return rng.standard_cauchy(count) + 1, rng.standard_cauchy(count)


def response(count: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Randomised response at ε = 1."""
    right = scipy.special.expit(1.0)
    return 1.0 * (rng.random(count) < right), 1.0 * (rng.random(count) >= right)


def exposed(count: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """N(1, 1), but one member of fifty has N(13, 1), and N(0, 1)."""
    far = 12.0 * (rng.random(count) < 0.02)
    return rng.normal(1, 1, count) + far, rng.normal(0, 1, count)


def _normal_tails(far: float) -> Tails:
    def tails(at: Floats) -> tuple[Floats, Floats]:
        near = scipy.special.ndtr(1 - at)
        return (1 - far) * near + far * scipy.special.ndtr(
            13 - at
        ), scipy.special.ndtr(-at)

    return tails


def _shifted(law: scipy.stats.rv_continuous) -> Tails:
    return lambda at: (law.sf(at - 1), law.sf(at))


def _response_tails(at: Floats) -> tuple[Floats, Floats]:
    right = scipy.special.expit(1.0)
    inside = 1.0 * (at <= 1)
    return np.where(at <= 0, 1.0, inside * right), np.where(
        at <= 0, 1.0, inside * (1 - right)
    )


LAWS: dict[str, tuple[Draw, Tails]] = {
    "Gaussian": (gaussian, _normal_tails(0.0)),
    "Laplace": (laplace, _shifted(scipy.stats.laplace)),
    "Cauchy": (cauchy, _shifted(scipy.stats.cauchy)),
    "response": (response, _response_tails),
    "exposed": (exposed, _normal_tails(0.02)),
}


def truth(tails: Tails, delta: float) -> float:
    """ε of the best threshold, from the probabilities of larger scores with and without."""
    observed, unobserved = tails(np.linspace(-30, 40, 280_001))
    with np.errstate(divide="ignore", invalid="ignore"):
        epsilons = epsilon_from_rates(np.log(unobserved), 1 - observed, delta)
    return float(np.max(epsilons[np.isfinite(epsilons)]))


def fitted(
    draw: Draw, exact: float, count: int, runs: int
) -> tuple[float, float, float]:
    """The mean ε of two Gaussians, the shares of runs refused, and of wrong numbers given."""
    epsilons, refused, wrong = [], 0, 0
    for run in range(runs):
        scores = Scores(*draw(count, np.random.default_rng((count, run))))
        epsilons.append(epsilon_of(scores, SMALL).epsilon)
        try:
            estimate = epsilon_from_scores(
                scores.observed, scores.both()[1], SMALL
            )
        except NotMeasured:
            refused += 1
            continue
        wrong += not estimate.low <= exact <= estimate.high
    return float(np.mean(epsilons)), refused / runs, wrong / runs


def without_law(
    draw: Draw, exact: float, delta: float, count: int, runs: int
) -> tuple[Floats, float, float]:
    """Means of the estimate and its ends, the share covered, and that of too few scores."""
    estimates, none = [], 0
    for run in range(runs):
        scores = Scores(*draw(count, np.random.default_rng((count, run, 1))))
        try:
            estimate = epsilon_of_thresholds(scores, delta)
        except NotMeasured:
            none += 1
            continue
        estimates.append((estimate.epsilon, estimate.low, estimate.high))
    if not estimates:
        return np.full(3, math.nan), math.nan, none / runs
    values = np.array(estimates)
    covered = float(
        np.mean((values[:, 1] <= exact + 1e-9) & (exact <= values[:, 2] + 1e-9))
    )
    return values.mean(axis=0), covered, none / runs


def main(arguments: list[str] | None = None) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--quick", action="store_true", help="few runs of few scores"
    )
    parser.add_argument("--runs", type=int, default=200)
    options = parser.parse_args(arguments)
    runs = 3 if options.quick else options.runs
    sizes = (50, 200) if options.quick else (50, 200, 1000)
    print(
        f"{'law':10}{'n':>6}{'true ε':>8}{'fitted':>10}{'refused':>9}{'wrong':>7}"
    )
    for name, (draw, tails) in LAWS.items():
        exact = truth(tails, SMALL)
        for count in sizes:
            mean, refused, wrong = fitted(draw, exact, count, runs)
            print(
                f"{name:10}{count:>6}{exact:>8.3g}{mean:>10.4g}{refused:>9.1%}{wrong:>7.1%}"
            )
    head = f"{'law':10}{'δ':>6}{'n':>6}{'true ε':>8}{'ε':>7}"
    print(f"\n{head}  {'interval':14}{'covers':>7}{'none':>7}")
    cells = ((0.1, 200), (0.1, 1000), (0.01, 1000), (0.01, 5000))
    for name, (draw, tails) in LAWS.items():
        for delta, count in cells[:1] if options.quick else cells:
            exact = truth(tails, delta)
            (value, low, high), covered, none = without_law(
                draw, exact, delta, count, runs
            )
            ends = f"{low:.2f} – {high:.2f}"
            cell = f"{name:10}{delta:>6g}{count:>6}{exact:>8.3g}{value:>7.2f}"
            print(f"{cell}  {ends:14}{covered:>7.1%}{none:>7.1%}", flush=True)


if __name__ == "__main__":
    main()
