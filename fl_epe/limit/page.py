"""Writes a comparison as a table for the terminal, as a page and as JSON.

Each table is for one client and one adversary. Each line says whether the adversary knows the
client's rounds, and the adjacency.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from fl_epe.auditing import REAL_UPDATES_LEFT_OUT, installed_versions
from fl_epe.files import write_json, write_text
from fl_epe.limit.choice import choice_of
from fl_epe.limit.client import ClientEpsilon
from fl_epe.limit.measure import DRAWN_CONFIDENCE, Row
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

COLUMNS = ("schedule", "takes part", "its rounds", "adjacency", "ε", "theory")

# The width in the terminal: of all columns but the first, and at least of the first.
_OTHER_COLUMNS_WIDTH = 57
_MIN_FIRST_WIDTH = 12

# The relative difference of ε that counts as a tie, as expected scores are rounded.
_TIE = 0.01

# The largest number of rows that are named in a note.
_MAX_NAMED = 5


@dataclasses.dataclass(frozen=True)
class ComparisonTable:
    """A table of ε for one client and one adversary.

    Attributes:
        title: the text above the table.
        lines: each line's row of the comparison, and its cells in the order of `COLUMNS`.
    """

    title: str
    lines: list[tuple[Row, list[str]]]


def _texts(plan: ComparisonPlan, rows: Sequence[Row]) -> dict[str, str]:
    """The texts above the tables, which are the same in the terminal and on the page."""
    choice, remarks = choice_of(plan, _middle_rows(plan, rows))
    return {
        "failures": failures_of(rows),
        "choice": choice,
        "remarks": remarks,
        "best_for_worst_case": best_for_worst_case(plan, rows),
    }


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
    page = render_page(
        "compare.html.j2",
        **_texts(plan, rows),
        plan=plan,
        delta=_delta_of(plan, rows),
        middle_tables=list(tables_of(plan, middle)),
        grid_tables=list(tables_of(plan, rows))
        if len(rows) > len(middle)
        else [],
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
    texts = _texts(plan, rows)
    notes = notes_of(plan, rows)
    if details:
        tables = list(tables_of(plan, rows))
    else:
        tables = list(tables_of(plan, _middle_rows(plan, rows)))[:1]
        if not texts["failures"]:
            has_warning = any(row.above for row in rows)
            # The warning, and what was trained.
            notes = notes[: 2 if has_warning else 1]
    console.print()
    if texts["failures"]:
        console.print(texts["failures"], style="bold red")
    if texts["choice"]:
        console.print(texts["choice"], style="bold")
    if texts["remarks"]:
        console.print(texts["remarks"])
    for table in tables:
        _print_table(console, table, folded=details)
    if texts["best_for_worst_case"] and (details or not texts["choice"]):
        console.print(texts["best_for_worst_case"])
    for note in notes:
        console.print(f"• {note}", style="dim")


def _print_table(
    console: Console, table: ComparisonTable, *, folded: bool
) -> None:
    """Print a table; long names of schedules are folded, or else cut at the width."""
    printed = plain_table(table.title, COLUMNS, left=4)
    first = printed.columns[0]
    first.min_width = _MIN_FIRST_WIDTH
    if folded:
        first.overflow = "fold"
        first.no_wrap = False
    else:
        first.max_width = max(
            _MIN_FIRST_WIDTH, console.width - _OTHER_COLUMNS_WIDTH
        )
    for row, cells in table.lines:
        is_bad = row.above or row.failed is not None
        printed.add_row(*cells, style="red" if is_bad else "")
    console.print(printed)


def tables_of(
    plan: ComparisonPlan, rows: Sequence[Row]
) -> Iterator[ComparisonTable]:
    """A table for each client and each adversary, with rows in the order of the plan."""
    has_grid = len(rows) > len(_middle_rows(plan, rows))
    setting = ""
    if not has_grid:
        noise, participations = plan.middle
        setting = f", z = {noise:g}, {counted(participations, 'participation')}"
    delta = _delta_of(plan, rows)
    if delta is not None:
        setting += f" at δ = {delta:.2g}"
    for client in ("median", "worst-case"):
        for sees in SEES:
            lines = []
            for row in rows:
                answer = row.of(client, sees)
                # A row without an ε is shown for the median client only.
                if answer is not None or client == "median":
                    lines.append((row, _cells(row, answer, has_grid)))
            if lines:
                title = f"ε of the {client} client for an adversary who sees {SEES[sees]}{setting}"
                yield ComparisonTable(title, lines)


def _cells(row: Row, answer: ClientEpsilon | None, has_grid: bool) -> list[str]:
    name = row.schedule
    if has_grid:
        name += f", z = {row.noise_multiplier:g}, {amount(row.participations)}"
    if answer is None:
        status = NOT_MEASURED if row.skipped is None else "impossible"
        theory = "–" if row.guaranteed is None else number(row.guaranteed)
        return [name, "–", "–", "–", status, theory]
    epsilon = number(answer.epsilon)
    half_width = (answer.high - answer.low) / 2
    if half_width > 0:
        epsilon += f" ±{half_width:.1g}"
    if answer.above:
        epsilon += " !"
    bound = answer.theory
    return [
        name,
        how_often(answer.participations),
        "known" if bound.knows_rounds else "secret",
        bound.adjacency,
        epsilon,
        "none known" if bound.epsilon is None else number(bound.epsilon),
    ]


def _middle_rows(plan: ComparisonPlan, rows: Sequence[Row]) -> list[Row]:
    """The rows at the middle of the grid, which the terminal shows."""
    return [
        row
        for row in rows
        if (row.noise_multiplier, row.participations) == plan.middle
    ]


def _delta_of(plan: ComparisonPlan, rows: Sequence[Row]) -> float | None:
    """The δ of the first row that has one; without such a row, that of the plan."""
    return next(
        (row.delta for row in rows if row.delta is not None), plan.delta
    )


def failures_of(rows: Sequence[Row]) -> str:
    """The number of rows that were not measured or diverged, in a sentence; "" if none."""
    failures = sum(row.failed is not None for row in rows)
    if not failures:
        return ""
    return f"Not measured, or diverged: {failures} of {counted(len(rows), 'row')}; see the notes."


def best_for_worst_case(plan: ComparisonPlan, rows: Sequence[Row]) -> str:
    """The schedule with the smallest ε of the worst-case client, in a sentence.

    The text is empty if fewer than two schedules have such an ε.
    """
    epsilons = {}
    clients = 0
    for row in _middle_rows(plan, rows):
        answer = row.of("worst-case", "final")
        if answer is not None:
            epsilons[row.schedule] = answer.epsilon
            clients = max(clients, row.clients or 0)
    if len(epsilons) < 2:
        return ""
    smallest = min(epsilons.values())
    best = [
        schedule
        for schedule, epsilon in epsilons.items()
        if epsilon < smallest * (1 + _TIE)
    ]
    tie = ", a tie" if len(best) > 1 else ""
    return (
        f"ε of the worst-case client of {clients:,} (adversary sees the final model and knows the "
        f"client's rounds; zero-out) is least under {', '.join(best)} ({number(smallest)}{tie})."
    )


def notes_of(plan: ComparisonPlan, rows: Sequence[Row]) -> list[str]:
    """Notes on the numbers, the most important first."""
    notes = []
    above_theory = [_name(row) for row in rows if row.above]
    if above_theory:
        notes.append(
            f"Warning: {len(above_theory)} of {len(rows)} rows exceed the theoretical ε by more "
            f"than chance ({', '.join(above_theory[:_MAX_NAMED])}): a guarantee does not hold, or "
            "less noise is added than claimed."
        )
    failures = [
        f"{_name(row)}: {row.failed}." for row in rows if row.failed is not None
    ]
    notes += failures[:_MAX_NAMED]
    if len(failures) > _MAX_NAMED:
        notes.append(
            f"… and {len(failures) - _MAX_NAMED} more; see compare.json."
        )
    if plan.task is not None:
        notes.append(
            f"{plan.task} was trained; ε is the mean of the replicates' reports, ± its interval."
        )
    elif plan.like is not None:
        notes.append(
            f"Nothing was trained. Clip norms, server and real updates are those of {plan.like}."
        )
    else:
        notes.append(f"Nothing was trained. {REAL_UPDATES_LEFT_OUT}")
    notes += [
        "ε is estimated for a random canary in the client's place; other attacks may find more. "
        "Theory is for the same client and adversary.",
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
        notes.append(
            "For an adversary who sees every round's model but not who takes part, ε is at most "
            f"(Monte Carlo, {DRAWN_CONFIDENCE:.1%} confidence): {'; '.join(drawn_bounds)}."
        )
    skipped = sum(row.skipped is not None for row in rows)
    if skipped:
        notes.append(
            f"{skipped} of {len(rows)} combinations are impossible; see compare.json."
        )
    return notes


def _name(row: Row) -> str:
    participations = counted(row.participations, "participation")
    return f"{row.schedule} at z = {row.noise_multiplier:g}, {participations}"
