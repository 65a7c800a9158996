"""Draws what a publication shows beside the page's pictures, from its layers.

ε against rounds, the trade-off of false positives and false negatives, expected scores, and who
took part when.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fl_epe.reporting.drawing import BLACK, BLUE, GREEN, ORANGE, legend, rgb, whole_rounds
from fl_epe.reporting.drawn_data import Layer, one_panel, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

_FAR_APART = 0.3  # false negatives at 10% false positives
_LEAST_RATE = 1e-8  # on logarithmic axes
_MANY_POINTS = 3000  # drawn as an image, so that a PDF stays small


def draw_running(figure: Figure, layers: Sequence[Layer]) -> None:
    """The estimate as a line in the band of the intervals that hold at every round at once."""
    axes = figure.subplots()
    parts = one_panel(layers, "running")
    found, known = parts["estimate so far"], parts.get("analytical, whole run")
    rounds, high = found["round"], found["high"]
    top = max(float(found["epsilon"].max()), float(high[-1]) if np.isfinite(high[-1]) else 0.0)
    if known is not None and known["epsilon"][0] < 3 * top:
        top = max(top, float(known["epsilon"][0]))
    top = 1.25 * top or 1.0
    axes.fill_between(
        rounds,
        found["low"],
        np.minimum(high, 10 * top),
        facecolor=(*rgb(ORANGE), 0.2),
        edgecolor=ORANGE,
        lw=0.6,
        label="interval, all rounds at once",
    )
    axes.plot(
        rounds,
        found["epsilon"],
        color=ORANGE,
        lw=1.5,
        marker="o" if len(rounds) < 40 else "",
        ms=2.5,
        label="ε of the rounds so far",
    )
    if known is not None:
        axes.plot(
            known["round"], known["epsilon"], color=GREEN, ls="--", label="analytical, whole run"
        )
    axes.set(xlabel="round", ylabel="ε", ylim=(0, 1.35 * top))
    whole_rounds(axes)
    legend(axes)


def draw_trade_off(figure: Figure, layers: Sequence[Layer]) -> None:
    """Error rates of every threshold, of two Gaussians, and the analytical limit."""
    names = panels(layers)
    for axes, panel in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        parts = one_panel(layers, panel)
        x, y = "false_positive_rate", "false_negative_rate"
        least = _trade_off_axes(axes, parts)
        blind = np.linspace(0, 1, 2) if least == 0 else _between(least)
        axes.plot(blind, 1 - blind, color="#8c8c8c", lw=0.8, ls=":", label="blind guess")
        if (claimed := parts.get("least by the analytical ε")) is not None:
            axes.fill_between(
                claimed[x], claimed[y], facecolor="none", edgecolor=GREEN, hatch="xxxx", lw=0
            )
            axes.plot(claimed[x], claimed[y], color=GREEN, ls="--", label="analytical limit")
        axes.plot(
            parts["two Gaussians"][x],
            parts["two Gaussians"][y],
            color=BLUE,
            lw=1,
            ls="-.",
            label="two Gaussians",
        )
        axes.step(
            np.maximum(parts["canaries"][x], least),
            np.maximum(parts["canaries"][y], least),
            color=ORANGE,
            lw=1.4,
            where="post",
            label="canaries",
        )
        axes.set(xlabel="false positives", ylabel="false negatives", aspect="equal")
        axes.set_title(panel, fontsize=9)
        _name_what_is_seen(axes)
        legend(axes, loc="upper right" if least == 0 else "best", ncols=1)


def _between(least: float) -> Floats:
    """Rates from ``least`` to 1 − ``least``, close to each other near both ends."""
    low = np.geomspace(least, 0.5, 100)
    return np.concatenate([low, 1 - low[::-1]])


def _name_what_is_seen(axes: Axes) -> None:
    """Leave lines out of the legend that lie wholly outside of the axes."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    for line in axes.lines:
        x, y = (np.asarray(values, float) for values in line.get_data())
        if not np.any((x >= left) & (x <= right) & (y >= bottom) & (y <= top)):
            line.set_label("_outside")


def _trade_off_axes(axes: Axes, parts: dict[str, Layer]) -> float:
    """Logarithmic where the two Gaussians are so far apart that little is seen otherwise.

    Returns:
        The rate at the lower end of logarithmic axes, at which rates of 0 are drawn; else 0.
    """
    gaussians, canaries = parts["two Gaussians"], parts["canaries"]
    x, y = (gaussians[name] for name in gaussians.columns)
    if np.interp(0.1, x, y) > _FAR_APART:
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        return 0.0
    rates = np.concatenate([canaries[name] for name in canaries.columns])
    equal = float(x[np.argmin(np.abs(x - y))])  # where both errors are as likely
    least = max(min(1e-3, 0.3 * float(rates[rates > 0].min()), 0.03 * equal), _LEAST_RATE)
    axes.set(xscale="log", yscale="log", xlim=(least, 1.3), ylim=(least, 1.3))
    return least


def draw_expected_scores(figure: Figure, layers: Sequence[Layer]) -> None:
    """Score against expected score, and the regression through 0 with its interval."""
    names = panels(layers)
    for axes, panel in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        parts = one_panel(layers, panel)
        points, line = parts["canaries"], parts["regression"]
        many = len(points["score"]) > _MANY_POINTS
        axes.plot(
            points["expected_score"],
            points["score"],
            "o",
            color=BLUE,
            ms=2.5,
            mfc="none",
            mew=0.6,
            rasterized=many,
            label="canaries",
        )
        axes.fill_between(
            line["expected_score"], line["low"], line["high"], lw=0, facecolor=(*rgb(ORANGE), 0.35)
        )
        axes.plot(line["expected_score"], line["score"], color=ORANGE, label="regression, interval")
        one = [0, line["expected_score"][-1]]
        axes.plot(one, one, color=BLACK, ls="--", lw=0.9, label="score = expected score")
        axes.set(xlabel="expected_score", ylabel="score", xlim=(0, None))
        axes.set_title(panel, fontsize=9)
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.3 * (high - low))
        legend(axes, loc="upper left", ncols=1)


def draw_schedule(figure: Figure, layers: Sequence[Layer]) -> None:
    """Cells that are the darker the more of their canaries took part."""
    axes, cells = figure.subplots(), layers[0]
    shape = len(np.unique(cells["round_from"])), len(np.unique(cells["canary_from"]))
    share = cells["share_that_took_part"].reshape(shape).T
    extent = (0.5, cells["round_to"].max() + 0.5, cells["canary_to"].max() + 0.5, 0.5)
    top = max(float(share.max()), 1e-9)
    image = axes.imshow(
        share, cmap="Greys", vmin=0, vmax=top, extent=extent, aspect="auto", interpolation="none"
    )
    axes.set(xlabel="round", ylabel="canary, in the order of rounds")
    whole_rounds(axes)
    if np.any((share > 0) & (share < top)):
        figure.colorbar(image, label="share that took part")
