"""Writes a comparison as a table for the terminal, as a page and as JSON.

Each table is for one client and for the models that one adversary sees. Each of its lines says
whether that adversary knows the client's rounds, and the adjacency.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from fl_epe.auditing import REAL_UPDATES_LEFT_OUT, installed_versions
from fl_epe.files import write_json, write_text
from fl_epe.limit.choice import choice_of
from fl_epe.limit.client import ClientEpsilon
from fl_epe.limit.measure import BOTH, DRAWN_CONFIDENCE, Row
from fl_epe.limit.plan import ComparisonPlan
from fl_epe.reporting import (
    NOT_MEASURED,
    SEES,
    as_json,
    number,
    plain_table,
    render_page,
)
from fl_epe.wording import amount, counted, how_often

Table = tuple[str, list[tuple[Row, list[str]]]]
"""A title, and the lines: each has a row and its cells in the order of `COLUMNS`."""

COLUMNS = ("schedule", "takes part", "its rounds", "adjacency", "ε", "theory")

# The width of all columns but the first.
_WIDTH = 57

# The relative difference of ε that counts as a tie, as expected scores are rounded.
_TIE = 0.01

# The largest number of rows that are named in a note.
_MOST_NAMED = 5


def write_comparison(
    plan: ComparisonPlan, rows: Sequence[Row], directory: Path
) -> None:
    """Write ``compare.html`` and ``compare.json``.

    Args:
        plan: the plan of the comparison.
        rows: the results, from `fl_epe.limit.carry_out`.
        directory: the folder in which the files are written; it is created if it is missing.
    """
    directory.mkdir(parents=True, exist_ok=True)
    fields = dataclasses.asdict(plan)
    versions = installed_versions()
    content = {"plan": fields, "rows": as_json(rows), "versions": versions}
    write_json(directory / "compare.json", content)
    middle = _middle_rows(plan, rows)
    choice, more = choice_of(plan, middle)
    page = render_page(
        "compare.html.j2",
        plan=plan,
        choice=choice,
        more=more,
        finding=finding_of(plan, rows),
        failed=failed_of(rows),
        delta=_delta(plan, rows),
        middle_tables=list(tables_of(plan, middle)),
        grid=list(tables_of(plan, rows)) if len(rows) > len(middle) else [],
        names=COLUMNS[1:],
        notes=notes_of(plan, rows),
        settings={
            name: value
            for name, value in fields.items()
            if value is not None and value != {}
        },
        versions=versions,
    )
    write_text(directory / "compare.html", page)


def print_comparison(
    plan: ComparisonPlan,
    rows: Sequence[Row],
    console: Console,
    *,
    details: bool = False,
) -> None:
    """Print the result and the table at the middle of the grid.

    Args:
        plan: the plan of the comparison.
        rows: the results, from `fl_epe.limit.carry_out`.
        console: the console on which the text is printed.
        details: whether every table and note is printed.
    """
    middle = _middle_rows(plan, rows)
    failed = failed_of(rows)
    choice, more = choice_of(plan, middle)
    finding = finding_of(plan, rows)
    notes = notes_of(plan, rows)
    tables = list(tables_of(plan, rows if details else middle))
    if not details:
        tables = tables[:1]
        if not failed:
            notes = notes[: 1 + any(row.above for row in rows)]
    console.print()
    if failed:
        console.print(failed, style="bold red")
    if choice:
        console.print(choice, style="bold")
    if more:
        console.print(more)
    for title, lines in tables:
        table = plain_table(title, COLUMNS, left=4)
        first = table.columns[0]
        first.min_width = 12
        if details:
            first.overflow = "fold"
            first.no_wrap = False
        else:
            # Each row has one line.
            first.max_width = max(12, console.width - _WIDTH)
        for row, cells in lines:
            is_bad = row.above or row.failed is not None
            table.add_row(*cells, style="red" if is_bad else "")
        console.print(table)
    if finding and (details or not choice):
        console.print(finding)
    for note in notes:
        console.print(f"• {note}", style="dim")


def tables_of(plan: ComparisonPlan, rows: Sequence[Row]) -> Iterator[Table]:
    """A table for each client and each adversary, with rows in the order of the plan."""
    places = {(row.noise_multiplier, row.participations) for row in rows}
    has_grid = len(places) > 1
    setting = ""
    if not has_grid:
        noise, participations = places.pop()
        setting = f", z = {noise:g}, {counted(participations, 'participation')}"
    delta = _delta(plan, rows)
    if delta is not None:
        setting += f" at δ = {delta:.2g}"
    for client in ("median", "worst-case"):
        for sees in BOTH:
            lines = []
            for row in rows:
                answer = row.of(client, sees)
                if client == "median" or answer is not None:
                    lines.append((row, _cells(row, answer, has_grid)))
            if lines:
                title = f"ε of the {client} client for an adversary who sees {SEES[sees]}{setting}"
                yield title, lines


def _cells(row: Row, answer: ClientEpsilon | None, has_grid: bool) -> list[str]:
    name = row.schedule
    if has_grid:
        name += f", z = {row.noise_multiplier:g}, {amount(row.participations)}"
    if answer is None:
        reason = NOT_MEASURED if row.skipped is None else "impossible"
        limit = "–" if row.guaranteed is None else number(row.guaranteed)
        return [name, "–", "–", "–", reason, limit]
    epsilon = number(answer.epsilon)
    half = (answer.high - answer.low) / 2
    if half > 0:
        epsilon += f" ±{half:.1g}"
    if answer.above:
        epsilon += " !"
    theory = answer.theory
    return [
        name,
        how_often(answer.participations),
        "known" if theory.knows_rounds else "secret",
        theory.adjacency,
        epsilon,
        "none known" if theory.epsilon is None else number(theory.epsilon),
    ]


def _middle_rows(plan: ComparisonPlan, rows: Sequence[Row]) -> list[Row]:
    """The rows at the middle of the grid, which the terminal shows."""
    return [
        row
        for row in rows
        if (row.noise_multiplier, row.participations) == plan.middle
    ]


def _delta(plan: ComparisonPlan, rows: Sequence[Row]) -> float | None:
    return next(
        (row.delta for row in rows if row.delta is not None), plan.delta
    )


def failed_of(rows: Sequence[Row]) -> str:
    """The sentence at the top if rows were not measured or diverged; else ""."""
    not_measured = sum(row.not_measured is not None for row in rows)
    diverged = sum(row.diverged is not None for row in rows)
    failures = []
    if not_measured:
        failures.append(f"{not_measured} not measured")
    if diverged:
        failures.append(f"{diverged} diverged")
    if not failures:
        return ""
    return f"Of {len(rows)} rows, {' and '.join(failures)}: see the notes."


def finding_of(plan: ComparisonPlan, rows: Sequence[Row]) -> str:
    """The best and worst schedules for the worst-case client; "" if nothing is compared."""
    middle = _middle_rows(plan, rows)
    epsilons = {}
    for row in middle:
        answer = row.of("worst-case", "final")
        if answer is not None:
            epsilons[row.schedule] = answer.epsilon
    if len(epsilons) < 2:
        return ""
    smallest = min(epsilons.values())
    largest = max(epsilons.values())
    client = (
        f"the worst-case client of {max(row.clients or 0 for row in middle):,} (adversary sees the "
        "final model and knows the client's rounds; zero-out)"
    )
    if largest < smallest * (1 + _TIE):
        return f"All of these schedules have the same ε of {client}: {number(largest)}."
    kinds = {name.split(":")[0] for name in epsilons}
    ends = []
    for end in (smallest, largest):
        tied = [
            name.split(":")[0] if len(kinds) == len(epsilons) else name
            for name, epsilon in epsilons.items()
            if abs(epsilon / end - 1) < _TIE
        ]
        tie = ", a tie" if len(tied) > 1 else ""
        ends.append(f"{', '.join(tied)} ({number(end)}{tie})")
    return (
        f"ε of {client} is least under {ends[0]} and largest under {ends[1]}."
    )


def notes_of(plan: ComparisonPlan, rows: Sequence[Row]) -> list[str]:
    """Notes on the numbers, the most important first."""
    lines = []
    above = [_name(row) for row in rows if row.above]
    if above:
        lines.append(
            f"Warning: {len(above)} of {len(rows)} rows lie above theory by more than chance "
            f"allows ({', '.join(above[:_MOST_NAMED])}): a guarantee does not hold, or the noise "
            "is not what it claims to be."
        )
    failed = [
        f"{_name(row)}: {row.failed}." for row in rows if row.failed is not None
    ]
    lines += failed[:_MOST_NAMED]
    if len(failed) > _MOST_NAMED:
        lines.append(
            f"… and {len(failed) - _MOST_NAMED} more; see compare.json."
        )
    if plan.task is not None:
        lines.append(
            f"{plan.task} was trained; ε is the mean of the replicates' reports, ± its interval."
        )
    elif plan.like is not None:
        lines.append(
            f"Nothing was trained. Clip norms, server and real updates are those of {plan.like}."
        )
    else:
        lines.append(f"Nothing was trained. {REAL_UPDATES_LEFT_OUT}")
    lines += [
        "ε estimates what a random canary in the client's place would show; it is no bound on "
        "other attacks. Theory is for the same client and adversary.",
        "The median client takes part at least as often as half of all clients. The adversary does "
        "not know its rounds where sampling hides them.",
        f"No client takes part more often than the worst-case client, with {plan.confidence:.0%} "
        "confidence. The adversary knows its rounds.",
    ]
    drawn_bounds = [
        f"{_name(row)}: {number(row.drawn)}"
        for row in rows
        if row.drawn is not None
    ]
    if drawn_bounds:
        lines.append(
            "For an adversary who sees every round's model but not who takes part, ε is at most "
            f"(Monte Carlo, {DRAWN_CONFIDENCE:.1%} confidence): {'; '.join(drawn_bounds)}."
        )
    skipped = sum(row.skipped is not None for row in rows)
    if skipped:
        lines.append(
            f"{skipped} of {len(rows)} combinations are impossible; see compare.json."
        )
    return lines


def _name(row: Row) -> str:
    participations = counted(row.participations, "participation")
    return f"{row.schedule} at z = {row.noise_multiplier:g}, {participations}"
