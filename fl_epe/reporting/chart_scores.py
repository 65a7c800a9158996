"""The chart of scores: each canary's score against the expected one, and the fitted κ."""

import numpy as np

from fl_epe.auditing import (
    Adversary,
    Answer,
    AuditRecord,
    LadderFit,
    Scores,
    Sees,
    seen_by,
)
from fl_epe.checks import Floats
from fl_epe.reporting import charts
from fl_epe.reporting.chart_epsilon import scored_participations
from fl_epe.reporting.charts import Chart, scatter
from fl_epe.reporting.numbers import JSON
from fl_epe.wording import number, signed

# 95% of the scores are within this number of standard deviations of the fitted score.
_BAND = 1.96

# The largest number of unobserved canaries in the chart.
_MAX_NULL = 100


def scores_chart(
    record: AuditRecord, answers: tuple[Answer, Answer]
) -> Chart | None:
    """Draws each canary's score against its expected score; ``None`` without scores."""
    traces = list[JSON]()
    null_traces = list[JSON]()
    clauses = list[str]()
    for answer in answers:
        fit = answer.fit
        scores = answer.scores
        if fit is None or scores is None:
            continue
        sees = answer.adversary.sees
        name = charts.view_name(sees, record)
        # Each adversary with scores has a panel and a clause.
        panel_index = len(clauses)
        panel_options: JSON = {"yaxis": charts.panel(panel_index), "meta": name}
        expected_scores = seen_by(
            record, Adversary(sees)
        ).expected_scores.observed
        traces += [
            trace | panel_options
            for trace in _observed_traces(
                record, sees, fit, scores, expected_scores
            )
        ]
        if scores.unobserved is not None:
            null_traces.append(_null_trace(scores.unobserved) | panel_options)
        clauses.append(
            f"{name}: scores of {len(expected_scores):,} canaries are {signed(fit.scale)} times "
            f"the expected ones ({signed(fit.low)} to {signed(fit.high)}), with a standard "
            f"deviation of {number(fit.width)} about them"
        )
    if not clauses:
        return None
    panels = [("score", 1.0, {"nticks": 5})] * len(clauses)
    return Chart(
        name="scores",
        title="Are scores as large as they should be?",
        caption="Each symbol is a canary: its score, in standard deviations of the noise, against "
        "the score to expect from its rounds. The slope of the line is κ, 1 in theory; if one κ "
        "fits all, 95% of the symbols lie in the shaded band. Canaries that took no part lie "
        "about 0." + charts.left_out(record.num_canaries, "canaries"),
        alternative=f"{'; '.join(clauses)}.",
        traces=charts.in_legend_once([*traces, *null_traces]),
        layout=charts.axes("expected score", *panels, rangemode="tozero"),
    )


def _observed_traces(
    record: AuditRecord,
    sees: Sees,
    fit: LadderFit,
    scores: Scores,
    expected_scores: Floats,
) -> list[JSON]:
    """The band, the line of slope κ, and the canaries that took part.

    Args:
        record: the record.
        sees: what the adversary sees.
        fit: the fit of κ.
        scores: the canaries' scores.
        expected_scores: the canaries' expected scores.
    """
    name = charts.view_name(sees, record)
    color, dash, symbol = charts.LOOKS[sees]
    ends = np.array([0.0, float(expected_scores.max(initial=0.0))])
    line = fit.scale * ends
    label = f"{name}, κ = {signed(fit.scale)}"
    plotted = charts.spread_out(len(expected_scores))
    counts = scored_participations(record, len(expected_scores))
    hover = "%{customdata[0]} participations<br>expected score %{x:.3g}, score %{y:.3g}"
    points = scatter(
        "markers",
        expected_scores[plotted],
        scores.observed[plotted],
        name,
        color,
        symbol,
    )
    points |= {
        "customdata": [[int(counts[canary])] for canary in plotted],
        "showlegend": False,
        "hovertemplate": f"{hover}<extra>{name}</extra>",
    }
    return [
        charts.band(ends, line - _BAND, line + _BAND, "band", color),
        scatter("lines", ends, line, label, color, dash),
        points,
    ]


def _null_trace(null: Floats) -> JSON:
    """The scores of the canaries that took no part."""
    plotted = charts.spread_out(len(null), _MAX_NULL)
    return scatter(
        "markers",
        np.zeros(len(plotted)),
        null[plotted],
        "took no part",
        charts.PLAIN,
        "x",
        size=6,
    )
