"""Charts of a report: traces and a layout as JSON, and the same numbers as words and rows.

A chart is drawn twice. `fl_epe.reporting.still` makes a picture of it, which stands in the page and
in print; in a browser with JavaScript, plotly draws the same traces over it. Colors are names of
roles, such as "@every", for which each of the two has its own palette.
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
"""Roles of colors: of one adversary, of the other one, of theory, and of none of these."""

SEEN = {"final": "final model", "all": "every round"}
"""What an adversary sees, in words."""


def view_name(sees: Sees, record: AuditRecord | None) -> str:
    """As `SEEN`, for a record after which there may be more rounds."""
    if sees == "all" or record is None or record.findings.last_model_is_final:
        return SEEN[sees]
    return f"model after round {record.rounds}"


LOOKS = {
    "final": (FINAL, "dash", "square-open"),
    "all": (EVERY, "solid", "circle-open"),
}
"""Color, dash and symbol of what is drawn of an adversary."""

MOST_POINTS = 300
"""Points of a cloud that a page holds at most."""

_GAP = 0.07  # between panels
_FAR = 30.0  # a largest ε over the smallest for which an axis is logarithmic
_FLOOR = 1e-2  # smaller ε are drawn there on a logarithmic axis


@dataclasses.dataclass(frozen=True)
class Chart:
    """A chart of a report.

    Attributes:
        name: its id in the page.
        title: above it.
        caption: below it: what it shows, and what was left out.
        alternative: the chart in words and numbers, for those who do not see it.
        traces: as plotly reads them.
        layout: as plotly reads it: one x-axis, and a y-axis for each panel.
        may_be_logarithmic: whether a reader may switch its y-axis to a logarithmic scale.
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

        A value stands under the title of the axis that it is drawn at. "adversary" is what an
        adversary sees, where a series is of one; the trace has it as ``meta``.
        """
        rows = list[JSON]()
        x_title = self.layout["xaxis"]["title"]["text"]
        for trace in self.traces:
            y_axis = trace.get("yaxis", "y").replace("y", "yaxis")
            y_title = self.layout[y_axis]["title"]["text"] or "row"
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
            rows += [
                {
                    name: values if isinstance(values, str) else values[place]
                    for name, values in columns.items()
                }
                for place in range(len(trace["x"]))
            ]
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
        panels: title, height (of their sum) and further properties of each y-axis.
        x_axis: further properties of the x-axis.
    """
    layout: JSON = {
        "xaxis": {
            "title": {"text": x},
            "anchor": panel(len(panels) - 1),
            **x_axis,
        }
    }
    unit = (1 - _GAP * (len(panels) - 1)) / sum(
        height for _, height, _ in panels
    )
    top = 1.0
    for place, (title, height, properties) in enumerate(panels):
        low = max(top - unit * height, 0.0)
        layout[panel(place).replace("y", "yaxis")] = {
            "title": {"text": title},
            "domain": [round(low, 4), round(top, 4)],
            **properties,
        }
        top = low - _GAP
    return layout


def panel(place: int) -> str:
    """Name of the y-axis of a panel, from 0 at the top."""
    if place:
        return f"y{place + 1}"
    return "y"


def scatter(
    mode: str,
    x: ArrayLike,
    y: ArrayLike,
    name: str,
    color: str,
    look: str,
    **more: Any,
) -> JSON:
    """Curves ("lines"; the look is a dash) or markers ("markers"; it is a symbol)."""
    if mode == "lines":
        style = {"line": {"color": color, "dash": look, "width": 2}}
    else:
        size = more.pop("size", 9)
        style = {"marker": {"color": color, "symbol": look, "size": size}}
    return {
        "type": "scatter",
        "mode": mode,
        "name": name,
        "x": plain(np.ravel(x)),
        "y": plain(np.ravel(y)),
        "hovertemplate": f"%{{x:.4g}}, %{{y:.4g}}<extra>{name}</extra>",
        **style,
        **more,
    }


def band(
    x: ArrayLike, low: ArrayLike, high: ArrayLike, name: str, color: str
) -> JSON:
    """The area between two curves, which the legend does not name."""
    there_and_back = np.append(np.ravel(x), np.ravel(x)[::-1])
    upper_and_lower = np.append(high, np.ravel(low)[::-1])
    return scatter(
        "lines",
        there_and_back,
        upper_and_lower,
        name,
        "rgba(0,0,0,0)",
        "solid",
        showlegend=False,
        fill="toself",
        fillcolor=color,
        opacity=0.2,
        hoverinfo="skip",
    )


def in_legend_once(traces: Iterable[JSON]) -> tuple[JSON, ...]:
    """The traces, of which the legend shows each name once."""
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
        "array": [length or 0.0 for length in above],
        "arrayminus": [length or 0.0 for length in below],
        "color": color,
        "thickness": 2,
        "width": 0,
    }


def answer_chart(
    named: Sequence[tuple[str, Answer]], **about: Any
) -> Chart | None:
    """ε of each answer: estimate, interval, lower bound and theory, a row each.

    Args:
        named: answers with the names of their rows.
        about: name, title and caption of the chart.

    Returns:
        ``None`` if no ε was measured.
    """
    names = []
    ends = []
    proved = []
    allowed = []
    for name, answer in named:
        estimate = finite_estimate(answer)
        if estimate is not None:
            names.append(name)
            ends.append([estimate.epsilon, estimate.low, estimate.high])
            proved.append(drawable(answer.proved))
            allowed.append(drawable(answer.analytical.epsilon))
    if not names:
        return None
    middle, low, high = np.maximum(ends, _FLOOR).T
    is_far = middle.max() > _FAR * middle.min()
    x_axis = {"type": "log"} if is_far else {"rangemode": "tozero"}
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
    """The answer's estimate, if it can be drawn."""
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
    """A value to draw, or NaN, which is not drawn, for one that is unknown, infinite or 0."""
    if value and math.isfinite(value):
        return value
    return math.nan


def plain(values: Iterable[float]) -> list[float | None]:
    """Five significant digits of each value, as JSON; ``None`` for one that is not finite."""
    return [
        float(f"{value:.5g}") if math.isfinite(value) else None
        for value in values
    ]


def spread_out(count: int, limit: int = MOST_POINTS) -> Integers:
    """Which of ``count`` points to draw: all, or ``limit`` that are evenly spread over them."""
    places = np.linspace(0, count - 1, min(count, limit)).round()
    return np.unique(places).astype(np.int64)


def left_out(count: int, plural: str, limit: int = MOST_POINTS) -> str:
    """A sentence on what `spread_out` leaves out; empty if that is nothing."""
    if count <= limit:
        return ""
    return f" Drawn are {limit:,} of {count:,} {plural}, evenly spread over their numbers."
