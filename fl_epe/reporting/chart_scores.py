"""The chart of scores: each canary's score against the expected one, and the κ that fits them."""

import numpy as np

from fl_epe.auditing import Adversary, Answer, AuditRecord, seen_by
from fl_epe.reporting import charts
from fl_epe.reporting.chart_epsilon import scored
from fl_epe.reporting.charts import Chart, scatter
from fl_epe.reporting.numbers import JSON
from fl_epe.wording import number, signed

_WIDE = 1.96  # deviations about an expected score, within which 95% of scores are
_MOST_NULL = 100  # scores of canaries that took no part


def scores_chart(record: AuditRecord, answers: tuple[Answer, Answer]) -> Chart | None:
    """Score against expected score of each canary; ``None`` if nothing was measured."""
    traces, null, told = list[JSON](), list[JSON](), list[str]()
    for answer in answers:
        fit, scores, sees = answer.fit, answer.scores, answer.adversary.sees
        if fit is None or scores is None:
            continue
        name, (color, dash, symbol) = charts.seen(sees, record), charts.LOOKS[sees]
        sizes, at = (
            seen_by(record, Adversary(sees)).sizes.observed,
            charts.panel(len(told)),
        )
        chosen, times = charts.spread_out(len(sizes)), scored(record, len(sizes))
        ends = np.array([0.0, float(sizes.max(initial=0.0))])
        middle, label = fit.scale * ends, f"{name}, κ = {signed(fit.scale)}"
        hover = (
            "%{customdata[0]} participations<br>expected score %{x:.3g}, score %{y:.3g}"
        )
        points = scatter(
            "markers", sizes[chosen], scores.observed[chosen], name, color, symbol
        )
        drawn = [
            charts.band(ends, middle - _WIDE, middle + _WIDE, "band", color, yaxis=at),
            scatter("lines", ends, middle, label, color, dash, yaxis=at),
            points
            | {
                "customdata": [[int(times[i])] for i in chosen],
                "showlegend": False,
                "yaxis": at,
            }
            | {"hovertemplate": f"{hover}<extra>{name}</extra>"},
        ]
        traces += [trace | {"meta": name} for trace in drawn]
        if scores.unobserved is not None:
            y = scores.unobserved[charts.spread_out(len(scores.unobserved), _MOST_NULL)]
            look = (charts.PLAIN, "x")
            place: JSON = {"yaxis": at, "meta": name}
            null.append(
                scatter("markers", 0 * y, y, "took no part", *look, size=6, **place)
            )
        told.append(
            f"{name}: scores of {len(sizes):,} canaries are {signed(fit.scale)} times the expected "
            f"ones ({signed(fit.low)} to {signed(fit.high)}), and {number(fit.width)} about them"
        )
    if not told:
        return None
    return Chart(
        name="scores",
        title="Are scores as large as they should be?",
        caption="Each symbol is a canary: its score, in standard deviations of the noise, against "
        "the score to expect from its rounds. The slope of the line is κ, 1 in theory; if one κ "
        "fits all, 95% of the symbols lie in the shaded band. Canaries that took no part lie "
        "about 0." + charts.left_out(record.num_canaries, "canaries"),
        alternative=f"{'; '.join(told)}.",
        traces=charts.in_legend_once([*traces, *null]),
        layout=charts.axes(
            "expected score",
            *[("score", 1.0, {"nticks": 5})] * len(told),
            rangemode="tozero",
        ),
    )
