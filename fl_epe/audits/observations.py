"""Bounds against the number of observations (Nasr et al. 2023, figure 3)."""

from __future__ import annotations

import numpy as np

from fl_epe.auditing import Scores, lower_bound, lower_bounds_at
from fl_epe.audits import step_bounds
from fl_epe.audits.settings import AuditSettings
from fl_epe.reporting import AuditResult, AuditTable, Line, Picture

_NAME = "observations"
_EPSILONS = (1.0, 2.0, 4.0, 6.0)
_COUNTS = (100, 300, 1000, 3000, 10_000, 30_000, 100_000)
_RUNS = 20
_METHODS = ("gdp", "bayesian-gdp", "clopper-pearson", "bayesian")
_BEST = ("gdp", "clopper-pearson")
_OURS = "f-DP (mean)"
_GRID = np.linspace(0.005, 0.995, 100)  # of both worlds' quantiles, for the best threshold
_ENOUGH = 0.8


def audit(settings: AuditSettings) -> AuditResult:
    """The mean of each bound over independent runs; a valid one above the truth fails."""
    most = settings.count(_COUNTS[-1], 2000)
    counts = sorted({n for n in _COUNTS[2 if settings.quick else 0 :] if n < most} | {most})
    runs = 3 if settings.quick else _RUNS
    rows = [
        (epsilon, n, *_means(settings, place, epsilon, n, runs))
        for place, epsilon in enumerate(_EPSILONS[:: 2 if settings.quick else 1])
        for n in counts
    ]
    columns = (
        "true ε",
        "observations",
        *(step_bounds.METHODS[name] for name in _METHODS),
        *(f"best threshold, {step_bounds.METHODS[name]}" for name in _BEST),
        _OURS,
    )
    valid = [*(2 + _METHODS.index(name) for name in step_bounds.VALID), -1]
    passed = all(row[place] <= row[0] for row in rows for place in valid)
    table = AuditTable(columns, rows, f"Mean lower bound on ε of {runs} runs")
    notes = [
        "An observation is one of each world. The threshold is held out, a tenth of the "
        "observations choose it. The paper reports the best of many thresholds on the same "
        "observations ('best threshold', of 100), which is not a bound.",
        step_bounds.NOT_VALID,
        f"'{_OURS}' is not the paper's: the bound 'mean' assumes Gaussian scores, compares their "
        "means, and needs no threshold. For Gaussian scores no valid bound proves much more.",
        "Observations are drawn from the law of a noisy sum along a Dirac canary, N(0, z²) "
        "against N(1, z²), at the z whose ε is the true one. Adjacency: add-or-remove.",
    ]
    return AuditResult(
        _NAME,
        _finding(rows),
        [table],
        notes,
        [_picture(rows, epsilon) for epsilon in sorted({row[0] for row in rows})],
        settings.to_dict(),
        passed,
    )


def _means(
    settings: AuditSettings, place: int, epsilon: float, count: int, runs: int
) -> tuple[float, ...]:
    noise = step_bounds.noise_multiplier(epsilon, settings.delta)
    found = []
    for run in range(runs):
        rng = np.random.default_rng((settings.seed, place, count, run))
        scores = step_bounds.gaussian_scores(noise, count, rng)
        every = step_bounds.bounds(scores, settings.delta, settings.confidence)
        ours = lower_bound(scores, settings.delta, confidence=settings.confidence, method="mean")
        found.append([*(every[name] for name in _METHODS), *_best(scores, settings), ours])
    return tuple(float(mean) for mean in np.mean(found, axis=0))


def _best(scores: Scores, settings: AuditSettings) -> list[float]:
    thresholds = np.quantile(np.concatenate(scores.both()), _GRID)
    return [
        float(
            lower_bounds_at(
                scores, thresholds, settings.delta, confidence=settings.confidence, method=name
            ).max()
        )
        for name in _BEST
    ]


def _finding(rows: list[tuple[float, ...]]) -> str:
    """The least number of observations at which each bound reaches its share of the truth."""
    parts = []
    for epsilon in sorted({row[0] for row in rows}):
        least = [
            min(
                (row[1] for row in rows if row[0] == epsilon and row[at] >= _ENOUGH * epsilon),
                default=None,
            )
            for at in (-1, 2 + _METHODS.index("gdp"), 2 + _METHODS.index("clopper-pearson"))
        ]
        most = max(row[1] for row in rows)
        said = " / ".join(f"more than {most:,.0f}" if n is None else f"{n:,.0f}" for n in least)
        parts.append(f"{said} for ε = {epsilon:g}")
    return (
        f"Observations until a bound proves {_ENOUGH:.0%} of ε, by the mean / by a threshold read "
        f"as f-DP / read as (ε, δ): {'; '.join(parts)}."
    )


def _picture(rows: list[tuple[float, ...]], epsilon: float) -> Picture:
    own = [row for row in rows if row[0] == epsilon]
    counts = [row[1] for row in own]
    lines = [
        Line(step_bounds.METHODS[name], counts, [row[2 + at] for row in own])
        for at, name in enumerate(_METHODS)
    ]
    lines.append(Line(_OURS, counts, [row[-1] for row in own]))
    truth = Line("true ε", counts, [epsilon] * len(counts), style="--", colour="black")
    last = ", ".join(f"{line.label} {line.y[-1]:.2f}" for line in lines)
    return Picture(
        f"observations-{epsilon:g}",
        f"ε = {epsilon:g}",
        "observations of each world",
        "lower bound on ε",
        [*lines, truth],
        log="x",
        text=f"Mean lower bounds against observations; with {counts[-1]:,.0f}: {last}.",
    )
