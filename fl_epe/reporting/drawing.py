"""What pictures outside a run's page share: colours, ticks, and the PNG of one."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ORANGE, BLUE, GREEN = "#d55e00", "#0072b2", "#009e73"
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
