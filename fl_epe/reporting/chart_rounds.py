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
from fl_epe.reporting.summary import CONFIDENCE, Summary
from fl_epe.wording import counted, number, signed

# The largest number of points of a curve.
_MAX_POINTS = 200

# The color and dash of each series of the training, by its name.
_LOOKS = {
    "held out": (FINAL, "solid"),
    "training": (PLAIN, "dash"),
    "": (PLAIN, "dot"),
}


def run_charts(summary: Summary) -> list[Chart]:
    """All charts of a run that have something to show, in the order of the page."""
    record = summary.record
    if record is None:
        return []
    answers = summary.answers
    drawn = (
        epsilon_chart(record, answers),
        rounds_chart(record, answers[1], summary.delta),
        scores_chart(record, answers),
        training_chart(record),
    )
    return [chart for chart in drawn if chart is not None]


def rounds_chart(
    record: AuditRecord, answer: Answer, delta: float
) -> Chart | None:
    """Draws ε so far after each round, its time-uniform interval, and what theory allows."""
    by_round = epsilon_by_round(
        record, delta, confidence=CONFIDENCE, max_rounds=_MAX_POINTS
    )
    if not by_round:
        return None
    rounds = np.array([after.round for after in by_round])
    estimates = [after.estimate for after in by_round]
    intervals = [
        (estimate.epsilon, estimate.low, estimate.high)
        for estimate in estimates
    ]
    middle, low, high = np.array(intervals).T
    bounded = np.isfinite(high)
    traces = [
        charts.band(
            rounds[bounded], low[bounded], high[bounded], "interval", EVERY
        ),
        scatter("lines", rounds, middle, "ε so far", EVERY, "solid"),
    ]
    limit = charts.drawable(answer.analytical.epsilon)
    last = estimates[-1]
    knows_rounds = answer.analytical.knows_rounds
    # Theory is drawn only if it is for the adversary of ε so far.
    is_alike = last.adversary and last.adversary.knows_rounds == knows_rounds
    if is_alike and math.isfinite(limit):
        shift = shift_of_epsilon(limit, last.delta)
        if knows_rounds:
            name = "theory"
            counts = np.array([after.participations for after in by_round])
            shifts = shift * np.sqrt(counts / answer.participations)
        else:
            name = "theory, at the end"
            shifts = np.full(len(rounds), shift)
        allowed = epsilon_of_shift(shifts, last.delta)
        traces.append(
            scatter("lines", rounds, allowed, name, charts.THEORY, "dot")
        )
    # The y-axis shows all ε, and the intervals of the second half of the rounds. The first
    # intervals may be far wider, and are cut.
    later = high[len(high) // 2 :]
    highest = np.nanmax([limit, *middle, *later[np.isfinite(later)]])
    return Chart(
        name="rounds",
        title="ε so far, after each round",
        caption="For an adversary who sees every round's model. The shaded intervals hold at all "
        f"rounds at once ({CONFIDENCE:.0%}), so that a run may be stopped by them; the "
        "answer's, for one look, is narrower."
        + charts.left_out(record.rounds, "rounds", _MAX_POINTS),
        alternative=f"ε after round {rounds[0]} is {number(middle[0])}, after round {rounds[-1]} "
        f"{number(last.epsilon)} with the interval {number(last.low)} to {number(last.high)}.",
        traces=tuple(
            trace | {"meta": charts.VIEW_NAMES["all"]} for trace in traces
        ),
        layout=charts.axes(
            "round", ("ε", 1.0, {"range": [0, 1.1 * float(highest)]})
        ),
        may_be_logarithmic=True,
    )


def training_chart(record: AuditRecord) -> Chart | None:
    """Draws loss, accuracy and clip norm by round; ``None`` if none of them changed."""
    traces = []
    clauses = []
    panels = dict[str, tuple[str, float, JSON]]()
    for title, name, steps, values in _series(record):
        finite = values[np.isfinite(values)]
        if len(values) != len(steps) or not len(finite) or np.ptp(finite) == 0:
            continue
        panels[title] = (title, 1.0, {"nticks": 5, "rangemode": "tozero"})
        drawn = charts.spread_out(len(steps), _MAX_POINTS)
        curve = scatter(
            "lines",
            steps[drawn],
            values[drawn],
            name or title,
            *_LOOKS[name],
            yaxis=charts.panel(list(panels).index(title)),
        )
        traces.append(curve)
        first = signed(float(values[0]))
        last = signed(float(values[-1]))
        clauses.append(f"{f'{title} {name}'.strip()} from {first} to {last}")
    if not traces:
        return None
    return Chart(
        name="training",
        title="How the training went",
        caption=f"{', '.join(panels).capitalize()} by round. These say how well the model learned, "
        f"not how private it is.{charts.left_out(record.rounds, 'rounds', _MAX_POINTS)}",
        alternative=f"Over {counted(record.rounds, 'round')}: {'; '.join(clauses)}.",
        traces=charts.in_legend_once(traces),
        layout=charts.axes("round", *panels.values()),
    )


def _series(record: AuditRecord) -> Iterator[tuple[str, str, Floats, Floats]]:
    """The panel's title, the name, the rounds and the values of each series of the training."""
    missing = np.empty(0)
    metrics = record.metrics
    rounds = np.arange(1.0, record.rounds + 1)
    evaluated = metrics.get("eval_round", missing)
    metric = record.design.metric.replace("_", " ")
    for title, key in (
        ("loss", "loss"),
        (metric, "accuracy"),
        ("ROC AUC", "auc"),
    ):
        yield title, "training", rounds, metrics.get(f"train_{key}", missing)
        yield title, "held out", evaluated, metrics.get(f"eval_{key}", missing)
    yield "clip norm", "", rounds, record.mechanism.clip_norms
