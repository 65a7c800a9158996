"""What the figures of a publication draw beside those of the page, as layers of numbers.

ε against rounds, the trade-off of false positives and false negatives, expected scores, and who
took part when. See `fl_epe.reporting.drawn_data` for layers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from fl_epe.auditing import (
    EVERY_ROUND,
    FINAL_MODEL,
    Adversary,
    AuditRecord,
    ExpectedScoreFit,
    Scores,
    epsilon_by_round,
    seen_by,
)
from fl_epe.reporting.drawn_data import EVERY, FINAL, Layer
from fl_epe.reporting.summary_types import RunSummary, StatisticSummary

Floats = NDArray[np.float64]

MOST_COLUMNS, MOST_ROWS = 150, 200
"""Cells of the picture of a schedule; a larger one is averaged over neighbours."""

_RATES = np.union1d(np.linspace(0.0, 1.0, 201), np.logspace(-8.0, 0.0, 201))


def running_layers(record: AuditRecord, summary: RunSummary) -> list[Layer]:
    """ε so far after every round with the intervals of all rounds at once, and the analytical."""
    rounds = epsilon_by_round(
        record, summary.delta, confidence=summary.confidence, most=max(record.rounds, 1)
    )
    found = [(each.round, each.estimate) for each in rounds]
    columns = {
        "round": [number for number, _ in found],
        "epsilon": [estimate.epsilon for _, estimate in found],
        "low": [estimate.low for _, estimate in found],
        "high": [estimate.high for _, estimate in found],
    }
    layers = [Layer("running", "estimate so far", columns)] if found else []
    analytical = summary.analytical.epsilon
    if analytical is not None and math.isfinite(analytical):
        columns = {"round": [1, record.rounds], "epsilon": [analytical, analytical]}
        layers.append(Layer("running", "analytical, whole run", columns))
    return layers


def trade_off_layers(record: AuditRecord, summary: RunSummary) -> list[Layer]:
    """False positives and negatives of every threshold, of two Gaussians, and the claimed limit."""
    layers = []
    for panel, part in (
        (FINAL, summary.final.displacement),
        (EVERY, summary.every_round.matched_filter),
    ):
        if isinstance(part, StatisticSummary):
            layers += _trade_off(panel, part.scores)
            layers += _claimed(panel, summary.analytical.epsilon, summary.delta)
    return layers


def _trade_off(panel: str, scores: Scores) -> list[Layer]:
    observed, others = np.sort(scores.observed), scores.unobserved
    thresholds = np.concatenate([[-np.inf], np.unique(observed)])
    if others is None:
        false_positives = scipy.special.ndtr(-thresholds)
    else:
        thresholds = np.unique(np.concatenate([thresholds, others]))
        ranks = np.searchsorted(np.sort(others), thresholds, side="right")
        false_positives = 1 - ranks / len(others)
    false_negatives = np.searchsorted(observed, thresholds, side="right") / len(observed)
    null = (0.0, 1.0)
    if not scores.standard_null and others is not None:
        null = float(others.mean()), float(others.std(ddof=1))
    mean, deviation = float(observed.mean()), float(observed.std(ddof=1))
    cut = null[0] + null[1] * scipy.special.ndtri(1 - _RATES)
    curve = scipy.stats.norm.cdf(cut, mean, deviation) if deviation > 0 else 1.0 * (cut > mean)
    names = "false_positive_rate", "false_negative_rate"
    points = (false_positives, false_negatives)
    return [
        Layer(panel, "canaries", dict(zip(names, points, strict=True))),
        Layer(panel, "two Gaussians", dict(zip(names, (_RATES, curve), strict=True))),
    ]


def _claimed(panel: str, epsilon: float | None, delta: float) -> list[Layer]:
    """The least false negatives that (ε, δ)-DP allows; nothing without a theorem."""
    if epsilon is None or not math.isfinite(epsilon):
        return []
    corner = (1 - delta) / (1 + math.exp(min(epsilon, 700.0)))
    rates = np.unique(np.concatenate([_RATES, [corner]]))
    with np.errstate(over="ignore"):
        steep = 1 - delta - np.exp(min(epsilon, 700.0)) * rates
    flat = math.exp(-epsilon) * (1 - delta - rates)
    least = np.maximum(0.0, np.maximum(steep, flat))
    columns = {"false_positive_rate": rates, "false_negative_rate": least}
    return [Layer(panel, "least by the analytical ε", columns)]


def expected_score_layers(record: AuditRecord, summary: RunSummary) -> list[Layer]:
    """Score against expected score of every canary that took part, and the regression through 0."""
    layers = []
    sides: tuple[tuple[str, Adversary, Any, ExpectedScoreFit | None], ...] = (
        (FINAL, FINAL_MODEL, summary.final.displacement, summary.final.expected_scores),
        (
            EVERY,
            EVERY_ROUND,
            summary.every_round.matched_filter,
            summary.every_round.expected_scores,
        ),
    )
    for panel, adversary, part, fit in sides:
        if fit is None or not isinstance(part, StatisticSummary):
            continue
        sizes, ids = seen_by(record, adversary).expected_scores, record.observed.ids
        here = record.presence.any(axis=0) if adversary.sees == "all" else slice(None)
        numbers = np.arange(record.num_canaries) if ids is None else ids
        columns = {"canary": numbers[here], "expected_score": sizes, "score": part.scores.observed}
        ends = np.array([0.0, float(sizes.max()) * 1.05])
        line = {
            "expected_score": ends,
            "score": fit.scale * ends,
            "low": fit.low * ends,
            "high": fit.high * ends,
        }
        layers += [Layer(panel, "canaries", columns), Layer(panel, "regression", line)]
    return layers


def schedule_layers(record: AuditRecord, summary: RunSummary) -> list[Layer]:
    """Which canary took part in which round, in cells; many are averaged over neighbours.

    Canaries are in the order of their rounds, so that those with the same rounds are neighbours.
    """
    presence = record.presence[:, np.lexsort(record.presence[::-1])[::-1]]
    rounds, count = presence.shape
    row_edges = _edges(count, MOST_ROWS)
    round_edges = _edges(rounds, MOST_COLUMNS)
    sums = np.add.reduceat(presence.astype(float), round_edges[:-1], axis=0)
    sums = np.add.reduceat(sums, row_edges[:-1], axis=1)
    share = sums / np.outer(np.diff(round_edges), np.diff(row_edges))
    across, down = np.meshgrid(
        np.arange(len(round_edges) - 1), np.arange(len(row_edges) - 1), indexing="ij"
    )
    columns = {
        "round_from": round_edges[:-1][across].ravel() + 1,
        "round_to": round_edges[1:][across].ravel(),
        "canary_from": row_edges[:-1][down].ravel() + 1,
        "canary_to": row_edges[1:][down].ravel(),
        "share_that_took_part": share.ravel(),
    }
    return [Layer("schedule", "canaries in the order of their rounds", columns)]


def _edges(count: int, most: int) -> NDArray[np.int64]:
    return np.unique(np.linspace(0, count, min(count, most) + 1).round().astype(np.int64))
