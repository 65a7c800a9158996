"""All charts of a run, and those by round: ε so far, and how the training went."""

import math
from collections.abc import Iterator

import numpy as np

from fl_epe.accounting import epsilon_of_shift, shift_of_epsilon
from fl_epe.auditing import Answer, AuditRecord, epsilon_by_round
from fl_epe.checks import Floats
from fl_epe.reporting import charts
from fl_epe.reporting.chart_epsilon import epsilon_chart
from fl_epe.reporting.chart_scores import scores_chart
from fl_epe.reporting.charts import EVERY, FINAL, PLAIN, Chart, scatter
from fl_epe.reporting.numbers import JSON
from fl_epe.reporting.summary import Summary
from fl_epe.wording import counted, number, signed

_MOST_ROUNDS = 200  # of a curve


def run_charts(summary: Summary) -> list[Chart]:
    """All charts of a run that have something to show, in the order of the page."""
    if (record := summary.record) is None:
        return []
    found, every = summary.answers, summary.answers[1]
    drawn = (
        epsilon_chart(record, found),
        rounds_chart(record, every, summary.delta, summary.confidence),
        scores_chart(record, found),
        training_chart(record),
    )
    return [chart for chart in drawn if chart is not None]


def rounds_chart(
    record: AuditRecord, answer: Answer, delta: float, confidence: float = 0.95
) -> Chart | None:
    """ε so far after each round, its interval that holds at every round at once, and theory's."""
    so_far = epsilon_by_round(record, delta, confidence=confidence, most=_MOST_ROUNDS)
    if not so_far:
        return None
    rounds, last = np.array([now.round for now in so_far]), so_far[-1].estimate
    parts = [(e.estimate.epsilon, e.estimate.low, e.estimate.high) for e in so_far]
    middle, low, high = np.array(parts).T
    sure, sees = np.isfinite(high), last.adversary
    traces = [
        charts.band(rounds[sure], low[sure], high[sure], "interval", EVERY),
        scatter("lines", rounds, middle, "ε so far", EVERY, "solid"),
    ]
    limit, knows = (
        charts.known(answer.analytical.epsilon),
        answer.analytical.knows_rounds,
    )
    if sees and sees.knows_rounds == knows and math.isfinite(limit):
        shares = (
            np.array([now.participations for now in so_far]) / answer.participations
        )
        growth = np.sqrt(shares) if knows else np.ones(len(shares))
        name = "theory" if knows else "theory, at the end"
        theory = epsilon_of_shift(
            shift_of_epsilon(limit, last.delta) * growth, last.delta
        )
        traces.append(scatter("lines", rounds, theory, name, charts.THEORY, "dot"))
    later = high[len(high) // 2 :]  # the first intervals may be far wider
    highest = np.nanmax([limit, *middle, *later[np.isfinite(later)]])
    return Chart(
        name="rounds",
        title="ε so far, after each round",
        caption="For an adversary who sees every round's model. The shaded intervals hold at all "
        f"rounds at once ({confidence:.0%}), so that a run may be stopped by them; the "
        "answer's, for one look, is narrower."
        + charts.left_out(record.rounds, "rounds", _MOST_ROUNDS),
        alternative=f"ε after round {rounds[0]} is {number(middle[0])}, after round {rounds[-1]} "
        f"{number(last.epsilon)} with the interval {number(last.low)} to {number(last.high)}.",
        traces=tuple(trace | {"meta": charts.SEEN["all"]} for trace in traces),
        layout=charts.axes("round", ("ε", 1.0, {"range": [0, 1.1 * float(highest)]})),
        may_be_logarithmic=True,
    )


def training_chart(record: AuditRecord) -> Chart | None:
    """Loss, accuracy and clip norm by round, one below the other; ``None`` if nothing changed."""
    traces, told, panels = (
        list[JSON](),
        list[str](),
        dict[str, tuple[str, float, JSON]](),
    )
    for title, name, steps, values in _series(record):
        finite = values[np.isfinite(values)]
        if len(values) != len(steps) or not len(finite) or np.ptp(finite) == 0:
            continue
        panels[title] = (title, 1.0, {"nticks": 5, "rangemode": "tozero"})
        looks = {"held out": (FINAL, "solid"), "training": (PLAIN, "dash")}
        look = looks.get(name, (PLAIN, "dot"))
        at = charts.spread_out(len(steps), _MOST_ROUNDS)
        panel = charts.panel(list(panels).index(title))
        traces.append(
            scatter("lines", steps[at], values[at], name or title, *look, yaxis=panel)
        )
        ends = signed(float(values[0])), signed(float(values[-1]))
        told.append(f"{title} {name}".strip() + f" from {ends[0]} to {ends[1]}")
    if not traces:
        return None
    return Chart(
        name="training",
        title="How the training went",
        caption=f"{', '.join(panels).capitalize()} by round. These say how well the model learned, "
        f"not how private it is.{charts.left_out(record.rounds, 'rounds', _MOST_ROUNDS)}",
        alternative=f"Over {counted(record.rounds, 'round')}: {'; '.join(told)}.",
        traces=charts.in_legend_once(traces),
        layout=charts.axes("round", *panels.values()),
    )


def _series(record: AuditRecord) -> Iterator[tuple[str, str, Floats, Floats]]:
    """Title, name, rounds and values of each series of the training."""
    rounds, none = np.arange(1.0, record.rounds + 1), np.empty(0)
    evaluated = record.metrics.get("eval_round", none)
    metric = record.design.metric.replace("_", " ")
    for title, key in (("loss", "loss"), (metric, "accuracy"), ("ROC AUC", "auc")):
        yield title, "training", rounds, record.metrics.get(f"train_{key}", none)
        yield title, "held out", evaluated, record.metrics.get(f"eval_{key}", none)
    yield "clip norm", "", rounds, record.mechanism.clip_norms
