"""What the trade-off figure names are lines that can be seen in it."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

from fl_epe.reporting.curve_figures import draw_trade_off
from fl_epe.reporting.drawn_data import Layer

RATES = np.concatenate([np.geomspace(1e-9, 0.5, 200), 1 - np.geomspace(1e-9, 0.5, 200)[::-1]])


def _layers(mu, limit):
    def curve(name, values):
        columns = {"false_positive_rate": RATES, "false_negative_rate": values}
        return Layer("every round", name, columns)

    gaussians = stats.norm.cdf(stats.norm.isf(RATES) - mu)
    return [
        curve("canaries", np.maximum(gaussians, 1e-3)),
        curve("two Gaussians", gaussians),
        curve("least by the analytical ε", limit(RATES)),
    ]


@pytest.mark.parametrize(
    ("mu", "limit", "named"),
    [
        pytest.param(1.0, lambda x: (1 - x) / 10, True, id="linear"),
        pytest.param(6.0, lambda x: np.where(x < 0.1, 0.1 - x, 0), True, id="logarithmic-seen"),
        pytest.param(6.0, lambda x: np.maximum(0, 1e-13 - x), False, id="logarithmic-outside"),
    ],
)
def test_the_legend_names_what_is_seen(mu, limit, named):
    figure = Figure()
    draw_trade_off(figure, _layers(mu, limit))
    (axes,) = figure.axes
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    wanted = ["blind guess", "analytical limit", "two Gaussians", "canaries"]
    assert names == [name for name in wanted if named or name != "analytical limit"]
