"""The sentences under a report's table: assumptions, warnings and further results."""

import math
from collections.abc import Iterator

from fl_epe.auditing import (
    AverageCaseClient,
    EpsilonEstimate,
    combined_p_value,
    null_misfit,
    wider_than_known,
)
from fl_epe.auditing.bounds import least_canaries
from fl_epe.reporting.headline import measured_parts, unmeasured_notes
from fl_epe.reporting.numbers import number
from fl_epe.reporting.summary_parts import SEES, Sees
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
    return [
        *_stopped_note(summary),
        *(_ABOUT_ESTIMATES if measured_parts(summary) else []),
        *unmeasured_notes(summary),
        _analytical_note(summary),
        *_theory_notes(summary),
        *_client_notes(summary.final.average_case_client, "final", summary.num_canaries or 0),
        *_client_notes(summary.every_round.average_case_client, "all", summary.num_canaries or 0),
        *_exposure_notes(summary),
        *_cohort_notes(summary),
        *_others_notes(summary),
        *_score_notes(summary),
        *claim_notes(summary),
        *_gaussian_warnings(summary),
        *_row_notes(summary),
    ]


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


def _theory_notes(summary: RunSummary) -> Iterator[str]:
    """For whom the analytical ε holds, and what it is for canaries and for heavier clients."""
    analytical = summary.analytical
    whole, canary, largest = analytical.epsilon, analytical.canary_epsilon, analytical.largest_share
    if (known := summary.every_round.known_rounds) is not None:
        yield (
            "The analytical ε holds only if the adversary does not know the rounds. ε and the "
            "lower bound of every round are for such an adversary. For one who knows them ε = "
            f"{_with_ends(known)}."
        )
    if whole is not None and canary is not None and 1e-3 * whole <= whole - canary < math.inf:
        yield (
            "Real clients are counted to adapt the clip norm, which spends some of the privacy "
            f"budget. Canaries are not counted, so their own analytical ε is {number(canary)}."
        )
    if analytical.caveat:
        yield f"Warning: {analytical.caveat}"
    if largest is not None and largest >= 1.01:
        yield (
            "Warning: the noise is calibrated for updates of at most C/n in the mean, and one "
            f"client had up to {largest:.3g} times that (because of unequal weights or missing "
            "replies). The analytical ε is for a client with that in each of its rounds."
        )
    if summary.heavier is not None and summary.heavier >= 1.1:
        yield (
            f"Warning: the heaviest client has {summary.heavier:.3g} times the share of the "
            "heaviest canary, so that no ε here is that of this client: its own is larger."
        )


def _client_notes(found: AverageCaseClient | None, adversary: Sees, canaries: int) -> Iterator[str]:
    """Who is meant by the ε of the table, and what others have, one sentence each."""
    if found is None:
        return
    sees = SEES[adversary]
    if found.equal:
        yield (
            f"An adversary who sees {sees}: all clients leave the same trace there (up to 1%), so "
            "the ε of the table is that of every client, of the mean one as of the worst case."
        )
        return
    source = "How often clients take part follows the schedule's law."
    if found.source != "schedule":
        source = (
            "The schedule's law is not known: the canaries stand for the clients, and the interval "
            "has the error of that."
        )
        if found.few:
            source += (
                " Few canaries decide this ε, so its upper end allows for clients who took part in "
                "every round and whom no canary stands for."
            )
    yield (
        f"An adversary who sees {sees}: ε = {number(found.known.epsilon)} is for one "
        f"client picked at random, whose rounds the adversary knows. {source}"
    )
    whose = (
        "does not know the client's rounds"
        if adversary == "final"
        else "is told the client's score alone, not its rounds"
    )
    yield f"For the same client, ε = {_with_ends(found.unknown)} if the adversary {whose}."
    yield (
        f"A client that took part as strongly as the average one has ε = {_with_ends(found.mean)} "
        "there; it is not the ε of an attack on an average-case client."
    )
    yield (
        f"The worst case of the {canaries:,} canaries of this run has ε = "
        f"{_with_ends(found.worst_case)} there."
    )
    if (largest := found.largest) is not None:
        how = "simulated populations" if largest.simulated else "the schedule's exact law"
        yield (
            f"With {largest.estimate.confidence:.0%} confidence, none of {largest.clients:,} "
            f"clients who follow the clients' schedule has an ε above "
            f"{number(largest.estimate.high)} there (about "
            f"{number(largest.estimate.epsilon)}; by {how}, and the error of the scores)."
        )


def _with_ends(found: EpsilonEstimate) -> str:
    return f"{number(found.epsilon)} ({number(found.low)} – {number(found.high)})"


def _exposure_notes(summary: RunSummary) -> Iterator[str]:
    """ε of the worst-case canary, and for adversaries who know less or more."""
    every = summary.every_round
    if fit := summary.final.expected_scores:
        yield (
            "For an adversary who sees the final model, the canaries' scores are "
            f"{fit.scale:.3f} times ({fit.low:.3f} – {fit.high:.3f}) what their expected scores "
            "predict."
        )
    if every.unknown_rounds is not None and every.known_rounds is None:
        yield (
            "For an adversary who sees every round's model but does not know who took part when: "
            f"ε = {number(every.unknown_rounds.epsilon)}, for a canary whose rounds are drawn at "
            "random."
        )
    if full := every.full_knowledge:
        yield (
            "For an adversary who also knows the real clients' sum and the other canaries: ε = "
            f"{_with_ends(full.estimate)}."
        )


def _cohort_notes(summary: RunSummary) -> Iterator[str]:
    if (share := summary.canary_share) is not None:
        line = f"Canaries are {share:.0%} of a cohort of {summary.cohort_size:.3g}."
        yield line if share < _MOST_SHARE else f"Warning: {line} {_MOSTLY_CANARIES}"
    if idle := summary.idle_rounds:
        yield (
            f"The model did not move in {idle} of {summary.rounds} rounds: they say nothing about "
            "any canary."
        )


def _others_notes(summary: RunSummary) -> Iterator[str]:
    """Whether canaries hide each other, and what ε would be if they did."""
    share = summary.others_share
    if share < _LARGE_SHARE:
        return
    hiding = f"he other canaries of a round are {share:.0%} of the energy of its mean update"
    if not summary.others_out:
        yield (
            f"Warning: t{hiding}, and this record does not hold the residual of one canary without "
            "them: ε would be larger for one canary among real clients."
        )
        return
    raw = {"every round": summary.every_round.raw, "final model": summary.final.raw}
    left_in = ", ".join(f"{number(e.epsilon)} ({name})" for name, e in raw.items() if e is not None)
    if left_in:
        yield (
            f"T{hiding}. They are known, so they are taken out, and ε is for one canary among real "
            f"clients. With all of them left in, ε = {left_in}."
        )
        if summary.final.raw is None:
            yield (
                "The final model is not a known sum of the rounds' mean updates, so all canaries "
                "are left in there: ε would be larger for one canary among real clients."
            )
    if share >= _MOST_SHARE:
        yield (
            f"Warning: t{hiding}, more than clients and noise together. They are taken out of the "
            "scores, but not out of the training that they changed. Use fewer canaries, or spread "
            "them over more rounds."
        )


def _score_notes(summary: RunSummary) -> Iterator[str]:
    """Whether the headlines' scores are correlated, and have the law that they should have."""
    scores = [p.scores for p in summary.headlines if isinstance(p, StatisticSummary)]
    if (most := max((one.spread for one in scores), default=1.0)) >= _MOVING:
        yield (
            "All scores share the random norm of the aggregate, so they are correlated: their mean "
            f"varies {most:.2f} times as much as that of independent scores. The intervals allow "
            "for that; lower bounds but “lifted” count the scores as independent, and may exceed ε "
            "more often than they say."
        )
    if any(one.standard_null and one.dim is None for one in scores):
        yield (
            "Scores over several rounds take these as independent: how they are correlated was "
            "not recorded."
        )
    for back in {one.followed for one in scores} - {None}:
        yield (
            f"Warning: the noise is correlated over more rounds than the {back} that scores are "
            "whitened with, so ε of every round may be too small. In simulations of 2,048 rounds "
            "with 800 of them, its mean score is up to 7% below that of the accounting, and "
            "canaries that took no part vary up to 2% more or less than they should."
        )
    for reason in filter(None, map(null_misfit, scores)):
        yield (
            f"Warning: {reason}. ε, its interval and its bounds may be wrong. Compare with the "
            "unobserved canaries instead (epsilon_from_scores), or run again with --canary-kind "
            "sphere."
        )
    for reason in filter(None, map(wider_than_known, scores)):
        yield (
            f"Warning: {reason}. So ε has no upper end, and its estimate is that of a Gaussian as "
            "wide as the scores. The lower bounds hold, but for those that assume a Gaussian."
        )
    for row in summary.rows():
        if isinstance(row.part, Unmeasured) or row.part.lower_bound is not None or row.paper:
            continue
        if row.part.scores.dim is None:
            others = row.part.scores.unobserved
            least = least_canaries(summary.delta, confidence=summary.confidence)
            yield (
                f"Too few canaries to bound “{row.sees} {row.name}”: at least {least} observed and "
                f"{least} unobserved ones are needed, there are {len(row.part.scores.observed)} "
                f"and {0 if others is None else len(others)}."
            )


def _row_notes(summary: RunSummary) -> Iterator[str]:
    """Rows whose bound lies above their interval, and how many updates were lost."""
    for row in summary.rows():
        if isinstance(row.part, StatisticSummary) and (
            (row.part.lower_bound or 0.0) > row.part.estimate.high
        ):
            yield (
                f"The lower bound of “{row.sees} {row.name}” lies above its interval: the bound "
                "shows that some canaries are more exposed than the estimate says."
            )
    if absent := summary.metrics.absent:
        were = "update was" if absent == 1 else "updates were"
        zero = " and counted as zero" if summary.lost_count_as_zero else ""
        yield f"{absent} {were} lost{zero}: see “Faults” in report.html."


_INSTEAD = {
    "final model displacement": "participations or clip norms differ between canaries; use the "
    "expected score regression (final.expected_scores in report.json), for ε of the worst-case one",
    "every round matched filter": "participations or clip norms differ between canaries; use "
    "all.expected_scores in report.json",
    "every round paper's maximum": "a maximum over rounds never is; use the matched filter",
}


def _gaussian_warnings(summary: RunSummary) -> Iterator[str]:
    parts = (*summary.headlines, summary.every_round.paper)
    for (name, instead), part in zip(_INSTEAD.items(), parts, strict=True):
        if isinstance(part, StatisticSummary) and (found := _suspect_test(part)):
            yield (
                f"Warning: the scores of “{name}” are not Gaussian (Anderson–Darling "
                f"{found}): {instead}."
            )


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
