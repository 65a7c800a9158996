"""Writes what people and programs read of a comparison: a table, a page and JSON."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fl_epe.auditing import installed_versions
from fl_epe.checks import finite
from fl_epe.files import write_text
from fl_epe.limit.charts import chart
from fl_epe.limit.plan import ComparisonPlan
from fl_epe.limit.rows import Epsilon, Row
from fl_epe.reporting import NOT_MEASURED, number, plain_table, render_page

_COLUMNS = (
    "schedule",
    "final",
    "worst\ncase",
    "every\nround",
    "worst\ncase",
    "analyt.,\nknown",
    "rounds\nunknown",
    "analyt.,\nunknown",
)
"""Columns of the table in the terminal."""
_DRAWN = "~"
"""Marks an ε of clients that were drawn."""
_TIE = 0.01  # relative; expected scores are rounded


def write_comparison(plan: ComparisonPlan, rows: Sequence[Row], directory: Path) -> None:
    """Write ``compare.html`` and ``compare.json``.

    Args:
        plan: what was compared.
        rows: what came out, from `fl_epe.limit.carry_out`.
        directory: where to write; made if it is missing.
    """
    directory.mkdir(parents=True, exist_ok=True)
    values = {
        "plan": plan.to_dict(),
        "rows": [_json(dataclasses.asdict(row)) for row in rows],
        "versions": installed_versions(),
    }
    text = json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False)
    write_text(directory / "compare.json", text + "\n")
    write_text(directory / "compare.html", _page(plan, rows))


def reference(plan: ComparisonPlan) -> tuple[float, float]:
    """The noise multiplier and the participations that the table in the terminal shows."""
    noise, participations = sorted(plan.noise_multipliers), sorted(plan.participations)
    return noise[(len(noise) - 1) // 2], participations[(len(participations) - 1) // 2]


def _at_reference(plan: ComparisonPlan, rows: Sequence[Row]) -> list[Row]:
    at = reference(plan)
    return [row for row in rows if (row.noise_multiplier, row.participations) == at]


def print_comparison(plan: ComparisonPlan, rows: Sequence[Row], console: Console) -> None:
    """Print the result, the table at the `reference`, and notes."""
    console.print()
    if failed := failed_of(rows):
        console.print(failed, style="bold red", markup=False, highlight=False)
    if found := finding_of(plan, rows):
        console.print(found + "\n", markup=False, highlight=False)
    console.print(_table(plan, rows))
    for note in notes_of(plan, rows):
        console.print(f"• {note}", style="dim", markup=False, highlight=False)


def _table(plan: ComparisonPlan, rows: Sequence[Row]) -> Table:
    noise, participations = reference(plan)
    here = _at_reference(plan, rows)
    delta = next((row.delta for row in here if row.delta is not None), plan.delta)
    at = "" if delta is None else f", δ = {delta:.2g}"
    table = plain_table(
        f"ε by schedule: z = {noise:g}, participations {participations:g}{at}", _COLUMNS
    )
    table.columns[0].overflow, table.columns[0].min_width = "fold", 12
    table.columns[0].no_wrap = False
    for row in here:
        bad = row.above or row.failed is not None
        table.add_row(row.schedule, *_narrow(row), style="red" if bad else "")
    return table


def _narrow(row: Row) -> list[str]:
    """Fewer cells: the analytical ε of known rounds is the same for both adversaries."""
    if row.skipped is not None or row.not_measured is not None:
        why = "impossible" if row.skipped is not None else NOT_MEASURED.replace(" ", "\n")
        return [why, *["–"] * (len(_COLUMNS) - 2)]
    cells = _epsilons(row, _plus_minus)
    return cells[:2] + cells[3:]


def cells_of(row: Row) -> list[str]:
    """The cells of a row of the page, as text; a "!" marks an ε above its bound."""
    if row.skipped is not None or row.not_measured is not None:
        return [row.failed or f"impossible: {row.skipped}", *[""] * 8]
    times = f"{row.mean_participations:.3g} (most {row.most_participations})"
    return [times, *_epsilons(row, _interval)]


def _epsilons(row: Row, spread: Callable[[Epsilon], str]) -> list[str]:
    """What is measured, the worst case and the bound of each adversary; ``spread`` of an interval.

    For unknown rounds there is no worst case.
    """
    found = []
    for value in (row.final, row.every_round, row.unknown_rounds):
        if value is None:
            found += ["–"] * 3
            continue
        mark = _DRAWN if value.simulated else ""
        worst, bound = value.worst_case, value.analytical
        found += [
            f"{mark}{number(value.epsilon)}{spread(value)}{' !' * value.above}",
            "–" if worst is None else mark + number(worst),
            "–" if bound is None else number(finite(bound.epsilon)),
        ]
    return [*found[:7], number(finite(row.analytical_unknown_rounds))]


def failed_of(rows: Sequence[Row]) -> str:
    """What stands at the top, in red, if rows were not measured or diverged; else ""."""
    missing = sum(row.not_measured is not None for row in rows)
    diverged = sum(row.diverged is not None for row in rows)
    counts = {"not measured": missing, "diverged": diverged}
    found = [f"{count} {words}" for words, count in counts.items() if count]
    return f"Of {len(rows)} rows, {' and '.join(found)}: see the notes." if found else ""


def finding_of(plan: ComparisonPlan, rows: Sequence[Row]) -> str:
    """The result at the `reference` in one sentence; "" where there is nothing to compare."""
    exposed = {
        row.schedule: (row.final.worst_case, row.clients)
        for row in _at_reference(plan, rows)
        if row.final is not None and row.final.worst_case is not None
    }
    if len(exposed) < 2:
        return ""
    values = [epsilon for epsilon, _ in exposed.values()]
    clients = f"{max(many or 0 for _, many in exposed.values()):,}"
    ends = []
    for end in (min(values), max(values)):
        tied = [name for name, (epsilon, _) in exposed.items() if abs(epsilon / end - 1) < _TIE]
        names = ", ".join(tied[:-1]) + (" and " if len(tied) > 1 else "") + tied[-1]
        ends.append(f"{names} (ε ≤ {number(end)}{', a tie' * (len(tied) > 1)})")
    if max(values) < min(values) * (1 + _TIE):
        return (
            f"By the final model alone, the worst case of {clients} clients has the same ε under "
            f"all of these schedules (ε ≤ {number(max(values))})."
        )
    return (
        f"By the final model alone, ε of the worst case of {clients} clients is least under "
        f"{ends[0]} and largest under {ends[1]}, with {plan.confidence:.0%} confidence."
    )


def notes_of(plan: ComparisonPlan, rows: Sequence[Row]) -> list[str]:
    """What a reader must know about the numbers."""
    if plan.task is not None:
        where = f"The task {plan.task} was trained for every measurement; intervals at "
        where += f"{plan.confidence:.0%}, replicates pooled."
    else:
        where = "Nothing was trained: ε is computed from each schedule's law, in the limit of a "
        where += "large model."
        if plan.like is not None:
            where += f" Clip norms, server and real updates are those measured in {plan.like}."
        else:
            where += " Real updates are left out; with them ε would be smaller."
    lines = [
        where,
        *_drawn_notes(rows),
        "ε is what the attack of a random canary achieves. It is an estimate, and no bound on "
        "other attacks. Adjacency is zero-out everywhere.",
        "“Final” and “every round” are for a client drawn at random whose rounds the adversary "
        "knows, “rounds unknown” for one whose rounds it does not know (“–”: no closed form).",
        f"“Worst case”: with {plan.confidence:.0%} confidence none of all clients has a larger "
        "ε, by the same attack.",
        "Analytical ε: the tightest theorem for the same adversary and the same client, one drawn "
        "at random. That of known rounds is for every round's model, and so also holds for the "
        "final one (post-processing). It is no bound for the worst-case client.",
    ]
    lines = [*_failed_notes(rows), *lines]
    if over := [row for row in rows if row.above]:
        names = ", ".join(_named(row) for row in over[:5])
        lines.insert(
            0,
            f"Warning: {len(over)} of {len(rows)} rows lie above their analytical ε by more than "
            f"chance allows ({names}): a guarantee does not hold, or the noise is not what it "
            "claims to be.",
        )
    if skipped := sum(row.skipped is not None for row in rows):
        lines.append(f"{skipped} of {len(rows)} combinations are impossible; see compare.json.")
    return lines


def _drawn_notes(rows: Sequence[Row]) -> list[str]:
    """Which rows are of clients that were drawn, and what rounds a log has."""
    logs = dict.fromkeys((row.schedule, row.log) for row in rows if row.log)
    lines = [
        f"{name} has {log[0]:,} rounds, of which {log[1]:,} have clients." for name, log in logs
    ]
    drawn = dict.fromkeys(row.schedule for row in rows if row.final and row.final.simulated)
    if not drawn:
        return lines
    return [
        *lines,
        f"“{_DRAWN}”: no law in closed form is known for {', '.join(drawn)}, so its clients were "
        "drawn, the same ones for every noise multiplier.",
    ]


def _failed_notes(rows: Sequence[Row]) -> list[str]:
    """Rows without an ε, or of a model that diverged; the first five by name."""
    lines = [f"{_named(row)}: {row.failed}." for row in rows if row.failed is not None]
    if (more := len(lines) - 5) > 0:
        lines[5:] = [f"… and {more} more; see compare.json."]
    return lines


def _named(row: Row) -> str:
    return f"{row.schedule} at z = {row.noise_multiplier:g}, participations {row.participations:g}"


def _interval(value: Epsilon) -> str:
    return f" ({number(value.low)} – {number(value.high)})" if value.high > value.low else ""


def _plus_minus(value: Epsilon) -> str:
    half = (value.high - value.low) / 2
    return f"±{half:.1g}" if half > 0 else ""


def _json(value: Any) -> Any:
    """Infinite numbers become ``None``."""
    if isinstance(value, dict):
        return {key: _json(part) for key, part in value.items()}
    return finite(value) if isinstance(value, float) else value


def _page(plan: ComparisonPlan, rows: Sequence[Row]) -> str:
    noise, participations = reference(plan)
    here = _at_reference(plan, rows)
    drawn = [row for row in here if row.final is not None]
    return render_page(
        "compare.html.j2",
        plan=plan,
        finding=finding_of(plan, rows),
        failed=failed_of(rows),
        noise=noise,
        participations=participations,
        delta=next((row.delta for row in rows if row.delta is not None), plan.delta),
        here=[(row, cells_of(row)) for row in here],
        rows=[(row, cells_of(row)) for row in rows],
        notes=notes_of(plan, rows),
        picture=base64.b64encode(chart(drawn)).decode() if drawn else None,
        settings={k: v for k, v in plan.to_dict().items() if v not in (None, {}, 1.0)},
        versions=installed_versions(),
    )
