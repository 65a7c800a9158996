"""The chart of scores: each canary's score against the expected one, and the κ that fits them."""

import numpy as np

from fl_epe.auditing import Adversary, Answer, AuditRecord, seen_by
from fl_epe.reporting import charts
from fl_epe.reporting.chart_epsilon import scored
from fl_epe.reporting.charts import SEEN, Chart, scatter
from fl_epe.reporting.numbers import number, signed

_WIDE = 1.96  # deviations about an expected score, within which 95% of scores are
_MOST_NULL = 100  # scores of canaries that took no part


def scores_chart(record: AuditRecord, answers: tuple[Answer, Answer]) -> Chart | None:
    """Score against expected score of each canary; ``None`` if nothing was measured."""
    traces, panels, told, count = [], [], [], 0
    for answer in answers:
        fit, scores, sees = answer.fit, answer.scores, answer.adversary.sees
        if fit is None or scores is None:
            continue
        name, (color, dash, symbol) = SEEN[sees], charts.LOOKS[sees]
        at = {"yaxis": charts.panel(len(panels))}
        sizes = seen_by(record, Adversary(sees)).sizes.observed
        count = max(count, len(sizes))
        chosen, times = charts.spread_out(len(sizes)), scored(record, len(sizes))
        ends = np.array([0.0, float(sizes.max(initial=0.0))])
        middle, label = fit.scale * ends, f"{name}, κ = {signed(fit.scale)}"
        hover = "%{customdata[0]} participations<br>expected score %{x:.3g}, score %{y:.3g}"
        traces += [
            charts.band(ends, middle - _WIDE, middle + _WIDE, f"{name}, band", color, **at),
            scatter("lines", ends, middle, label, color, dash, **at),
            scatter("markers", sizes[chosen], scores.observed[chosen], name, color, symbol, **at)
            | {"customdata": [[int(times[i])] for i in chosen], "showlegend": False}
            | {"hovertemplate": f"{hover}<extra>{name}</extra>"},
        ]
        if scores.unobserved is not None:
            y = scores.unobserved[charts.spread_out(len(scores.unobserved), _MOST_NULL)]
            more = {"size": 6, "showlegend": not panels, **at}
            zeros = np.zeros(len(y))
            traces.append(scatter("markers", zeros, y, "took no part", charts.PLAIN, "x", **more))
        panels.append(("score", 1.0, {"nticks": 5}))
        told.append(
            f"{name}: scores of {len(sizes):,} canaries are {signed(fit.scale)} times the expected "
            f"ones, {signed(fit.low)} to {signed(fit.high)}, with a deviation of "
            f"{number(fit.width)} about them"
        )
    if not panels:
        return None
    return Chart(
        name="scores",
        title="Does one κ fit all canaries?",
        caption="Each symbol is a canary: its score, in standard deviations of the noise, against "
        "the score to expect from its rounds. If one κ fits, the symbols lie about the line, 95% "
        f"of them in the shaded band. Canaries that took no part lie about 0."
        f"{charts.left_out(count, 'canaries')}",
        alternative=f"{'; '.join(told)}.",
        traces=tuple(traces),
        layout=charts.axes("expected score", *panels, rangemode="tozero"),
    )
