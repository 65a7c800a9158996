"""The picture of a chart, for a page without JavaScript, for print and for publication.

It supports only the traces that `fl_epe.reporting.charts` makes: curves, areas, markers with
error bars, and bars, in panels one below the other.
"""

from __future__ import annotations

import base64
import io
import re
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fl_epe.reporting.charts import Chart, axis_of
from fl_epe.reporting.numbers import JSON

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fl_epe.checks import Floats

# Colors on white; except in areas, each has a contrast of at least 4.5 to 1.
PALETTE = {
    "@every": "#b34700",
    "@final": "#0072b2",
    "@theory": "#00735a",
    "@plain": "#44403c",
}

_DASHES = {"solid": "-", "dash": "--", "dot": ":"}
_SYMBOLS = {
    "triangle-right": ">",
    "triangle-up": "^",
    "x": "x",
    "circle": "o",
    "square": "s",
    "diamond": "D",
}
# For each side of a point on which a label may be: the offset in points, and the alignment.
_SIDES: dict[str, tuple[int, Any]] = {
    "top": (4, "bottom"),
    "bottom": (-4, "top"),
    "left": (-6, "right"),
    "right": (6, "left"),
}
# Sizes in inches: in print, two pictures stand side by side, and their text must be readable.
_WIDTH = 5.0
_HEIGHT = 4.0

# The height of a picture with a row for each name: of all but its rows, and of each row.
_MARGIN_HEIGHT = 1.6
_ROW_HEIGHT = 0.4

# The resolution of a PNG, in dots per inch.
_DPI = 200

# With more entries than this, the legend has two columns.
_MAX_IN_COLUMN = 3

# An axis from 0 shows negative values only if they are below this share of the highest value.
_NEGATIVE_SHARE = -0.06

_SETTINGS: dict[Any, Any] = {
    "font.size": 10,
    "svg.fonttype": "none",
    "svg.hashsalt": "fl-epe",
}

# The metadata of each file format, without a date or a version.
_METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}

FIGURE_FORMATS = tuple(_METADATA)
"""All file formats of figures."""


def picture(chart: Chart, ending: str, *, titled: bool = True) -> bytes:
    """The file of a chart's picture; equal charts have equal files.

    Args:
        chart: the chart to draw.
        ending: the format, one of `FIGURE_FORMATS`.
        titled: whether the picture has a title, as it needs outside of a page.
    """
    import matplotlib

    buffer = io.BytesIO()
    metadata = _METADATA[ending] | {"Title": chart.title}
    # The picture depends neither on a matplotlibrc nor on settings of the caller.
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        figure = _figure(chart)
        if titled:
            figure.suptitle(chart.title, fontsize=10.5)
        figure.savefig(buffer, format=ending, metadata=metadata)
    if ending == "svg":
        return _with_stable_ids(buffer.getvalue())
    return buffer.getvalue()


def _figure(chart: Chart) -> Figure:
    """The panels of a chart, and its legend."""
    from matplotlib.figure import Figure

    layout = chart.layout
    y_axes = [name for name in layout if name.startswith("y")]
    first_values = chart.traces[0]["y"]
    has_named_rows = isinstance(first_values[0], str)
    height = _HEIGHT
    if has_named_rows:
        height = _MARGIN_HEIGHT + _ROW_HEIGHT * len(first_values)
    figure = Figure(figsize=(_WIDTH, height), dpi=_DPI, layout="constrained")
    grid = figure.subplots(
        len(y_axes),
        sharex=True,
        squeeze=False,
        height_ratios=[np.ptp(layout[name]["domain"]) for name in y_axes],
    )
    panels = grid[:, 0]
    for trace in chart.traces:
        _draw(panels[y_axes.index(axis_of(trace))], trace)
    for name, panel in zip(y_axes, panels, strict=True):
        _finish_axis(panel, "y", layout[name])
        panel.spines[["top", "right"]].set_visible(False)
    _finish_axis(panels[-1], "x", layout["xaxis"])
    figure.align_ylabels()
    labels = [
        label
        for panel in panels
        for label in panel.get_legend_handles_labels()[1]
    ]
    figure.legend(
        loc="outside lower center",
        ncols=2 if len(labels) > _MAX_IN_COLUMN else 1,
        fontsize=8.5,
        frameon=False,
    )
    return figure


def _with_stable_ids(svg: bytes) -> bytes:
    """The picture with clip paths that are numbered in their order.

    Matplotlib derives their ids from coordinates, whose last bits differ between two calls.
    """
    ids = dict.fromkeys(re.findall(rb'<clipPath id="(\w+)"', svg))
    for number, clip_id in enumerate(ids):
        svg = svg.replace(clip_id, b"clip-%d" % number)
    return svg


def still(chart: Chart) -> str:
    """The picture as a data URI of an SVG file, without a title, which the page has."""
    image = base64.b64encode(picture(chart, "svg", titled=False)).decode()
    return f"data:image/svg+xml;base64,{image}"


def _draw(axes: Axes, trace: JSON) -> None:
    """Draw one trace: bars, an area, a curve, or markers."""
    x = np.array(trace["x"], np.float64)
    y = trace["y"]
    if not isinstance(y[0], str):
        y = np.array(y, np.float64)
    label = trace["name"] if trace.get("showlegend", True) else "_"
    if trace["type"] == "bar":
        axes.bar(x, y, trace["width"], color=PALETTE[trace["marker"]["color"]])
    elif "fill" in trace:
        axes.fill(
            x,
            y,
            color=PALETTE[trace["fillcolor"]],
            alpha=trace["opacity"],
            lw=0,
        )
    elif trace["mode"] == "lines":
        curve = trace["line"]
        axes.plot(
            x,
            y,
            color=PALETTE[curve["color"]],
            linestyle=_DASHES[curve["dash"]],
            label=label,
        )
    else:
        _draw_markers(axes, trace, x, y, label)


def _draw_markers(
    axes: Axes, trace: JSON, x: Floats, y: Any, label: str
) -> None:
    """Draw markers with their error bars and the texts beside them."""
    for letter in "xy":
        bars = trace.get(f"error_{letter}")
        if bars:
            lengths: dict[str, Any] = {
                f"{letter}err": [bars["arrayminus"], bars["array"]]
            }
            color = PALETTE[bars["color"]]
            axes.errorbar(x, y, fmt="none", ecolor=color, lw=2, **lengths)
    marker = trace["marker"]
    color = PALETTE[marker["color"]]
    symbol = marker["symbol"].removesuffix("-open")
    is_open = symbol != marker["symbol"]
    axes.plot(
        x,
        y,
        color=color,
        linestyle="",
        marker=_SYMBOLS[symbol],
        markersize=0.7 * marker["size"],
        markerfacecolor="none" if is_open else color,
        label=label,
    )
    for index, text in enumerate(trace.get("text", ())):
        vertical, horizontal = trace["textposition"][index].split()
        y_offset, vertical_alignment = _SIDES[vertical]
        x_offset, horizontal_alignment = _SIDES[horizontal]
        axes.annotate(
            text,
            (x[index], y[index]),
            (x_offset, y_offset),
            textcoords="offset points",
            va=vertical_alignment,
            ha=horizontal_alignment,
        )


def _finish_axis(
    axes: Axes, letter: Literal["x", "y"], properties: JSON
) -> None:
    """Set the label, limits and ticks of one axis."""
    changes = {f"{letter}label": properties["title"]["text"]}
    if properties.get("type") == "log":
        axes.set_xscale("log")
        plain_ticks(axes)
    elif "range" in properties:
        changes[f"{letter}lim"] = properties["range"]
    elif properties.get("rangemode") == "tozero":
        low, high = getattr(axes, f"get_{letter}lim")()
        start = low if low < _NEGATIVE_SHARE * high else 0.0
        changes[f"{letter}lim"] = (start, high)
    axes.set(**changes)
    if "nticks" in properties:
        axes.locator_params(axis=letter, nbins=properties["nticks"])
    if "tickvals" in properties:
        axes.set_xticks(properties["tickvals"])


def plain_ticks(axes: Axes) -> None:
    """Set the ticks of a logarithmic x-axis to 1, 2, 5, 10, …, without powers of ten."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.tick_params(axis="x", labelsize=8)
