"""Draws a comparison: ε by schedule, against participations and against noise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fl_epe.limit.rows import Epsilon, Row
from fl_epe.reporting import number, plain_ticks, render

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MEAN, _EXPOSED, _UNKNOWN, _ANALYTICAL = "#c2410c", "#7c2d12", "#1d4ed8", "#15803d"
_COLORS = "#0072b2", "#b34700", "#00735a", "#8c3a7d", "#44403c", "#7a5c00"  # at least 4.5 to 1
_MARKERS = "osD^v<>PXph*"
_FLOOR = 1e-2


def charts(
    rows: Sequence[Row], noise: float, participations: float
) -> dict[str, tuple[str, bytes, str]]:
    """Caption, PNG and alternative text of each picture by file name.

    Pictures that would show one point are left out.

    Args:
        rows: of the comparison.
        noise: noise multiplier at which participations are compared.
        participations: number of them at which noise is compared.
    """
    shown = [row for row in rows if row.final is not None]
    here = [r for r in shown if (r.noise_multiplier, r.participations) == (noise, participations)]
    out = {}
    if here:
        caption = (
            f"ε by schedule at z = {noise:g} and {participations:g} participations: a client drawn "
            "at random, the worst case of all clients, and the analytical ε of a client drawn at "
            "random."
        )
        height = 1.6 + 0.42 * len(here)
        image = render(lambda figure: _by_schedule(figure, here), (9, height))
        out["schedules"] = caption, image, f"{caption} {_told(here)}"
    for name, axis, fixed, words in (
        ("participations", "participations", ("noise_multiplier", noise), f"at z = {noise:g}"),
        (
            "noise",
            "noise_multiplier",
            ("participations", participations),
            f"at participations {participations:g}",
        ),
    ):
        line = [row for row in shown if getattr(row, fixed[0]) == fixed[1] and getattr(row, axis)]
        if len({getattr(row, axis) for row in line}) > 1:
            label = "noise multiplier z" if axis == "noise_multiplier" else axis
            caption = f"ε of a client drawn at random against {label}, {words}; dashes: analytical."
            draw = _curves(line, axis, label)
            out[name] = caption, render(draw, (9, 4.6)), f"{caption} {_told(line, axis)}"
    return out


def _told(rows: Sequence[Row], axis: str | None = None) -> str:
    """The numbers of a picture in words: each schedule's ε, at each place of its axis."""
    by_name: dict[str, list[str]] = {}
    for row in sorted(rows, key=lambda row: getattr(row, axis) if axis else 0.0):
        at = f" at {getattr(row, axis):g}" if axis else ""
        parts = {"final model": row.final, "every round": row.every_round}
        values = [f"{number(part.epsilon)} ({name})" for name, part in parts.items() if part]
        by_name.setdefault(row.schedule, []).append(f"ε {', '.join(values)}{at}")
    return " ".join(f"{name}: {'; '.join(values)}." for name, values in by_name.items())


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


def _curves(rows: Sequence[Row], axis: str, label: str) -> Callable[[Figure], None]:
    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, 2)
        names = list(dict.fromkeys(row.schedule for row in rows))
        styles = dict(
            zip(names, zip(itertools.cycle(_COLORS), itertools.cycle(_MARKERS)), strict=False)
        )
        for axes, part, title in zip(
            panels,
            ("final", "every_round"),
            ("final model", "every round, rounds known"),
            strict=True,
        ):
            for place, name in enumerate(names):
                points = sorted(
                    (getattr(row, axis), getattr(row, part)) for row in rows if row.schedule == name
                )
                shift = 1.012 ** (place - len(names) / 2)  # apart, where they coincide
                _curve(axes, points, shift, *styles[name], name)
            axes.set(xscale="log", yscale="log", xlabel=label, ylabel="ε", title=title)
            ticks = sorted({getattr(row, axis) for row in rows})
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
            axes.set_xticks([], minor=True)
            axes.grid(alpha=0.3)
        figure.legend(
            *panels[0].get_legend_handles_labels(),
            loc="outside lower center",
            ncols=3,
            fontsize=7,
            frameon=False,
        )

    return draw


def _curve(
    axes: Axes,
    points: list[tuple[float, Epsilon]],
    shift: float,
    color: str,
    marker: str,
    name: str,
) -> None:
    xs = [x * shift for x, _ in points]
    ys = [max(_FLOOR, e.epsilon) for _, e in points]
    down = [y - max(_FLOOR, e.low) for y, (_, e) in zip(ys, points, strict=True)]
    up = [max(_FLOOR, e.high) - y for y, (_, e) in zip(ys, points, strict=True)]
    axes.errorbar(xs, ys, [down, up], color=color, marker=marker, ms=4, lw=1, capsize=2, label=name)
    known = [(x, e.analytical.epsilon) for x, e in points if e.analytical is not None]
    if known and all(math.isfinite(epsilon) for _, epsilon in known):
        axes.plot(*zip(*known, strict=True), color=color, lw=0.8, ls="--")
