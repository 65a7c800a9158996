"""The verdict of a report, what each row of its table states, and what limits them, in words."""

import dataclasses
from collections.abc import Iterator

from fl_epe.auditing import AuditRecord, Scores, dependence
from fl_epe.auditing.bounds import (
    BOUNDS,
    PrimaryBound,
    applicable_methods,
    ceiling,
    method_by_design,
)
from fl_epe.reporting.numbers import number
from fl_epe.reporting.summary_parts import SEES, Role, Sees, Statement, Verdict
from fl_epe.reporting.summary_types import RunSummary, StatisticSummary, TableRow, Unmeasured

_SUSPECT = 0.001  # of a test in every report
_NO_LIMIT = 1e4  # above, a ceiling is that of scores that no model has

_KNOWS = {
    "displacement": "the first model and every other canary",
    "matched filter": "the client's rounds, the server's optimizer and every other canary",
    "likelihood ratio": "the server's optimizer and every other canary, not the client's rounds",
    "paper's cosine": "nothing else",
    "paper's maximum": "nothing else, nor the client's rounds",
}


def _rule_of(record: AuditRecord) -> PrimaryBound:
    return PrimaryBound.parse(record.design.verdict or "auto")


def chosen_method(
    record: AuditRecord, scores: Scores, delta: float, confidence: float, *, coins: bool
) -> str | None:
    """The method of a headline's bound, from the run's settings and its design alone."""
    rule = _rule_of(record)
    if rule.method == "auto":
        return method_by_design(scores, delta, confidence)
    return rule.method if rule.method in applicable_methods(scores, coins=coins) else None


def with_claims(record: AuditRecord, summary: RunSummary) -> RunSummary:
    """The summary with all that a report says about its bounds besides their numbers."""
    rule = _rule_of(record)
    rows = summary.rows()
    at = 0 if rule.adversary == "final" else 1  # the first two rows are the headlines
    statements = tuple(
        _statement(record, summary, row, verdict=place == at) for place, row in enumerate(rows)
    )
    part, bound = rows[at].part, None
    if isinstance(part, Unmeasured):
        why = part.reason
    elif (bound := part.lower_bound) is not None:
        why = ""
    elif rule.method == "auto" or not part.scores.boundable:
        why = "too few canaries for a bound"
    else:
        why = f"the scores do not allow {rule.method!r}"
    verdict = Verdict(
        rule=record.design.verdict or "auto",
        recorded=record.design.verdict is not None,
        adversary=rule.adversary,
        epsilon=bound,
        statement=None if isinstance(part, Unmeasured) else statements[at],
        reason=why,
    )
    return dataclasses.replace(
        summary, verdict=verdict, statements=statements, dependence=dependence(record)
    )


def _statement(
    record: AuditRecord, summary: RunSummary, row: TableRow, *, verdict: bool
) -> Statement:
    part = row.part
    method = part.bound_method if isinstance(part, StatisticSummary) else None
    role: Role = "not a bound"
    theorem, most = "no theorem", None
    if isinstance(part, StatisticSummary) and method is not None and BOUNDS[method].valid:
        role = "verdict" if verdict else "exploratory"
        theorem = BOUNDS[method].theorem
        most = ceiling(part.scores, summary.delta, summary.confidence, method)
    also = record.design.also_known if row.sees == "every round" else None
    return Statement(
        sees=row.sees,
        knows=f"{_KNOWS[row.name]}; and {also}" if also else _KNOWS[row.name],
        statistic=row.name,
        adjacency="add-or-remove" if summary.participation == "poisson" else "zero-out",
        unit=record.design.unit,
        method=method,
        assumption=BOUNDS[method].assumption if method else "Gaussian scores, for the estimate",
        theorem=theorem,
        role=role,
        ceiling=most,
    )


def verdict_text(summary: RunSummary) -> str | None:
    """The verdict in one sentence; ``None`` without a record."""
    verdict = summary.verdict
    if verdict is None:
        return None
    seen = SEES[verdict.adversary]
    how = "named before the run" if verdict.recorded else "by the design, as the record names none"
    if verdict.epsilon is None or verdict.statement is None:
        return f"Verdict ({how}; {seen}): no bound, because {verdict.reason}."
    return (
        f"Verdict ({how}): ε ≥ {number(verdict.epsilon)} at {100 * summary.confidence:.6g}% "
        f"confidence, for an adversary who sees {seen}."
    )


def verdict_details(summary: RunSummary) -> str:
    """The verdict's method, and what limits it; empty without one."""
    verdict = summary.verdict
    if verdict is None or verdict.epsilon is None or verdict.statement is None:
        return ""
    method = verdict.statement.method or ""
    what = f" ({BOUNDS[method].description})" if method in BOUNDS else ""
    most = most_text(verdict.statement.ceiling or 0.0)
    return f"The method is “{method}”{what}. {most}. All other bounds are exploratory."


def most_text(most: float) -> str:
    """The largest bound that so many canaries can show, as a sentence without full stop."""
    if most <= 0:
        return "So few canaries cannot show any ε, whatever their scores"
    if most > _NO_LIMIT:
        return "The number of canaries sets no limit to the ε that can be shown"
    return f"So many canaries can show ε ≥ {number(most)} at most, whatever their scores"


def statement_cells(summary: RunSummary) -> list[tuple[str, list[tuple[str, str]]]]:
    """For each row of the table its name, and what it states by heading."""
    found = []
    for row in summary.statements:
        seen: Sees = "final" if row.sees == "final model" else "all"
        cells = [
            ("adjacency", row.adjacency),
            ("unit", row.unit),
            ("adversary", f"sees {SEES[seen]}, knows {row.knows}"),
            ("assumption", row.assumption),
        ]
        if row.method is not None:
            cells.append(("bound", f"{row.method}, {row.role}"))
        if row.ceiling is not None and row.ceiling <= _NO_LIMIT:
            cells.append(("largest possible bound", number(row.ceiling)))
        found.append((f"{row.sees}, {row.statistic}", cells))
    return found


def claim_notes(summary: RunSummary) -> Iterator[str]:
    """The theorem behind the verdict, and the dependence of the scores with what is not known."""
    verdict = summary.verdict
    if verdict is not None and verdict.statement is not None and verdict.epsilon is not None:
        yield f"The verdict rests on {verdict.statement.theorem}."
    for name, found in summary.dependence.items():
        who = "the unobserved canaries" if name == "unobserved" else "the canaries in their rounds"
        suspect = found.p_value < _SUSPECT
        start = f"Warning: {who} depend on each other" if suspect else f"Dependence of {who}"
        yield (
            f"{start}: two scores of a round are correlated by {found.correlation:.2g} "
            f"± {found.standard_error:.1g}, and a round's mean has {found.mean_variance:.3g} times "
            f"the variance of independent scores, in {found.rounds} rounds "
            f"(p = {found.p_value:.2g})."
        )
    if summary.dependence:
        yield (
            "One run cannot show dependence that is the same in all its rounds: it looks like a "
            "larger or smaller ε. The bound “lifted” holds under any dependence."
        )
