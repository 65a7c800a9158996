"""What people and programs read of runs side by side: tables, a page with a chart, CSV and JSON.

`write_runs_compared` writes the files, `print_runs_compared` prints to a terminal.
"""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fl_epe.auditing import answers
from fl_epe.checks import finite
from fl_epe.files import write_text
from fl_epe.reporting.charts import Chart, answer_chart
from fl_epe.reporting.publish import table_text
from fl_epe.reporting.report import render_page
from fl_epe.reporting.runs_compared import SEEN, ComparedRun, RunsCompared
from fl_epe.reporting.still import still
from fl_epe.reporting.summary_parts import SEES, Sees
from fl_epe.reporting.tables import analytical_text, part_cells, plain_table

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
    texts = {"html": _page(found), "json": values, "csv": _csv(found)}
    return [write_text(directory / f"comparison.{end}", text) for end, text in texts.items()]


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
                "own_delta": run.record.delta,
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
    parts = []
    for adversary in SEEN:
        leaks = [pair.leak() for pair in found.differences if pair.adversary == adversary]
        certain = [leak for leak in leaks if leak is not None]
        if len(leaks) > 1:
            words = f"{len(certain)} of {len(leaks)} pairs of runs differ by more than chance"
        elif certain:
            words = f"run {certain[0][0]} leaks more than run {certain[0][1]}"
        else:
            words = "the two runs cannot be told apart"
        if leaks:
            parts.append((f"to an adversary who sees {SEES[adversary]}, {words}", certain))
    if not any(certain for _, certain in parts):
        return "No two of these runs can be told apart: their ε differ by no more than chance."
    text = "; ".join(words for words, _ in parts)
    return f"{text[:1].upper()}{text[1:]}."


def _epsilon_cells(run: ComparedRun, adversary: Sees) -> tuple[str, ...]:
    """ε, interval, lower bound and analytical ε of a run for one adversary, as text."""
    epsilon, ends, bound = part_cells(run.summary.headline(adversary))
    verdict = run.summary.verdict
    named = verdict is not None and verdict.adversary == adversary and bound != "–"
    return epsilon, ends, bound + " *" * named, analytical_text(run.summary)


def _run_cells(run: ComparedRun) -> tuple[str, ...]:
    """What a run is, as text: directory, status, its metric, when it ended."""
    metric = run.summary.metrics.held_out()
    return (
        run.name,
        run.summary.status,
        " ".join(reversed(metric[0])) if metric else "–",
        str(run.summary.run.get("ended") or "–").replace("T", " ").removesuffix("Z"),
    )


# What the star behind a lower bound means.
VERDICT_NOTE = "* the lower bound that was named as the verdict before the run."


def print_runs_compared(console: Console, found: RunsCompared) -> None:
    """Print the finding, the runs, what differs, ε of each, the differences and the notes."""
    console.print(finding(found), style="bold", highlight=False)
    runs = plain_table("Runs", ("", "directory", "status", "held out", "ended (UTC)"), left=3)
    runs.columns[1].no_wrap, runs.columns[1].overflow = False, "fold"
    for run in found.runs:
        style = "" if run.summary.status == "ok" else "red"
        runs.add_row(run.letter, *_run_cells(run), style=style)
    console.print(runs)
    console.print(_settings_table(found))
    headings = ("sees", "run", "ε", f"{found.confidence:.0%} interval", "lower bound", "analytical")
    table = plain_table(f"Empirical ε at δ = {found.delta:.2g}", headings, left=2)
    for adversary, sees in SEEN.items():
        for place, run in enumerate(found.runs):
            last = place == len(found.runs) - 1
            cells = _epsilon_cells(run, adversary)
            table.add_row(sees if not place else "", run.letter, *cells, end_section=last)
    console.print(table)
    for pair in found.differences:
        console.print(f"• {pair.sentence()}", highlight=False)
    for note in (VERDICT_NOTE, *found.notes):
        console.print(f"• {note}", style="dim", highlight=False)


def _settings_table(found: RunsCompared) -> Table:
    table = plain_table("Settings that differ", ("setting", *(run.letter for run in found.runs)))
    for column in table.columns[1:]:
        column.no_wrap, column.overflow = False, "fold"
    for name, values in list(found.different.items())[:_MOST_SETTINGS]:
        table.add_row(name, *values)
    if (more := len(found.different) - _MOST_SETTINGS) > 0:
        table.add_row(f"… {more} more in comparison.html")
    if not found.different:
        table.add_row("none")
    return table


def _csv(found: RunsCompared) -> str:
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
                    "own_delta": run.record.delta,
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
    return table_text(rows)


def _forest(found: RunsCompared) -> Chart | None:
    """ε and interval of every run, one adversary below the other; ``None`` without any."""
    known = [answers(run.record, found.delta, found.confidence) for run in found.runs]
    return answer_chart(
        [
            (f"{words} {run.letter}", both[place])
            for place, words in enumerate(SEEN.values())
            for run, both in zip(found.runs, known, strict=True)
        ],
        name="runs",
        title="ε of each run",
        caption="ε with its interval, what is proved, and what theory allows, for a client of the "
        "run.",
    )


def _page(found: RunsCompared) -> str:
    chart = _forest(found)
    return render_page(
        "comparison.html.j2",
        found=found,
        finding=finding(found),
        runs=[(run, _run_cells(run)) for run in found.runs],
        rows=[
            (SEES[adversary], [(run, _epsilon_cells(run, adversary)) for run in found.runs])
            for adversary in SEEN
        ],
        chart=chart,
        image=None if chart is None else still(chart),
        notes=(VERDICT_NOTE, *found.notes),
    )
