"""The sentences under a report's table: assumptions, warnings and further results."""

from __future__ import annotations

import math

from fl_epe.auditing import combined_p_value, null_misfit, wider_than_known
from fl_epe.auditing.bounds import least_canaries
from fl_epe.reporting.average_case_client import average_case_client_notes
from fl_epe.reporting.guarantee import AnalyticalSummary
from fl_epe.reporting.numbers import number
from fl_epe.reporting.status import measured_parts, unmeasured_notes
from fl_epe.reporting.summary_types import RunSummary, StatisticSummary, Unmeasured
from fl_epe.reporting.verdict import claim_notes

_LARGE_SHARE = 0.02  # of other canaries in what is released; a score changes by half of it
_MOST_SHARE = 0.5  # from here on a round's mean is more canaries than clients and noise
_MOSTLY_CANARIES = (
    "The model learns more slowly than it would from clients alone, and ε is that of this other "
    "training: it may be smaller than yours. Use fewer canaries (--num-canaries), or more clients."
)
_MOVING = 1.1  # times as much as independent scores: bounds at 95% then hold at 93%
_SUSPECT = 0.001  # with four tests a report, one false warning in 250 reports


def notes(summary: RunSummary) -> list[str]:
    """All sentences that apply to a run."""
    lines = [
        *_stopped_note(summary),
        *(_ABOUT_ESTIMATES if measured_parts(summary) else []),
        *unmeasured_notes(summary),
        _analytical_note(summary),
        *_secrecy_note(summary),
        *_budget_note(summary.analytical),
        *_share_note(summary.analytical),
        *_heavier_note(summary),
        *_client_notes(summary),
        *_exposure_notes(summary),
        *_cohort_notes(summary),
        *_others_notes(summary),
        *_overlap_warnings(summary),
        *_together_notes(summary),
        *_null_notes(summary),
        *_wide_warnings(summary),
        *_few_notes(summary),
        *claim_notes(summary),
        *_gaussian_warnings(summary),
    ]
    for row in summary.rows():
        if isinstance(row.part, Unmeasured):
            continue
        if (row.part.lower_bound or 0.0) > row.part.estimate.high:
            lines.append(
                f"The lower bound of “{row.sees} {row.name}” lies above its interval: the bound "
                "shows that some canaries are more exposed than the estimate says."
            )
    if absent := summary.metrics.absent:
        were = "update was" if absent == 1 else "updates were"
        zero = " and counted as zero" if summary.lost_count_as_zero else ""
        lines.append(f"{absent} {were} lost{zero}: see “Faults” in report.html.")
    return lines


def notes_by_weight(summary: RunSummary) -> tuple[list[str], list[str]]:
    """`notes` in two parts: what belongs beside the table, warnings above all, and the rest."""
    weighty = (*_stopped_note(summary), _ABOUT_ESTIMATES[0], *unmeasured_notes(summary))
    first, rest = list[str](), list[str]()
    for line in notes(summary):
        (first if line in weighty or line.startswith(_WARNING) else rest).append(line)
    return first, rest


_WARNING = "Warning: "
_ABOUT_ESTIMATES = (
    "ε estimates say what the canary attack achieves. They are not bounds.",
    "A lower bound is for the adversary of its row, and assumes what the row states. Only the "
    "verdict was named before the run, and the largest of several bounds is not a bound. The lower "
    "bounds in the paper's rows are not valid: they exceed the true ε too often, because Jeffreys' "
    "method chooses its threshold on the scores that it judges.",
)


def _analytical_note(summary: RunSummary) -> str:
    """The assumptions of the analytical ε."""
    analytical = summary.analytical
    if analytical.epsilon is None or analytical.participations is None:
        return f"Analytical ε: none known ({analytical.assumption})."
    counted = analytical.participations
    times = "once" if counted == 1 else f"{counted:g} times"
    if summary.participation not in ("epochs", "balls-in-bins"):
        times += " on average"
    elif counted != round(counted):
        times += f", counted as {math.ceil(counted)}"
    return (
        f"Analytical ε: {analytical.assumption}; {analytical.adjacency} adjacency; "
        f"a canary {'takes' if measured_parts(summary) else 'was to take'} part {times}."
    )


def _stopped_note(summary: RunSummary) -> list[str]:
    if (found := summary.stopped) is None:
        return []
    low, high = (number(found[name]) for name in ("low", "high"))
    return [
        f"The run stopped after round {found['after']} of {found['rounds']}, as its rule "
        f"“{found['rule']}” was met: for an adversary who sees every round's model ε ≈ "
        f"{number(found['epsilon'])}, and {low} – {high} is a 95% interval that holds at every "
        "round at once, so that one may stop on it. The other intervals and bounds of this report "
        "are for a run that ends as planned: after a stop that depends on the scores they hold "
        "less often than they say."
    ]


def _secrecy_note(summary: RunSummary) -> list[str]:
    if (known := summary.every_round.known_rounds) is None:
        return []
    return [
        "The analytical ε holds only if the adversary does not know the rounds. ε and the lower "
        "bound of every round are for such an adversary. For one who knows them ε = "
        f"{number(known.epsilon)} ({number(known.low)} – {number(known.high)})."
    ]


def _budget_note(analytical: AnalyticalSummary) -> list[str]:
    whole, canary = analytical.epsilon, analytical.canary_epsilon
    if whole is None or canary is None or math.isinf(whole) or whole - canary < 1e-3 * whole:
        return []
    return [
        "Real clients are counted to adapt the clip norm, which spends some of the privacy budget. "
        f"Canaries are not counted, so their own analytical ε is {number(canary)}."
    ]


def _share_note(analytical: AnalyticalSummary) -> list[str]:
    lines = [f"Warning: {analytical.caveat}"] if analytical.caveat else []
    largest = analytical.largest_share
    if largest is None or largest < 1.01:
        return lines
    return [
        *lines,
        f"Warning: the noise is calibrated for updates of at most C/n in the mean, and one client "
        f"had up to {largest:.3g} times that (because of unequal weights or missing replies). The "
        "analytical ε is for a client with that in each of its rounds.",
    ]


def _heavier_note(summary: RunSummary) -> list[str]:
    if summary.heavier is None or summary.heavier < 1.1:
        return []
    return [
        f"Warning: the heaviest client has {summary.heavier:.3g} times the share of the heaviest "
        "canary, so that no ε here is that of this client: its own is larger."
    ]


def _client_notes(summary: RunSummary) -> list[str]:
    count = summary.num_canaries or 0
    return [
        *average_case_client_notes(summary.final.average_case_client, "final", count),
        *average_case_client_notes(summary.every_round.average_case_client, "all", count),
    ]


def _exposure_notes(summary: RunSummary) -> list[str]:
    """ε of the worst-case canary, and for adversaries who know less or more."""
    lines = []
    if fit := summary.final.expected_scores:
        scale = f"{fit.scale:.3f} times ({fit.low:.3f} – {fit.high:.3f})"
        lines.append(
            f"For an adversary who sees the final model, the canaries' scores are {scale} what "
            "their expected scores predict."
        )
    unknown = summary.every_round.unknown_rounds
    if unknown is not None and summary.every_round.known_rounds is None:
        lines.append(
            f"For an adversary who sees every round's model but does not know who took part when: "
            f"ε = {number(unknown.epsilon)}, for a canary whose rounds are drawn at random."
        )
    if full := summary.every_round.full_knowledge:
        found = full.estimate
        lines.append(
            "For an adversary who also knows the real clients' sum and the other canaries: ε = "
            f"{number(found.epsilon)} ({number(found.low)} – {number(found.high)})."
        )
    return lines


def _cohort_notes(summary: RunSummary) -> list[str]:
    lines = []
    if (share := summary.canary_share) is not None:
        lines.append(f"Canaries are {share:.0%} of a cohort of {summary.cohort_size:.3g}.")
        if share >= _MOST_SHARE:
            lines[0] = f"Warning: {lines[0]} {_MOSTLY_CANARIES}"
    if idle := summary.idle_rounds:
        lines.append(
            f"The model did not move in {idle} of {summary.rounds} rounds: they say nothing about "
            "any canary."
        )
    return lines


def _others_notes(summary: RunSummary) -> list[str]:
    """Whether canaries hide each other, and what ε would be if they did."""
    share = summary.others_share
    if share < _LARGE_SHARE:
        return []
    hiding = f"The other canaries of a round are {share:.0%} of the energy of its mean update"
    if not summary.others_out:
        return [
            f"Warning: {hiding[0].lower()}{hiding[1:]}, and this record does not hold the "
            "residual of one canary without them: ε would be larger for one canary among real "
            "clients."
        ]
    raw = {"every round": summary.every_round.raw, "final model": summary.final.raw}
    left_in = ", ".join(f"{number(e.epsilon)} ({name})" for name, e in raw.items() if e is not None)
    if not left_in:
        return []
    lines = [
        f"{hiding}. They are known, so they are taken out, and ε is for one canary among real "
        f"clients. With all of them left in, ε = {left_in}."
    ]
    if summary.final.raw is None:
        lines.append(
            "The final model is not a known sum of the rounds' mean updates, so all canaries are "
            "left in there: ε would be larger for one canary among real clients."
        )
    return lines


def _overlap_warnings(summary: RunSummary) -> list[str]:
    """Where so much is taken out that the run is not the one without canaries."""
    share = summary.others_share
    if share < _MOST_SHARE or not summary.others_out:
        return []
    return [
        f"Warning: the other canaries are {share:.0%} of the energy of a round's mean update, more "
        "than clients and noise together. They are taken out of the scores, but not out of the "
        "training that they changed. Use fewer canaries, or spread them over more rounds."
    ]


def _together_notes(summary: RunSummary) -> list[str]:
    """How far the random norm of the aggregate correlates all scores."""
    parts = summary.headlines
    spreads = [part.scores.spread for part in parts if not isinstance(part, Unmeasured)]
    if max(spreads, default=1.0) < _MOVING:
        return []
    return [
        f"All scores share the random norm of the aggregate, so they are correlated: their mean "
        f"varies {max(spreads):.2f} times as much as that of independent scores. The intervals "
        "allow for that; lower bounds but “lifted” count the scores as "
        "independent, and may exceed ε more often than they say."
    ]


def _null_notes(summary: RunSummary) -> list[str]:
    """Whether canaries that took no part have the scores that they should have."""
    parts = [part for part in summary.headlines if isinstance(part, StatisticSummary)]
    apart = any(part.scores.standard_null and part.scores.dim is None for part in parts)
    assumed = (
        "Scores over several rounds take these as independent: how they are correlated was not "
    )
    return [f"{assumed} correlated."] * apart + [
        f"Warning: {reason}. ε, its interval and its bounds may be wrong. Compare with the "
        "unobserved canaries instead (epsilon_from_scores), or run again with --canary-kind sphere."
        for reason in (null_misfit(part.scores) for part in parts)
        if reason
    ]


def _wide_warnings(summary: RunSummary) -> list[str]:
    """Headlines whose scores are wider than their expected scores explain."""
    parts = summary.headlines
    reasons = [
        wider_than_known(part.scores) for part in parts if isinstance(part, StatisticSummary)
    ]
    return [
        f"Warning: {reason}. So ε has no upper end, and its estimate is that of a Gaussian as wide "
        "as the scores. The lower bounds hold, but for those that assume a Gaussian."
        for reason in reasons
        if reason
    ]


def _few_notes(summary: RunSummary) -> list[str]:
    """Which rows have too few canaries for a lower bound."""
    lines = []
    for row in summary.rows():
        if isinstance(row.part, Unmeasured):
            continue
        scores = row.part.scores
        if row.paper or scores.dim is not None or row.part.lower_bound is not None:
            continue
        others = 0 if scores.unobserved is None else len(scores.unobserved)
        least = least_canaries(summary.delta, confidence=summary.confidence)
        lines.append(
            f"Too few canaries to bound “{row.sees} {row.name}”: at least {least} observed and "
            f"{least} unobserved ones are needed, there are {len(scores.observed)} and {others}."
        )
    return lines


_INSTEAD = {
    "final model displacement": "participations or clip norms differ between canaries; use the "
    "expected score regression (final.expected_scores in report.json), for ε of the worst-case one",
    "every round matched filter": "participations or clip norms differ between canaries; use "
    "all.expected_scores in report.json",
    "every round paper's maximum": "a maximum over rounds never is; use the matched filter",
}


def _gaussian_warnings(summary: RunSummary) -> list[str]:
    """One sentence for each statistic whose scores are not Gaussian, with what to use instead."""
    names = "final model displacement", "every round matched filter", "every round paper's maximum"
    lines = []
    for name, part in zip(names, (*summary.headlines, summary.every_round.paper), strict=True):
        if isinstance(part, StatisticSummary) and (found := _suspect_test(part)):
            lines.append(
                f"Warning: the scores of “{name}” are not Gaussian (Anderson–Darling "
                f"{found}): {_INSTEAD[name]}."
            )
    return lines


def _suspect_test(part: StatisticSummary) -> str | None:
    """A test that finds scores not Gaussian; by participations where these differ."""
    groups = part.gaussian_by_participations
    if len(groups) > 1:
        p = combined_p_value(groups.values())
        worst = min(groups, key=lambda count: groups[count].p_value)
        a = groups[worst].statistic
        shown = f"A² = {a:.2f} at {worst} participations, p = {p:.1g} for all {len(groups)} counts"
        return shown if p < _SUSPECT else None
    test = part.gaussian
    if test is None or test.p_value >= _SUSPECT:
        return None
    return f"A² = {test.statistic:.2f}, p = {test.p_value:.1g}"
