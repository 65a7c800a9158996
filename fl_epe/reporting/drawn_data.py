"""What the figures draw, as numbers: each figure is drawn from its layers, and so is its CSV file.

A `Layer` is what is drawn in one way, such as the bars of a histogram or a curve. `csv_text` makes
one tidy table of all layers of a figure: a row for each bar or point.

Examples:
    >>> layers = [Layer("every round", "observed", {"score": [1.0, 2.0], "density": [0.1, 0.3]})]
    >>> print(csv_text(layers).strip())
    panel,series,score,density
    every round,observed,1.0,0.1
    every round,observed,2.0,0.3
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from fl_epe.auditing import EVERY_ROUND, AuditRecord, EpsilonEstimate, MeasuredNull, Scores, seen_by
from fl_epe.reporting.numbers import metric_of
from fl_epe.reporting.summary_types import Part, RunSummary, StatisticSummary
from fl_epe.table_file import csv_cell

Floats = NDArray[np.float64]

_POINTS = 400  # of a curve
FINAL, EVERY = "final model", "every round"
"""Panels of figures that have one for each adversary."""


@dataclasses.dataclass(frozen=True, eq=False)
class Layer:
    """What is drawn in one way.

    Attributes:
        panel: of the figure, in words.
        series: what is drawn, in words.
        columns: numbers or words by name, all of one length; a row is a bar or a point.
        estimate: the ε of these scores, where a figure says it.
    """

    panel: str
    series: str
    columns: Mapping[str, Any]
    estimate: EpsilonEstimate | None = None

    def __getitem__(self, name: str) -> Floats:
        return np.asarray(self.columns[name])

    def rows(self) -> list[dict[str, Any]]:
        """One mapping for each bar or point."""
        names = list(self.columns)
        lists = [np.asarray(self.columns[name]).tolist() for name in names]
        both = {"panel": self.panel, "series": self.series}
        return [both | dict(zip(names, values, strict=True)) for values in zip(*lists, strict=True)]


def csv_text(layers: Sequence[Layer]) -> str:
    """All layers of a figure as one table; a column that a layer lacks is empty there."""
    names = list(dict.fromkeys(name for layer in layers for name in layer.columns))
    return table_text(["panel", "series", *names], [row for part in layers for row in part.rows()])


def table_text(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """A CSV table; what is missing, and NaN, is an empty cell."""
    file = io.StringIO()
    writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items()})
    return file.getvalue()


def _cell(value: Any) -> Any:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return csv_cell(value)


def one_panel(layers: Sequence[Layer], panel: str) -> dict[str, Layer]:
    """The layers of a panel by their series."""
    return {layer.series: layer for layer in layers if layer.panel == panel}


def panels(layers: Sequence[Layer]) -> list[str]:
    """The panels of a figure, from left to right."""
    return list(dict.fromkeys(layer.panel for layer in layers))


def epsilon_layers(record: AuditRecord, summary: RunSummary) -> list[Layer]:
    """ε, interval and lower bound of each measured row, and the analytical ε."""
    rows = [(row, row.part) for row in summary.rows() if isinstance(row.part, StatisticSummary)]
    columns: dict[str, list[Any]] = {
        "sees": [row.sees for row, _ in rows],
        "statistic": [row.name for row, _ in rows],
        "epsilon": [part.estimate.epsilon for _, part in rows],
        "low": [part.estimate.low for _, part in rows],
        "high": [part.estimate.high for _, part in rows],
        "lower_bound": [
            math.nan if part.lower_bound is None else part.lower_bound for _, part in rows
        ],
    }
    layers = [Layer("epsilon", "estimate", columns)]
    if (analytical := summary.analytical.epsilon) is not None:
        layers.append(Layer("epsilon", "analytical", {"epsilon": [analytical]}))
    return layers


def final_layers(record: AuditRecord, summary: RunSummary) -> list[Layer]:
    """Scores of an adversary who sees the final model: the displacement's, and the paper's."""
    return [
        *_part_layers("displacement", summary.final.displacement),
        *_part_layers("model", summary.final.model),
    ]


def all_layers(record: AuditRecord, summary: RunSummary) -> list[Layer]:
    """Scores of an adversary who sees every round: the matched filter, and the paper's maximum."""
    maximum = seen_by(record, EVERY_ROUND).scores("maximum")
    paper = summary.every_round.paper
    estimate = paper.estimate if isinstance(paper, StatisticSummary) else None
    return [
        *_part_layers("matched filter", summary.every_round.matched_filter),
        *score_layers("maximum", maximum, math.sqrt(record.dim), estimate),
    ]


def _part_layers(panel: str, part: Part) -> list[Layer]:
    if not isinstance(part, StatisticSummary):
        return []
    return score_layers(panel, part.scores, 1.0, part.estimate)


def score_layers(
    panel: str, scores: Scores, scale: float = 1.0, estimate: EpsilonEstimate | None = None
) -> list[Layer]:
    """Histograms of both sides as densities, and the two Gaussians behind ε."""
    observed = scale * scores.observed
    unobserved = np.empty(0) if scores.unobserved is None else scale * scores.unobserved
    together = np.concatenate([observed, unobserved])
    count = int(np.clip(np.sqrt(len(together)), 8, 50))
    edges = np.histogram_bin_edges(together, count)
    layers = []
    for name, group in (("unobserved", unobserved), ("observed", observed)):
        if len(group):
            density, _ = np.histogram(group, edges, density=True)
            bars = {"score_from": edges[:-1], "score_to": edges[1:], "density": density}
            layers.append(Layer(panel, name, bars, estimate))
    space = 0.06 * (edges[-1] - edges[0])
    grid = np.linspace(edges[0] - space, edges[-1] + space, _POINTS)
    if scores.standard_null:
        layers.append(_gaussian(panel, "null, N(0, 1)", grid, 0.0, 1.0))
    elif len(unobserved) > 1 and unobserved.std() > 0:
        fitted = float(unobserved.mean()), float(unobserved.std(ddof=1))
        layers.append(_gaussian(panel, "null, fitted Gaussian", grid, *fitted))
    if observed.std() > 0:
        fitted = float(observed.mean()), float(observed.std(ddof=1))
        layers.append(_gaussian(panel, "observed, fitted Gaussian", grid, *fitted))
    return layers


def _gaussian(panel: str, name: str, grid: Floats, mean: float, deviation: float) -> Layer:
    density = scipy.stats.norm.pdf(grid, mean, deviation)
    return Layer(panel, name, {"score": grid, "density": density})


def rounds_layers(record: AuditRecord, summary: RunSummary) -> list[Layer]:
    """Clip norm (without clipping, the norm of the model's change), loss and accuracy by round."""
    rounds = np.arange(1, record.rounds + 1)
    clip_norms = record.mechanism.clip_norms
    clipped = bool(np.isfinite(clip_norms).any())
    name = "clip norm" if clipped else "norm of the model's change"
    norms = clip_norms if clipped else record.norms.deltas
    layers = [Layer(name, name, {"round": rounds, "norm": norms})]
    metrics, nothing = record.metrics, np.empty(0)
    for key, words, steps in (
        ("train_loss", "training", rounds),
        ("eval_loss", "held out", metrics.get("eval_round", nothing)),
    ):
        if len(values := metrics.get(key, nothing)):
            layers.append(Layer("training", f"loss, {words}", {"round": steps, "loss": values}))
    if np.isfinite(values := metrics.get("eval_accuracy", nothing)).any():
        metric = metric_of(record)
        column = metric.replace(" ", "_")
        measured = {"round": metrics["eval_round"], column: values}
        layers.append(Layer("training", f"{metric.replace('_', ' ')}, held out", measured))
    if len(layers) == 1:
        counts = np.sum(record.presence, axis=1)
        layers.append(
            Layer("canaries that took part", "canaries", {"round": rounds, "canaries": counts})
        )
    return layers


CALIBRATED = {
    "displacement": "final model",
    "matched-filter": "matched filter",
    "maximum": "maximum",
}
"""Statistics of a measured null that are drawn, and their names there."""


def calibration_layers(record: AuditRecord, summary: RunSummary) -> list[Layer]:
    """Counts of the measured null in each cell, and those expected of N(0, 1)."""
    null: MeasuredNull = summary.null
    if null.counts is None or not null.statistics:
        return []
    edges = null.edges
    width = float(edges[1] - edges[0])
    largest = max(null.size(number) for number in range(len(null.statistics)))
    grid = np.linspace(edges[0], edges[-1], _POINTS)
    expected = largest * width * scipy.stats.norm.pdf(grid)
    layers = [Layer("calibration", "N(0, 1)", {"score": grid, "canaries": expected})]
    for name, label in CALIBRATED.items():
        if name in null.statistics:
            counts = null.counts[null.statistics.index(name)][1:-1]
            seen = counts > 0
            cells = {
                "score": ((edges[:-1] + edges[1:]) / 2)[seen],
                "score_from": edges[:-1][seen],
                "score_to": edges[1:][seen],
                "canaries": counts[seen],
            }
            layers.append(Layer("calibration", label, cells))
    return layers
