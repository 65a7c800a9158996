"""Charts of a run: ε of each row, ε by round, the schedule, clip norms, loss and accuracy."""

import functools
import itertools
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fl_epe.accounting import analytical_epsilon
from fl_epe.auditing import AuditRecord, RoundEstimate, epsilon_by_round
from fl_epe.checks import Floats
from fl_epe.reporting.chart_scores import score_charts
from fl_epe.reporting.charts import (
    ANALYTICAL,
    BOUND,
    NULL,
    OBSERVED,
    Chart,
    axes,
    band,
    cells,
    epsilon_chart,
    intervals,
    left_out,
    line,
    secrecy,
    spread_out,
)
from fl_epe.reporting.numbers import JSON, number
from fl_epe.reporting.summary_types import RunSummary, StatisticSummary
from fl_epe.reporting.tables import analytical_text

_MOST_ROUNDS = 200  # of a curve
_BLOCKS = 60, 100  # of canaries and of rounds, in the picture of the schedule
_FEW = 12  # rounds for which Poisson sampling's ε is computed, as each takes a moment


def run_charts(record: AuditRecord, summary: RunSummary) -> list[Chart]:
    """All charts of a report that have something to show, in the order of the page."""
    charts = (
        chart_of_rows(summary),
        by_round(record, summary),
        *score_charts(record, summary),
        schedule(record),
        *training(record),
    )
    return [chart for chart in charts if chart is not None]


def chart_of_rows(summary: RunSummary) -> Chart | None:
    """ε of each row of the table with its interval, its lower bound and the analytical value."""
    shown = [row for row in summary.rows() if isinstance(row.part, StatisticSummary)]
    parts = [row.part for row in shown if isinstance(row.part, StatisticSummary)]
    if not parts:
        return None
    names = [f"{row.sees},<br>{row.name}" for row in shown]
    limit = summary.analytical.epsilon
    traces = intervals(names, parts)
    if limit is not None and math.isfinite(limit):
        hover = f"analytical ε = {number(limit)}"
        rule = line([limit] * len(names), [], "analytical", ANALYTICAL, dash="dash", hover=hover)
        traces.append(rule | {"y": names})
    return epsilon_chart(
        [f"{row.sees}, {row.name}" for row in shown],
        parts,
        [analytical_text(summary)] * len(parts),
        traces,
        name="epsilon",
        title="ε of each row",
        caption="Circles are estimates with their intervals, triangles lower bounds, the dashes "
        "the analytical value, which is an upper bound." + secrecy(summary.analytical.rounds_known),
        layout=axes("ε", "", x_axis={"rangemode": "tozero"}, y_axis={"autorange": "reversed"}),
        logs={"x": None},
    )


def by_round(record: AuditRecord, summary: RunSummary) -> Chart | None:
    """ε so far after each round, its interval that holds at every round at once, and theory's."""
    found = epsilon_by_round(
        record, summary.delta, confidence=summary.confidence, most=_MOST_ROUNDS
    )
    if not found:
        return None
    rounds = [e.round for e in found]
    theory = _analytical_so_far(record, summary, found)
    traces = _round_traces(found, theory, summary.confidence)
    last = found[-1]
    ends = f"{number(last.estimate.low)} to {number(last.estimate.high)}"
    some = left_out(len(found), record.rounds - rounds[0] + 1, "rounds")
    analytical, known_rounds = dict(theory), summary.analytical.rounds_known
    return Chart(
        name="by-round",
        title="ε so far, after each round",
        caption="For an attacker who has every round's model and knows who took part when. The "
        "shaded intervals hold at all rounds at once, so that one may look at any of them; they "
        f"are wider than those of one look at the end.{some}{secrecy(known_rounds)}",
        alternative=f"ε after round {rounds[0]} is {number(found[0].estimate.epsilon)}, after "
        f"round {last.round} {number(last.estimate.epsilon)} with the interval {ends}."
        + (f" Analytical at the end: {number(theory[-1][1])}." if theory else ""),
        traces=tuple(traces),
        layout=axes("round", "ε", y_axis={"rangemode": "tozero"}),
        headings=("round", "ε so far", "interval from", "to", "analytical"),
        rows=tuple(
            (
                str(e.round),
                *(number(v) for v in (e.estimate.epsilon, e.estimate.low, e.estimate.high)),
                number(analytical[e.round]) if e.round in analytical else "–",
            )
            for e in found
        ),
        logs={"y": None},
    )


def _round_traces(
    found: list[RoundEstimate], theory: list[tuple[int, float]], confidence: float
) -> list[JSON]:
    known = [e for e in found if math.isfinite(e.estimate.high)]
    traces = [
        band(
            [e.round for e in known],
            [e.estimate.low for e in known],
            [e.estimate.high for e in known],
            f"{confidence:.0%} interval, all rounds at once",
        ),
        line(
            [e.round for e in found],
            [e.estimate.epsilon for e in found],
            "ε so far",
            OBSERVED,
            hover="round %{x}: ε ≈ %{y:.3g}, %{customdata[0]} – %{customdata[1]}",
            customdata=[[number(e.estimate.low), number(e.estimate.high)] for e in found],
        )
        | {"mode": "lines+markers", "marker": {"color": OBSERVED, "size": 5, "symbol": "circle"}},
    ]
    if theory:
        stepped = line(
            [t for t, _ in theory],
            [epsilon for _, epsilon in theory],
            "analytical so far",
            ANALYTICAL,
            dash="dash",
            hover="round %{x}: analytical ε %{y:.3g}",
        )
        stepped["line"]["shape"] = "hv"
        traces.append(stepped)
    return traces


def _analytical_so_far(
    record: AuditRecord, summary: RunSummary, found: list[RoundEstimate]
) -> list[tuple[int, float]]:
    """Rounds and ε of theory, for the most participations so far; empty where it has no such."""
    limit, noise = summary.analytical.epsilon, record.mechanism.noise_multiplier
    if limit is None or not math.isfinite(limit) or not noise:
        return []
    whole_run = [(found[0].round, limit), (found[-1].round, limit)]
    if record.mechanism.strategy is not None:
        return whole_run
    kind = record.mechanism.participation
    poisson = kind == "poisson"  # whose ε depends on the rounds, not on participations

    @functools.cache
    def theory(participations: int, rounds: int) -> float:
        bound = analytical_epsilon(
            kind,
            noise,
            summary.delta,
            participations=participations,
            sampling_rate=min(1.0, record.mechanism.canary_participations / record.rounds),
            rounds=rounds,
        )
        return math.inf if bound is None else bound.epsilon

    shown = [found[i] for i in spread_out(len(found), _FEW)] if poisson else found
    steps = [
        (e.round, theory(math.ceil(e.participations), e.round if poisson else 1)) for e in shown
    ]
    if math.isclose(steps[-1][1], limit, rel_tol=1e-6):
        return steps
    return whole_run


def schedule(record: AuditRecord) -> Chart | None:
    """Who took part when; blocks of canaries and rounds where there are many."""
    if not record.rounds or not record.num_canaries or not record.presence.any():
        return None
    times, rounds = record.num_canaries, record.rounds
    rows, columns = (_edges(n, m) for n, m in zip((times, rounds), _BLOCKS, strict=True))
    shares = _block_means(record.presence, columns, rows)
    per_round = record.presence.sum(axis=1)
    merged = len(rows) - 1 < times or len(columns) - 1 < rounds
    counts = record.presence.sum(axis=0)
    some = (
        f" Each cell stands for up to {math.ceil(times / (len(rows) - 1)):,} canaries and "
        f"{math.ceil(rounds / (len(columns) - 1)):,} rounds, and shows the share that took part."
        if merged
        else ""
    )
    heat = {
        "type": "heatmap",
        "x": (columns[:-1] + 1).tolist(),
        "y": rows[:-1].tolist(),
        "z": [[round(float(share), 4) for share in line_] for line_ in shares],
        "zmin": 0,
        "zmax": float(max(shares.max(), 1e-9)),
        "colorscale": [[0, "@paper"], [1, BOUND]],
        "colorbar": {"title": {"text": "share"}, "thickness": 12},
        "showscale": merged,
        "hovertemplate": "from round %{x}, from canary %{y}: share %{z:.3g}<extra></extra>",
    }
    return Chart(
        name="schedule",
        title="Who took part when",
        caption=f"Canaries from top to bottom, rounds from left to right.{some}",
        alternative=f"{times:,} canaries in {rounds:,} rounds: a canary took part in "
        f"{counts.min()} to {counts.max()} rounds, {counts.mean():.3g} on average; a round had "
        f"{per_round.min():,} to {per_round.max():,} canaries.",
        traces=(heat,),
        layout=axes("round", "canary", y_axis={"autorange": "reversed"}),
        headings=("rounds", "canaries that took part, mean a round"),
        rows=tuple(
            (
                str(low + 1) if high == low + 1 else f"{low + 1} – {high}",
                f"{per_round[low:high].mean():,.4g}",
            )
            for low, high in itertools.pairwise(columns.tolist())
        ),
    )


def _edges(count: int, most: int) -> NDArray[np.int64]:
    return np.unique(np.linspace(0, count, min(count, most) + 1).round()).astype(np.int64)


def _block_means(
    presence: NDArray[np.bool_], columns: NDArray[np.int64], rows: NDArray[np.int64]
) -> Floats:
    """Share of presence in each block, shape ``(blocks of canaries, blocks of rounds)``."""
    by_row = np.add.reduceat(presence.astype(np.float64), columns[:-1], axis=0)
    both = np.add.reduceat(by_row, rows[:-1], axis=1)
    return np.asarray((both / np.outer(np.diff(columns), np.diff(rows))).T)


def training(record: AuditRecord) -> Iterator[Chart]:
    """Clip norm, loss and accuracy over the rounds."""
    rounds = np.arange(1.0, record.rounds + 1)
    norms = record.mechanism.clip_norms
    if record.rounds and np.isfinite(norms).any():
        yield _series("clip-norm", "Clip norm", "norm", {"clip norm": (rounds, norms)})
    elif record.rounds:
        moved = {"norm of the change": (rounds, record.norms.deltas)}
        yield _series("moved", "How far the model moved", "norm", moved)
    for what in ("loss", "accuracy"):
        series, name = {}, what if what == "loss" else record.design.metric.replace("_", " ")
        for key, words in (("train", "training"), ("eval", "held out")):
            values = np.asarray(record.metrics.get(f"{key}_{what}", np.empty(0)), np.float64)
            steps = rounds if key == "train" else record.metrics.get("eval_round", np.empty(0))
            if len(values) and len(values) == len(steps) and np.isfinite(values).any():
                series[f"{name}, {words}"] = (np.asarray(steps, np.float64), values)
        if series:
            yield _series(what, f"{name[:1].upper()}{name[1:]}", name, series)


def _series(name: str, title: str, y: str, series: dict[str, tuple[Floats, Floats]]) -> Chart:
    looks = ((OBSERVED, "solid"), (NULL, "dash"))
    traces, rows, told, some = [], [], [], ""
    for (label, (steps, values)), (color, dash) in zip(series.items(), looks, strict=False):
        chosen = spread_out(len(steps), _MOST_ROUNDS)
        some = some or left_out(len(chosen), len(steps), "rounds")
        hover = "round %{x}: %{y:.4g}"
        traces.append(line(steps[chosen], values[chosen], label, color, dash=dash, hover=hover))
        rows += [(label, f"{steps[i]:g}", *cells(float(values[i]))) for i in chosen]
        ends = cells(float(values[0]), float(values[-1]))
        told.append(f"{label}: {ends[0]} in round {steps[0]:g}, {ends[1]} in round {steps[-1]:g}")
    return Chart(
        name=name,
        title=title,
        caption=f"{title} over the rounds.{some}",
        alternative=f"{'; '.join(told)}.",
        traces=tuple(traces),
        layout=axes("round", y, y_axis={"rangemode": "tozero"}),
        headings=("series", "round", "value"),
        rows=tuple(rows),
        logs={} if name == "accuracy" else {"y": None},
    )
