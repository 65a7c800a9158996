"""Writes what people and programs read of a comparison: a table, a page and JSON."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from fl_epe.auditing import installed_versions
from fl_epe.files import write_text
from fl_epe.limit.measure import Epsilon, Row
from fl_epe.limit.plan import ComparisonPlan
from fl_epe.reporting import (
    NOT_MEASURED,
    as_json,
    number,
    plain_table,
    plain_ticks,
    render,
    render_page,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
_DRAWN = "~"  # marks an ε of clients that were drawn
_TIE = 0.01  # relative; expected scores are rounded

_MEAN, _EXPOSED, _UNKNOWN, _ANALYTICAL = "#c2410c", "#7c2d12", "#1d4ed8", "#15803d"
_FLOOR = 1e-2


def write_comparison(plan: ComparisonPlan, rows: Sequence[Row], directory: Path) -> None:
    """Write ``compare.html`` and ``compare.json``.

    Args:
        plan: what was compared.
        rows: what came out, from `fl_epe.limit.carry_out`.
        directory: where to write; made if it is missing.
    """
    directory.mkdir(parents=True, exist_ok=True)
    values = {
        "plan": dataclasses.asdict(plan),
        "rows": as_json(rows),
        "versions": installed_versions(),
    }
    text = json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False)
    write_text(directory / "compare.json", text + "\n")
    write_text(directory / "compare.html", _page(plan, rows))


def _reference(plan: ComparisonPlan, rows: Sequence[Row]) -> tuple[float, float, list[Row]]:
    """The noise multiplier and the participations that the terminal shows, and their rows."""
    noise, often = (
        sorted(values)[(len(values) - 1) // 2]
        for values in (plan.noise_multipliers, plan.participations)
    )
    here = [row for row in rows if (row.noise_multiplier, row.participations) == (noise, often)]
    return noise, often, here


def print_comparison(plan: ComparisonPlan, rows: Sequence[Row], console: Console) -> None:
    """Print the result, the table at the middle of the grid, and notes."""
    console.print()
    if failed := failed_of(rows):
        console.print(failed, style="bold red")
    if found := finding_of(plan, rows):
        console.print(found + "\n")
    console.print(_table(plan, rows))
    for note in notes_of(plan, rows):
        console.print(f"• {note}", style="dim")


def _table(plan: ComparisonPlan, rows: Sequence[Row]) -> Table:
    noise, participations, here = _reference(plan, rows)
    delta = next((row.delta for row in here if row.delta is not None), plan.delta)
    at = "" if delta is None else f", δ = {delta:.2g}"
    table = plain_table(
        f"ε by schedule: z = {noise:g}, participations {participations:g}{at}", _COLUMNS
    )
    first = table.columns[0]
    first.overflow, first.min_width, first.no_wrap = "fold", 12, False
    for row in here:
        bad = row.above or row.failed is not None
        table.add_row(row.schedule, *cells_of(row), style="red" if bad else "")
    return table


def cells_of(row: Row) -> list[str]:
    """The cells of a row; a "!" marks an ε above its bound."""
    if row.final is None:
        why = "impossible" if row.skipped is not None else NOT_MEASURED.replace(" ", "\n")
        return [why, *["–"] * (len(_COLUMNS) - 2)]
    return [
        *_estimate(row.final),
        *_estimate(row.every_round),
        number(row.final.analytical.epsilon),
        _estimate(row.unknown_rounds)[0],
        number(row.analytical_unknown_rounds),
    ]


def _estimate(value: Epsilon | None) -> tuple[str, str]:
    """ε of a client drawn at random, ± half its interval, and of the worst case."""
    if value is None:
        return "–", "–"
    mark, half = _DRAWN if value.simulated else "", (value.high - value.low) / 2
    spread = f"±{half:.1g}" if half > 0 else ""
    worst = "–" if value.worst_case is None else mark + number(value.worst_case)
    return f"{mark}{number(value.epsilon)}{spread}{' !' * value.above}", worst


def failed_of(rows: Sequence[Row]) -> str:
    """What stands at the top, in red, if rows were not measured or diverged; else ""."""
    counts = {
        "not measured": sum(row.not_measured is not None for row in rows),
        "diverged": sum(row.diverged is not None for row in rows),
    }
    found = [f"{count} {words}" for words, count in counts.items() if count]
    return f"Of {len(rows)} rows, {' and '.join(found)}: see the notes." if found else ""


def finding_of(plan: ComparisonPlan, rows: Sequence[Row]) -> str:
    """The result at the middle of the grid, a sentence; "" where there is nothing to compare."""
    *_, here = _reference(plan, rows)
    exposed = {
        row.schedule: row.final.worst_case
        for row in here
        if row.final is not None and row.final.worst_case is not None
    }
    if len(exposed) < 2:
        return ""
    values, clients = exposed.values(), f"{max(row.clients or 0 for row in here):,}"
    ends = []
    for end in (min(values), max(values)):
        tied = [name for name, epsilon in exposed.items() if abs(epsilon / end - 1) < _TIE]
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
    lines = []
    if over := [row for row in rows if row.above]:
        lines.append(
            f"Warning: {len(over)} of {len(rows)} rows lie above their analytical ε by more than "
            f"chance allows ({', '.join(map(_named, over[:5]))}): a guarantee does not hold, or "
            "the noise is not what it claims to be."
        )
    failed = [f"{_named(row)}: {row.failed}." for row in rows if row.failed is not None]
    lines += failed[:5]
    if (more := len(failed) - 5) > 0:
        lines.append(f"… and {more} more; see compare.json.")
    how = "Nothing was trained: ε is computed from each schedule's law, in the limit of a large "
    if plan.task is not None:
        how = f"The task {plan.task} was trained for every measurement, replicates are pooled."
    elif plan.like is None:
        how += "model, without real updates, which would lower it."
    else:
        how += f"model, with the clip norms, server and real updates of {plan.like}."
    lines.append(how)
    if drawn := dict.fromkeys(row.schedule for row in rows if row.final and row.final.simulated):
        lines.append(
            f"“{_DRAWN}”: no law in closed form is known for {', '.join(drawn)}, so its clients "
            "were drawn, the same ones for every noise multiplier."
        )
    lines += [
        "ε is what the attack of a random canary achieves. It is an estimate, and no bound on "
        "other attacks. Adjacency is zero-out everywhere. “Final” and “every round” are for a "
        "client drawn at random whose rounds the adversary knows, “rounds unknown” for one whose "
        "rounds it does not know (“–”: no closed form).",
        f"“Worst case”: with {plan.confidence:.0%} confidence none of all clients has a larger "
        f"ε, by the same attack. “±”: half of an interval at {plan.confidence:.0%}.",
        "Analytical ε: the tightest theorem for the same adversary and the same client, one drawn "
        "at random. That of known rounds is for every round's model, and so also holds for the "
        "final one (post-processing). It is no bound for the worst-case client.",
    ]
    if skipped := sum(row.skipped is not None for row in rows):
        lines.append(f"{skipped} of {len(rows)} combinations are impossible; see compare.json.")
    return lines


def _named(row: Row) -> str:
    return f"{row.schedule} at z = {row.noise_multiplier:g}, participations {row.participations:g}"


def _page(plan: ComparisonPlan, rows: Sequence[Row]) -> str:
    noise, participations, here = _reference(plan, rows)
    drawn = [row for row in here if row.final is not None]
    size = 9, 1.6 + 0.42 * len(drawn)
    chart = drawn and render(lambda figure: _by_schedule(figure, drawn), size)
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
        names=[" ".join(name.split()) for name in _COLUMNS[1:]],
        notes=notes_of(plan, rows),
        picture=base64.b64encode(chart).decode() if chart else None,
        settings={k: v for k, v in dataclasses.asdict(plan).items() if v not in (None, {}, 1.0)},
        versions=installed_versions(),
    )


def _by_schedule(figure: Figure, rows: Sequence[Row]) -> None:
    left, right = figure.subplots(1, 2, sharey=True)
    for y, row in enumerate(rows):
        _whisker(left, y, row.final, _MEAN)
        _whisker(right, y - 0.12, row.every_round, _MEAN)
        _whisker(right, y + 0.18, row.unknown_rounds, _UNKNOWN)
    left.set_yticks(range(len(rows)), [row.schedule.replace(":", ":\n", 1) for row in rows])
    left.tick_params(axis="y", labelsize=7)
    left.set(title="adversary sees the final model", ylim=(len(rows) - 0.5, -0.5))
    right.set(title="adversary sees every round's model")
    for axes in (left, right):
        axes.set(xscale="log", xlabel="ε")
        axes.grid(axis="x", alpha=0.3)
        plain_ticks(axes)
    for color, marker, label in (
        (_MEAN, "o", "client drawn at random, rounds known"),
        (_UNKNOWN, "o", "the same, rounds unknown"),
        (_EXPOSED, "D", "worst case of all clients"),
        (_ANALYTICAL, "|", "analytical, client drawn at random"),
    ):
        right.plot([], [], marker, color=color, label=label, mfc="none" if marker == "D" else None)
    figure.legend(
        *right.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=4,
        fontsize=7,
        frameon=False,
    )


def _whisker(axes: Axes, y: float, value: Epsilon | None, color: str) -> None:
    if value is None:
        return
    low, middle, high = (max(_FLOOR, x) for x in (value.low, value.epsilon, value.high))
    axes.plot([low, high], [y, y], color=color, lw=3, alpha=0.4, solid_capstyle="butt")
    axes.plot(middle, y, "o", color=color, ms=4)
    if value.worst_case is not None:
        axes.plot(max(_FLOOR, value.worst_case), y, "D", color=_EXPOSED, ms=4, mfc="none")
    if math.isfinite(bound := value.analytical.epsilon):
        axes.plot(max(_FLOOR, bound), y, "|", color=_ANALYTICAL, ms=11, mew=2)
