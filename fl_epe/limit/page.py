"""Writes what people and programs read of a comparison: a table, a page and JSON.

Each table is of one client and of what one adversary sees; each of its lines says whether that
adversary knows the client's rounds, and the adjacency.
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

# Whose ε it is and who attacks, and lines: each a row and its cells in the order of `COLUMNS`.
Table = tuple[str, list[tuple[Row, list[str]]]]

COLUMNS = ("schedule", "takes part", "its rounds", "adjacency", "ε", "theory")
_OTHERS = 57  # the width of the columns but the first
_TIE = 0.01  # relative; expected scores are rounded


def write_comparison(
    plan: ComparisonPlan, rows: Sequence[Row], directory: Path
) -> None:
    """Write ``compare.html`` and ``compare.json``.

    Args:
        plan: what was compared.
        rows: what came out, from `fl_epe.limit.carry_out`.
        directory: where to write; made if it is missing.
    """
    directory.mkdir(parents=True, exist_ok=True)
    write_json(
        directory / "compare.json",
        {
            "plan": dataclasses.asdict(plan),
            "rows": as_json(rows),
            "versions": installed_versions(),
        },
    )
    here = reference(plan, rows)
    choice, more = choice_of(plan, here)
    page = render_page(
        "compare.html.j2",
        plan=plan,
        choice=choice,
        more=more,
        finding=finding_of(plan, rows),
        failed=failed_of(rows),
        delta=_delta(plan, rows),
        here=list(tables_of(plan, here)),
        grid=list(tables_of(plan, rows)) if len(rows) > len(here) else [],
        names=COLUMNS[1:],
        notes=notes_of(plan, rows),
        settings={
            k: v
            for k, v in dataclasses.asdict(plan).items()
            if v not in (None, {}, 1.0)
        },
        versions=installed_versions(),
    )
    write_text(directory / "compare.html", page)


def reference(plan: ComparisonPlan, rows: Sequence[Row]) -> list[Row]:
    """The rows at the middle of the grid, which the terminal shows."""
    return [
        row for row in rows if (row.noise_multiplier, row.participations) == plan.middle
    ]


def print_comparison(
    plan: ComparisonPlan,
    rows: Sequence[Row],
    console: Console,
    *,
    details: bool = False,
) -> None:
    """Print the result and the table at the middle of the grid; with ``details`` all there is."""
    console.print()
    if failed := failed_of(rows):
        console.print(failed, style="bold red")
    choice, more = choice_of(plan, reference(plan, rows))
    if choice:
        console.print(choice, style="bold")
    if more:
        console.print(more)
    shown = list(tables_of(plan, rows if details else reference(plan, rows)))
    for title, lines in shown if details else shown[:1]:
        table = plain_table(title, COLUMNS, left=4)
        first = table.columns[0]
        first.min_width = 12
        if details:
            first.overflow = "fold"
            first.no_wrap = False
        else:  # one line each
            first.max_width = max(12, console.width - _OTHERS)
        for row, cells in lines:
            bad = row.above or row.failed is not None
            table.add_row(*cells, style="red" if bad else "")
        console.print(table)
    found = finding_of(plan, rows)
    if found and (details or not choice):
        console.print(found)
    notes = notes_of(plan, rows)
    for note in (
        notes if details or failed else notes[: 1 + any(row.above for row in rows)]
    ):
        console.print(f"• {note}", style="dim")


def tables_of(plan: ComparisonPlan, rows: Sequence[Row]) -> Iterator[Table]:
    """Of each client and each thing to see, in the order of the plan."""
    places = {(row.noise_multiplier, row.participations) for row in rows}
    at = f" at δ = {delta:.2g}" if (delta := _delta(plan, rows)) is not None else ""
    named = len(places) > 1
    if not named:
        noise, often = places.pop()
        at = f", z = {noise:g}, {counted(often, 'participation')}{at}"
    for client in ("median", "worst-case"):
        for sees in BOTH:
            lines = []
            for row in rows:
                found = row.of(client, sees)
                if client == "median" or found is not None:
                    lines.append((row, _cells(row, found, named=named)))
            if lines:
                yield (
                    f"ε of the {client} client for an adversary who sees {SEES[sees]}{at}",
                    lines,
                )


def _cells(row: Row, found: ClientEpsilon | None, *, named: bool) -> list[str]:
    where = f", z = {row.noise_multiplier:g}, {amount(row.participations)}" * named
    if found is None:
        why = "impossible" if row.skipped is not None else NOT_MEASURED
        limit = "–" if row.guaranteed is None else number(row.guaranteed)
        return [row.schedule + where, "–", "–", "–", why, limit]
    half = (found.high - found.low) / 2
    spread = f" ±{half:.1g}" if half > 0 else ""
    theory = found.theory
    return [
        row.schedule + where,
        how_often(found.participations),
        "known" if theory.knows_rounds else "secret",
        theory.adjacency,
        number(found.epsilon) + spread + " !" * found.above,
        "none known" if theory.epsilon is None else number(theory.epsilon),
    ]


def _delta(plan: ComparisonPlan, rows: Sequence[Row]) -> float | None:
    return next((row.delta for row in rows if row.delta is not None), plan.delta)


def failed_of(rows: Sequence[Row]) -> str:
    """What stands at the top, in red, if rows were not measured or diverged; else ""."""
    counts = {
        "not measured": sum(row.not_measured is not None for row in rows),
        "diverged": sum(row.diverged is not None for row in rows),
    }
    found = [f"{count} {words}" for words, count in counts.items() if count]
    return (
        f"Of {len(rows)} rows, {' and '.join(found)}: see the notes." if found else ""
    )


def finding_of(plan: ComparisonPlan, rows: Sequence[Row]) -> str:
    """Which schedule is best and worst for the worst-case client; "" if nothing is compared."""
    here = reference(plan, rows)
    found = {row.schedule: row.of("worst-case", "final") for row in here}
    exposed = {name: each.epsilon for name, each in found.items() if each is not None}
    if len(exposed) < 2:
        return ""
    values = exposed.values()
    whose = (
        f"the worst-case client of {max(row.clients or 0 for row in here):,} (adversary sees the "
        "final model and knows the client's rounds; zero-out)"
    )
    short = [name.split(":")[0] for name in exposed]
    names_of = dict(
        zip(exposed, short if len(set(short)) == len(short) else exposed, strict=True)
    )
    if max(values) < min(values) * (1 + _TIE):
        return (
            f"All of these schedules have the same ε of {whose}: {number(max(values))}."
        )
    ends = []
    for end in (min(values), max(values)):
        tied = [
            names_of[n]
            for n, epsilon in exposed.items()
            if abs(epsilon / end - 1) < _TIE
        ]
        ends.append(f"{', '.join(tied)} ({number(end)}{', a tie' * (len(tied) > 1)})")
    return f"ε of {whose} is least under {ends[0]} and largest under {ends[1]}."


def notes_of(plan: ComparisonPlan, rows: Sequence[Row]) -> list[str]:
    """What a reader must know about the numbers, what matters most first."""
    lines = []
    if over := [row for row in rows if row.above]:
        lines.append(
            f"Warning: {len(over)} of {len(rows)} rows lie above theory by more than chance allows "
            f"({', '.join(map(_named, over[:5]))}): a guarantee does not hold, or the noise is not "
            "what it claims to be."
        )
    failed = [f"{_named(row)}: {row.failed}." for row in rows if row.failed is not None]
    lines += failed[:5]
    if (more := len(failed) - 5) > 0:
        lines.append(f"… and {more} more; see compare.json.")
    if plan.task is not None:
        how = f"{plan.task} was trained; ε is the mean of the replicates' reports, ± its interval."
    elif plan.like is None:
        how = f"Nothing was trained. {REAL_UPDATES_LEFT_OUT}"
    else:
        how = f"Nothing was trained. Clip norms, server and real updates are those of {plan.like}."
    lines += [
        how,
        "ε estimates what a random canary in the client's place would show; it is no bound on "
        "other attacks. Theory is for the same client and adversary.",
        "The median client takes part as often as half of all clients or more. The adversary does "
        "not know its rounds where sampling hides them.",
        f"No client takes part more often than the worst-case client, with {plan.confidence:.0%} "
        "confidence. The adversary knows its rounds.",
    ]
    if drawn := [
        f"{_named(row)}: {number(row.drawn)}" for row in rows if row.drawn is not None
    ]:
        lines.append(
            "ε of who sees every round, not who takes part, is at most, by Monte Carlo with "
            f"{DRAWN_CONFIDENCE:.1%} confidence: {'; '.join(drawn)}."
        )
    if skipped := sum(row.skipped is not None for row in rows):
        lines.append(
            f"{skipped} of {len(rows)} combinations are impossible; see compare.json."
        )
    return lines


def _named(row: Row) -> str:
    often = counted(row.participations, "participation")
    return f"{row.schedule} at z = {row.noise_multiplier:g}, {often}"
