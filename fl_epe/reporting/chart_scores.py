"""Charts of scores: error rates beside the claimed region, histograms, and expected scores."""

import math
from collections.abc import Iterator

import numpy as np
import scipy

from fl_epe.auditing import EVERY_ROUND, FINAL_MODEL, Adversary, AuditRecord, Scores, View, seen_by
from fl_epe.checks import Floats
from fl_epe.reporting.charts import (
    ANALYTICAL,
    BOUND,
    NULL,
    OBSERVED,
    UNOBSERVED,
    Chart,
    axes,
    band,
    cells,
    left_out,
    line,
    points,
    secrecy,
    spread_out,
)
from fl_epe.reporting.numbers import JSON, number, signed
from fl_epe.reporting.summary_types import RunSummary, StatisticSummary

_MOST_RATES = 120  # points of a curve of error rates
_SMALLEST = 1e-5  # rate at which curves begin, as a logarithmic axis has no 0
_NOTHING = 1e-9  # a rate of 0, for the same reason
_BINS = 8, 40
_HEADLINES: tuple[tuple[Adversary, str], ...] = (
    (FINAL_MODEL, "only the finished model"),
    (EVERY_ROUND, "every round's model"),
)


def score_charts(record: AuditRecord, summary: RunSummary) -> Iterator[Chart]:
    """All charts of scores that have something to show."""
    measured = [
        (adversary, seen, part)
        for adversary, seen in _HEADLINES
        if isinstance(part := summary.headline(adversary.sees), StatisticSummary)
    ]
    for adversary, seen, part in measured:
        yield _trade_off(part, summary, adversary.sees, seen)
    for place, row in enumerate(summary.rows()):
        if isinstance(row.part, StatisticSummary):
            scale = math.sqrt(record.dim) if row.name == "paper's maximum" else 1.0
            yield histogram(row.part.scores, f"{row.sees}, {row.name}", place, scale)
    for adversary, seen, part in measured:
        if (found := by_canary(seen_by(record, adversary), part, seen)) is not None:
            yield found


def claimed_misses(false_alarms: Floats, epsilon: float, delta: float) -> Floats:
    """The fewest misses that (ε, δ)-DP allows a test with so many false alarms."""
    low = 1 - delta - math.exp(min(epsilon, 700.0)) * false_alarms
    high = math.exp(-epsilon) * (1 - delta - false_alarms)
    return np.asarray(np.maximum(np.maximum(low, high), 0.0))


def error_rates(scores: Scores) -> tuple[Floats, Floats, str]:
    """False alarms and misses of every threshold on scores, and where the former are from."""
    observed = np.sort(scores.observed)
    if scores.standard_null or scores.unobserved is None:
        thresholds = observed[spread_out(len(observed), _MOST_RATES)]
        false_alarms = scipy.stats.norm.sf(thresholds)
        source = "by the exact law of canaries that took no part"
    else:
        others = np.sort(scores.unobserved)
        both = np.sort(np.concatenate([observed, others]))
        thresholds = both[spread_out(len(both), _MOST_RATES)]
        false_alarms = 1 - np.searchsorted(others, thresholds) / len(others)
        source = f"counted on {len(others):,} canaries that took no part"
    misses = np.searchsorted(observed, thresholds) / len(observed)
    return np.asarray(false_alarms), np.asarray(misses), source


def _trade_off(part: StatisticSummary, summary: RunSummary, sees: str, seen: str) -> Chart:
    """Misses against false alarms, beside two Gaussians' and the region that is claimed."""
    false_alarms, misses, source = error_rates(part.scores)
    grid = np.concatenate([np.geomspace(_SMALLEST, 0.01, 40), np.linspace(0.0125, 1, 80)])
    mean, width = _gaussian(part)
    gaussian = scipy.stats.norm.cdf((scipy.stats.norm.isf(grid) - mean) / width)
    fitted = f"N(0, 1) and N({signed(mean)}, {number(width)}²)"
    hover, rates = "false alarms %{x:.3g}<br>misses %{y:.3g}", {"range": [-0.02, 1.02]}
    traces = [
        line(grid, 1 - grid, "blind guess", NULL, dash="dot"),
        line(grid, gaussian, fitted, UNOBSERVED, dash="dash"),
        points(false_alarms, misses, "measured", OBSERVED, size=6, hover=hover),
    ]
    shaded, claim = _claimed(grid, summary, sees)
    told = ", ".join(
        f"{rate:.0%} false alarms with {misses[false_alarms <= rate].min(initial=1.0):.0%} misses"
        for rate in (0.01, 0.1, 0.5)
    )
    return Chart(
        name=f"trade-off-{sees}",
        title=f"Errors of an attacker who has {seen}",
        caption="Each point is a threshold on the score: above it the attacker says that the "
        "canary took part. False alarms are canaries that did not, misses those that did. The "
        f"closer to the lower left corner, the more is leaked. {claim}",
        alternative=f"Misses against false alarms ({source}): {told}. Two Gaussians fit with a "
        f"mean of {signed(mean)} and a deviation of {number(width)}.",
        traces=(*shaded, *traces),
        layout=axes("false alarms", "misses", x_axis=rates, y_axis=rates),
        headings=("false alarms", "misses"),
        rows=tuple(cells(*pair) for pair in zip(false_alarms, misses, strict=True)),
        logs=dict.fromkeys(("x", "y"), (math.log10(_SMALLEST), 0.05)),
    )


def _claimed(grid: Floats, summary: RunSummary, sees: str) -> tuple[list[JSON], str]:
    limit = summary.analytical.epsilon
    if limit is None or not math.isfinite(limit):
        return [], "No theorem limits the error rates of this run, so no region is shaded."
    fewest = np.maximum(claimed_misses(grid, limit, summary.delta), _NOTHING)
    named = f"excluded by ε = {number(limit)}, δ = {summary.delta:.2g}"
    nothing = np.full_like(grid, _NOTHING)
    shaded = [
        band(grid.tolist(), nothing.tolist(), fewest.tolist(), named),
        line(grid, fewest, "limit by theory", ANALYTICAL, dash="longdash"),
    ]
    claim = "Theory excludes the shaded region below the long dashes"
    unknown = secrecy(summary.analytical.rounds_known) if sees == "all" else ""
    if unknown:
        return shaded, f"{claim} only for attackers who do not know the rounds.{unknown}"
    return shaded, f"{claim}; measured points may be in it by chance, as canaries are few."


def _gaussian(part: StatisticSummary) -> tuple[float, float]:
    """Mean and deviation of the observed scores, in units in which the others are N(0, 1)."""
    scores, (mean, width) = part.scores, part.moments
    if scores.standard_null or scores.unobserved is None:
        return mean, width
    null, unit = float(scores.unobserved.mean()), float(scores.unobserved.std(ddof=1))
    return (mean - null) / unit, width / unit


def histogram(scores: Scores, name: str, place: int, scale: float = 1.0) -> Chart:
    """Counts of observed and unobserved scores, and what the exact null would have."""
    observed = scale * scores.observed
    others = np.empty(0) if scores.unobserved is None else scale * scores.unobserved
    together = np.concatenate([observed, others])
    edges = np.histogram_bin_edges(together, int(np.clip(np.sqrt(len(together)), *_BINS)))
    middles, width = (edges[:-1] + edges[1:]) / 2, float(edges[1] - edges[0])
    took, not_took = (np.histogram(group, edges)[0] for group in (observed, others))
    traces = [_bars(middles, width, took, "took part", OBSERVED, "")]
    if len(others):
        traces.append(_bars(middles, width, not_took, "took no part", UNOBSERVED, "/"))
    if scores.standard_null:
        grid = np.linspace(min(together.min(), -3.0), max(together.max(), 3.0), 160)
        traces.append(line(grid, scipy.stats.norm.pdf(grid), "N(0, 1)", NULL, dash="dash"))
    groups = (("took part", observed), ("took no part", others))
    told = "; ".join(
        f"{len(group):,} that {what}: mean {signed(float(group.mean()))}, deviation "
        f"{number(float(group.std(ddof=1)))}"
        for what, group in groups
        if len(group)
    )
    return Chart(
        name=f"scores-{place}",
        title=f"Scores: {name}",
        caption="Filled bars are canaries that took part, hatched ones those that did not, the "
        "dashed curve what the scores of the latter follow. The farther apart, the better is "
        "remembered who took part.",
        alternative=f"Histogram of scores of canaries. {told}.",
        traces=tuple(traces),
        layout={**axes("score", "density"), "barmode": "overlay"},
        headings=("score from", "to", "took part", "took no part"),
        rows=tuple(
            (*cells(low, high), f"{a:,}", f"{b:,}")
            for low, high, a, b in zip(edges[:-1], edges[1:], took, not_took, strict=True)
        ),
    )


def _bars(
    middles: Floats, width: float, counts: Floats, name: str, color: str, pattern: str
) -> dict[str, object]:
    total = max(1, int(counts.sum()))
    marker: dict[str, object] = {"color": color, "line": {"color": color, "width": 1.5}}
    if pattern:
        marker |= {"pattern": {"shape": pattern, "fgcolor": color, "bgcolor": "rgba(0,0,0,0)"}}
    return {
        "type": "bar",
        "name": name,
        "x": [round(float(x), 5) for x in middles],
        "y": [float(f"{count / total / width:.5g}") for count in counts],
        "width": width,
        "marker": marker,
        "opacity": 0.75,
        "customdata": [int(count) for count in counts],
        "hovertemplate": "score %{x:.3g}: %{customdata} of "
        f"{total:,} canaries<extra>{name}</extra>",
    }


def by_canary(view: View, part: StatisticSummary, seen: str) -> Chart | None:
    """Score against expected score of each canary; ``None`` where expected scores are not known."""
    record = view.record
    sgd = record.mechanism.server.linear
    if not record.signal_known() or not (sgd or view.adversary.sees == "all"):
        return None
    sizes, times = view.all_expected_scores, record.presence.sum(axis=0)
    ids = np.arange(record.num_canaries) if record.observed.ids is None else record.observed.ids
    if len(part.scores.observed) != len(sizes):
        here = times > 0
        sizes, times, ids = sizes[here], times[here], ids[here]
    chosen = spread_out(len(sizes))
    x, y = sizes[chosen], part.scores.observed[chosen]
    facts = [[int(ids[i]), int(times[i])] for i in chosen]
    ends = np.array([0.0, float(sizes.max())])
    hover = (
        "canary %{customdata[0]}<br>participations %{customdata[1]}<br>"
        "expected score %{x:.3g}<br>score %{y:.3g}"
    )
    slope = float(sizes @ part.scores.observed / max(float(sizes @ sizes), 1e-300))
    return Chart(
        name=f"expected-scores-{view.adversary.sees}",
        title=f"Each canary's score, for an attacker who has {seen}",
        caption="An expected score is what a canary should have from the rounds in which it took "
        "part. On the dashed line a score is as expected; noise scatters them by 1 up and "
        f"down.{left_out(len(chosen), len(sizes), 'canaries')}",
        alternative=f"Scores of {len(sizes):,} canaries against their expected scores, which lie "
        f"between {number(float(sizes.min()))} and {number(float(sizes.max()))}; participations "
        f"between {times.min()} and {times.max()}. Scores are {number(max(slope, 0.0))} times what "
        "expected scores predict.",
        traces=(
            points(x, y, "canary", BOUND, symbol="circle-open", size=7, hover=hover)
            | {"customdata": facts},
            line(ends, ends, "as expected", NULL, dash="dash"),
        ),
        layout=axes("expected score", "score", x_axis={"rangemode": "tozero"}),
        headings=("canary", "participations", "expected score", "score"),
        rows=tuple(
            (str(number_of), str(count), *cells(a, b))
            for (number_of, count), a, b in zip(facts, x, y, strict=True)
        ),
    )
