"""Runs side by side as tables, as a page with a chart, and as CSV and JSON.

`write_runs_compared` writes the files, `print_runs_compared` prints to a terminal.
"""

from pathlib import Path
from typing import Any

from rich.console import Console

from fl_epe.auditing import Answer
from fl_epe.files import write_json, write_text
from fl_epe.reporting.charts import VIEW_NAMES, answer_chart
from fl_epe.reporting.numbers import as_json
from fl_epe.reporting.pages import render_page
from fl_epe.reporting.publish import table_text
from fl_epe.reporting.reliability import SEES
from fl_epe.reporting.report_json import answer_values, as_report
from fl_epe.reporting.runs_compared import ComparedRun, RunsCompared
from fl_epe.reporting.sentences import marked_cells
from fl_epe.reporting.still import still
from fl_epe.reporting.summary import CONFIDENCE
from fl_epe.reporting.tables import plain_table
from fl_epe.wording import amount, sentence

# The largest number of differing settings in the terminal; the page shows all.
_MAX_SETTINGS = 12


def write_runs_compared(compared: RunsCompared, directory: Path) -> list[Path]:
    """Write ``comparison.html``, ``comparison.json`` and ``comparison.csv``.

    Args:
        compared: the comparison, from `compare_runs`.
        directory: where to write; created if it is missing.

    Returns:
        The files that were written.
    """
    page = _page(compared)
    values = to_dict(compared)
    table = _csv(compared)
    directory.mkdir(parents=True, exist_ok=True)
    return [
        write_text(directory / "comparison.html", page),
        write_json(directory / "comparison.json", values),
        write_text(directory / "comparison.csv", table),
    ]


def to_dict(compared: RunsCompared) -> dict[str, Any]:
    """The content of ``comparison.json``; ``None`` for a number that is infinite or unknown."""
    return {
        "schema": 1,
        "delta": compared.delta,
        "confidence": CONFIDENCE,
        "finding": result(compared),
        "runs": [
            {
                "letter": run.letter,
                "directory": run.name,
                "settings": run.settings,
                "report": as_report(run.summary),
            }
            for run in compared.runs
        ],
        "different_settings": list(compared.different),
        "differences": [
            {
                "adversary": pair.adversary,
                "first": pair.first,
                "second": pair.second,
                "found": as_json(pair.difference),
                "larger_than_chance": pair.difference.larger_than_chance,
            }
            for pair in compared.differences
        ],
        "notes": list(compared.notes),
    }


def result(compared: RunsCompared) -> str:
    """The result in a sentence or two, for non-experts."""
    if not compared.differences:
        measured = [
            run
            for run in compared.runs
            if run.summary.answers[1].estimate is not None
        ]
        if len(measured) > 1:
            return "These runs do not answer one question, so their ε are not compared."
        return "Too few of these runs were measured to say which leaks more."
    ranked_pairs = [pair.ranked() for pair in compared.differences]
    if not any(ranked_pairs):
        return "No two of these runs can be told apart: their ε differ by no more than chance."
    clauses = []
    for adversary, view in SEES.items():
        pairs = [
            pair for pair in compared.differences if pair.adversary == adversary
        ]
        if not pairs:
            continue
        rankings = [pair.ranked() for pair in pairs]
        ranked = [letters for letters in rankings if letters is not None]
        if len(pairs) > 1:
            clause = f"{len(ranked)} of {len(pairs)} pairs of runs differ by more than chance"
        elif ranked:
            clause = "run {} leaks more than run {}".format(*ranked[0])
        else:
            clause = "the two runs cannot be told apart"
        clauses.append(f"to an adversary who sees {view}, {clause}")
    return sentence("; ".join(clauses))


_HEADINGS = ("rounds", "ε", "interval", "at least", "theory allows")


def _answer_cells(answer: Answer) -> tuple[str, ...]:
    """Participations of the client, ε, interval, lower bound and theory."""
    rounds = amount(answer.participations)
    if not answer.adversary.knows_rounds:
        rounds += " (secret)"
    return rounds, *marked_cells(answer)


def _run_cells(run: ComparedRun) -> tuple[str, ...]:
    """Directory, status, metric and end of a run, as text."""
    metrics = [f"{value} {name}" for name, value in run.summary.held_out()]
    ended = run.record.provenance.ended or "–"
    return (
        run.name,
        run.summary.status,
        metrics[0] if metrics else "–",
        ended.replace("T", " ").removesuffix("Z"),
    )


MARKS = "* follows from every round's, by post-processing. † extrapolated."
"""A note on the marks of the table."""


def print_runs_compared(console: Console, compared: RunsCompared) -> None:
    """Print the result, the runs, their settings, their ε, the differences and the notes."""
    console.print(result(compared), style="bold", highlight=False)
    runs = plain_table(
        "Runs", ("", "directory", "status", "held out", "ended (UTC)"), left=3
    )
    for run in compared.runs:
        style = "" if run.summary.status == "ok" else "red"
        runs.add_row(run.letter, *_run_cells(run), style=style)
    letters = [run.letter for run in compared.runs]
    settings = plain_table("Settings that differ", ("setting", *letters))
    for name, values in list(compared.different.items())[:_MAX_SETTINGS]:
        settings.add_row(name, *values)
    for column in (runs.columns[1], *settings.columns[1:]):
        column.no_wrap = False
        column.overflow = "fold"
    table = plain_table(
        f"ε at δ = {compared.delta:.2g} of one client, {CONFIDENCE:.0%} intervals",
        ("adversary sees", "run", *_HEADINGS),
        left=2,
    )
    # The two answers of a run are in the order of the adversaries in `VIEW_NAMES`.
    for index, view in enumerate(VIEW_NAMES.values()):
        for run in compared.runs:
            cells = (run.letter, *_answer_cells(run.summary.answers[index]))
            table.add_row(view if run is compared.runs[0] else "", *cells)
        table.add_section()
    console.print(runs)
    console.print(settings)
    console.print(table)
    for pair in compared.differences:
        console.print(f"• {pair.sentence()}", highlight=False)
    for note in (MARKS, *compared.notes):
        console.print(f"• {note}", style="dim", highlight=False)


def _csv(compared: RunsCompared) -> str:
    rows = []
    for run in compared.runs:
        settings = {
            f"setting: {name}": run.settings.get(name, "")
            for name in compared.different
        }
        for answer in run.summary.answers:
            values = answer_values(answer, compared.delta)
            del values["unbounded"]
            row = {
                "run": run.letter,
                "directory": run.name,
                "status": run.summary.status,
                "own_delta": run.record.delta,
                **values,
                **dict(run.summary.held_out()),
                **settings,
            }
            rows.append(row)
    return table_text(rows)


def _page(compared: RunsCompared) -> str:
    chart = answer_chart(
        [
            (f"{view}, {run.letter}", run.summary.answers[index])
            for index, view in enumerate(VIEW_NAMES.values())
            for run in compared.runs
        ],
        name="runs",
        title="ε of each run",
        caption="ε of the median client of each run, with its interval.",
    )
    return render_page(
        "comparison.html.j2",
        compared=compared,
        confidence=f"{CONFIDENCE:.0%}",
        result=result(compared),
        runs=[(run, _run_cells(run)) for run in compared.runs],
        rows=[
            (
                view,
                [
                    (run.letter, _answer_cells(run.summary.answers[index]))
                    for run in compared.runs
                ],
            )
            for index, view in enumerate(VIEW_NAMES.values())
        ],
        headings=_HEADINGS,
        chart=chart,
        image=None if chart is None else still(chart),
        notes=(MARKS, *compared.notes),
    )
