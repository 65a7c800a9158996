"""What a chart of a report is: traces and a layout as JSON, and the same numbers as words and rows.

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

FINAL, EVERY, THEORY, PLAIN = "@final", "@every", "@theory", "@plain"
"""Roles of colors: what is of the one adversary, of the other, theory's, and of none of these."""

SEEN = {"final": "final model", "all": "every round"}
"""What an adversary sees, in words."""


def seen(sees: Sees, record: AuditRecord | None) -> str:
    """As `SEEN`, for a record after which there may be more rounds."""
    if sees == "all" or record is None or record.findings.last_model_is_final:
        return SEEN[sees]
    return f"model after round {record.rounds}"


LOOKS = {
    "final": (FINAL, "dash", "square-open"),
    "all": (EVERY, "solid", "circle-open"),
}
"""Color, dash and symbol of what is of an adversary."""

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
        """What is drawn, a row for each point, bar or corner of an area, with its interval.

        A value stands under the title of the axis that it is drawn at. "adversary" is what an
        adversary sees, where a series is of one; the trace has it as ``meta``.
        """
        found, x = [], self.layout["xaxis"]["title"]["text"]
        for trace in self.traces:
            axis = trace.get("yaxis", "y").replace("y", "yaxis")
            y = self.layout[axis]["title"]["text"] or "row"
            values = {"series": trace["name"]}
            values |= {"adversary": trace["meta"]} if "meta" in trace else {}
            values |= {x: trace["x"], y: trace["y"]}
            for middle, bars in (
                (trace[which], trace.get(f"error_{which}")) for which in "xy"
            ):
                if bars:
                    values["from"] = plain(np.subtract(middle, bars["arrayminus"]))
                    values["to"] = plain(np.add(middle, bars["array"]))
            count = len(trace["x"])
            columns = [
                [each] * count if isinstance(each, str) else each
                for each in values.values()
            ]
            found += [
                dict(zip(values, row, strict=True))
                for row in zip(*columns, strict=True)
            ]
        return found

    @property
    def columns(self) -> list[str]:
        """Names of all that `points` have."""
        return list(dict.fromkeys(name for point in self.points for name in point))


def axes(x: str, *panels: tuple[str, float, JSON], **x_axis: Any) -> JSON:
    """A layout: an x-axis with its title, and panels from the top down.

    Args:
        x: title of the x-axis.
        panels: title, height (of their sum) and further properties of each y-axis.
        x_axis: further properties of the x-axis.
    """
    layout: JSON = {
        "xaxis": {"title": {"text": x}, "anchor": panel(len(panels) - 1), **x_axis}
    }
    unit = (1 - _GAP * (len(panels) - 1)) / sum(height for _, height, _ in panels)
    top = 1.0
    for place, (title, height, more) in enumerate(panels):
        low = max(top - unit * height, 0.0)
        axis = {
            "title": {"text": title},
            "domain": [round(low, 4), round(top, 4)],
            **more,
        }
        layout[panel(place).replace("y", "yaxis")] = axis
        top = low - _GAP
    return layout


def panel(place: int) -> str:
    """Name of the y-axis of a panel, from 0 at the top."""
    return f"y{place + 1}" if place else "y"


def scatter(
    mode: str, x: ArrayLike, y: ArrayLike, name: str, color: str, look: str, **more: Any
) -> JSON:
    """Curves ("lines"; the look is a dash) or markers ("markers"; it is a symbol)."""
    style = {"line": {"color": color, "dash": look, "width": 2}}
    if mode != "lines":
        style = {
            "marker": {"color": color, "symbol": look, "size": more.pop("size", 9)}
        }
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
    x: ArrayLike, low: ArrayLike, high: ArrayLike, name: str, color: str, **more: Any
) -> JSON:
    """The area between two curves, which the legend does not name."""
    ends = (
        np.append(np.ravel(x), np.ravel(x)[::-1]),
        np.append(high, np.ravel(low)[::-1]),
    )
    area: JSON = {
        "fill": "toself",
        "fillcolor": color,
        "opacity": 0.2,
        "hoverinfo": "skip",
    }
    drawn = scatter(
        "lines", *ends, name, "rgba(0,0,0,0)", "solid", showlegend=False, **area
    )
    return drawn | more


def in_legend_once(traces: Iterable[JSON]) -> tuple[JSON, ...]:
    """The traces, of which the legend shows each name once."""
    named, found = set[str](), list[JSON]()
    for trace in traces:
        shown = trace.get("showlegend", trace["name"] not in named)
        named |= {trace["name"]} if shown else set()
        found.append(trace | {"showlegend": shown})
    return tuple(found)


def error_bars(middle: ArrayLike, low: ArrayLike, high: ArrayLike, color: str) -> JSON:
    """Intervals about points; an end that is not finite is not drawn."""
    sides = np.subtract(high, middle), np.subtract(middle, low)
    above, below = ([end or 0.0 for end in plain(np.ravel(side))] for side in sides)
    look = {"color": color, "thickness": 2, "width": 0}
    return {
        "type": "data",
        "symmetric": False,
        "array": above,
        "arrayminus": below,
        **look,
    }


def answer_chart(named: Sequence[tuple[str, Answer]], **about: Any) -> Chart | None:
    """ε of each answer: estimate, interval, what leaks at least, what theory allows, a row each.

    Args:
        named: answers with the names of their rows.
        about: name, title and caption of the chart.

    Returns:
        ``None`` if no ε was measured.
    """
    shown = [(name, a, e) for name, a in named if (e := finite_estimate(a))]
    if not shown:
        return None
    names = [name for name, _, _ in shown]
    ends = [[e.epsilon, e.low, e.high] for _, _, e in shown]
    middle, low, high = np.maximum(ends, _FLOOR).T
    far = middle.max() > _FAR * middle.min()
    x_axis = {"type": "log"} if far else {"rangemode": "tozero"}
    least = [known(answer.proved) for _, answer, _ in shown]
    theory = [known(answer.analytical.epsilon) for _, answer, _ in shown]
    drawn = scatter("markers", middle, [], "ε, interval", PLAIN, "circle", size=11)
    traces = (
        drawn | {"error_x": error_bars(middle, low, high, PLAIN)},
        scatter("markers", least, [], "at least", PLAIN, "triangle-right"),
        scatter("markers", theory, [], "theory allows", THEORY, "x"),
    )
    return Chart(
        alternative=answers_in_words(named),
        traces=tuple(trace | {"y": names} for trace in traces),
        layout=axes("ε", ("", 1.0, {"range": [len(names) - 0.5, -0.5]}), **x_axis),
        **about,
    )


def finite_estimate(answer: Answer) -> EpsilonEstimate | None:
    """The answer's estimate, if it can be drawn."""
    found = answer.estimate
    return found if found is not None and math.isfinite(found.epsilon) else None


def answers_in_words(named: Iterable[tuple[str, Answer]]) -> str:
    """ε, interval, what leaks at least and what theory allows of each answer, in a sentence."""
    words = "{}: ε {}, interval {}, at least {}, theory allows {}"
    return (
        "; ".join(words.format(name, *answer_cells(answer)) for name, answer in named)
        + "."
    )


def answer_cells(answer: Answer) -> tuple[str, str, str, str]:
    """ε, interval, what leaks at least and what theory allows, as text."""
    found, limit = answer.estimate, answer.analytical.epsilon
    theory = "none known" if limit is None else number(limit)
    if found is None:
        return "not measured", "–", "–", theory
    least = "–" if not answer.proved else number(answer.proved)
    return number(found.epsilon), interval(found), least, theory


def known(value: float | None) -> float:
    """A value to draw, or NaN, which is not drawn, for one that is unknown, infinite or 0."""
    return value if value and math.isfinite(value) else math.nan


def plain(values: Iterable[float]) -> list[float | None]:
    """Five significant digits of each, as JSON; ``None`` for what is not finite."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]


def spread_out(count: int, most: int = MOST_POINTS) -> Integers:
    """Which of ``count`` things to draw: all, or ``most`` that are evenly spread over them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round()).astype(
        np.int64
    )


def left_out(count: int, what: str, most: int = MOST_POINTS) -> str:
    """A sentence on what `spread_out` leaves out; empty if that is nothing."""
    if count <= most:
        return ""
    return f" Drawn are {most:,} of {count:,} {what}, evenly spread over their numbers."
