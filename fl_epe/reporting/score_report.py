"""The report on a file of scores, in the form of a run's: two sentences, a table, warnings."""

from collections.abc import Iterator

from rich.console import Console

from fl_epe.auditing import ScoreSummary
from fl_epe.auditing.bounds import BOUNDS
from fl_epe.reporting.numbers import JSON, as_json, finite_numbers, interval
from fl_epe.reporting.reliability import (
    ReportWarning,
    Status,
    after_first_sentence,
    refutation,
    status_of,
)
from fl_epe.reporting.sentences import CAVEAT, guess_limit, limit_in_words
from fl_epe.reporting.tables import plain_table
from fl_epe.wording import number, sentence

# The smallest energy share that is worth a warning. The energy share is that of the canaries in the
# squared norm of the release, if all were in one (`ScoreSummary.overlap`). Without the other
# canaries, the mean score of a canary is larger by the factor 1 + share / 2.
_MIN_ENERGY_SHARE = 0.02

# The largest energy share of canaries of one release. The share is estimated, so that it may exceed
# 1 by chance. With more, the canaries were not in one release.
_MAX_ENERGY_SHARE = 1.2


def score_warnings(summary: ScoreSummary) -> list[ReportWarning]:
    """Why the answer is unreliable or needs an explanation, the most important reason first.

    The codes are those of a run's warnings. "exceeds-theory" here means that the claim is refuted,
    and "width" that the scores contradict what a better estimate assumes, so that another one is
    reported.
    """
    warnings = []
    estimate = summary.estimate
    evidence = summary.evidence
    if evidence is not None and evidence.violated:
        text = (
            f"the measured leakage exceeds the claim ({refutation(evidence)}, claimed "
            f"{number(evidence.claimed)})"
        )
        warnings.append(ReportWarning("exceeds-theory", text))
    if estimate is None:
        warnings.append(ReportWarning("not-measured", str(summary.refusal)))
    else:
        if (summary.proved or 0.0) > estimate.high:
            text = (
                f"the least ε that is proved ({number(summary.proved)}) is above the interval of "
                f"the estimate ({interval(estimate)})"
            )
            warnings.append(ReportWarning("contradicted", text))
        if summary.refusal is not None:
            # An estimate was refused, but another one takes its place.
            warnings.append(ReportWarning("width", summary.refusal))
    energy_share = summary.overlap or 0.0
    if _MIN_ENERGY_SHARE <= energy_share <= _MAX_ENERGY_SHARE:
        text = (
            f"if all {summary.observed} canaries took part in the same release, they are "
            f"{min(energy_share, 1):.0%} of its squared norm and hide each other: ε of one "
            "alone is larger"
        )
        warnings.append(ReportWarning("caveat", text))
    return warnings


def score_status(summary: ScoreSummary) -> Status:
    """The status of the most important warning, or "ok"."""
    return status_of(score_warnings(summary))


def score_sentences(summary: ScoreSummary) -> tuple[str, str]:
    """Two texts: ε of a canary, and whether the claim is refuted.

    The first begins with the most important warning, unless the status is "ok". It has only the
    warning if there is no estimate, and ends with a caveat otherwise.
    """
    status = score_status(summary)
    estimate = summary.estimate
    problem = ""
    if status != "ok":
        warning = score_warnings(summary)[0].text
        problem = f"{status.capitalize()}, as {warning}"
    if estimate is None:
        return sentence(problem), _claim_result(summary)
    condition = "if they are Gaussian, " if summary.assumes_gaussian else ""
    limit = limit_in_words(guess_limit(estimate.high, summary.delta))
    exposure = (
        f"by these scores, {condition}this attack guesses right {limit} whether one canary took "
        f"part (ε ≈ {number(estimate.epsilon)}, interval up to {number(estimate.high)})"
    )
    if problem:
        exposure = f"{problem}: {exposure}"
    return f"{sentence(exposure)} {CAVEAT}.", _claim_result(summary)


def _claim_result(summary: ScoreSummary) -> str:
    """Whether the claim is refuted, in a sentence."""
    evidence = summary.evidence
    if evidence is None:
        return "No ε is claimed. Use --claim to test one."
    claim = f"ε ≤ {number(evidence.claimed)}"
    if evidence.violated:
        return f"The claim of {claim} is refuted at {summary.confidence:.0%} confidence."
    if not evidence.undecided_reason:
        return (
            f"The claim of {claim} is not refuted. A true ε twice as large would probably have "
            "been detected."
        )
    reason = evidence.laws.objection or evidence.undecided_reason
    return f"Whether {claim} holds is undecided, as {reason}."


def score_values(summary: ScoreSummary) -> JSON:
    """The report as JSON values; for infinite numbers, see `finite_numbers`."""
    estimate = summary.estimate
    evidence = summary.evidence
    numbers: dict[str, float | None] = {
        "epsilon": None if estimate is None else estimate.epsilon,
        "low": None if estimate is None else estimate.low,
        "high": None if estimate is None else estimate.high,
        "proved": summary.proved,
        "claimed": None if evidence is None else evidence.claimed,
    }
    details = {
        "dim": summary.dim,
        "observed": summary.observed,
        "unobserved": summary.unobserved,
        "estimates": summary.estimates,
        "bounds": summary.bounds,
        "gaussian": summary.gaussian,
    }
    return {
        "status": score_status(summary),
        "warnings": as_json(score_warnings(summary)),
        "answer": {
            **finite_numbers(numbers),
            "method": None if estimate is None else estimate.method,
            "proof": summary.proof,
            "verdict": None if evidence is None else evidence.verdict,
            "delta": summary.delta,
            "confidence": summary.confidence,
        },
        "details": {name: as_json(value) for name, value in details.items()},
    }


def print_scores(
    console: Console, summary: ScoreSummary, *, details: bool = False
) -> None:
    """Print the answer on one screen.

    Args:
        console: where to print.
        summary: the summary of the scores.
        details: whether to print the other estimates and bounds, and tests of normality, too.
    """
    result, claim_result = score_sentences(summary)
    is_ok = score_status(summary) == "ok"
    console.print(result, style=None if is_ok else "bold red")
    console.print(claim_result)
    estimate = summary.estimate
    evidence = summary.evidence
    level = f"{summary.confidence:.0%}"
    row = (
        f"{summary.observed} + {summary.unobserved}",
        "–" if estimate is None else number(estimate.epsilon),
        "–" if estimate is None else interval(estimate),
        "–" if summary.proved is None else number(summary.proved),
        "–" if evidence is None else f"≤ {number(evidence.claimed)}",
    )
    table = plain_table(
        f"ε at δ = {summary.delta:.2g} of one canary",
        ("scores", "ε", f"{level} interval", f"at least ({level})", "claimed"),
        rows=[row],
    )
    console.print(table)
    for warning in after_first_sentence(score_warnings(summary)):
        console.print(f"• {sentence(warning.text)}")
    if details:
        for line in _details(summary):
            console.print(f"• {line}", style="dim")


def _details(summary: ScoreSummary) -> Iterator[str]:
    """The other estimates and bounds, and tests of normality, in sentences."""
    for estimate in summary.estimates:
        epsilon = number(estimate.epsilon)
        yield f"{estimate.method}: ε = {epsilon} ({interval(estimate)})."
    for method, lower_bound in summary.bounds.items():
        bound = BOUNDS[method]
        role = "exploratory"
        if method == summary.proof:
            role = "primary bound, chosen without regard to the scores"
        elif not bound.valid:
            role = "not valid: as published, for comparison only"
        yield f"{method}: ε ≥ {number(lower_bound)} ({role}); assumes {bound.assumption}."
    for side, test in summary.gaussian.items():
        yield (
            f"{side} scores, test that they are Gaussian: A² = {test.statistic:.3f}, p = "
            f"{test.p_value:.3g}."
        )
