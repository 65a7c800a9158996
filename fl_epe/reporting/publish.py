"""Figures and tables to publish, from a record alone: `write_figures`.

The same record gives the same files, byte for byte, with the same versions of this package and of
Matplotlib: no file has a date, and no name or place of the machine.
"""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fl_epe.auditing import (
    EVERY_ROUND,
    FINAL_MODEL,
    Adversary,
    AuditRecord,
    NotMeasured,
    View,
    seen_by,
)
from fl_epe.checks import raise_invalid
from fl_epe.files import write_bytes, write_text
from fl_epe.reporting.chart_rounds import run_charts
from fl_epe.reporting.charts import Chart
from fl_epe.reporting.headline import status_line
from fl_epe.reporting.still import picture
from fl_epe.reporting.summary import summarize
from fl_epe.reporting.summary_types import RunSummary, TableRow
from fl_epe.reporting.tables import table_rows

# All file formats of figures.
FIGURE_FORMATS = ("pdf", "svg", "png")

# Columns of ``scores.csv``, each with its adversary and statistic.
_STATISTICS: tuple[tuple[str, Adversary, str], ...] = (
    ("displacement", FINAL_MODEL, "displacement"),
    ("model", FINAL_MODEL, "model"),
    ("matched_filter", EVERY_ROUND, "matched-filter"),
    ("maximum_cosine", EVERY_ROUND, "maximum"),
)


def write_figures(
    record: AuditRecord,
    directory: Path,
    formats: Sequence[str] = ("pdf",),
    *,
    summary: RunSummary | None = None,
) -> list[Path]:
    """Write every chart of the report as a picture, and what it draws as a CSV file.

    Beside them ``scores.csv`` has a row for each canary, and ``table.tex`` is the report's table
    for LaTeX with booktabs.

    Args:
        record: the audit record of a run.
        directory: where to write; created if it is missing.
        formats: one or more of "pdf", "svg" and "png".
        summary: of the record, if it is at hand; what it says of δ and confidence is drawn.

    Returns:
        The files that were written.

    Raises:
        ValueError: for a format that is not among them.
    """
    for asked in formats:
        if asked not in FIGURE_FORMATS:
            raise_invalid("formats", asked, f"to be among {', '.join(FIGURE_FORMATS)}")
    record = record.in_order()
    summary = summarize(record) if summary is None else summary
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for chart in run_charts(record, summary):
        written.append(write_text(directory / f"{chart.name}.csv", _chart_table(chart)))
        written += [
            write_bytes(directory / f"{chart.name}.{ending}", picture(chart, ending))
            for ending in dict.fromkeys(formats)
        ]
    return [
        *written,
        write_text(directory / "scores.csv", _scores_table(record)),
        write_text(directory / "table.tex", latex_table(summary)),
    ]


def _chart_table(chart: Chart) -> str:
    """What a chart draws as a CSV table, a row for each point, bar or row of a heat map."""
    rows = []
    for trace in chart.traces:
        cells = trace["z"] if "z" in trace else zip(trace["x"], trace["y"], strict=True)
        names = [f"from round {x}" for x in trace["x"]] if "z" in trace else ["x", "y"]
        name = {"series": trace.get("name", "share")}
        rows += [name | dict(zip(names, row, strict=True)) for row in cells]
    return table_text(rows)


def _scores_table(record: AuditRecord) -> str:
    """A CSV table, a row a canary: its number, participations, expected scores and scores.

    Scores are in standard deviations of the null, but for the cosine of the paper's maximum.
    """
    columns: dict[str, list[np.ndarray]] = {
        "canary": [_numbers(record.observed.ids, record.num_canaries, 0)],
        "observed": [np.ones(record.num_canaries, int)],
        "participations": [record.presence.sum(axis=0)],
        "expected_score_final": [_expected_scores(seen_by(record))],
        "expected_score_all": [_expected_scores(seen_by(record, EVERY_ROUND))],
    }
    others = record.unobserved.count
    columns["canary"].append(_numbers(record.unobserved.ids, others, record.num_canaries))
    for name in list(columns)[1:]:
        columns[name].append(np.zeros(others, int))
    for name, adversary, statistic in _STATISTICS:
        columns[f"score_{name}"] = _scores(seen_by(record, adversary), statistic)
    values = {name: np.concatenate(parts).tolist() for name, parts in columns.items()}
    rows = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    return table_text(rows)


def table_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """A CSV table of the rows' names; what is missing, and NaN, is an empty cell."""
    file, names = io.StringIO(), dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(file, list(names), restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items()})
    return file.getvalue()


def _cell(value: Any) -> Any:
    """A value for a CSV file: text that a spreadsheet would take for a formula is quoted.

    A single quote goes in front of text that begins with =, +, -, @, a tab or a carriage return,
    unless it is a number.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return value
    try:
        float(value)
    except ValueError:
        return "'" + value
    return value


def _numbers(ids: np.ndarray | None, count: int, first: int) -> np.ndarray:
    return np.arange(first, first + count) if ids is None else ids


def _expected_scores(view: View) -> np.ndarray:
    """Of every observed canary, 0 of one that never took part; NaN if they are not known."""
    try:
        return view.all_expected_scores
    except ValueError:  # clip norms or the server's step are not known, or nothing was measured
        return np.full(view.record.num_canaries, np.nan)


def _scores(view: View, statistic: str) -> list[np.ndarray]:
    """Of observed and of unobserved canaries; NaN where there is none."""
    record = view.record
    observed = np.full(record.num_canaries, np.nan)
    others = np.full(record.unobserved.count, np.nan)
    try:
        scores = view.scores(statistic)
    except NotMeasured:
        return [observed, others]
    here = record.presence.any(axis=0)
    observed[here if len(scores.observed) != len(observed) else slice(None)] = scores.observed
    if scores.unobserved is not None:
        others[:] = scores.unobserved
    return [observed, others]


_SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "ε": r"$\varepsilon$",
    "δ": r"$\delta$",
    "θ": r"$\theta$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "∞": r"$\infty$",
    "−": r"$-$",
    "–": "--",
    "“": "``",
    "”": "''",
    "…": r"\ldots{}",
    "√": r"$\surd$",
    "·": r"$\cdot$",
}


def escaped(text: str) -> str:
    """Text as LaTeX prints it."""
    return "".join(_SPECIAL.get(letter, letter) for letter in text)


def latex_table(summary: RunSummary) -> str:
    """A ``table`` environment with a row for each of the report's; needs the package booktabs."""
    lines = [
        "% needs \\usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        r"\footnotesize",
        r"\setlength{\tabcolsep}{4pt}",
        rf"\caption{{{_caption(summary)}}}",
        r"\label{tab:empirical-epsilon}",
        r"\begin{tabular}{llrrrr}",
        r"\toprule",
        r"sees & statistic & $\varepsilon$ & "
        rf"{summary.confidence * 100:g}\% interval & lower bound & analytical \\",
        r"\midrule",
        *map(_row, summary.rows(), table_rows(summary)),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _row(row: TableRow, cells: tuple[str, ...]) -> str:
    """A row of the report's table; a dagger marks a bound of the paper's."""
    found = [escaped(cell) for cell in cells]
    if row.paper and cells[4] != "–":
        found[4] += r"$^{\dagger}$"
    return " & ".join(found) + r" \\"


def _plain(delta: float) -> str:
    mantissa, _, exponent = f"{delta:.3g}".partition("e")
    return rf"{mantissa}\cdot 10^{{{int(exponent)}}}" if exponent else mantissa


def _caption(summary: RunSummary) -> str:
    """What the numbers are of, so that the table can stand alone."""
    noise = summary.noise_multiplier
    facts = [
        rf"$\delta = {_plain(summary.delta)}$",
        "noise multiplier not known" if noise is None else rf"$z = {noise:g}$",
    ]
    if summary.rounds is not None:
        facts += [
            f"{summary.rounds} rounds",
            f"{summary.num_canaries} observed and {summary.unobserved} unobserved canaries",
        ]
    task = f" of {escaped(summary.task)}" if summary.task else ""
    line = status_line(summary)
    status = "" if line is None else rf" \textbf{{{escaped(line)}}}"
    analytical = summary.analytical
    limit = (
        f"No theorem is known to limit it ({escaped(analytical.assumption)})."
        if analytical.epsilon is None
        else f"Analytical: upper bound for {escaped(analytical.adjacency)} adjacency; "
        f"it assumes: {escaped(analytical.assumption)}."
    )
    return (
        rf"Empirical $\varepsilon$ of a run{task} by what an adversary sees: "
        f"{', '.join(facts)}.{status} {limit} Estimates of $\\varepsilon$ are not bounds; "
        f"lower bounds hold one at a time at {summary.confidence * 100:g}\\% confidence, but for "
        r"those marked $\dagger$, which are the paper's and do not."
    )
