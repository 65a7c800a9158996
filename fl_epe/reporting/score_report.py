"""The answer of a file of scores, in the form of a run's: two sentences, a table, warnings."""

from collections.abc import Iterator

from rich.console import Console

from fl_epe.auditing import ScoreSummary
from fl_epe.auditing.bounds import BOUNDS
from fl_epe.reporting.numbers import JSON, as_json, finite_numbers, interval
from fl_epe.reporting.reliability import ReportWarning, Status, against
from fl_epe.reporting.sentences import CAVEAT, guess_limit, share
from fl_epe.reporting.tables import plain_table
from fl_epe.wording import number, sentence

_LARGE_OVERLAP = 0.02  # one canary alone then has a shift that is larger by half of it


def score_warnings(found: ScoreSummary) -> list[ReportWarning]:
    """What makes the answer unreliable or changes its reading, the most important first."""
    lines, estimate, proved = (
        list[tuple[str, str]](),
        found.estimate,
        number(found.proved),
    )
    evidence = found.evidence
    if evidence is not None and evidence.violated:
        text = f"{against(evidence)}, claimed {number(evidence.claimed)}"
        lines.append(("exceeds-theory", f"more leaks than is claimed ({text})"))
    if estimate is None:
        lines.append(("not-measured", f"no estimate: {found.refused}"))
    elif (found.proved or 0.0) > estimate.high:
        above = f"the least ε that is proved ({proved}) is above the interval of the estimate"
        lines.append(("contradicted", f"{above} ({interval(estimate)})"))
    if estimate is not None and found.refused is not None:
        lines.append(("width", found.refused))
    if _LARGE_OVERLAP <= (found.overlap or 0.0) <= 1.2:  # more cannot be in one release
        text = (
            f"if all {found.observed} canaries took part in the same release, they are "
            f"{min(found.overlap or 0.0, 1):.0%} of its energy and hide each other: ε of one alone "
            "is larger"
        )
        lines.append(("caveat", text))
    return [ReportWarning(*line) for line in lines]


def score_status(found: ScoreSummary) -> Status:
    """What the answer is worth: that of the most important warning."""
    return next((one.status for one in score_warnings(found)), "ok")


def score_sentences(found: ScoreSummary) -> list[str]:
    """How exposed a canary is, and what that says of the claim; the first warning comes first."""
    status, estimate = score_status(found), found.estimate
    if estimate is None:
        told = "how exposed a canary is was not measured"
    else:
        right = share(guess_limit(estimate.high, found.delta))
        source = (
            "by these scores, if they are Gaussian,"
            if found.if_gaussian
            else "by these scores,"
        )
        told = (
            f"{source} this attack guesses right {right} whether one canary took part (ε ≈ "
            f"{number(estimate.epsilon)}, interval up to {number(estimate.high)})"
        )
    caveat = "" if estimate is None else f" {CAVEAT}."
    if status == "ok":
        first = sentence(told) + caveat
    elif status == "not measured":
        first = sentence(score_warnings(found)[0].text)
    else:
        first = f"{status.capitalize()}, as {score_warnings(found)[0].text}: {told}.{caveat}"
    return [first, _of_claim(found)]


def _of_claim(found: ScoreSummary) -> str:
    evidence = found.evidence
    if evidence is None:
        return "Nothing is claimed; --claim tests an ε that is."
    claimed = f"ε ≤ {number(evidence.claimed)}"
    if evidence.violated:
        return (
            f"The claim of {claimed} is refuted at {found.confidence:.0%} confidence."
        )
    if not evidence.undecided:
        return f"The claim of {claimed} is not refuted; an ε twice as large would have been."
    why = evidence.laws.objection or evidence.undecided
    return f"Whether {claimed} holds is undecided, as {why}."


def score_values(found: ScoreSummary) -> JSON:
    """As JSON values; ``unbounded`` names those of the answer's numbers that are infinite."""
    names = ("epsilon", "low", "high")
    numbers = {name: getattr(found.estimate, name, None) for name in names}
    claimed = None if found.evidence is None else found.evidence.claimed
    numbers |= {"proved": found.proved, "claimed": claimed}
    return {
        "status": score_status(found),
        "warnings": as_json(score_warnings(found)),
        "answer": {
            **finite_numbers(numbers),
            "method": None if found.estimate is None else found.estimate.method,
            "proof": found.proof,
            "verdict": None if found.evidence is None else found.evidence.verdict,
            "delta": found.delta,
            "confidence": found.confidence,
        },
        "details": {
            name: as_json(getattr(found, name))
            for name in (
                "dim",
                "observed",
                "unobserved",
                "estimates",
                "bounds",
                "gaussian",
            )
        },
    }


def print_scores(
    console: Console, found: ScoreSummary, *, details: bool = False
) -> None:
    """Print the answer on one screen.

    Args:
        console: where to print.
        found: what the scores say.
        details: also the other estimates and bounds, and tests of normality.
    """
    first, then = score_sentences(found)
    console.print(first, style=None if score_status(found) == "ok" else "bold red")
    console.print(then)
    sure = f"{found.confidence:.0%}"
    table = plain_table(
        f"ε at δ = {found.delta:.2g} of one canary",
        ("scores", "ε", f"{sure} interval", f"at least ({sure})", "claimed"),
    )
    estimate, proved = found.estimate, found.proved
    table.add_row(
        f"{found.observed} + {found.unobserved}",
        "–" if estimate is None else number(estimate.epsilon),
        "–" if estimate is None else interval(estimate),
        "–" if proved is None else number(proved),
        "–" if found.evidence is None else f"≤ {number(found.evidence.claimed)}",
    )
    console.print(table)
    rest = score_warnings(found)[0 if score_status(found) == "ok" else 1 :]
    for one in rest:
        console.print(f"• {sentence(one.text)}")
    for line in _details(found) if details else ():
        console.print(f"• {line}", style="dim")


def _details(found: ScoreSummary) -> Iterator[str]:
    for one in found.estimates:
        yield f"{one.method}: ε = {number(one.epsilon)} ({interval(one)})."
    for method, epsilon in found.bounds.items():
        bound, role = BOUNDS[method], "exploratory"
        if method == found.proof:
            role = "the proof, chosen without regard to the scores"
        elif not bound.valid:
            role = "the paper's, not valid"
        yield f"{method}: ε ≥ {number(epsilon)} ({role}); assumes {bound.assumption}."
    for side, test in found.gaussian.items():
        yield (
            f"{side} scores, test that they are Gaussian: A² = {test.statistic:.3f}, p = "
            f"{test.p_value:.3g}."
        )
