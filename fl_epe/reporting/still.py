"""The picture of a chart, for a page without JavaScript, for print and for publication.

It draws the traces that `fl_epe.reporting.charts` makes, and no others: curves, areas, markers with
error bars, and bars, in panels one below the other.
"""

from __future__ import annotations

import base64
import io
import textwrap
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from fl_epe.reporting.charts import Chart
from fl_epe.reporting.numbers import JSON

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colors on white; each has a contrast of at least 4.5 to 1, but for areas.
PALETTE = {"@every": "#b34700", "@final": "#0072b2", "@theory": "#00735a", "@plain": "#44403c"}

_DASHES = {"solid": "-", "dash": "--", "dot": ":"}
_SYMBOLS = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-right": ">",
    "triangle-up": "^",
    "x": "x",
}
_SIDES = {  # of a label: its offset in points, and which of its own ends is there
    "top": (4, "bottom"),
    "bottom": (-4, "top"),
    "left": (-6, "right"),
    "right": (6, "left"),
}
_SIZE = 5.0, 4.0  # inches; in print two stand side by side, and the text is to be read there
_DPI = 200  # of a PNG
_SETTINGS: dict[Any, Any] = {
    "font.size": 10,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "fl-epe",
}
_NO_DATE: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None},
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}


def picture(chart: Chart, ending: str) -> bytes:
    """The file of a chart's picture, as "svg", "pdf" or "png"; the same for the same chart."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_SETTINGS):
        layout = chart.layout
        names = next((list(t["y"]) for t in chart.traces if isinstance(t["y"][0], str)), [])
        height = _SIZE[1] if not names else 1.6 + 0.4 * len(names)
        figure = Figure(figsize=(_SIZE[0], height), dpi=_DPI, layout="constrained")
        keys = [key for key in layout if key.startswith("y")]
        shares = [np.ptp(layout[key]["domain"]) for key in keys]
        panels = figure.subplots(
            len(keys), sharex=True, squeeze=False, gridspec_kw={"height_ratios": shares}
        )[:, 0]
        axes = {key.replace("axis", ""): panel for key, panel in zip(keys, panels, strict=True)}
        for trace in chart.traces:
            _DRAW[trace["type"]](axes[trace.get("yaxis", "y")], trace, names)
        for key, panel in zip(keys, panels, strict=True):
            _finish_axis(panel, "y", layout[key], names)
            panel.spines[["top", "right"]].set_visible(False)
        _finish_axis(panels[-1], "x", layout["xaxis"], [])
        figure.align_ylabels()
        found = [panel.get_legend_handles_labels() for panel in panels]
        handles, words = (
            [one for each in part for one in each] for part in zip(*found, strict=True)
        )
        if handles:
            words = [textwrap.shorten(word, 40) for word in words]
            place = {"loc": "outside lower center", "frameon": False, "fontsize": 8.5}
            figure.legend(handles, words, ncols=1 + (len(words) > 3), **place)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=ending, metadata=_NO_DATE[ending] | {"Title": chart.title})
    return buffer.getvalue()


def still(chart: Chart) -> str:
    """The picture as a data URI of an SVG file."""
    return f"data:image/svg+xml;base64,{base64.b64encode(picture(chart, 'svg')).decode()}"


def _color(name: str) -> str:
    return "none" if name.startswith("rgba(0,0,0,0") else PALETTE[name]


def _numbers(values: Iterable[Any], names: list[str]) -> list[float]:
    return [
        names.index(value) if isinstance(value, str) else np.nan if value is None else value
        for value in values
    ]


def _draw_scatter(axes: Axes, trace: JSON, names: list[str]) -> None:
    x, y = _numbers(trace["x"], []), _numbers(trace["y"], names)
    if trace.get("fill") == "toself":
        axes.fill(x, y, color=_color(trace["fillcolor"]), alpha=trace["opacity"], lw=0)
        return
    look: dict[str, Any] = {"linestyle": "", "label": _label(trace)}
    for which in "xy":
        if bars := trace.get(f"error_{which}"):
            ends = {f"{which}err": [bars["arrayminus"], bars["array"]]}
            axes.errorbar(x, y, fmt="none", ecolor=_color(bars["color"]), lw=2, **ends)
    if "lines" in trace["mode"]:
        curve = trace["line"]
        look |= {"linestyle": _DASHES[curve["dash"]], "color": _color(curve["color"])}
    if "markers" in trace["mode"]:
        marker = trace["marker"]
        symbol = marker["symbol"].removesuffix("-open")
        look |= {"marker": _SYMBOLS[symbol], "color": _color(marker["color"])}
        look["markersize"] = 0.7 * marker["size"]
        if symbol != marker["symbol"]:
            look["markerfacecolor"] = "none"
    axes.plot(x, y, **look)
    texts = zip(trace.get("text", ()), trace.get("textposition", ()), strict=True)
    for at, to, (words, place) in zip(x, y, texts, strict=False):
        (up, va), (right, ha) = (_SIDES[side] for side in place.split())
        axes.annotate(words, (at, to), (right, up), textcoords="offset points", va=va, ha=ha)


def _draw_bar(axes: Axes, trace: JSON, names: list[str]) -> None:
    color = _color(trace["marker"]["color"])
    axes.bar(trace["x"], trace["y"], trace["width"], color=color, label=_label(trace))


def _label(trace: JSON) -> str:
    return trace["name"] if trace.get("showlegend", True) else "_"


_DRAW = {"scatter": _draw_scatter, "bar": _draw_bar}


def _finish_axis(axes: Axes, which: str, given: JSON, names: list[str]) -> None:
    getattr(axes, f"set_{which}label")(given["title"]["text"])
    limits = getattr(axes, f"set_{which}lim")
    if given.get("type") == "log":
        axes.set_xscale("log")
        plain_ticks(axes)
    elif "range" in given:
        limits(*given["range"])
    elif given.get("rangemode") == "tozero":
        low, high = getattr(axes, f"get_{which}lim")()
        limits(min(low, 0.0) if low < -0.06 * high else 0.0, high)
    if names:
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
    elif "nticks" in given:
        axes.locator_params(axis=which, nbins=given["nticks"])
    elif "dtick" in given:
        axes.set_xticks(np.arange(0, given["range"][1], given["dtick"]))


def render(draw: Callable[[Figure], None], size: tuple[float, float] = (8, 3.6)) -> bytes:
    """The PNG image of the figure of this size, in inches, that ``draw`` fills."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained", dpi=130)
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
