"""What people and programs read of runs side by side: tables, a page with a forest plot, CSV, JSON.

`write_runs_compared` writes the files, `print_runs_compared` prints to a terminal.
"""

from __future__ import annotations

import importlib.resources
import io
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from fl_epe.checks import finite
from fl_epe.files import write_text
from fl_epe.reporting.drawing import BLUE, GREEN, ORANGE, plain_ticks
from fl_epe.reporting.numbers import number
from fl_epe.reporting.publish import table_text
from fl_epe.reporting.runs_compared import SEEN, ComparedRun, RunsCompared, Sees, signed
from fl_epe.reporting.status import NOT_MEASURED
from fl_epe.reporting.summary_types import StatisticSummary
from fl_epe.reporting.tables import plain_table
from fl_epe.reporting.verdict_types import SEES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FLOOR = 1e-2  # smaller ε are drawn there
_MOST_SETTINGS = 12  # that differ, in the terminal


def write_runs_compared(found: RunsCompared, directory: Path) -> list[Path]:
    """Write ``comparison.html``, ``comparison.json`` and ``comparison.csv``.

    Args:
        found: from `compare_runs`.
        directory: where to write; made if it is missing.

    Returns:
        The files that were written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    values = json.dumps(to_dict(found), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    written = []
    for ending, text in (("html", _page(found)), ("json", values), ("csv", _csv(found))):
        written.append(write_text(directory / f"comparison.{ending}", text))
    return written


def to_dict(found: RunsCompared) -> dict[str, Any]:
    """What ``comparison.json`` holds; ``None`` for a number that is infinite or unknown."""
    return {
        "schema": 1,
        "delta": found.delta,
        "confidence": found.confidence,
        "finding": finding(found),
        "runs": [
            {
                "letter": run.letter,
                "directory": run.name,
                "own_delta": run.own_delta,
                "settings": run.settings,
                "report": run.summary.to_dict(),
            }
            for run in found.runs
        ],
        "different_settings": list(found.different),
        "differences": [pair.to_dict() for pair in found.differences],
        "notes": list(found.notes),
    }


def finding(found: RunsCompared) -> str:
    """The result in a sentence or two, for non-experts."""
    if not found.differences:
        return "Too few of these runs were measured to say which leaks more."
    certain = [pair for pair in found.differences if pair.found.larger_than_chance]
    if not certain:
        return "No two of these runs can be told apart: their ε differ by no more than chance."
    parts = []
    for adversary in SEEN:
        here = [pair for pair in certain if pair.adversary == adversary]
        total = sum(pair.adversary == adversary for pair in found.differences)
        if total == 1 and here:
            pair = here[0]
            up = pair.found.low > 0
            more, less = (pair.first, pair.second) if up else (pair.second, pair.first)
            words = f"run {more} leaks more than run {less}"
        elif total == 1:
            words = "the two runs cannot be told apart"
        elif total:
            words = f"{len(here)} of {total} pairs of runs differ by more than chance"
        else:
            continue
        parts.append(f"to an adversary who sees {SEES[adversary]}, {words}")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def epsilon_cells(run: ComparedRun, adversary: Sees) -> tuple[str, ...]:
    """ε, interval, lower bound and analytical ε of a run for one adversary, as text."""
    part, analytical = run.part(adversary), run.summary.analytical.epsilon
    limit = "none known" if analytical is None else number(analytical)
    if not isinstance(part, StatisticSummary):
        return NOT_MEASURED, "–", "–", limit
    estimate = part.estimate
    bound = "–" if part.lower_bound is None else number(part.lower_bound)
    verdict = run.summary.claims.verdict
    if verdict is not None and verdict.adversary == adversary and part.lower_bound is not None:
        bound += " *"
    ends = f"{number(estimate.low)} – {number(estimate.high)}"
    return number(estimate.epsilon), ends, bound, limit


def run_cells(run: ComparedRun) -> tuple[str, ...]:
    """What a run is, as text: directory, status, its metric, when it ended."""
    metric = run.summary.metrics.held_out()
    return (
        run.name,
        run.summary.status,
        " ".join(reversed(metric[0])) if metric else "–",
        str(run.summary.run.get("ended") or "–").replace("T", " ").removesuffix("Z"),
    )


VERDICT_NOTE = "* the lower bound that was named as the verdict before the run."
"""What the star behind a lower bound means."""


def print_runs_compared(console: Console, found: RunsCompared) -> None:
    """Print the finding, the runs, what differs, ε of each, the differences and the notes."""
    console.print(finding(found), style="bold", highlight=False)
    runs = plain_table("Runs", ("", "directory", "status", "held out", "ended (UTC)"), left=3)
    runs.columns[1].no_wrap, runs.columns[1].overflow = False, "fold"
    for run in found.runs:
        style = "" if run.summary.status == "ok" else "red"
        runs.add_row(run.letter, *run_cells(run), style=style)
    console.print(runs)
    console.print(_settings_table(found))
    headings = ("sees", "run", "ε", f"{found.confidence:.0%} interval", "lower bound", "analytical")
    table = plain_table(f"Empirical ε at δ = {found.delta:.2g}", headings, left=2)
    for adversary, sees in SEEN.items():
        for place, run in enumerate(found.runs):
            last = place == len(found.runs) - 1
            cells = epsilon_cells(run, adversary)
            table.add_row(sees if not place else "", run.letter, *cells, end_section=last)
    console.print(table)
    for pair in found.differences:
        console.print(f"• {pair.sentence()}", highlight=False)
    for note in (VERDICT_NOTE, *found.notes):
        console.print(f"• {note}", style="dim", highlight=False)


def _settings_table(found: RunsCompared) -> Table:
    letters = [run.letter for run in found.runs]
    table = plain_table("Settings that differ", ("setting", *letters), left=1)
    for column in table.columns[1:]:
        column.no_wrap, column.overflow = False, "fold"
    for place, (name, values) in enumerate(found.different.items()):
        if place == _MOST_SETTINGS:
            more = len(found.different) - place
            table.add_row(f"… {more} more in comparison.html", *[""] * len(letters))
            break
        table.add_row(name, *values)
    if not found.different:
        table.add_row("none", *[""] * len(letters))
    return table


def _csv(found: RunsCompared) -> str:
    """A row for each run and adversary, with the settings that differ."""
    rows = []
    for run in found.runs:
        values = run.summary.to_dict()
        for adversary, sees in SEEN.items():
            part = values[adversary]
            rows.append(
                {
                    "run": run.letter,
                    "directory": run.name,
                    "status": run.summary.status,
                    "sees": sees,
                    "delta": found.delta,
                    "own_delta": run.own_delta,
                    "epsilon": part["epsilon"],
                    "low": part["low"],
                    "high": part["high"],
                    "confidence": found.confidence,
                    "lower_bound": part["lower_bound"],
                    "analytical": values["analytical"]["epsilon"],
                    "accuracy": finite(run.summary.metrics.accuracy),
                    **{f"setting: {name}": run.settings.get(name) for name in found.different},
                }
            )
    return table_text(list(rows[0]), rows)


def _draw_forest(figure: Figure, found: RunsCompared) -> None:
    """ε and interval of every run, one adversary below the other."""
    from matplotlib.lines import Line2D

    axes = figure.subplots()
    values = [
        value
        for run in found.runs
        for adversary in SEEN
        for part in [run.part(adversary)]
        if isinstance(part, StatisticSummary)
        for value in (part.estimate.epsilon, part.estimate.high)
        if math.isfinite(value)
    ]
    top = 3 * max([_FLOOR, *values])
    labels, places, y = [], [], 0.0
    for adversary, sees in SEEN.items():
        for run in found.runs:
            _forest_row(axes, run, adversary, y, top)
            labels.append(f"{sees}  {run.letter}")
            places.append(y)
            y += 1
        y += 0.6
    axes.set_yticks(places, labels)
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel=f"ε at δ = {found.delta:.2g}")
    axes.margins(y=0.12)
    plain_ticks(axes)
    axes.grid(axis="x", lw=0.4, color="#d6d3d1")
    axes.set_axisbelow(True)
    handles = [
        Line2D([], [], color=ORANGE, marker="o", label="estimate, interval"),
        Line2D([], [], color=BLUE, marker=">", mfc="white", ls="", label="lower bound"),
        Line2D([], [], color=GREEN, marker="|", ms=11, mew=2, ls="", label="analytical"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=7)


def _forest_row(axes: Any, run: ComparedRun, adversary: Sees, y: float, top: float) -> None:
    part = run.part(adversary)
    if not isinstance(part, StatisticSummary):
        axes.text(0.02, y, NOT_MEASURED, transform=axes.get_yaxis_transform(), va="center")
        return
    low, middle, high = (
        min(max(_FLOOR, value), top)
        for value in (part.estimate.low, part.estimate.epsilon, part.estimate.high)
    )
    analytical = run.summary.analytical.epsilon
    if analytical is not None and math.isfinite(analytical):
        axes.plot(max(_FLOOR, analytical), y, "|", color=GREEN, ms=11, mew=2)
    axes.plot([low, high], [y, y], color=ORANGE, lw=2, solid_capstyle="butt")
    axes.plot(middle, y, "o", color=ORANGE, ms=5)
    if part.lower_bound and math.isfinite(part.lower_bound):
        axes.plot(max(_FLOOR, part.lower_bound), y, ">", color=BLUE, mfc="white", ms=6)


def _forest(found: RunsCompared) -> str:
    """The forest plot as SVG to put into a page; its text is text."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "fl-epe", "font.size": 8}
    with mpl.rc_context(style):
        size = (4.2, 1.2 + 0.26 * len(SEEN) * len(found.runs))
        figure = Figure(figsize=size, layout="constrained")
        _draw_forest(figure, found)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :].replace("<svg ", '<svg aria-hidden="true" ', 1)


def _alternative(found: RunsCompared) -> str:
    """The forest plot in words and numbers."""
    told = []
    for adversary, sees in SEEN.items():
        for run in found.runs:
            epsilon, ends, _, _ = epsilon_cells(run, adversary)
            told.append(f"{sees}, run {run.letter}: ε {epsilon} ({ends})")
    return f"ε of each run with its interval. {'; '.join(told)}."


def _page(found: RunsCompared) -> str:
    import jinja2

    source = importlib.resources.files("fl_epe") / "reporting" / "templates" / "comparison.html.j2"
    template = jinja2.Environment(autoescape=True, trim_blocks=True).from_string(
        source.read_text(encoding="utf-8")
    )
    names = {adversary: SEES[adversary] for adversary in SEEN}
    return template.render(
        found=found,
        finding=finding(found),
        runs=[(run, run_cells(run)) for run in found.runs],
        rows=[
            (names[adversary], [(run, epsilon_cells(run, adversary)) for run in found.runs])
            for adversary in SEEN
        ],
        forest=_forest(found),
        alternative=_alternative(found),
        differences=[
            (
                pair,
                SEEN[pair.adversary],
                signed(pair.found.value),
                f"{signed(pair.found.low)} to {signed(pair.found.high)}",
            )
            for pair in found.differences
        ],
        notes=(VERDICT_NOTE, *found.notes),
    )
