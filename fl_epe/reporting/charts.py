"""What a chart of a report is: traces and a layout as JSON, and the same numbers as words and rows.

A chart is drawn twice. `fl_epe.reporting.still` makes a picture of it, which stands in the page and
in print; in a browser with JavaScript, plotly draws the same traces over it. Colors are names of
roles, such as "@observed", for which each of the two has its own palette.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_epe.reporting.numbers import JSON, number, signed
from fl_epe.reporting.summary_types import StatisticSummary

# Roles of colors.
OBSERVED, UNOBSERVED, NULL, ANALYTICAL, BOUND, SHADE = (
    "@observed",
    "@unobserved",
    "@null",
    "@analytical",
    "@bound",
    "@shade",
)

# Points of a cloud that a page holds at most.
MOST_POINTS = 1000


@dataclasses.dataclass(frozen=True)
class Chart:
    """A chart of a report.

    Attributes:
        name: its id in the page.
        title: above it.
        caption: below it: what it shows, and what was left out.
        alternative: the chart in words and numbers, for those who do not see it.
        traces: as plotly reads them.
        layout: as plotly reads it: the two axes.
        headings: of the table of what is drawn.
        rows: of that table.
        logs: axes that a reader may switch to a logarithmic scale, "x" or "y", and the exponents
            of 10 that the axis then goes from and to; ``None`` to fit what is drawn.
    """

    name: str
    title: str
    caption: str
    alternative: str
    traces: tuple[JSON, ...]
    layout: JSON
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    logs: Mapping[str, tuple[float, float] | None] = dataclasses.field(default_factory=dict)


def axes(x: str, y: str, **more: JSON) -> JSON:
    """A layout with the titles of both axes; further properties as ``x={…}`` or ``y={…}``."""
    return {
        "xaxis": {"title": {"text": x}, **more.get("x_axis", {})},
        "yaxis": {"title": {"text": y}, **more.get("y_axis", {})},
    }


def line(
    x: Iterable[float],
    y: Iterable[float],
    name: str,
    color: str,
    *,
    dash: str = "solid",
    hover: str = "%{x:.4g}, %{y:.4g}",
    **more: Any,
) -> JSON:
    """A curve; the dash tells it from others without color."""
    look = {"color": color, "dash": dash, "width": 2}
    return _scatter("lines", x, y, name, hover) | {"line": look, **more}


def points(
    x: Iterable[float],
    y: Iterable[float],
    name: str,
    color: str,
    *,
    symbol: str = "circle",
    size: int = 9,
    hover: str = "%{x:.4g}, %{y:.4g}",
) -> JSON:
    """Markers; the symbol tells them from others without color."""
    look = {"color": color, "symbol": symbol, "size": size}
    return _scatter("markers", x, y, name, hover) | {"marker": look}


def _scatter(mode: str, x: Iterable[float], y: Iterable[float], name: str, hover: str) -> JSON:
    return {
        "type": "scatter",
        "mode": mode,
        "name": name,
        "x": plain(x),
        "y": plain(y),
        "hovertemplate": f"{hover}<extra>{name}</extra>",
    }


def intervals(
    names: Sequence[str], parts: Sequence[StatisticSummary], floor: float = 0.0
) -> list[JSON]:
    """ε of each row with its interval, and its lower bound; smaller ones are drawn at ``floor``."""
    found = [part.estimate for part in parts]
    middles = [max(floor, e.epsilon) for e in found]
    highs = [max(floor, e.high) if math.isfinite(e.high) else max(floor, e.epsilon) for e in found]
    estimates = points(middles, [], "estimate, interval", OBSERVED, size=11) | {
        "y": list(names),
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [high - middle for middle, high in zip(middles, highs, strict=True)],
            "arrayminus": [
                middle - max(floor, e.low) for middle, e in zip(middles, found, strict=True)
            ],
            "color": OBSERVED,
            "thickness": 3,
        },
        "customdata": [[number(e.epsilon), number(e.low), number(e.high)] for e in found],
        "hovertemplate": "ε = %{customdata[0]}, %{customdata[1]} – %{customdata[2]}<extra></extra>",
    }
    known = [
        (max(floor, part.lower_bound), name)
        for part, name in zip(parts, names, strict=True)
        if part.lower_bound is not None and math.isfinite(part.lower_bound)
    ]
    lower = points([b for b, _ in known], [], "lower bound", BOUND, symbol="triangle-right") | {
        "y": [name for _, name in known],
        "hovertemplate": "ε ≥ %{x:.3g}<extra>lower bound</extra>",
    }
    return [estimates, lower]


def epsilon_chart(
    labels: Sequence[str],
    parts: Sequence[StatisticSummary],
    limits: Sequence[str],
    traces: Sequence[JSON],
    **about: Any,
) -> Chart:
    """A chart of ε of several rows; the limits are those of theory, as text."""
    rows = []
    for label, part, limit in zip(labels, parts, limits, strict=True):
        found, bound = part.estimate, part.lower_bound
        known = "–" if bound is None else number(bound)
        ends = number(found.low), number(found.high)
        rows.append((label, number(found.epsilon), *ends, known, limit))
    told = "; ".join(
        f"{label}: ε {epsilon}, interval {low} to {high}, lower bound {bound}, analytical {limit}"
        for label, epsilon, low, high, bound, limit in rows
    )
    return Chart(
        alternative=f"{told}.",
        traces=tuple(traces),
        headings=("row", "ε", "interval from", "to", "lower bound", "analytical"),
        rows=tuple(rows),
        **about,
    )


def band(x: Sequence[float], low: Sequence[float], high: Sequence[float], name: str) -> JSON:
    """The area between two curves."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": plain([*x, *reversed(x)]),
        "y": plain([*high, *reversed(low)]),
        "fill": "toself",
        "fillcolor": SHADE,
        "line": {"color": "rgba(0,0,0,0)", "width": 0},
        "hoverinfo": "skip",
    }


def plain(values: Iterable[float]) -> list[float | None]:
    """Five significant digits of each, as JSON; ``None`` for what is not finite."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]


def spread_out(count: int, most: int = MOST_POINTS) -> NDArray[np.int64]:
    """Which of ``count`` things to draw: all, or ``most`` that are evenly spread over them."""
    if count <= most:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, most).round()).astype(np.int64)


def left_out(shown: int, count: int, what: str) -> str:
    """A sentence on what is not drawn; empty if all is."""
    if shown >= count:
        return ""
    return f" Drawn are {shown:,} of {count:,} {what}, evenly spread over their numbers."


def secrecy(rounds_known: bool | None) -> str:
    """What to add where theory's value stands beside an attacker who knows the rounds."""
    if rounds_known is not False:
        return ""
    return (
        " Theory's value is for an attacker who does not know the rounds; the one who knows them "
        "may have more."
    )


def cells(*values: float) -> tuple[str, ...]:
    """Numbers as cells of a table."""
    return tuple("–" if math.isnan(value) else signed(value) for value in values)
