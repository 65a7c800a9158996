"""The picture of a chart, for a page without JavaScript, for print and for publication.

It draws the traces that `fl_epe.reporting.charts` makes, and no others: curves, areas, markers with
error bars, and bars, in panels one below the other.
"""

from __future__ import annotations

import base64
import io
import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fl_epe.checks import Floats
from fl_epe.reporting.charts import Chart
from fl_epe.reporting.numbers import JSON

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Colors on white; each has a contrast of at least 4.5 to 1, but for areas.
PALETTE = {
    "@every": "#b34700",
    "@final": "#0072b2",
    "@theory": "#00735a",
    "@plain": "#44403c",
}

_DASHES = {"solid": "-", "dash": "--", "dot": ":"}
_SYMBOLS = {"triangle-right": ">", "triangle-up": "^", "x": "x"}
_SYMBOLS |= {"circle": "o", "square": "s", "diamond": "D"}
# Sides of a point on which a label is: its offset in points, and which of its own ends is there.
_SIDES: dict[str, tuple[int, Any]] = {"top": (4, "bottom"), "bottom": (-4, "top")}
_SIDES |= {"left": (-6, "right"), "right": (6, "left")}
_SIZE = (
    5.0,
    4.0,
)  # inches; in print two stand side by side, and the text is to be read there
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


def picture(chart: Chart, ending: str, *, titled: bool = True) -> bytes:
    """The file of a chart's picture, as "svg", "pdf" or "png"; the same for the same chart.

    Args:
        chart: what to draw.
        ending: the format.
        titled: whether the title stands in the picture, for one that stands alone.
    """
    import matplotlib
    from matplotlib.figure import Figure

    layout, ys = chart.layout, [key for key in chart.layout if key.startswith("y")]
    names = next((list(t["y"]) for t in chart.traces if isinstance(t["y"][0], str)), [])
    height = 1.6 + 0.4 * len(names) if names else _SIZE[1]
    with (
        matplotlib.rc_context()
    ):  # whatever a matplotlibrc says, or who called this has set
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        figure = Figure(figsize=(_SIZE[0], height), dpi=_DPI, layout="constrained")
        shares = [np.ptp(layout[key]["domain"]) for key in ys]
        panels = figure.subplots(
            len(ys), sharex=True, squeeze=False, height_ratios=shares
        )[:, 0]
        for trace in chart.traces:
            panel = panels[ys.index(trace.get("yaxis", "y").replace("y", "yaxis"))]
            _draw(panel, trace, _numbers(trace["x"], []), _numbers(trace["y"], names))
        for key, panel in zip(ys, panels, strict=True):
            _finish_axis(panel, "y", layout[key], names)
            panel.spines[["top", "right"]].set_visible(False)
        _finish_axis(panels[-1], "x", layout["xaxis"], [])
        figure.align_ylabels()
        if titled:
            figure.suptitle(chart.title, fontsize=10.5)
        found = [panel.get_legend_handles_labels() for panel in panels]
        handles, words = (
            list(itertools.chain(*parts)) for parts in zip(*found, strict=True)
        )
        place: dict[str, Any] = {
            "loc": "outside lower center",
            "ncols": 1 + (len(words) > 3),
        }
        figure.legend(handles, words, fontsize=8.5, frameon=False, **place)
        buffer = io.BytesIO()
        figure.savefig(
            buffer, format=ending, metadata=_NO_DATE[ending] | {"Title": chart.title}
        )
    return buffer.getvalue()


def still(chart: Chart) -> str:
    """The picture as a data URI of an SVG file, beside a title of the page's own."""
    image = base64.b64encode(picture(chart, "svg", titled=False)).decode()
    return f"data:image/svg+xml;base64,{image}"


def _numbers(values: Iterable[Any], names: list[str]) -> Floats:
    return np.array(
        [names.index(v) if isinstance(v, str) else v for v in values], np.float64
    )


def _draw(axes: Axes, trace: JSON, x: Floats, y: Floats) -> None:
    if trace["type"] == "bar":
        axes.bar(x, y, trace["width"], color=PALETTE[trace["marker"]["color"]])
        return
    if "fill" in trace:
        axes.fill(x, y, color=PALETTE[trace["fillcolor"]], alpha=trace["opacity"], lw=0)
        return
    for which in "xy":
        if bars := trace.get(f"error_{which}"):
            ends: dict[str, Any] = {f"{which}err": [bars["arrayminus"], bars["array"]]}
            axes.errorbar(x, y, fmt="none", ecolor=PALETTE[bars["color"]], lw=2, **ends)
    look: dict[str, Any] = {
        "label": trace["name"] if trace.get("showlegend", True) else "_"
    }
    if trace["mode"] == "lines":
        curve = trace["line"]
        look |= {"linestyle": _DASHES[curve["dash"]], "color": PALETTE[curve["color"]]}
    else:
        marker = trace["marker"]
        symbol = marker["symbol"].removesuffix("-open")
        look |= {
            "marker": _SYMBOLS[symbol],
            "markersize": 0.7 * marker["size"],
            "linestyle": "",
        }
        look |= {"color": PALETTE[marker["color"]]}
        look |= {"markerfacecolor": "none"} if symbol != marker["symbol"] else {}
    axes.plot(x, y, **look)
    texts = zip(trace.get("text", ()), trace.get("textposition", ()), strict=True)
    for at, to, (words, place) in zip(x, y, texts, strict=False):
        (up, va), (across, ha) = (_SIDES[side] for side in place.split())
        axes.annotate(
            words, (at, to), (across, up), textcoords="offset points", va=va, ha=ha
        )


def _finish_axis(
    axes: Axes, which: Literal["x", "y"], given: JSON, names: list[str]
) -> None:
    getattr(axes, f"set_{which}label")(given["title"]["text"])
    if names:
        axes.set_yticks(range(len(names)), names)
    low, high = getattr(axes, f"get_{which}lim")()
    if given.get("type") == "log":
        axes.set_xscale("log")
        plain_ticks(axes)
    elif "range" in given:
        getattr(axes, f"set_{which}lim")(*given["range"])
    elif given.get("rangemode") == "tozero":
        getattr(axes, f"set_{which}lim")(low if low < -0.06 * high else 0.0, high)
    if "nticks" in given:
        axes.locator_params(axis=which, nbins=given["nticks"])
    if "tickvals" in given:
        axes.set_xticks(given["tickvals"])


def plain_ticks(axes: Axes) -> None:
    """Ticks of a logarithmic x-axis at 1, 2, 5, 10, … in plain figures."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.tick_params(axis="x", labelsize=8)
