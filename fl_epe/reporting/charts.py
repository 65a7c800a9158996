"""Charts of a report: traces and a layout as JSON, and the same numbers as words and rows.

A chart is drawn twice. `fl_epe.reporting.still` makes a picture of it, for the page and for
print; in a browser with JavaScript, plotly draws the same traces over it. A color is the name
of a role, such as "@every"; the picture and plotly have a palette each.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fl_epe.auditing import Answer, AuditRecord, EpsilonEstimate, Sees
from fl_epe.checks import Integers
from fl_epe.reporting.numbers import JSON, interval
from fl_epe.wording import number

FINAL = "@final"
EVERY = "@every"
THEORY = "@theory"
PLAIN = "@plain"
"""Roles of colors: the two adversaries, theory, and everything else."""

VIEW_NAMES: dict[Sees, str] = {"final": "final model", "all": "every round"}
"""Short names of what an adversary sees, for tables and charts."""


def view_name(sees: Sees, record: AuditRecord | None) -> str:
    """The short name of what an adversary sees; the last model of a record may not be final."""
    if sees == "all" or record is None or record.findings.last_model_is_final:
        return VIEW_NAMES[sees]
    return f"model after round {record.rounds}"


LOOKS = {
    "final": (FINAL, "dash", "square-open"),
    "all": (EVERY, "solid", "circle-open"),
}
"""Color, dash and symbol of an adversary's curves and points."""

MOST_POINTS = 300
"""Largest number of points of a scatter plot in a page."""

_TRANSPARENT = "rgba(0,0,0,0)"

# The gap between panels, as a share of the height.
_GAP = 0.07

# With a larger ratio of the largest to the smallest ε, an axis is logarithmic.
_MAX_LINEAR_RATIO = 30.0

# Smaller ε are drawn at this value, so that a logarithmic axis can show them.
_MIN_DRAWN = 1e-2


@dataclasses.dataclass(frozen=True)
class Chart:
    """A chart of a report.

    Attributes:
        name: the chart's id in the page.
        title: the text above the chart.
        caption: the text below the chart: what it shows, and what was left out.
        alternative: the chart in words and numbers, for readers who cannot see it.
        traces: the traces in plotly's format.
        layout: the layout in plotly's format, with one x-axis and a y-axis for each panel.
        may_be_logarithmic: whether a reader may switch the y-axis to a logarithmic scale.
    """

    name: str
    title: str
    caption: str
    alternative: str
    traces: tuple[JSON, ...]
    layout: JSON
    may_be_logarithmic: bool = False

    @functools.cached_property
    def points(self) -> list[JSON]:
        """A row for each point, bar or corner of an area that is drawn, with its interval.

        The columns of the values are named by the titles of their axes. If a series belongs to
        an adversary, "adversary" is what that adversary sees, which the trace has as ``meta``.
        """
        rows = list[JSON]()
        x_title = self.layout["xaxis"]["title"]["text"]
        for trace in self.traces:
            y_title = self.layout[axis_of(trace)]["title"]["text"] or "row"
            columns = {"series": trace["name"]}
            if "meta" in trace:
                columns["adversary"] = trace["meta"]
            columns[x_title] = trace["x"]
            columns[y_title] = trace["y"]
            for letter in "xy":
                bars = trace.get(f"error_{letter}")
                if bars:
                    middle = trace[letter]
                    columns["from"] = plain(
                        np.subtract(middle, bars["arrayminus"])
                    )
                    columns["to"] = plain(np.add(middle, bars["array"]))
            for index in range(len(trace["x"])):
                row = {
                    # A text, such as the series, is the same for all points.
                    name: values if isinstance(values, str) else values[index]
                    for name, values in columns.items()
                }
                rows.append(row)
        return rows

    @property
    def columns(self) -> list[str]:
        """Names of all columns of `points`."""
        return list(
            dict.fromkeys(name for point in self.points for name in point)
        )


def axes(x: str, *panels: tuple[str, float, JSON], **x_axis: Any) -> JSON:
    """A layout: an x-axis with its title, and panels from the top down.

    Args:
        x: title of the x-axis.
        panels: title, relative height and further properties of each y-axis.
        x_axis: further properties of the x-axis.
    """
    layout: JSON = {
        "xaxis": {
            "title": {"text": x},
            "anchor": panel(len(panels) - 1),
            **x_axis,
        }
    }
    total_height = sum(height for _, height, _ in panels)
    unit = (1 - _GAP * (len(panels) - 1)) / total_height
    top = 1.0
    for index, (title, height, properties) in enumerate(panels):
        low = max(top - unit * height, 0.0)
        layout[_axis_name(panel(index))] = {
            "title": {"text": title},
            "domain": [round(low, 4), round(top, 4)],
            **properties,
        }
        top = low - _GAP
    return layout


def panel(index: int) -> str:
    """The y-axis of a panel as traces name it, such as "y2"; panel 0 is at the top."""
    if index:
        return f"y{index + 1}"
    return "y"


def axis_of(trace: JSON) -> str:
    """The y-axis of a trace as layouts name it, such as "yaxis2"."""
    return _axis_name(trace.get("yaxis", "y"))


def _axis_name(panel_name: str) -> str:
    return panel_name.replace("y", "yaxis")


def scatter(
    mode: str,
    x: ArrayLike,
    y: ArrayLike,
    name: str,
    color: str,
    look: str,
    size: int = 9,
    **properties: Any,
) -> JSON:
    """A trace of lines or markers.

    Args:
        mode: "lines", or one of plotly's modes with markers.
        x: horizontal positions.
        y: vertical positions.
        name: name of the trace.
        color: role of the color.
        look: the dash of lines, or the symbol of markers.
        size: the size of markers.
        properties: further properties of the trace.
    """
    if mode == "lines":
        style = {"line": {"color": color, "dash": look, "width": 2}}
    else:
        style = {"marker": {"color": color, "symbol": look, "size": size}}
    return {
        "type": "scatter",
        "mode": mode,
        "name": name,
        "x": plain(np.ravel(x)),
        "y": plain(np.ravel(y)),
        "hovertemplate": f"%{{x:.4g}}, %{{y:.4g}}<extra>{name}</extra>",
        **style,
        **properties,
    }


def band(
    x: ArrayLike, low: ArrayLike, high: ArrayLike, name: str, color: str
) -> JSON:
    """The area between two curves, which the legend does not name."""
    # Along the upper curve, and back along the lower one.
    corners_x = np.append(np.ravel(x), np.ravel(x)[::-1])
    corners_y = np.append(high, np.ravel(low)[::-1])
    return scatter(
        "lines",
        corners_x,
        corners_y,
        name,
        _TRANSPARENT,
        "solid",
        showlegend=False,
        fill="toself",
        fillcolor=color,
        opacity=0.2,
        hoverinfo="skip",
    )


def in_legend_once(traces: Iterable[JSON]) -> tuple[JSON, ...]:
    """The traces, marked so that the legend shows each name once."""
    names = set()
    marked = []
    for trace in traces:
        is_shown = trace.get("showlegend", trace["name"] not in names)
        if is_shown:
            names.add(trace["name"])
        marked.append(trace | {"showlegend": is_shown})
    return tuple(marked)


def error_bars(
    middle: ArrayLike, low: ArrayLike, high: ArrayLike, color: str
) -> JSON:
    """Intervals about points; an end that is not finite is not drawn."""
    above = plain(np.ravel(np.subtract(high, middle)))
    below = plain(np.ravel(np.subtract(middle, low)))
    return {
        "type": "data",
        "symmetric": False,
        # plotly needs a length for each point.
        "array": [length or 0.0 for length in above],
        "arrayminus": [length or 0.0 for length in below],
        "color": color,
        "thickness": 2,
        "width": 0,
    }


def answer_chart(
    named: Sequence[tuple[str, Answer]], **about: Any
) -> Chart | None:
    """Draws estimate, interval, lower bound and theory of each answer in a row.

    Args:
        named: the name of the row and the answer, for each row.
        about: name, title and caption of the chart.

    Returns:
        ``None`` if no ε was measured.
    """
    names = []
    intervals = []
    proved = []
    allowed = []
    for name, answer in named:
        estimate = finite_estimate(answer)
        if estimate is not None:
            names.append(name)
            intervals.append([estimate.epsilon, estimate.low, estimate.high])
            proved.append(drawable(answer.proved))
            allowed.append(drawable(answer.analytical.epsilon))
    if not names:
        return None
    middle, low, high = np.maximum(intervals, _MIN_DRAWN).T
    if middle.max() > _MAX_LINEAR_RATIO * middle.min():
        x_axis = {"type": "log"}
    else:
        x_axis = {"rangemode": "tozero"}
    epsilons = scatter(
        "markers", middle, [], "ε, interval", PLAIN, "circle", size=11
    )
    traces = (
        epsilons | {"error_x": error_bars(middle, low, high, PLAIN)},
        scatter("markers", proved, [], "at least", PLAIN, "triangle-right"),
        scatter("markers", allowed, [], "theory allows", THEORY, "x"),
    )
    return Chart(
        alternative=answers_in_words(named),
        traces=tuple(trace | {"y": names} for trace in traces),
        layout=axes(
            "ε", ("", 1.0, {"range": [len(names) - 0.5, -0.5]}), **x_axis
        ),
        **about,
    )


def finite_estimate(answer: Answer) -> EpsilonEstimate | None:
    """The answer's estimate, if its ε is finite; else ``None``."""
    estimate = answer.estimate
    if estimate is None or not math.isfinite(estimate.epsilon):
        return None
    return estimate


def answers_in_words(named: Iterable[tuple[str, Answer]]) -> str:
    """ε, interval, lower bound and theory of each answer, in a sentence."""
    words = "{}: ε {}, interval {}, at least {}, theory allows {}"
    clauses = [
        words.format(name, *answer_cells(answer)) for name, answer in named
    ]
    return "; ".join(clauses) + "."


def answer_cells(answer: Answer) -> tuple[str, str, str, str]:
    """ε, interval, lower bound and theory, as text."""
    limit = answer.analytical.epsilon
    theory = "none known" if limit is None else number(limit)
    estimate = answer.estimate
    if estimate is None:
        return "not measured", "–", "–", theory
    proved = number(answer.proved) if answer.proved else "–"
    return number(estimate.epsilon), interval(estimate), proved, theory


def drawable(value: float | None) -> float:
    """The value, or NaN, which is not drawn, if the value is unknown, infinite or 0."""
    if value and math.isfinite(value):
        return value
    return math.nan


def plain(values: Iterable[float]) -> list[float | None]:
    """Each value with five significant digits, as JSON; ``None`` if it is not finite."""
    return [
        float(f"{value:.5g}") if math.isfinite(value) else None
        for value in values
    ]


def spread_out(count: int, limit: int = MOST_POINTS) -> Integers:
    """Indices of the points to draw: all ``count``, or ``limit`` that are evenly spread."""
    places = np.linspace(0, count - 1, min(count, limit)).round()
    return np.unique(places).astype(np.int64)


def left_out(count: int, plural: str, limit: int = MOST_POINTS) -> str:
    """A sentence about the points that `spread_out` leaves out; empty if there are none."""
    if count <= limit:
        return ""
    return f" Drawn are {limit:,} of {count:,} {plural}, evenly spaced."
