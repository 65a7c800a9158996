"""The pictures of a report and of a publication, each drawn from the numbers of its layers.

`FIGURES` are those of the report's page, `PUBLISHED` those of `fl_epe.reporting.write_figures`.
Colours are those of Okabe and Ito, which people with any colour vision tell apart; fills, hatches,
line styles and markers differ as well, so that a print in grey says the same.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fl_epe.auditing import AuditRecord
from fl_epe.reporting.curve_figures import (
    draw_expected_scores,
    draw_running,
    draw_schedule,
    draw_trade_off,
)
from fl_epe.reporting.drawing import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    legend,
    plain_ticks,
    rgb,
    whole_rounds,
)
from fl_epe.reporting.drawn_curves import (
    expected_score_layers,
    running_layers,
    schedule_layers,
    trade_off_layers,
)
from fl_epe.reporting.drawn_data import (
    Layer,
    all_layers,
    calibration_layers,
    epsilon_layers,
    final_layers,
    one_panel,
    rounds_layers,
)
from fl_epe.reporting.numbers import number
from fl_epe.reporting.status import NOT_MEASURED, measured_parts
from fl_epe.reporting.summary_types import RunSummary, StatisticSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Layers = Sequence[Layer]

_FLOOR = 1e-2  # smaller ε are drawn there, on a logarithmic axis
_WIDE = 10  # norms that grow by more are drawn on a logarithmic axis
_HEADROOM = 1.45  # above histograms, for the legend


_SCORE_LABELS = {
    "displacement": r"score: $\sqrt{d}$ · cosine with $\theta_T - \theta_0$",
    "model": r"score: $\sqrt{d}$ · cosine with $\theta_T$ (paper)",
    "matched filter": "score: matched filter over the rounds",
    "maximum": r"score: $\sqrt{d}$ · largest cosine (paper)",
}


def _draw_final(figure: Figure, layers: Layers) -> None:
    _draw_scores(figure, layers, ("displacement", "model"))


def _draw_all(figure: Figure, layers: Layers) -> None:
    _draw_scores(figure, layers, ("matched filter", "maximum"))


def _draw_scores(figure: Figure, layers: Layers, names: tuple[str, str]) -> None:
    for axes, panel in zip(figure.subplots(1, 2), names, strict=True):
        parts = one_panel(layers, panel)
        axes.set_xlabel(_SCORE_LABELS[panel])
        if not parts:
            axes.text(0.5, 0.5, NOT_MEASURED, ha="center", transform=axes.transAxes)
            continue
        _draw_histograms(axes, parts)
        if (found := next(iter(parts.values())).estimate) is not None:
            ends = f"{number(found.low)} – {number(found.high)}"
            axes.set_title(f"ε ≈ {number(found.epsilon)} ({ends})", fontsize=9)


def _draw_histograms(axes: Axes, parts: dict[str, Layer]) -> None:
    """Observed scores filled and hatched, unobserved ones as an outline, Gaussians as lines."""
    looks: tuple[tuple[str, dict[str, Any]], ...] = (
        ("unobserved", {"fill": False, "edgecolor": BLUE, "lw": 1.1, "label": "unobserved"}),
        (
            "observed",
            {
                "facecolor": (*rgb(ORANGE), 0.3),
                "edgecolor": ORANGE,
                "hatch": "////",
                "lw": 0.8,
                "label": "observed",
            },
        ),
    )
    for name, look in looks:
        if name in parts:
            bars = parts[name]
            edges = np.append(bars["score_from"], bars["score_to"][-1])
            axes.stairs(bars["density"], edges, **({"fill": True} | look))
    for name, layer in parts.items():
        if "score" in layer.columns:
            null = name.startswith("null")
            line: dict[str, Any] = (
                {"color": BLACK, "ls": "--"} if null else {"color": ORANGE, "ls": "-"}
            )
            axes.plot(layer["score"], layer["density"], lw=1.2, label=name, **line)
    top = max(float(layer["density"].max()) for layer in parts.values())
    axes.set(ylabel="density", ylim=(0, _HEADROOM * top))
    legend(axes)


def _draw_rounds(figure: Figure, layers: Layers) -> None:
    left, right = figure.subplots(1, 2)
    norms = layers[0]
    left.plot(norms["round"], norms["norm"], color=BLUE)
    left.set(ylabel=norms.panel, xlabel="round")
    if np.nanmax(norms["norm"]) > _WIDE * np.nanmin(norms["norm"]):
        left.set_yscale("log")
    else:
        left.set_ylim(0, None)
    rest = {layer.series: layer for layer in layers[1:]}
    if "canaries" in rest:
        right.plot(rest["canaries"]["round"], rest["canaries"]["canaries"], color=ORANGE)
        right.set(ylabel="canaries that took part", xlabel="round", ylim=(0, None))
    else:
        _draw_training(right, rest)
    for axes in (left, right):
        whole_rounds(axes)


def _draw_training(axes: Axes, series: dict[str, Layer]) -> None:
    """Losses to the left axis, the accuracy or other metric to the right one."""
    looks: dict[str, dict[str, Any]] = {
        "loss, training": {"color": BLUE, "ls": "-"},
        "loss, held out": {"color": ORANGE, "ls": "--", "marker": "o", "ms": 3},
    }
    for name, look in looks.items():
        if name in series:
            axes.plot(series[name]["round"], series[name]["loss"], label=name, **look)
    for name in series.keys() - looks.keys():
        second = axes.twinx()
        dotted: dict[str, Any] = {"color": GREEN, "ls": ":", "marker": "^", "ms": 3}
        steps, values = series[name].columns.values()
        second.plot(steps, values, **dotted)
        second.set(ylabel=name)
        if name.startswith("accuracy"):
            second.set(ylim=(0, 1.3), yticks=np.linspace(0, 1, 6))
        axes.plot([], [], label=name, **dotted)
    axes.set(ylabel="loss", xlabel="round")
    axes.set_ylim(0, 1.3 * axes.get_ylim()[1])
    legend(axes)


def _draw_epsilons(figure: Figure, layers: Layers) -> None:
    axes, rows = figure.subplots(), layers[0]
    ends = np.concatenate(
        [
            layer[name]
            for layer in layers
            for name in layer.columns
            if name in ("epsilon", "low", "high", "lower_bound")
        ]
    )
    finite = ends[np.isfinite(ends)]
    top = 3 * max(float(finite.max(initial=1.0)), _FLOOR)

    def place(value: float) -> float:
        return min(max(_FLOOR, value), top)

    for y, (middle, low, high, bound) in enumerate(
        zip(rows["epsilon"], rows["low"], rows["high"], rows["lower_bound"], strict=True)
    ):
        axes.plot([place(low), place(high)], [y, y], color=ORANGE, lw=2, solid_capstyle="butt")
        if math.isfinite(middle):
            axes.plot(place(middle), y, "o", color=ORANGE, ms=5)
        if math.isinf(high):
            axes.annotate("∞", (top, y), va="center", ha="left")
        if bound > 0:
            axes.plot(place(bound), y, ">", color=BLUE, ms=6, mfc="white")
    for layer in layers[1:]:
        if math.isfinite(layer["epsilon"][0]):
            axes.axvline(place(layer["epsilon"][0]), color=GREEN, ls="--", label="analytical")
    axes.plot([], [], "o-", color=ORANGE, label="estimate, interval", ms=5)
    axes.plot([], [], ">", color=BLUE, mfc="white", label="lower bound")
    labels = zip(rows["sees"], rows["statistic"], strict=True)
    axes.set_yticks(range(len(rows["sees"])), [f"{sees}\n{name}" for sees, name in labels])
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="ε")
    axes.margins(y=0.2)
    plain_ticks(axes)
    figure.legend(loc="outside lower center", ncols=3, fontsize=7, frameon=False)


_CALIBRATION_LOOKS = {
    "final model": (ORANGE, "o"),
    "matched filter": (BLUE, "x"),
    "maximum": ("#5c5c5c", "^"),
}


def _draw_calibration(figure: Figure, layers: Layers) -> None:
    """Counts of scores in each cell, on a logarithmic scale, beside those of N(0, 1)."""
    axes, parts = figure.subplots(), one_panel(layers, "calibration")
    normal = parts.pop("N(0, 1)")
    axes.plot(normal["score"], normal["canaries"], color=BLACK, lw=1, label="N(0, 1)")
    width = 0.25
    for name, layer in parts.items():
        colour, marker = _CALIBRATION_LOOKS[name]
        width = float(layer["score_to"][0] - layer["score_from"][0])
        axes.plot(
            layer["score"], layer["canaries"], marker, color=colour, label=name, ms=4, mfc="none"
        )
    axes.set(yscale="log", xlabel="score", ylabel=f"canaries in {width:g} of a deviation")
    axes.set_ylim(0.5, 60 * normal["canaries"].max())
    legend(axes)


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A figure of a publication.

    Attributes:
        caption: what it shows, as a sentence.
        layers: makes its numbers.
        draw: fills a figure with them.
        size: in inches; 3.3 wide for one column, 6.9 for two.
    """

    caption: str
    layers: Callable[[AuditRecord, RunSummary], list[Layer]]
    draw: Callable[[Figure, Layers], None]
    size: tuple[float, float]


PUBLISHED: dict[str, Drawing] = {
    "epsilon": Drawing(
        "Empirical ε with its interval, its lower bound, and the analytical value.",
        epsilon_layers,
        _draw_epsilons,
        (3.3, 2.3),
    ),
    "scores_final": Drawing(
        "An adversary who sees only the final model: the farther the scores of observed canaries "
        "(filled) lie from the null distribution (outline), the better they are remembered.",
        final_layers,
        _draw_final,
        (6.9, 2.4),
    ),
    "scores_all": Drawing(
        "An adversary who sees every round's model: scores of observed and unobserved canaries.",
        all_layers,
        _draw_all,
        (6.9, 2.4),
    ),
    "rounds": Drawing(
        "Clip norm, loss and accuracy over the rounds.", rounds_layers, _draw_rounds, (6.9, 2.4)
    ),
    "calibration": Drawing(
        "Scores of canaries that took no part, and what is expected of them: points on the line "
        "are as they should be.",
        calibration_layers,
        _draw_calibration,
        (3.3, 2.6),
    ),
    "running": Drawing(
        "ε of the rounds so far for an adversary who sees every round's model, from the mean score "
        "of the canaries, with intervals that hold at every round at once.",
        running_layers,
        draw_running,
        (3.3, 2.4),
    ),
    "trade_off": Drawing(
        "False positives and negatives of an adversary who calls a canary observed if its score "
        "is above a threshold, for every threshold; the analytical limit is the least that the "
        "analytical ε allows, as far as its assumptions hold. Rates of 0 are drawn at the lower "
        "end of logarithmic axes.",
        trade_off_layers,
        draw_trade_off,
        (6.9, 3.3),
    ),
    "expected_scores": Drawing(
        "Score of every observed canary against its expected score, the score that its rounds and "
        "their clip norms let expect.",
        expected_score_layers,
        draw_expected_scores,
        (6.9, 2.8),
    ),
    "schedule": Drawing(
        "Which observed canary took part in which round.",
        schedule_layers,
        draw_schedule,
        (3.3, 2.6),
    ),
}
"""The figures of a publication by file name."""


def _of_page(name: str) -> Callable[[Figure, AuditRecord, RunSummary], None]:
    drawing = PUBLISHED[name]

    def draw(figure: Figure, record: AuditRecord, summary: RunSummary) -> None:
        if name == "calibration":
            figure.set_size_inches(5.5, 3.6)
        drawing.draw(figure, drawing.layers(record, summary))

    return draw


FIGURES: dict[str, tuple[str, Callable[[Figure, AuditRecord, RunSummary], None]]] = {
    name: (PUBLISHED[name].caption, _of_page(name))
    for name in ("epsilon", "scores_final", "scores_all", "rounds", "calibration")
}
"""Caption and drawing function of the page's pictures by file name."""


def shown(record: AuditRecord, summary: RunSummary) -> list[str]:
    """The names of the page's figures that have something to show."""
    return [name for name in published(record, summary) if name in FIGURES]


def published(record: AuditRecord, summary: RunSummary) -> list[str]:
    """The names of all figures that have something to show."""
    final, every = summary.final, summary.every_round
    some = isinstance(every.matched_filter, StatisticSummary)
    measured = {
        "epsilon": bool(measured_parts(summary)),
        "scores_final": isinstance(final.displacement, StatisticSummary),
        "scores_all": some,
        "rounds": record.rounds > 0,
        "calibration": bool(summary.null.statistics),
        "running": some,
        "trade_off": some or isinstance(final.displacement, StatisticSummary),
        "expected_scores": final.expected_scores is not None or every.expected_scores is not None,
        "schedule": record.rounds > 0 and record.num_canaries > 0,
    }
    return [name for name in PUBLISHED if measured[name]]
