"""What all pictures share: colours, legends, ticks, and the PNG of one."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ORANGE, BLUE, GREEN, BLACK = "#d55e00", "#0072b2", "#009e73", "#000000"
"""Of Okabe and Ito; observed canaries are orange, the null is blue, theorems are green."""


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


def legend(axes: Axes, **where: Any) -> None:
    """A small legend without a frame, at the top unless ``where`` says otherwise."""
    axes.legend(**{"fontsize": 7, "frameon": False, "loc": "upper center", "ncols": 2} | where)


def whole_rounds(axes: Axes) -> None:
    """Ticks of an axis of rounds at whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))


def rgb(colour: str) -> tuple[float, float, float]:
    """Red, green and blue in [0, 1], to which transparency may be added."""
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red, green, blue
