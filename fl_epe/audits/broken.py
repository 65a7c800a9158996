"""The zoo of broken mechanisms: which bug is found by what, and whether their twins pass.

The methods, and the one that is named for each bug, are fixed in `fl_epe.audits.hunt`.
"""

from __future__ import annotations

from collections.abc import Sequence

from fl_epe.auditing import games
from fl_epe.audits.hunt import BOUNDS_TRIED, NAMED, Hunt, check_sensitivity, hunt
from fl_epe.audits.settings import AuditSettings
from fl_epe.reporting import AuditResult, AuditTable, Line, Picture

_NAME = "broken"
_LEAST_CONFIDENCE = 0.99


def audit(settings: AuditSettings) -> AuditResult:
    """Hunt each bug of the zoo, and see that no twin is called broken by its named method."""
    confidence = max(settings.confidence, _LEAST_CONFIDENCE)
    hunts = [
        hunt(
            name,
            most=settings.count(500, 200),
            count=1 if settings.quick else 3,
            delta=settings.delta,
            confidence=confidence,
            seed=settings.seed,
            bounds=(NAMED, "mean") if settings.quick else BOUNDS_TRIED,
        )
        for name in games.ZOO
    ]
    return result_of(hunts, settings, confidence)


def result_of(hunts: Sequence[Hunt], settings: AuditSettings, confidence: float) -> AuditResult:
    """The finding, tables and picture of hunts of the same games and bounds."""
    found = [one.needed[one.named] for one in hunts]
    alarms = sum(one.alarms[one.named] for one in hunts)
    most = max((n for n in found if n), default=0)
    finding = (
        f"The method named for each bug in advance finds {len(found) - found.count(None)} of "
        f"{len(found)} broken mechanisms, each within {most:,} observations of each world, and "
        f"disproves the claim of a correct twin in {alarms} of {len(hunts) * hunts[0].games} games."
    )
    return AuditResult(
        _NAME,
        finding,
        [_needed_table(hunts, confidence), _twin_table(hunts), sensitivity_table()],
        _notes(hunts, confidence),
        [_picture(hunts)],
        settings=settings.to_dict(),
        passed=False if alarms else all(found) or None,
    )


def _needed_table(hunts: Sequence[Hunt], confidence: float) -> AuditTable:
    bounds = _bounds(hunts)
    rows = [
        (one.name, statistic, *(one.needed.get((statistic, bound)) for bound in bounds))
        for one in hunts
        for statistic in dict.fromkeys(statistic for statistic, _ in one.needed)
    ]
    title = (
        "Observations of each world with which the claim is disproved in every game, at "
        f"{confidence:.0%} confidence (–: missed, or not for this statistic)"
    )
    return AuditTable(("bug", "statistic", *bounds), rows, title)


def _twin_table(hunts: Sequence[Hunt]) -> AuditTable:
    rows = [
        (
            one.name,
            games.ZOO[one.name].bug,
            one.claim,
            ", ".join(one.named),
            one.needed[one.named],
            one.alarms[one.named],
            one.games,
            sum(one.alarms.values()),
            len(one.alarms) * one.games,
        )
        for one in hunts
    ]
    columns = (
        "bug",
        "what is wrong",
        "claimed ε",
        "method named in advance",
        "observations",
        "twin: alarms",
        "of",
        "by any method",
        "of",
    )
    return AuditTable(columns, rows, "The named method, and false alarms at the twin")


def sensitivity_table() -> AuditTable:
    """What the sanity checks of the sensitivity say of each broken mechanism and its twin."""
    rows = []
    for name, specimen in games.ZOO.items():
        measured, possible = check_sensitivity(specimen, specimen.broken)
        twin, twin_possible = check_sensitivity(specimen, specimen.twin)
        found = measured > specimen.sensitivity * (1 + 1e-9)
        rows.append(
            (name, specimen.sensitivity, measured, found, not possible, twin, twin_possible)
        )
    columns = (
        "bug",
        "claimed sensitivity",
        "measured",
        "too large",
        "B·s < L",
        "of the twin",
        "twin: B·s ≥ L",
    )
    return AuditTable(columns, rows, "Without any noise: two runs of the code, no statistics")


def _notes(hunts: Sequence[Hunt], confidence: float) -> list[str]:
    return [
        f"Every disproof is at {confidence:.0%}, one-sided, and each method stands on its own: the "
        "largest of several bounds is no bound. Adjacency: add-or-remove. Canaries are a hundred "
        "times as long as the clip norm.",
        f"Found means in each of {hunts[0].games} games with that many observations; those with "
        "fewer are the first ones of the longest.",
        "The adaptive clip norm with the wrong sign leaks nothing: noise is in proportion to the "
        "clip norm of the step. Bounds on ε are right to miss it; a sign test of where the clip "
        "norm goes finds it, with as many runs as said, of 20 steps.",
        "gdp and mean disprove that the mechanism is Gaussian with the claimed noise, which is "
        "what each claims; clopper-pearson and weighted disprove (ε, δ) whatever the mechanism.",
        "Tramèr et al. audited one bug, sensitivity-over-batch, by training a network on MNIST for "
        "each observation; here an observation is one step, or as many as the claim is for.",
    ]


def _bounds(hunts: Sequence[Hunt]) -> list[str]:
    return list(dict.fromkeys(bound for one in hunts for _, bound in one.needed))


def _picture(hunts: Sequence[Hunt]) -> Picture:
    """A row for each bug, with a point for each bound at what its best statistic needs."""
    lines = []
    bounds = _bounds(hunts)
    for i, bound in enumerate(bounds):
        points = [
            (min(needed), row + 0.4 * (i / len(bounds) - 0.4))  # points side by side
            for row, one in enumerate(hunts, 1)
            if (needed := [n for (_, b), n in one.needed.items() if b == bound and n])
        ]
        if points:
            x, y = zip(*points, strict=True)
            lines.append(Line(bound, x, y, style="o"))
    named = "; ".join(f"{one.name}: {one.needed[one.named] or 'missed'}" for one in hunts)
    return Picture(
        "found",
        "Which bug is found by what, with its best statistic",
        "observations of each world",
        "",
        lines,
        log="x",
        text=f"Observations that the method named in advance needs. {named}.",
        rows=[one.name for one in hunts],
    )
