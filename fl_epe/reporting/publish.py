"""Figures and tables to publish, from a record alone: `write_figures`.

The same record gives the same files, byte for byte, with the same versions of this package and of
Matplotlib: no file has a date, and no name or place of the machine.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

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
from fl_epe.files import write_bytes, write_text
from fl_epe.reporting.drawn_data import Layer, csv_text, table_text
from fl_epe.reporting.figures import PUBLISHED, Drawing, published
from fl_epe.reporting.latex import latex_table
from fl_epe.reporting.summary import summarize
from fl_epe.reporting.summary_types import RunSummary

FigureFormat = Literal["pdf", "svg", "png"]
"""A file format of figures."""

FIGURE_FORMATS: tuple[FigureFormat, ...] = ("pdf", "svg", "png")
"""All file formats of figures."""

_STYLE: Any = {
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.titlesize": 8,
    "font.family": ["STIXGeneral", "DejaVu Sans"],  # both come with Matplotlib
    "font.size": 8,
    "hatch.linewidth": 0.8,
    "legend.fontsize": 7,
    "legend.handlelength": 1.8,
    "lines.linewidth": 1.2,
    "mathtext.fontset": "stix",
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "fl-epe",
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
}
_SVG_FONTS = "'STIXGeneral', 'STIX Two Text', 'Times New Roman', 'Liberation Serif', Times, serif"
_NO_DATE: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
    "png": {"Software": None},
}
_DPI = 300

_STATISTICS: tuple[tuple[str, Adversary, str], ...] = (
    ("displacement", FINAL_MODEL, "displacement"),
    ("model", FINAL_MODEL, "model"),
    ("matched_filter", EVERY_ROUND, "matched-filter"),
    ("maximum_cosine", EVERY_ROUND, "maximum"),
)
"""Columns of ``scores.csv``, each with its adversary and statistic."""


def write_figures(
    record: AuditRecord,
    directory: Path,
    formats: Sequence[FigureFormat] = ("pdf",),
    *,
    summary: RunSummary | None = None,
) -> list[Path]:
    """Write every figure that has something to show, and what it draws as a CSV file.

    Beside them ``scores.csv`` has a row for each canary, and ``table.tex`` is the report's table
    for LaTeX with booktabs. Figures of an earlier call that have nothing to show are removed.

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
            raise ValueError(f"Expected formats={asked!r} to be among {', '.join(FIGURE_FORMATS)}.")
    record = record.in_order()
    summary = summarize(record) if summary is None else summary
    directory.mkdir(parents=True, exist_ok=True)
    written, names = [], published(record, summary)
    earlier = (directory / "scores.csv").exists()
    for name, drawing in PUBLISHED.items():
        if name not in names:
            for ending in (*FIGURE_FORMATS, "csv") if earlier else ():
                (directory / f"{name}.{ending}").unlink(missing_ok=True)
            continue
        layers = drawing.layers(record, summary)
        written.append(write_text(directory / f"{name}.csv", csv_text(layers)))
        for ending in dict.fromkeys(formats):
            image = figure_bytes(drawing, layers, ending)
            written.append(write_bytes(directory / f"{name}.{ending}", image))
    written.append(write_text(directory / "scores.csv", scores_table(record)))
    written.append(write_text(directory / "table.tex", latex_table(summary)))
    return written


def figure_bytes(drawing: Drawing, layers: Sequence[Layer], ending: FigureFormat) -> bytes:
    """The file of a figure, in the style of a paper."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=drawing.size, layout="constrained", dpi=_DPI)
        drawing.draw(figure, layers)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=ending, metadata=_NO_DATE[ending])
    if ending != "svg":
        return buffer.getvalue()
    ours = ", ".join(f"'{name}'" for name in _STYLE["font.family"])
    return buffer.getvalue().replace(ours.encode(), _SVG_FONTS.encode())


def scores_table(record: AuditRecord) -> str:
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
    return table_text(list(values), rows)


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
