"""The sentences under a report's table: what a reader must know about its numbers."""

from __future__ import annotations

import math

from fl_epe.reporting.summary_types import AnalyticalSummary, RunSummary, StatisticSummary

_SUSPECT = 0.001  # with four tests a report, one false warning in 250 reports


def notes(summary: RunSummary) -> list[str]:
    """What a reader must know about the numbers."""
    lines = [
        "ε estimates say what the canary attack achieves. They are not bounds.",
        "Lower bounds hold against the adversary of their row, for independent scores of any "
        "distribution; those of the paper's rows (Jeffreys, threshold chosen on the same scores) "
        "do not.",
        _analytical_note(summary),
        *_secrecy_note(summary),
        *_budget_note(summary.analytical),
        *_participation_note(summary.analytical),
        *_share_note(summary.analytical),
        *_exposure_notes(summary),
        f"Canaries are {summary.canary_share:.0%} of a cohort of {summary.cohort_size:.3g}.",
    ]
    lines += _gaussian_warnings(summary)
    for row in summary.rows():
        if (row.part.lower_bound or 0.0) > row.part.estimate.high:
            lines.append(
                f"The lower bound of “{row.sees} {row.name}” lies above its interval: canaries "
                "differ, the estimate is for their mean, and the most exposed ones show."
            )
    if absent := summary.metrics.absent:
        were = "update was" if absent == 1 else "updates were"
        zero = " and counted as zero" if summary.lost_count_as_zero else ""
        lines.append(f"{absent} {were} lost{zero}: see “Lost updates” in report.html.")
    return lines


def analytical_text(summary: RunSummary) -> str:
    """The analytical ε, "∞" where there is no noise, "none known" where there is no theorem."""
    epsilon = summary.analytical.epsilon
    return "none known" if epsilon is None else number(epsilon)


def number(value: float | None) -> str:
    """Three significant digits at least, "∞" for what is not finite."""
    if value is None or math.isinf(value):
        return "∞"
    if value == 0:
        return "0"
    if value >= 1e6:
        return f"{value:.2e}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 4)}f}"


def _analytical_note(summary: RunSummary) -> str:
    """What the analytical ε takes for granted."""
    analytical = summary.analytical
    if analytical.epsilon is None:
        return f"Analytical ε: none known ({analytical.assumption})."
    counted = analytical.participations
    times = "once" if counted == 1 else f"{counted:g} times"
    if summary.participation == "poisson":
        times += " on average"
    elif counted != round(counted):
        times += f", counted as {math.ceil(counted)}"
    return (
        f"Analytical ε: {analytical.assumption}; {analytical.adjacency} adjacency; "
        f"a canary takes part {times}."
    )


def _secrecy_note(summary: RunSummary) -> list[str]:
    if summary.analytical.epsilon is None or summary.participation != "poisson":
        return []
    return [
        "It holds only if the adversary does not know the rounds. The matched filter knows them: "
        "its ε and its lower bound may be larger. Both rows are for a canary of mean footprint; "
        "see all.footprints in report.json for the most exposed one.",
    ]


def _budget_note(analytical: AnalyticalSummary) -> list[str]:
    whole, canary = analytical.epsilon, analytical.canary_epsilon
    if whole is None or canary is None or math.isinf(whole) or whole - canary < 1e-3 * whole:
        return []
    return [
        f"A part of the budget goes to the count that moves the clip norm. Canaries are not in "
        f"it: the analytical ε of what they do is {number(canary)}."
    ]


def _participation_note(analytical: AnalyticalSummary) -> list[str]:
    clients, canaries = analytical.client_participations, analytical.participations
    if not clients or clients < 1.5 * canaries:
        return []
    times = "once" if canaries == 1 else f"{canaries:.3g} times"
    return [
        f"A client took part {clients:.3g} times on average, a canary {times}: that is what was "
        f"measured, and a client gives away more (about {math.sqrt(clients / canaries):.2g} times "
        "the shift between the two Gaussians). Raise participations to measure it."
    ]


def _share_note(analytical: AnalyticalSummary) -> list[str]:
    lines = [f"Warning: {analytical.caveat}"] if analytical.caveat else []
    largest = analytical.largest_share
    if largest is None or largest < 1.01:
        return lines
    return [
        *lines,
        f"Warning: the noise is meant for updates that count C/n each, and a canary counted up to "
        f"{largest:.3g} times that (weights that differ, or replies that are missing): the "
        "analytical ε does not hold.",
    ]


def _exposure_notes(summary: RunSummary) -> list[str]:
    """The most exposed participant, and the adversary who does not know the rounds."""
    lines = []
    if fit := summary.final.footprints:
        lines.append(
            f"Seeing the final model, the most exposed canary has ε = "
            f"{number(fit.most_exposed.epsilon)}; footprints explain the scores with scale "
            f"{fit.scale:.3f} ({fit.low:.3f} – {fit.high:.3f})."
        )
    if unknown := summary.every_round.unknown_rounds:
        lines.append(
            f"Seeing every round without knowing who took part when: ε = "
            f"{number(unknown.epsilon)}, for a canary whose rounds are drawn at random, strong "
            f"rounds and weak (the rows of the table are for one of mean footprint)."
        )
    if full := summary.every_round.full_knowledge:
        found = full.estimate
        lines.append(
            f"Knowing the real clients' sum as well: ε = {number(found.epsilon)} "
            f"({number(found.low)} – {number(found.high)})."
        )
    return lines


def _gaussian_warnings(summary: RunSummary) -> list[str]:
    """A line for each statistic whose scores are not Gaussian, and what to use instead."""
    tested: tuple[tuple[str, StatisticSummary | None, str], ...] = (
        (
            "final model displacement",
            summary.final.displacement,
            "participations or clip norms differ between canaries; look at the footprint "
            "regression (final.footprints in report.json), which gives ε of the most exposed one",
        ),
        (
            "every round matched filter",
            summary.every_round.matched_filter,
            "participations or clip norms differ between canaries; look at all.footprints in "
            "report.json",
        ),
        (
            "every round paper's maximum",
            summary.every_round.paper,
            "a maximum never is; use the matched filter",
        ),
    )
    lines = []
    for name, part, reason in tested:
        test = part and part.gaussian
        if test and test.p_value < _SUSPECT:
            lines.append(
                f"Warning: the scores of “{name}” are not Gaussian (Anderson–Darling "
                f"A² = {test.statistic:.2f}, p = {test.p_value:.1g}): {reason}."
            )
    return lines
