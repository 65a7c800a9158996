"""Bounds against the decision threshold (Nasr et al. 2023, figure 4)."""

from __future__ import annotations

import numpy as np

from fl_epe.accounting import gaussian_epsilon
from fl_epe.auditing import games, lower_bounds_at
from fl_epe.audits import step_bounds
from fl_epe.audits.settings import AuditSettings
from fl_epe.reporting import AuditResult, AuditTable, Line, Picture

_NAME = "thresholds"
_NOISE = 1.0
_METHODS = ("gdp", "clopper-pearson")
_MIDDLE = (-1.0, 2.0)  # where both worlds have many observations on either side


def audit(settings: AuditSettings) -> AuditResult:
    """One set of observations; a bound at each of a row of thresholds named in advance."""
    count = settings.count(5000, 500)
    truth = gaussian_epsilon(_NOISE, settings.delta)
    mechanism = games.NoisySum(1.0, _NOISE)
    scores = games.play_two_runs(
        mechanism, games.ADD_OR_REMOVE, games.dirac(2), steps=count, seed=settings.seed
    )
    places = np.linspace(-3.0, 4.0, 15 if settings.quick else 57)
    found = {
        name: lower_bounds_at(
            scores, places, settings.delta, confidence=settings.confidence, method=name
        )
        for name in _METHODS
    }
    middle = (places >= _MIDDLE[0]) & (places <= _MIDDLE[1])
    spread = {
        name: (values[middle].min() / truth, values[middle].max() / truth)
        for name, values in found.items()
    }
    ranges = [f"{low:.0%} to {high:.0%}" for low, high in spread.values()]
    finding = (
        f"At thresholds from {_MIDDLE[0]:g} to {_MIDDLE[1]:g} the bound by f-DP is {ranges[0]} of "
        f"the true ε, the one by (ε, δ)-DP {ranges[1]}."
    )
    rows = [
        (float(place), *(float(found[name][at]) for name in _METHODS), truth)
        for at, place in enumerate(places)
    ]
    labels = [step_bounds.METHODS[name] for name in _METHODS]
    table = AuditTable(("threshold", *labels, "true ε"), rows, f"{count:,} observations, z = 1")
    notes = [
        "Each threshold is one that was named in advance, and its bound holds on its own; the "
        "largest of a row is no bound. Noise multiplier 1, as in the paper. Adjacency: "
        "add-or-remove."
    ]
    lines = [
        Line(label, places.tolist(), found[name].tolist())
        for name, label in zip(_METHODS, labels, strict=True)
    ]
    lines.append(Line("true ε", [-3.0, 4.0], [truth, truth], style="--", colour="black"))
    picture = Picture(
        _NAME,
        f"{count:,} observations of each world",
        "threshold",
        "lower bound on ε",
        lines,
        text=finding,
    )
    sure = step_bounds.sure(settings.confidence, 2 * places.size)
    passed = all(
        (
            lower_bounds_at(scores, places, settings.delta, confidence=sure, method=name) <= truth
        ).all()
        for name in _METHODS
    )
    return AuditResult(_NAME, finding, [table], notes, [picture], settings.to_dict(), passed)
