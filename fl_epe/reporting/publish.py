"""Figures and tables to publish, from the summary of a record: `write_figures`.

The same record gives the same files, byte for byte, with the same versions of this package and of
Matplotlib: no file has a date, and no name or place of the machine.
"""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fl_epe.auditing import Adversary, Answer, AuditRecord, seen_by
from fl_epe.checks import raise_invalid
from fl_epe.files import write_bytes, write_text
from fl_epe.reporting import sentences
from fl_epe.reporting.chart_rounds import run_charts
from fl_epe.reporting.charts import answer_cells, seen
from fl_epe.reporting.pages import render_page
from fl_epe.reporting.still import picture
from fl_epe.reporting.summary import Summary
from fl_epe.wording import counted

# Where a spreadsheet may take what follows for a formula.
_FORMULA = re.compile(r"(?:\A(?=[\t\r])|(?:\A|(?<=[;\t\r\n]))(?=[=+\-@＝＋－＠]))")

# All file formats of figures.
FIGURE_FORMATS = ("pdf", "svg", "png")


def write_figures(
    summary: Summary, directory: Path, formats: Sequence[str] = ("pdf",)
) -> list[Path]:
    """Write every chart of the report as a picture, and what it draws as a CSV file.

    ``scores.csv`` has a row for each canary, and ``table.tex`` is the answer for LaTeX with
    booktabs.

    Args:
        summary: of a record.
        directory: where to write; created if it is missing.
        formats: one or more of "pdf", "svg" and "png".

    Returns:
        The files that were written.

    Raises:
        ValueError: for a format that is not among them, or without a record.
    """
    for asked in formats:
        if asked not in FIGURE_FORMATS:
            raise_invalid("formats", asked, f"to be among {', '.join(FIGURE_FORMATS)}")
    if (record := summary.record) is None:
        raise ValueError("Expected the summary of a record.")
    drawn = run_charts(summary)
    texts = {f"{chart.name}.csv": table_text(chart.points) for chart in drawn}
    texts["scores.csv"] = _scores_table(record, summary.answers)
    texts["table.tex"] = latex_table(summary, record)
    pictures = {
        f"{chart.name}.{ending}": picture(chart, ending)
        for chart in drawn
        for ending in dict.fromkeys(formats)
    }
    directory.mkdir(parents=True, exist_ok=True)
    written = [write_text(directory / name, text) for name, text in texts.items()]
    return [
        *written,
        *(write_bytes(directory / n, content) for n, content in pictures.items()),
    ]


def _scores_table(record: AuditRecord, found: Sequence[Answer]) -> str:
    """A CSV table, a row a canary: participations, expected scores and scores.

    Scores are in standard deviations of the null; expected ones up to one factor where the record
    does not say what a canary adds.
    """
    count, others = record.num_canaries, record.unobserved.count
    numbers = [_numbers(record.observed.ids, count, 0)]
    numbers += [_numbers(record.unobserved.ids, others, count)]
    columns = {
        "canary": np.concatenate(numbers),
        "observed": np.repeat([1, 0], [count, others]),
        "participations": np.append(record.presence.sum(axis=0), np.zeros(others, int)),
    }
    for answer in found:
        expected, scores = np.zeros(count + others), np.full(count + others, np.nan)
        if (own := answer.scores) is None:
            expected[:count] = np.nan
        else:
            all_scored = len(own.observed) == count
            here = np.flatnonzero(record.presence.any(axis=0) | all_scored)
            view = seen_by(record, Adversary(answer.adversary.sees))
            expected[here], scores[here] = view.sizes.observed, own.observed
            if own.unobserved is not None:
                scores[count:] = own.unobserved
        columns[f"expected_score_{answer.adversary.sees}"] = expected
        columns[f"score_{answer.adversary.sees}"] = scores
    rows = zip(*(values.tolist() for values in columns.values()), strict=True)
    return table_text([dict(zip(columns, row, strict=True)) for row in rows])


def table_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """A CSV table of the rows' names; what is missing, and NaN, is an empty cell."""
    file, names = io.StringIO(), dict.fromkeys(name for row in rows for name in row)
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(map(_cell, names))
    for row in rows:
        writer.writerow(_cell(row.get(name)) for name in names)
    return file.getvalue()


def _cell(value: Any) -> Any:
    """A value for a CSV file: text that a spreadsheet would take for a formula is quoted.

    A single quote goes in front of text that begins with =, +, -, @, a tab or a carriage return,
    unless it is a number, and in front of such a sign after what may divide cells in another
    country: a semicolon, a tab or a line break.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if not isinstance(value, str):
        return value
    try:
        float(value)
    except ValueError:
        return _FORMULA.sub("'", value)
    return value


def _numbers(ids: np.ndarray | None, count: int, first: int) -> np.ndarray:
    return np.arange(first, first + count) if ids is None else ids


def latex_table(summary: Summary, record: AuditRecord) -> str:
    """A ``table`` environment with a row for each adversary; needs the package booktabs.

    A sentence in it says so if its numbers are not those of a sound run.
    """
    rows = [
        (seen(one.adversary.sees, record), *answer_cells(one))
        for one in summary.answers
    ]
    table = render_page(
        "table.tex.j2",
        summary=summary,
        record=record,
        rows=rows,
        say=sentences,
        counted=counted,
    )
    return table + "\n"
