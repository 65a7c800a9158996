"""The picture of a chart, for a page without JavaScript, for print and for publication.

It draws the traces that `fl_epe.reporting.charts` makes, and no others: curves, areas, markers with
error bars, bars and heat maps on one pair of axes.
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
PALETTE = {
    "@observed": "#b34700",
    "@unobserved": "#0072b2",
    "@null": "#44403c",
    "@analytical": "#00735a",
    "@bound": "#0072b2",
    "@shade": "#d6d3d1",
    "@paper": "#ffffff",
}

_DASHES = {"solid": "-", "dash": "--", "dot": ":", "longdash": (0, (8, 3))}
_SYMBOLS = {"circle": "o", "circle-open": "o", "triangle-right": ">", "x": "x"}
_SIZE = 5.0, 3.7  # inches; in print two stand side by side, and the text is to be read there
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
        names = _categories(chart.traces)
        width, height = _SIZE[0], max(_SIZE[1], 1.5 + 0.26 * len(names))
        figure = Figure(figsize=(width, height), dpi=_DPI)
        figure.subplots_adjust(
            left=0.32 if names else 0.15, right=0.97, top=0.97, bottom=0.33 * _SIZE[1] / height
        )
        axes = figure.subplots()
        for trace in chart.traces:
            _DRAW[trace["type"]](axes, trace, names)
        _finish(axes, chart.layout, names, height)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=ending, metadata=_NO_DATE[ending] | {"Title": chart.title})
    return buffer.getvalue()


def still(chart: Chart) -> str:
    """The picture as a data URI of an SVG file."""
    return f"data:image/svg+xml;base64,{base64.b64encode(picture(chart, 'svg')).decode()}"


def _categories(traces: Iterable[JSON]) -> list[str]:
    """Names on the y-axis, in the order of the first trace that has them."""
    for trace in traces:
        if any(isinstance(y, str) for y in trace["y"]):
            return list(trace["y"])
    return []


def _color(name: str) -> str:
    return "none" if name.startswith("rgba(0,0,0,0") else PALETTE[name]


def _values(values: Iterable[Any], names: list[str]) -> list[float]:
    return [
        names.index(value) if isinstance(value, str) else np.nan if value is None else value
        for value in values
    ]


def _draw_scatter(axes: Axes, trace: JSON, names: list[str]) -> None:
    x, y = trace["x"], _values(trace["y"], names)
    x = [np.nan if value is None else value for value in x]
    if trace.get("fill") == "toself":
        axes.fill(x, y, color=_color(trace["fillcolor"]), label=trace["name"], lw=0)
        return
    if bars := trace.get("error_x"):
        ends = [bars["arrayminus"], bars["array"]]
        axes.errorbar(x, y, xerr=ends, fmt="none", ecolor=_color(bars["color"]), lw=3)
    look: dict[str, Any] = {"label": trace["name"], "linestyle": ""}
    if "lines" in trace["mode"]:
        curve = trace["line"]
        look |= {"linestyle": _DASHES[curve["dash"]], "color": _color(curve["color"])}
        if curve.get("shape") == "hv":
            look["drawstyle"] = "steps-post"
        if names:  # across all rows
            axes.axvline(x[0], **look)
            return
    if "markers" in trace["mode"]:
        marker = trace["marker"]
        look |= {"marker": _SYMBOLS[marker["symbol"]], "color": _color(marker["color"])}
        look["markersize"] = 0.7 * marker["size"]
        if marker["symbol"].endswith("-open"):
            look["markerfacecolor"] = "none"
    axes.plot(x, y, **look)


def _draw_bar(axes: Axes, trace: JSON, names: list[str]) -> None:
    marker = trace["marker"]
    color, pattern = _color(marker["color"]), marker.get("pattern")
    face = {"facecolor": "none", "hatch": 2 * pattern["shape"]} if pattern else {"facecolor": color}
    alpha = None if pattern else trace["opacity"]
    look = {"edgecolor": color, "label": trace["name"], "alpha": alpha, **face}
    axes.bar(trace["x"], trace["y"], trace["width"], **look)


def _draw_heatmap(axes: Axes, trace: JSON, names: list[str]) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    ends = [_color(color) for _, color in trace["colorscale"]]
    colors = LinearSegmentedColormap.from_list("share", ends)
    left, right, top, bottom = (edge for axis in "xy" for edge in _ends(trace[axis]))
    mesh = axes.imshow(
        trace["z"],
        cmap=colors,
        vmin=trace["zmin"],
        vmax=trace["zmax"],
        aspect="auto",
        interpolation="nearest",
        extent=(left, right, bottom, top),
    )
    if trace["showscale"]:
        axes.figure.colorbar(mesh, ax=axes, label=trace["colorbar"]["title"]["text"])


def _ends(middles: list[int]) -> tuple[float, float]:
    half = (middles[-1] - middles[0]) / max(len(middles) - 1, 1) / 2 or 0.5
    return middles[0] - half, middles[-1] + half


_DRAW = {"scatter": _draw_scatter, "bar": _draw_bar, "heatmap": _draw_heatmap}


def _finish(axes: Axes, layout: JSON, names: list[str], height: float) -> None:
    for which in "xy":
        given = layout[f"{which}axis"]
        getattr(axes, f"set_{which}label")(given["title"]["text"])
        if given.get("type") == "log":  # the axis of ε of several runs
            axes.set(xscale="log", xlim=[10**end for end in given["range"]])
            plain_ticks(axes)
        elif "range" in given:
            getattr(axes, f"set_{which}lim")(*given["range"])
        elif given.get("rangemode") == "tozero":
            low, high = getattr(axes, f"get_{which}lim")()
            getattr(axes, f"set_{which}lim")(min(low, 0.0) if low < -0.06 * high else 0.0, high)
    if names:
        words = [name.replace("<br>", "\n") for name in names]
        axes.set_yticks(range(len(names)), words)
        axes.set_ylim(-0.5, len(names) - 0.5)
    if layout["yaxis"].get("autorange") == "reversed" and not axes.images:
        axes.invert_yaxis()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        inches = axes.get_position().height * height
        words = [textwrap.shorten(label, 40) for label in labels]
        axes.legend(
            handles,
            words,
            loc="upper center",
            bbox_to_anchor=(0.5, -0.4736 / inches),
            ncols=1 + (len(words) > 3),
            frameon=False,
            fontsize=8.5,
        )


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
