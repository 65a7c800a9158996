"""The report on a file of scores, in the form of a run's: two sentences, a table, warnings."""

from collections.abc import Iterator

from rich.console import Console

from fl_epe.auditing import ScoreSummary
from fl_epe.auditing.bounds import BOUNDS
from fl_epe.reporting.numbers import JSON, as_json, finite_numbers, interval
from fl_epe.reporting.reliability import (
    ReportWarning,
    Status,
    refutation,
    status_of,
)
from fl_epe.reporting.sentences import CAVEAT, guess_limit, limit_in_words
from fl_epe.reporting.tables import plain_table
from fl_epe.wording import number, sentence

# The smallest overlap that is worth a warning: ε of a canary without the others has a shift that is
# larger by half of the overlap.
_MIN_OVERLAP = 0.02

# The largest overlap of canaries of one release, with a margin for chance. With more, the canaries
# were not in one release.
_MAX_OVERLAP = 1.2


def score_warnings(scores: ScoreSummary) -> list[ReportWarning]:
    """Why the answer is unreliable or needs an explanation, the most important reason first.

    The tags are those of a run's warnings. "exceeds-theory" here means that the claim is refuted,
    and "width" that an estimate is missing because the scores contradict what it assumes.
    """
    warnings = []
    estimate = scores.estimate
    evidence = scores.evidence
    if evidence is not None and evidence.violated:
        text = (
            f"the measured leakage exceeds the claim ({refutation(evidence)}, claimed "
            f"{number(evidence.claimed)})"
        )
        warnings.append(ReportWarning("exceeds-theory", text))
    if estimate is None:
        warnings.append(ReportWarning("not-measured", str(scores.refusal)))
    else:
        if (scores.proved or 0.0) > estimate.high:
            text = (
                f"the least ε that is proved ({number(scores.proved)}) is above the interval of "
                f"the estimate ({interval(estimate)})"
            )
            warnings.append(ReportWarning("contradicted", text))
        if scores.refusal is not None:
            warnings.append(ReportWarning("width", scores.refusal))
    overlap = scores.overlap or 0.0
    if _MIN_OVERLAP <= overlap <= _MAX_OVERLAP:
        text = (
            f"if all {scores.observed} canaries took part in the same release, they are "
            f"{min(overlap, 1):.0%} of its energy and hide each other: ε of one alone is larger"
        )
        warnings.append(ReportWarning("caveat", text))
    return warnings


def score_status(scores: ScoreSummary) -> Status:
    """The status of the most important warning, or "ok"."""
    return status_of(score_warnings(scores))


def score_sentences(scores: ScoreSummary) -> list[str]:
    """Two sentences: ε of a canary, and whether the claim is refuted.

    The first begins with the most important warning, unless the status is "ok". It has only the
    warning if there is no estimate, and ends with a caveat otherwise.
    """
    status = score_status(scores)
    estimate = scores.estimate
    problem = ""
    if status != "ok":
        warning = score_warnings(scores)[0].text
        problem = f"{status.capitalize()}, as {warning}"
    if estimate is None:
        return [sentence(problem), _claim_result(scores)]
    condition = "if they are Gaussian, " if scores.assumes_gaussian else ""
    limit = limit_in_words(guess_limit(estimate.high, scores.delta))
    exposure = (
        f"by these scores, {condition}this attack guesses right {limit} whether one canary took "
        f"part (ε ≈ {number(estimate.epsilon)}, interval up to {number(estimate.high)})"
    )
    if problem:
        exposure = f"{problem}: {exposure}"
    return [f"{sentence(exposure)} {CAVEAT}.", _claim_result(scores)]


def _claim_result(scores: ScoreSummary) -> str:
    """Whether the claim is refuted, in a sentence."""
    evidence = scores.evidence
    if evidence is None:
        return "Nothing is claimed; --claim tests an ε that is."
    claim = f"ε ≤ {number(evidence.claimed)}"
    if evidence.violated:
        return f"The claim of {claim} is refuted at {scores.confidence:.0%} confidence."
    if not evidence.undecided_reason:
        return (
            f"The claim of {claim} is not refuted. A true ε twice as large would probably have "
            "been detected."
        )
    reason = evidence.laws.objection or evidence.undecided_reason
    return f"Whether {claim} holds is undecided, as {reason}."


def score_values(scores: ScoreSummary) -> JSON:
    """The report as JSON values; for infinite numbers, see `finite_numbers`."""
    estimate = scores.estimate
    evidence = scores.evidence
    numbers: dict[str, float | None] = dict.fromkeys(("epsilon", "low", "high"))
    if estimate is not None:
        numbers = {name: getattr(estimate, name) for name in numbers}
    numbers["proved"] = scores.proved
    numbers["claimed"] = None if evidence is None else evidence.claimed
    details = (
        "dim",
        "observed",
        "unobserved",
        "estimates",
        "bounds",
        "gaussian",
    )
    return {
        "status": score_status(scores),
        "warnings": as_json(score_warnings(scores)),
        "answer": {
            **finite_numbers(numbers),
            "method": None if estimate is None else estimate.method,
            "proof": scores.proof,
            "verdict": None if evidence is None else evidence.verdict,
            "delta": scores.delta,
            "confidence": scores.confidence,
        },
        "details": {name: as_json(getattr(scores, name)) for name in details},
    }


def print_scores(
    console: Console, scores: ScoreSummary, *, details: bool = False
) -> None:
    """Print the answer on one screen.

    Args:
        console: where to print.
        scores: the summary of the scores.
        details: whether to print the other estimates and bounds, and tests of normality, too.
    """
    result, claim_result = score_sentences(scores)
    is_ok = score_status(scores) == "ok"
    console.print(result, style=None if is_ok else "bold red")
    console.print(claim_result)
    estimate = scores.estimate
    evidence = scores.evidence
    level = f"{scores.confidence:.0%}"
    row = (
        f"{scores.observed} + {scores.unobserved}",
        "–" if estimate is None else number(estimate.epsilon),
        "–" if estimate is None else interval(estimate),
        "–" if scores.proved is None else number(scores.proved),
        "–" if evidence is None else f"≤ {number(evidence.claimed)}",
    )
    table = plain_table(
        f"ε at δ = {scores.delta:.2g} of one canary",
        ("scores", "ε", f"{level} interval", f"at least ({level})", "claimed"),
        rows=[row],
    )
    console.print(table)
    warnings = score_warnings(scores)
    if not is_ok:
        warnings = warnings[1:]  # the first sentence has the first one
    for warning in warnings:
        console.print(f"• {sentence(warning.text)}")
    if details:
        for line in _details(scores):
            console.print(f"• {line}", style="dim")


def _details(scores: ScoreSummary) -> Iterator[str]:
    """The other estimates and bounds, and tests of normality, in sentences."""
    for estimate in scores.estimates:
        epsilon = number(estimate.epsilon)
        yield f"{estimate.method}: ε = {epsilon} ({interval(estimate)})."
    for method, lower_bound in scores.bounds.items():
        bound = BOUNDS[method]
        role = "exploratory"
        if method == scores.proof:
            role = "the proof, chosen without regard to the scores"
        elif not bound.valid:
            role = "the paper's, not valid"
        yield f"{method}: ε ≥ {number(lower_bound)} ({role}); assumes {bound.assumption}."
    for side, test in scores.gaussian.items():
        yield (
            f"{side} scores, test that they are Gaussian: A² = {test.statistic:.3f}, p = "
            f"{test.p_value:.3g}."
        )
