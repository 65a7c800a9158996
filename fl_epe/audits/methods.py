"""Which method proves most (Nasr et al. 2023, table 1): of a step, and composed to a run."""

from __future__ import annotations

import numpy as np

from fl_epe.accounting import poisson_epsilon, poisson_epsilon_below
from fl_epe.audits import step_bounds
from fl_epe.audits.settings import AuditSettings
from fl_epe.reporting import AuditResult, AuditTable

_NAME = "methods"
_EPSILONS = (1.0, 4.0, 8.0, 16.0)
_REPEATS = 5
_RATE, _STEPS = 4096 / 50_000, 2500  # of the paper's WRN-16 on CIFAR-10
_NOISES = (15.35, 4.5, 2.577, 1.577)  # z at which that run's ε is about 1, 4, 8, 16 at δ = 1e-5
_QUICK_STEPS, _QUICK_NOISE = 4, 0.7


def audit(settings: AuditSettings) -> AuditResult:
    """Bounds by each method; passes if f-DP proves more than (ε, δ)-DP, and all hold."""
    count = settings.count(_STEPS, 500)
    steps = _QUICK_STEPS if settings.quick else _STEPS
    noises = (_QUICK_NOISE,) if settings.quick else _NOISES
    single, composed = [], []
    for epsilon in _EPSILONS:
        noise = step_bounds.noise_multiplier(epsilon, settings.delta)
        single.append((epsilon, *_of_one_step(settings, noise, count)))
    for noise in noises:
        whole = poisson_epsilon(noise, _RATE, steps, settings.delta)
        found = _of_one_step(settings, noise, count)
        composed.append((whole, noise, *(_composed(one, steps, settings) for one in found)))
    labels = tuple(step_bounds.METHODS.values())
    tables = [
        AuditTable(("true ε", *labels), single, f"One step, {count:,} observations of each world"),
        AuditTable(
            ("true ε", "noise multiplier", *labels),
            composed,
            f"A run of {steps:,} steps at q = {_RATE:.4g}, composed from {count:,} of its steps",
        ),
    ]
    at = {name: place for place, name in enumerate(step_bounds.METHODS)}
    more = [row[1 + at["gdp"]] > row[1 + at["clopper-pearson"]] for row in single]
    within = all(row[1 + at[name]] <= row[0] for row in single for name in step_bounds.VALID)
    best = max(single, key=lambda row: row[0])
    order = sorted(labels, key=lambda label: -best[1 + labels.index(label)])
    finding = (
        f"Of one step with ε = {best[0]:g}, from most to least: "
        f"{', '.join(f'{label} {best[1 + labels.index(label)]:.2f}' for label in order)}."
    )
    notes = [
        f"Each number is the median of {1 if settings.quick else _REPEATS} audits, each of two "
        "runs whose every step has the canary (q_c = 1). To compose it, a step's ε is read as "
        "that of a Gaussian step with the noise that this takes, and the accountant composes that "
        "noise (the paper's section 5.5); ε at δ = 0 by Katz-log is read the same way.",
        step_bounds.NOT_VALID,
        "The paper trains networks; here a step is a noisy sum along a Dirac canary. Thresholds "
        "are held out, the paper's are the best of the same observations. Adjacency: "
        "add-or-remove.",
    ]
    return AuditResult(
        _NAME, finding, tables, notes, settings=settings.to_dict(), passed=all(more) and within
    )


def _of_one_step(settings: AuditSettings, noise: float, count: int) -> tuple[float, ...]:
    """The median bound on the ε of a step, by each method."""
    found = []
    for repeat in range(1 if settings.quick else _REPEATS):
        rng = np.random.default_rng((settings.seed, repeat))
        scores = step_bounds.gaussian_scores(noise, count, rng)
        found.append(list(step_bounds.bounds(scores, settings.delta, settings.confidence).values()))
    return tuple(float(middle) for middle in np.median(found, axis=0))


def _composed(epsilon: float, steps: int, settings: AuditSettings) -> float:
    noise = step_bounds.noise_multiplier(epsilon, settings.delta)
    return poisson_epsilon_below(noise, _RATE, steps, settings.delta)
