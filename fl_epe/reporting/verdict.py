"""The verdict of a report, what each row of its table states, and what limits them, in words."""

from __future__ import annotations

import contextlib

from fl_epe.auditing import AuditRecord, Dependence, Scores, dependence
from fl_epe.auditing.bounds import (
    BOUNDS,
    PrimaryBound,
    applicable_methods,
    ceiling,
    method_by_design,
)
from fl_epe.checks import ArgumentError
from fl_epe.reporting.numbers import number
from fl_epe.reporting.summary_types import RunSummary, StatisticSummary, TableRow, Unmeasured
from fl_epe.reporting.verdict_types import SEES, Claims, Role, Statement, Verdict

_SUSPECT = 0.001  # of a test in every report
_NO_LIMIT = 1e4  # above, a ceiling is that of scores that no model has

_KNOWS = {
    "displacement": "the first model and every other canary",
    "matched filter": "the client's rounds, the server's optimizer and every other canary",
    "likelihood ratio": "the server's optimizer and every other canary, not the client's rounds",
    "paper's cosine": "nothing else",
    "paper's maximum": "nothing else, nor the client's rounds",
}


def rule_of(record: AuditRecord) -> tuple[PrimaryBound, str, bool]:
    """The verdict that a run was to have, as it was named, and whether its record says so.

    A record that names none, or one that is not known here, falls back on the rule by design.
    """
    named = record.design.verdict
    if named is not None:
        with contextlib.suppress(ArgumentError):
            return PrimaryBound.parse(named), named, True
    return PrimaryBound.parse("auto"), "auto", False


def _unknown_rule(record: AuditRecord) -> str:
    """What a record names as its verdict, if that is nothing that is known here; else empty."""
    named = record.design.verdict
    return "" if named is None or rule_of(record)[2] else named


def chosen_method(
    record: AuditRecord, scores: Scores, delta: float, confidence: float, *, coins: bool
) -> str | None:
    """The method of a headline's bound, from the run's settings and its design alone."""
    rule, _, _ = rule_of(record)
    if rule.method == "auto":
        return method_by_design(scores, delta, confidence)
    return rule.method if rule.method in applicable_methods(scores, coins=coins) else None


def claims(record: AuditRecord, summary: RunSummary) -> Claims:
    """All that a report says about its bounds, besides their numbers.

    Args:
        record: the audit record of a run.
        summary: of the record.
    """
    rule, named, recorded = rule_of(record)
    unknown = _unknown_rule(record)
    rows = summary.rows()
    at = 0 if rule.adversary == "final" else 1  # the first two rows are the headlines
    statements = tuple(
        _statement(record, summary, row, verdict=place == at) for place, row in enumerate(rows)
    )
    part = rows[at].part
    if isinstance(part, Unmeasured):
        verdict = Verdict(named, recorded, rule.adversary, None, None, part.reason, unknown)
    else:
        why = "" if part.lower_bound is not None else _no_bound(rule, part)
        verdict = Verdict(
            named, recorded, rule.adversary, part.lower_bound, statements[at], why, unknown
        )
    return Claims(verdict, statements, dependence(record))


def _no_bound(rule: PrimaryBound, part: StatisticSummary) -> str:
    if rule.method == "auto" or not part.scores.boundable:
        return "too few canaries for a bound"
    return f"the scores do not allow {rule.method!r}"


def _statement(
    record: AuditRecord, summary: RunSummary, row: TableRow, *, verdict: bool
) -> Statement:
    part = row.part
    method = part.bound_method if isinstance(part, StatisticSummary) else None
    role: Role = "not a bound"
    if method is not None and BOUNDS[method].valid:
        role = "verdict" if verdict else "exploratory"
    most = None
    if isinstance(part, StatisticSummary) and role != "not a bound" and method is not None:
        most = ceiling(part.scores, summary.delta, summary.confidence, method)
    poisson = record.mechanism.participation == "poisson"
    return Statement(
        sees=row.sees,
        knows=_knows(record, row),
        statistic=row.name,
        adjacency="add-or-remove" if poisson else "zero-out",
        unit=record.design.unit,
        method=method,
        assumption=BOUNDS[method].assumption if method else "Gaussian scores, for the estimate",
        theorem=BOUNDS[method].theorem if role != "not a bound" and method else "no theorem",
        role=role,
        ceiling=most,
    )


def _knows(record: AuditRecord, row: TableRow) -> str:
    """What the adversary of a row knows besides what is released."""
    also = record.design.also_known
    of_rounds = row.sees == "every round"
    return f"{_KNOWS[row.name]}; and {also}" if also and of_rounds else _KNOWS[row.name]


def verdict_text(summary: RunSummary) -> str | None:
    """The verdict in one sentence; ``None`` without a record."""
    verdict = summary.claims.verdict
    if verdict is None:
        return None
    seen = SEES[verdict.adversary]
    how = "named before the run" if verdict.recorded else "by the design, as the record names none"
    if verdict.unknown:
        how = f"by the design, as the record names {verdict.unknown!r}, which is none known here"
    if verdict.epsilon is None or verdict.statement is None:
        return f"Verdict ({how}; {seen}): no bound, because {verdict.reason}."
    share = f"{100 * summary.confidence:.6g}%"
    return (
        f"Verdict ({how}): ε ≥ {number(verdict.epsilon)} at {share} confidence, for an adversary "
        f"who sees {seen}. The method is {_method(verdict.statement.method)}. "
        f"{most_text(verdict.statement.ceiling or 0.0)}. All other bounds are exploratory."
    )


def _method(name: str | None) -> str:
    """A method of `BOUNDS` with what it is."""
    known = BOUNDS.get(name or "")
    return f"“{name}” ({known.description})" if known else f"“{name}”"


def most_text(most: float) -> str:
    """The largest bound that so many canaries can show, as a sentence without full stop."""
    if most <= 0:
        return "So few canaries cannot show any ε, whatever their scores"
    if most > _NO_LIMIT:
        return "The number of canaries sets no limit to the ε that can be shown"
    return f"So many canaries can show ε ≥ {number(most)} at most, whatever their scores"


def _most_words(most: float) -> str:
    if most <= 0:
        return "no ε, with so few canaries"
    return "any ε" if most > _NO_LIMIT else f"ε ≥ {number(most)} at most"


def statement_lines(summary: RunSummary) -> list[str]:
    """What each row of the table states, a line for each."""
    return [
        f"{name}: {'; '.join(f'{key} {value}' for key, value in cells)}."
        for name, cells in statement_cells(summary)
    ]


def statement_cells(summary: RunSummary) -> list[tuple[str, list[tuple[str, str]]]]:
    """For each row of the table its name, and what it states by heading."""
    found = []
    for row in summary.claims.statements:
        cells = [
            ("adjacency", row.adjacency),
            ("unit", row.unit),
            ("adversary", f"sees {_seen(row.sees)}, knows {row.knows}"),
            ("assumption", row.assumption),
        ]
        if row.method is not None:
            cells.append(("bound", f"{row.method}, {row.role}"))
        if row.ceiling is not None:
            cells.append(("canaries can show", _most_words(row.ceiling)))
        found.append((f"{row.sees}, {row.statistic}", cells))
    return found


def _seen(row: str) -> str:
    """In words, what the adversary of a row of the table sees."""
    return SEES["final" if row == "final model" else "all"]


def claim_notes(summary: RunSummary) -> list[str]:
    """The theorem behind the verdict, and the dependence of the scores with what is not known."""
    lines, verdict = [], summary.claims.verdict
    if verdict is not None and verdict.statement is not None and verdict.epsilon is not None:
        lines.append(f"The verdict rests on {verdict.statement.theorem}.")
    for name, found in summary.claims.dependence.items():
        lines.append(_dependence_line(name, found))
    if summary.claims.dependence:
        lines.append(
            "One run cannot show dependence that is the same in all its rounds: it looks like a "
            "larger or smaller ε. The bound “lifted” holds under any dependence."
        )
    return lines


def _dependence_line(name: str, found: Dependence) -> str:
    suspect = found.p_value < _SUSPECT
    who = {"unobserved": "the unobserved canaries", "observed": "the canaries in their rounds"}[
        name
    ]
    start = f"Warning: {who} depend on each other" if suspect else f"Dependence of {who}"
    return (
        f"{start}: two scores of a round are correlated by {found.correlation:.2g} "
        f"± {found.standard_error:.1g}, and a round's mean has {found.mean_variance:.3g} times the "
        f"variance of independent scores, in {found.rounds} rounds (p = {found.p_value:.2g})."
    )
