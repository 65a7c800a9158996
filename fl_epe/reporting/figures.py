"""The pictures of the report: scores and their null, ε beside the analytical value, training."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import scipy

from fl_epe.auditing import AuditRecord, Scores, scores_from_record
from fl_epe.reporting.calibration import draw_calibration
from fl_epe.reporting.status import NOT_MEASURED, measured_parts
from fl_epe.reporting.summary_types import RunSummary, StatisticSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_OBSERVED, _NULL, _ANALYTICAL = "#c2410c", "#1d4ed8", "#15803d"
_WIDE = 10  # norms that grow by more are drawn on a logarithmic axis


def render(draw: Callable[[Figure], None]) -> bytes:
    """The PNG image of the figure that ``draw`` fills."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained", dpi=130)
    draw(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def plain_ticks(axes: Axes) -> None:
    """Ticks of a logarithmic x-axis at 1, 2, 5, 10, … in plain figures."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.tick_params(axis="x", labelsize=8)


def _draw_final(figure: Figure, record: AuditRecord, summary: RunSummary) -> None:
    left, right = figure.subplots(1, 2)
    for axes, part, title in (
        (left, summary.final.displacement, r"final model, against $\theta_T - \theta_0$"),
        (right, summary.final.model, r"final model, against $\theta_T$ (paper)"),
    ):
        if isinstance(part, StatisticSummary):
            _draw_scores(axes, part.scores)
        else:
            axes.text(0.5, 0.5, NOT_MEASURED, ha="center", transform=axes.transAxes)
        axes.set(title=title, xlabel="√d · cosine")


def _draw_all(figure: Figure, record: AuditRecord, summary: RunSummary) -> None:
    left, right = figure.subplots(1, 2)
    if isinstance(summary.every_round.matched_filter, StatisticSummary):
        _draw_scores(left, summary.every_round.matched_filter.scores)
        left.set(title="every round, matched filter", xlabel="score")
    maximum = scores_from_record(record, "all", "maximum")
    _draw_scores(right, maximum, scale=math.sqrt(record.dim))
    right.set(title="every round, maximum (paper)", xlabel="√d · largest cosine")


def _draw_scores(axes: Axes, scores: Scores, scale: float = 1.0) -> None:
    observed = scale * scores.observed
    unobserved = np.empty(0) if scores.unobserved is None else scale * scores.unobserved
    together = np.concatenate([observed, unobserved])
    count = int(np.clip(np.sqrt(len(together)), 8, 50))
    bins = np.histogram_bin_edges(together, count).tolist()
    for group, color, label in (
        (unobserved, _NULL, "canaries that never took part"),
        (observed, _OBSERVED, "canaries that took part"),
    ):
        if len(group):
            axes.hist(group, bins, density=True, alpha=0.55, color=color, label=label)
    if scores.standard_null:
        grid = np.linspace(together.min(), together.max(), 400)
        axes.plot(grid, scipy.stats.norm.pdf(grid), color="black", lw=1, label="null, N(0, 1)")
    axes.set(ylabel="density", ylim=(0, 1.3 * axes.get_ylim()[1]))
    axes.legend(fontsize=7, frameon=False)


def _draw_rounds(figure: Figure, record: AuditRecord, summary: RunSummary) -> None:
    left, right = figure.subplots(1, 2)
    rounds = np.arange(1, record.rounds + 1)
    clip_norms = record.mechanism.clip_norms
    clipped = np.isfinite(clip_norms).any()
    norms = clip_norms if clipped else record.norms.deltas
    left.plot(rounds, norms, color=_OBSERVED)
    title = "clip norm" if clipped else "norm of the model's change"
    left.set(title=title, xlabel="round")
    if np.nanmax(norms) > _WIDE * np.nanmin(norms):
        left.set_yscale("log")
    else:
        left.set_ylim(0, None)
    for key, label, axis in (("train_loss", "training", None), ("eval_loss", "held out", "eval")):
        if len(values := record.metrics.get(key, np.empty(0))):
            steps = rounds if axis is None else record.metrics["eval_round"]
            right.plot(steps, values, label=f"loss, {label}")
    right.set(title="loss and accuracy", xlabel="round", ylim=(0, None))
    if len(accuracy := record.metrics.get("eval_accuracy", np.empty(0))):
        twin = right.twinx()
        twin.plot(record.metrics["eval_round"], accuracy, color=_ANALYTICAL, ls="--")
        twin.set(ylabel="accuracy, held out (dashed)", ylim=(0, 1))
    if right.has_data():
        right.legend(fontsize=7, frameon=False, loc="center right")
    else:
        right.plot(rounds, np.sum(record.presence, axis=1), color=_OBSERVED)
        right.set(title="canaries that took part", ylabel="")
    for axes in (left, right):
        axes.xaxis.get_major_locator().set_params(integer=True)


def _draw_epsilons(figure: Figure, record: AuditRecord, summary: RunSummary) -> None:
    axes = figure.subplots()
    rows = summary.rows()
    shown = [(row, row.part) for row in rows if isinstance(row.part, StatisticSummary)]
    floor = 1e-2
    for y, (_, part) in enumerate(shown):
        found, bound = part.estimate, part.lower_bound
        middle, low, high = (max(floor, end) for end in (found.epsilon, found.low, found.high))
        if math.isfinite(high):
            axes.plot([low, high], [y, y], color=_OBSERVED, lw=3, alpha=0.5, solid_capstyle="butt")
            axes.plot(middle, y, "o", color=_OBSERVED)
        if bound and math.isfinite(bound):
            axes.plot(max(floor, bound), y, ">", color=_NULL)
    analytical = summary.analytical.epsilon
    if analytical and math.isfinite(analytical):
        axes.axvline(analytical, color=_ANALYTICAL, ls="--", label="analytical")
    axes.plot([], [], "o-", color=_OBSERVED, label="estimate, interval")
    axes.plot([], [], ">", color=_NULL, label="lower bound")
    axes.set_yticks(range(len(shown)), [f"{row.sees}\n{row.name}" for row, _ in shown])
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="ε", title=f"ε at δ = {summary.delta:.2g}")
    axes.margins(y=0.2)
    plain_ticks(axes)
    figure.legend(loc="outside lower center", ncols=3, fontsize=7, frameon=False)


def _draw_calibration(figure: Figure, record: AuditRecord, summary: RunSummary) -> None:
    draw_calibration(figure, summary.null)


FIGURES: dict[str, tuple[str, Callable[[Figure, AuditRecord, RunSummary], None]]] = {
    "epsilon": (
        "Empirical ε with its interval, its lower bound, and the analytical value.",
        _draw_epsilons,
    ),
    "scores_final": (
        "An adversary who sees only the final model: the farther the orange scores lie from the "
        "null distribution, the better the canaries are remembered.",
        _draw_final,
    ),
    "scores_all": (
        "An adversary who sees every round's model: scores of observed and unobserved canaries.",
        _draw_all,
    ),
    "rounds": ("Clip norm, loss and accuracy over the rounds.", _draw_rounds),
    "calibration": (
        "Scores of canaries that took no part, and what is expected of them: points on the line "
        "are as they should be.",
        _draw_calibration,
    ),
}
"""Caption and drawing function by file name."""


def shown(record: AuditRecord, summary: RunSummary) -> list[str]:
    """The names of the figures that have something to show."""
    final, every = summary.final, summary.every_round
    measured = {
        "epsilon": bool(measured_parts(summary)),
        "scores_final": isinstance(final.displacement, StatisticSummary),
        "scores_all": isinstance(every.matched_filter, StatisticSummary),
        "rounds": record.rounds > 0,
        "calibration": bool(summary.null.statistics),
    }
    return [name for name in FIGURES if measured[name]]
