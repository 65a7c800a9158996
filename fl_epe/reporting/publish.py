"""`write_figures`: figures to publish and their numbers as tables, from a record's summary.

The same record gives the same files, byte for byte, with the same versions of this package and
of Matplotlib: no file contains a date, a host name or a path.
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
from fl_epe.reporting.chart_rounds import run_charts
from fl_epe.reporting.still import FIGURE_FORMATS, picture
from fl_epe.reporting.summary import Summary

# Positions from which on a spreadsheet may read text as a formula: before the signs that begin one,
# at the beginning of the text and of each part that some locales read as a cell.
_FORMULA = re.compile(
    r"(?:\A(?=[\t\r])|(?:\A|(?<=[;\t\r\n]))(?=[=+\-@＝＋－＠]))"
)


def write_figures(
    summary: Summary, directory: Path, formats: Sequence[str] = ("svg",)
) -> list[Path]:
    """Write every chart of the report as a picture, its points as a CSV file, and ``scores.csv``.

    ``scores.csv`` has a row for each canary.

    Args:
        summary: the summary of a record.
        directory: where to write; created if it is missing.
        formats: "svg", "png" or both.

    Returns:
        The files that were written.

    Raises:
        ValueError: for an unknown format, or if the summary has no record.
    """
    for name in formats:
        if name not in FIGURE_FORMATS:
            raise_invalid(
                "formats", name, f"to be among {', '.join(FIGURE_FORMATS)}"
            )
    record = summary.record
    if record is None:
        raise ValueError("Expected the summary of a record.")
    charts = run_charts(summary)
    texts = {f"{chart.name}.csv": table_text(chart.points) for chart in charts}
    texts["scores.csv"] = _scores_table(record, summary.answers)
    pictures = {
        f"{chart.name}.{ending}": picture(chart, ending)
        for chart in charts
        for ending in formats
    }
    directory.mkdir(parents=True, exist_ok=True)
    written = [
        write_text(directory / name, text) for name, text in texts.items()
    ]
    written += [
        write_bytes(directory / name, file) for name, file in pictures.items()
    ]
    return written


def _scores_table(record: AuditRecord, answers: Sequence[Answer]) -> str:
    """A CSV table with a row for each canary: participations, expected scores and scores.

    Scores are in standard deviations of the null distribution. Expected scores are known only
    up to a common factor if the record does not say what a canary adds.
    """
    # First the observed canaries, then the unobserved ones.
    observed = record.num_canaries
    unobserved = record.unobserved.count
    canary_ids = np.arange(observed + unobserved)
    if record.observed.ids is not None:
        canary_ids[:observed] = record.observed.ids
    if record.unobserved.ids is not None:
        canary_ids[observed:] = record.unobserved.ids
    columns = {
        "canary": canary_ids,
        "observed": np.repeat([1, 0], [observed, unobserved]),
        "participations": np.append(
            record.presence.sum(axis=0), np.zeros(unobserved, int)
        ),
    }
    for answer in answers:
        sees = answer.adversary.sees
        expected = np.zeros(observed + unobserved)
        scores = np.full(observed + unobserved, np.nan)
        if answer.scores is None:
            expected[:observed] = np.nan
        else:
            # Some scores exist only for canaries that took part.
            all_have_scores = len(answer.scores.observed) == observed
            scored = np.flatnonzero(
                record.presence.any(axis=0) | all_have_scores
            )
            expected[scored] = seen_by(
                record, Adversary(sees)
            ).expected_scores.observed
            scores[scored] = answer.scores.observed
            if answer.scores.unobserved is not None:
                scores[observed:] = answer.scores.unobserved
        columns[f"expected_score_{sees}"] = expected
        columns[f"score_{sees}"] = scores
    return columns_text(
        {name: values.tolist() for name, values in columns.items()}
    )


def columns_text(columns: Mapping[str, Sequence[Any]]) -> str:
    """A CSV table of columns of the same length, as `table_text` writes it."""
    rows = zip(*columns.values(), strict=True)
    return table_text([dict(zip(columns, row, strict=True)) for row in rows])


def table_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """A CSV table whose columns are the keys of the rows; missing values and NaN are empty."""
    file = io.StringIO()
    names = dict.fromkeys(name for row in rows for name in row)
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(map(_cell, names))
    for row in rows:
        writer.writerow(_cell(row.get(name)) for name in names)
    return file.getvalue()


def _cell(value: Any) -> Any:
    """A value for a CSV file, with single quotes where text could be read as a formula.

    A quote goes in front of text that begins with =, +, -, @, a tab or a carriage return, unless
    the text is a number. It also goes in front of such a sign after a semicolon, a tab or a line
    break, which separate cells in some locales.
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
