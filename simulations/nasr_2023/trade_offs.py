"""Trade-off curves: figures 1, 2, 13 and 14 of Nasr et al. (2023), "Tight Auditing", in numbers.

    python simulations/nasr_2023/trade_offs.py  # seconds; --quick: fewer observations in figure 14

The paper prints no numbers for these figures. What it says of them is checked, and the status is 1
if it does not hold. δ = 10⁻⁵. Its algorithm 4 takes the least of the lines, which is no curve that
they allow: here it is their upper envelope. Error counts of figure 14 are drawn, not all scores.

Measured with seed 1 (2026-11-27, three seconds)::

    Figure 1: the least FNR at each FPR, ε = 1; Gaussian: μ = 0.268; sampled: q = 0.01, 1,000 steps
     FPR  (ε, δ)-DP  randomised response  Laplace  Gaussian  sampled Gaussian
    0.01     0.9728               0.9728   0.9728    0.9802            0.9805
     0.1     0.7282               0.7282   0.7282    0.8446            0.8471
    0.23     0.3748               0.3748   0.3999    0.6811            0.6856
     0.5     0.1839               0.1839   0.1839    0.3943            0.3999

    Figure 2: the best attack with FPR 0.23 proves ε = 0.33 by (ε, δ)-DP and 1.00 by Gaussian DP.
    The paper's red dot, rounded, is 0.30 and 0.90.

    Figure 13: the envelope is below the optimal curve by at most 0.418 with 3 lines, 0.061 with 10,
    0.002 with 100.

    Figure 14: lower bounds at thresholds named in advance, z = 1, ε = 4.377
     observations  (ε, δ) at 0.5  at 1.5  at 2.5  at 3.5  at 4.877, the best  f-DP at 0.5
             10³          0.683    1.16    1.36       0                   0         3.61
             10⁶          0.804    1.51    2.32    3.08                2.00         4.36
             10⁸          0.807    1.53    2.37    3.28                4.08         4.38
            10¹⁰          0.807    1.53    2.38    3.28                4.35         4.38
    5,000 observations prove 3.94 by Gaussian DP; (ε, δ)-DP needs 10⁸ for as much.
"""

from __future__ import annotations

import math

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.stats import norm

from fl_epe.accounting import (
    epsilon_of_shift,
    gaussian_epsilon,
    poisson_epsilon,
)
from fl_epe.auditing.bounds.error_rates import (
    clopper_pearson_upper,
    epsilon_from_rates,
    log_ratio,
    mu_from_rates,
)
from simulations.nasr_2023.sampled_gaussian import TradeOff, poisson_trade_off
from simulations.shared.audit_script import Result, Settings, Table, run
from simulations.shared.composed import noise_of_epsilon

Floats = NDArray[np.float64]

_EPSILON = 1.0  # of figures 1 and 2
_FPR = np.array([0.001, 0.01, 0.05, 0.1, 0.23, 0.5, 0.8])
_SAMPLED_RATE, _SAMPLED_STEPS = (
    0.01,
    1000,
)  # of the sampled mechanism of figure 1
_DOT_FPR, _DOT_EPSILON = 0.23, 0.3  # the red dot of figure 2
_LINES = (3, 10, 100)  # of figure 13; the paper says that 10 are enough
_NOISE = 1.0  # of figures 13 and 14
_THRESHOLDS = (
    0.5,
    1.5,
    2.5,
    3.5,
)  # of figure 14, beside the optimum of equation 18
_COUNTS = tuple(10**power for power in range(3, 11))
_QUICK_COUNTS = (1000, 10**6, 10**9)
_SMALL_COUNT = 5000  # observations that suffice by Gaussian DP
_MANY = 10**8  # observations that (ε, δ)-DP needs, as the paper says


def audit(settings: Settings) -> Result:
    """All four figures."""
    parts = [
        curves(settings),
        regions(settings),
        lines(settings),
        observations(settings),
    ]
    tables = [table for part in parts for table in part.tables]
    summary = "\n".join(part.summary for part in parts)
    return Result(summary, tables, (), all(part.passed for part in parts))


def gaussian_fnr(fpr: Floats, mu: float) -> Floats:
    """The least FNR of a μ-GDP mechanism at each FPR, equation 24 of the paper."""
    return np.asarray(norm.cdf(norm.isf(fpr) - mu))


def laplace_fnr(fpr: Floats, epsilon: float) -> Floats:
    """The least FNR of the Laplace mechanism at each FPR (Dong et al. 2019)."""
    shift = scipy.stats.laplace.isf(fpr) - epsilon
    return np.asarray(scipy.stats.laplace.cdf(shift))


def curves(settings: Settings) -> Result:
    """Figure 1: mechanisms with one (ε, δ) and different error rates."""
    delta = settings.delta
    mu = 1 / noise_of_epsilon(_EPSILON, delta)
    sampled = scipy.optimize.brentq(
        lambda noise: (
            poisson_epsilon(noise, _SAMPLED_RATE, _SAMPLED_STEPS, delta)
            - _EPSILON
        ),
        0.8,
        4.0,
        xtol=1e-3,
    )
    sampled_curve = poisson_trade_off(sampled, _SAMPLED_RATE, _SAMPLED_STEPS)
    columns = {
        "(ε, δ)-DP": TradeOff(
            np.array([_EPSILON]), np.array([delta])
        ).least_fnr(_FPR),
        "randomised response": response_fnr(_FPR, _EPSILON),
        "Laplace": laplace_fnr(_FPR, _EPSILON),
        "Gaussian": gaussian_fnr(_FPR, mu),
        "sampled Gaussian": sampled_curve.least_fnr(_FPR),
    }
    rows = [
        (float(fpr), *map(float, values))
        for fpr, *values in zip(_FPR, *columns.values(), strict=True)
    ]
    promised = columns["(ε, δ)-DP"]
    passed = all(
        bool((fnr >= promised - 1e-3).all()) for fnr in columns.values()
    )
    overlap = float(np.abs(columns["randomised response"] - promised).max())
    widest = float((columns["Gaussian"] - promised).max())
    summary = (
        f"Figure 1: randomised response has the error rates of (ε, δ)-DP within {overlap:.1g}, and "
        f"the Gaussian mechanism, with the same ε, up to {widest:.2f} more missed members."
    )
    title = (
        f"Figure 1: the least FNR at each FPR, ε = {_EPSILON:g}; Gaussian: μ = {mu:.3f}; sampled: "
        f"q = {_SAMPLED_RATE:g}, {_SAMPLED_STEPS:,} steps, z = {sampled:.3f}"
    )
    return Result(
        summary,
        [Table(title, ("FPR", *columns), rows)],
        (),
        passed and overlap < 1e-3,
    )


def response_fnr(fpr: Floats, epsilon: float) -> Floats:
    """The least FNR of randomised response: two outputs, and coins between their error rates."""
    wrong = 1 / (1 + math.exp(epsilon))
    return np.interp(fpr, [0.0, wrong, 1.0], [1.0, wrong, 0.0])


def regions(settings: Settings) -> Result:
    """Figure 2: what one attack on a Gaussian mechanism proves, read in two ways."""
    delta = settings.delta
    mu = 1 / noise_of_epsilon(_EPSILON, delta)
    fpr = np.array([_DOT_FPR])
    dot_fnr = 1 - _DOT_FPR * (math.exp(_DOT_EPSILON) + delta)
    rows = []
    for name, fnr in (
        ("the red dot, as the paper gives it", np.array([dot_fnr])),
        ("on the mechanism's curve", gaussian_fnr(fpr, mu)),
    ):
        pure = float(log_ratio(np.log(fpr), fnr, delta)[0])
        gaussian = float(
            epsilon_of_shift(mu_from_rates(np.log(fpr), fnr), delta)[0]
        )
        rows.append((name, _DOT_FPR, float(fnr[0]), pure, gaussian, _EPSILON))
    on_curve = rows[1]
    summary = (
        f"Figure 2: the best attack with FPR {_DOT_FPR:g} proves ε = {on_curve[3]:.2f} by "
        f"(ε, δ)-DP and {on_curve[4]:.2f} by Gaussian DP, of {_EPSILON:g}; μ = {mu:.3f}."
    )
    columns = (
        "attack",
        "FPR",
        "FNR",
        "by (ε, δ)-DP",
        "by Gaussian DP",
        "true ε",
    )
    title = "Figure 2: ε by one attack, from infinitely many trials"
    passed = on_curve[3] < 0.5 * _EPSILON and math.isclose(
        on_curve[4], _EPSILON, rel_tol=1e-6
    )
    return Result(summary, [Table(title, columns, rows)], (), passed)


def lines(settings: Settings) -> Result:
    """Figure 13: a trade-off curve as the envelope of a few (ε, δ) lines (algorithm 4)."""
    exact = gaussian_fnr(_FPR, 1 / _NOISE)
    envelopes = []
    for count in _LINES:
        deltas = np.linspace(settings.delta, 1 - settings.delta, count)
        epsilons = np.array(
            [gaussian_epsilon(_NOISE, delta) for delta in deltas]
        )
        envelopes.append(TradeOff(epsilons, deltas).least_fnr(_FPR))
    rows = [
        (float(fpr), *map(float, values))
        for fpr, *values in zip(_FPR, exact, *envelopes, strict=True)
    ]
    gaps = [float((exact - envelope).max()) for envelope in envelopes]
    never_above = all(
        (envelope <= exact + 1e-9).all() for envelope in envelopes
    )
    summary = (
        "Figure 13: the envelope is below the optimal curve by at most "
        + ", ".join(
            f"{gap:.3f} with {count} lines"
            for gap, count in zip(gaps, _LINES, strict=True)
        )
    )
    columns = ("FPR", "optimal", *(f"{count} lines" for count in _LINES))
    table = Table(
        f"Figure 13: the least FNR at each FPR, z = {_NOISE:g}", columns, rows
    )
    return Result(
        f"{summary}.",
        [table],
        (),
        never_above and gaps == sorted(gaps, reverse=True),
    )


def best_threshold(delta: float) -> float:
    """The threshold w at which (ε, δ)-DP proves most, by equations 18 and 22 of the paper."""
    epsilon = gaussian_epsilon(_NOISE, delta)
    return epsilon * _NOISE**2 + 0.5


def observations(settings: Settings) -> Result:
    """Figure 14: bounds at fixed thresholds against the number of observations.

    Error counts are drawn as binomials, which is what counting Gaussian scores gives.
    """
    delta = settings.delta
    truth = gaussian_epsilon(_NOISE, delta)
    best = best_threshold(delta)
    thresholds = np.array([*_THRESHOLDS, best])
    rows = []
    for count in _QUICK_COUNTS if settings.quick else _COUNTS:
        pure, gaussian = _bounds(thresholds, count, settings)
        rows.append(
            (
                count,
                *(float(bound) for bound in pure),
                float(gaussian[0]),
                truth,
            )
        )
    few = float(_bounds(thresholds, _SMALL_COUNT, settings)[1][0])
    reached = [row[0] for row in rows if row[-3] >= few]
    least = f"{reached[0]:,}" if reached else f"more than {rows[-1][0]:,}"
    summary = (
        f"Figure 14: {_SMALL_COUNT:,} observations prove ε = {few:.2f} of {truth:.2f} by Gaussian "
        f"DP; for as much (ε, δ)-DP needs {least} at its best threshold, {best:.2f}."
    )
    columns = (
        "observations",
        *(f"(ε, δ) at {threshold:g}" for threshold in _THRESHOLDS),
        f"(ε, δ) at {best:.3f}",
        f"f-DP at {_THRESHOLDS[0]:g}",
        "true ε",
    )
    title = f"Figure 14: lower bounds at thresholds named in advance, z = {_NOISE:g}"
    passed = bool(reached) and reached[0] >= _MANY
    return Result(summary, [Table(title, columns, rows)], (), passed)


def _bounds(
    thresholds: Floats, count: int, settings: Settings
) -> tuple[Floats, Floats]:
    """By (ε, δ)-DP and by Gaussian DP at each threshold, each of shape (j,)."""
    rng = np.random.default_rng((settings.seed, count))
    level = (1 - settings.confidence) / 2
    missed = rng.binomial(count, norm.cdf(thresholds - 1, scale=_NOISE)).astype(
        np.float64
    )
    alarms = rng.binomial(count, norm.sf(thresholds, scale=_NOISE)).astype(
        np.float64
    )
    fnr = clopper_pearson_upper(missed, count, level)
    log_fpr = np.log(clopper_pearson_upper(alarms, count, level))
    pure = epsilon_from_rates(log_fpr, fnr, settings.delta)
    return pure, np.asarray(
        epsilon_of_shift(mu_from_rates(log_fpr, fnr), settings.delta)
    )


if __name__ == "__main__":
    run(audit, __doc__)
