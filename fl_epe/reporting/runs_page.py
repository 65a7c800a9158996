"""What people and programs read of runs side by side: tables, a page with a chart, CSV and JSON.

`write_runs_compared` writes the files, `print_runs_compared` prints to a terminal.
"""

from pathlib import Path
from typing import Any

from rich.console import Console

from fl_epe.files import write_json, write_text
from fl_epe.reporting.charts import SEEN, answer_chart
from fl_epe.reporting.numbers import as_json
from fl_epe.reporting.pages import render_page
from fl_epe.reporting.publish import table_text
from fl_epe.reporting.reliability import SEES
from fl_epe.reporting.report_json import answer_values, as_report
from fl_epe.reporting.runs_compared import ComparedRun, RunsCompared
from fl_epe.reporting.sentences import marked_cells
from fl_epe.reporting.still import still
from fl_epe.reporting.tables import plain_table
from fl_epe.wording import amount, sentence

_MOST_SETTINGS = 12  # that differ, in the terminal; the page has all


def write_runs_compared(found: RunsCompared, directory: Path) -> list[Path]:
    """Write ``comparison.html``, ``comparison.json`` and ``comparison.csv``.

    Args:
        found: from `compare_runs`.
        directory: where to write; made if it is missing.

    Returns:
        The files that were written.
    """
    page, values, table = _page(found), to_dict(found), _csv(found)
    directory.mkdir(parents=True, exist_ok=True)
    return [
        write_text(directory / "comparison.html", page),
        write_json(directory / "comparison.json", values),
        write_text(directory / "comparison.csv", table),
    ]


def to_dict(found: RunsCompared) -> dict[str, Any]:
    """What ``comparison.json`` holds; ``None`` for a number that is infinite or unknown."""
    return {
        "schema": 1,
        "delta": found.delta,
        "confidence": found.confidence,
        "finding": finding(found),
        "runs": [
            {"letter": run.letter, "directory": run.name, "settings": run.settings}
            | {"report": as_report(run.summary)}
            for run in found.runs
        ],
        "different_settings": list(found.different),
        "differences": [
            as_json(pair) | {"larger_than_chance": pair.found.larger_than_chance}
            for pair in found.differences
        ],
        "notes": list(found.notes),
    }


def finding(found: RunsCompared) -> str:
    """The result in a sentence or two, for non-experts."""
    if not found.differences:
        measured = sum(
            run.summary.answers[1].estimate is not None for run in found.runs
        )
        if measured > 1:
            return "These runs do not answer one question, so their ε are not compared."
        return "Too few of these runs were measured to say which leaks more."
    told, certain = list[str](), list[tuple[str, str]]()
    for adversary, words in SEES.items():
        leaks = [
            pair.leak() for pair in found.differences if pair.adversary == adversary
        ]
        here = [leak for leak in leaks if leak is not None]
        certain += here
        said = f"{len(here)} of {len(leaks)} pairs of runs differ by more than chance"
        if len(leaks) == 1:
            said = "the two runs cannot be told apart"
            said = (
                f"run {here[0][0]} leaks more than run {here[0][1]}" if here else said
            )
        told += [f"to an adversary who sees {words}, {said}"] if leaks else []
    if not certain:
        return "No two of these runs can be told apart: their ε differ by no more than chance."
    return sentence("; ".join(told))


_HEADINGS = ("rounds", "ε", "interval", "at least", "theory allows")


def _answer_cells(run: ComparedRun, place: int) -> tuple[str, ...]:
    """Participations of the client, ε, interval, what leaks at least and what theory allows."""
    one = run.summary.answers[place]
    secret = "" if one.adversary.knows_rounds else " (secret)"
    return f"{amount(one.participations)}{secret}", *marked_cells(one)


def _run_cells(run: ComparedRun) -> tuple[str, ...]:
    """What a run is, as text: directory, status, its metric, when it ended."""
    metric = run.summary.held_out()
    return (
        run.name,
        run.summary.status,
        " ".join(reversed(metric[0])) if metric else "–",
        (run.record.provenance.ended or "–").replace("T", " ").removesuffix("Z"),
    )


MARKS = "* follows from every round's, by post-processing. † extrapolated."
"""What the marks of the table mean."""


def print_runs_compared(console: Console, found: RunsCompared) -> None:
    """Print the finding, the runs, what differs, ε of each, the differences and the notes."""
    console.print(finding(found), style="bold", highlight=False)
    runs = plain_table(
        "Runs", ("", "directory", "status", "held out", "ended (UTC)"), left=3
    )
    runs.columns[1].no_wrap, runs.columns[1].overflow = False, "fold"
    for run in found.runs:
        style = "" if run.summary.status == "ok" else "red"
        runs.add_row(run.letter, *_run_cells(run), style=style)
    console.print(runs)
    differ = plain_table(
        "Settings that differ", ("setting", *(run.letter for run in found.runs))
    )
    for column in differ.columns[1:]:
        column.no_wrap, column.overflow = False, "fold"
    for name, values in list(found.different.items())[:_MOST_SETTINGS]:
        differ.add_row(name, *values)
    console.print(differ)
    title = (
        f"ε at δ = {found.delta:.2g} of one client, {found.confidence:.0%} intervals"
    )
    table = plain_table(title, ("adversary sees", "run", *_HEADINGS), left=2)
    for seen, words in enumerate(SEEN.values()):
        for place, run in enumerate(found.runs):
            last = place == len(found.runs) - 1
            cells = words if not place else "", run.letter, *_answer_cells(run, seen)
            table.add_row(*cells, end_section=last)
    console.print(table)
    for pair in found.differences:
        console.print(f"• {pair.sentence()}", highlight=False)
    for note in (MARKS, *found.notes):
        console.print(f"• {note}", style="dim", highlight=False)


def _csv(found: RunsCompared) -> str:
    rows = []
    for run in found.runs:
        start: dict[str, Any] = {
            "run": run.letter,
            "directory": run.name,
            "status": run.summary.status,
            "own_delta": run.record.delta,
        }
        end = dict(run.summary.held_out())
        end |= {
            f"setting: {name}": run.settings.get(name, "") for name in found.different
        }
        for one in run.summary.answers:
            values = answer_values(one, found.delta, found.confidence)
            del values["unbounded"]
            rows.append(start | values | end)
    return table_text(rows)


def _page(found: RunsCompared) -> str:
    chart = answer_chart(
        [
            (f"{words}, {run.letter}", run.summary.answers[place])
            for place, words in enumerate(SEEN.values())
            for run in found.runs
        ],
        name="runs",
        title="ε of each run",
        caption="ε of the median client of each run, with its interval.",
    )
    return render_page(
        "comparison.html.j2",
        found=found,
        finding=finding(found),
        runs=[(run, _run_cells(run)) for run in found.runs],
        rows=[
            (words, [(run, _answer_cells(run, place)) for run in found.runs])
            for place, words in enumerate(SEEN.values())
        ],
        headings=_HEADINGS,
        chart=chart,
        image=None if chart is None else still(chart),
        notes=(MARKS, *found.notes),
    )
