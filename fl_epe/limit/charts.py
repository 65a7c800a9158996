"""Draws a comparison: ε by schedule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fl_epe.limit.rows import Epsilon, Row
from fl_epe.reporting import plain_ticks, render

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MEAN, _EXPOSED, _UNKNOWN, _ANALYTICAL = "#c2410c", "#7c2d12", "#1d4ed8", "#15803d"
_FLOOR = 1e-2


def chart(rows: Sequence[Row]) -> bytes:
    """A PNG with ε of each row: of a client drawn at random, the worst case and the bound."""
    return render(lambda figure: _by_schedule(figure, rows), (9, 1.6 + 0.42 * len(rows)))


def _by_schedule(figure: Figure, rows: Sequence[Row]) -> None:
    left, right = figure.subplots(1, 2, sharey=True)
    for y, row in enumerate(rows):
        _whisker(left, y, row.final, _MEAN)
        _whisker(right, y - 0.12, row.every_round, _MEAN)
        _whisker(right, y + 0.18, row.unknown_rounds, _UNKNOWN)
    left.set_yticks(range(len(rows)), [row.schedule.replace(":", ":\n", 1) for row in rows])
    left.tick_params(axis="y", labelsize=7)
    left.set(title="adversary sees the final model")
    left.set_ylim(len(rows) - 0.5, -0.5)
    right.set(title="adversary sees every round's model")
    for axes in (left, right):
        axes.set(xscale="log", xlabel="ε")
        axes.grid(axis="x", alpha=0.3)
        plain_ticks(axes)
    for color, marker, label in (
        (_MEAN, "o", "client drawn at random, rounds known"),
        (_UNKNOWN, "o", "the same, rounds unknown"),
        (_EXPOSED, "D", "worst case of all clients"),
        (_ANALYTICAL, "|", "analytical, client drawn at random"),
    ):
        right.plot([], [], marker, color=color, label=label, mfc="none" if marker == "D" else None)
    figure.legend(
        *right.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=4,
        fontsize=7,
        frameon=False,
    )


def _whisker(axes: Axes, y: float, value: Epsilon | None, color: str) -> None:
    if value is None:
        return
    low, middle, high = (max(_FLOOR, x) for x in (value.low, value.epsilon, value.high))
    axes.plot([low, high], [y, y], color=color, lw=3, alpha=0.4, solid_capstyle="butt")
    axes.plot(middle, y, "o", color=color, ms=4)
    if value.worst_case is not None:
        axes.plot(max(_FLOOR, value.worst_case), y, "D", color=_EXPOSED, ms=4, mfc="none")
    if value.analytical is not None and math.isfinite(value.analytical.epsilon):
        bound = max(_FLOOR, value.analytical.epsilon)
        axes.plot(bound, y, "|", color=_ANALYTICAL, ms=11, mew=2)
