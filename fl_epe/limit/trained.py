"""A cell of a comparison by training, and what several trainings say together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy
from numpy.typing import NDArray

from fl_epe.accounting import (
    ExpectedScoreLaw,
    UpperBound,
    known_expected_score_epsilon,
    unknown_expected_score_epsilon,
    upper_bounds,
)
from fl_epe.auditing import (
    EVERY_ROUND,
    FINAL_MODEL,
    AuditRecord,
    View,
    divergence,
    expected_score_fit,
    seen_by,
)
from fl_epe.checks import finite
from fl_epe.limit.like import CHECKPOINT, RECORD
from fl_epe.limit.measure import client_sums, unknown_epsilon
from fl_epe.limit.plan import COMMON, Cell, ComparisonPlan
from fl_epe.limit.rows import Epsilon, Row, epsilon_at, is_above, quantiles, zero_out
from fl_epe.schedules import Schedule

_KEPT = 1e-3  # relative distance of the expected scores that are kept of a training


@dataclasses.dataclass(frozen=True)
class Scored:
    """The scores of a training, seen by one adversary.

    Attributes:
        mean: of the scores.
        variance: of the scores.
        count: how many they are.
        scale: κ, how many times their expected size they have; ``None`` if that is not known.
        error: standard error of ``scale``.
        law: of a client's expected score; ``None`` if it is not known.
    """

    mean: float
    variance: float
    count: int
    scale: float | None = None
    error: float = 0.0
    law: ExpectedScoreLaw | None = None


@dataclasses.dataclass(frozen=True)
class Training:
    """What is kept of a training.

    Attributes:
        schedule: of the canaries.
        clients: number of real clients.
        delta: target δ.
        mean_participations: of a canary.
        most_participations: of any canary.
        final: for an adversary who sees the final model.
        every_round: for an adversary who sees every round's model.
        energy: squared expected score of each round; ``None`` if it is not known.
        accuracy: on held-out data, if there are any.
        diverged: why the model has diverged.
    """

    schedule: Schedule
    clients: int
    delta: float
    mean_participations: float
    most_participations: int
    final: Scored
    every_round: Scored
    energy: NDArray[np.float64] | None
    accuracy: float | None
    diverged: tuple[str, ...] = ()


def record_path(plan: ComparisonPlan, cell: Cell, directory: Path) -> Path:
    """Where a training run of a comparison in ``directory`` keeps its record."""
    return directory / "cells" / plan.key(cell) / RECORD


def train(plan: ComparisonPlan, cell: Cell, directory: Path, nodes: int) -> Training:
    """Train, unless the record is there, or go on where an earlier attempt was stopped.

    Args:
        plan: what all cells share.
        cell: which one.
        directory: of the comparison, with its records and the checkpoint of a run that goes on.
        nodes: threads of the run.
    """
    from fl_epe.config import RunConfig
    from fl_epe.seeding import Seeds
    from fl_epe.simulation import Job, remove_checkpoint, simulate
    from fl_epe.tasks import load_task

    task = load_task(str(plan.task), **plan.task_options)
    common = {name: getattr(plan, name) for name in COMMON if getattr(plan, name) is not None}
    settings = {
        "clients": task.num_clients,
        "unobserved": 0,
        **task.defaults,
        **plan.settings,
        **common,
        "participation": cell.schedule,
        "noise_multiplier": cell.noise_multiplier,
        "canary_participations": cell.participations,
    }
    config, path = RunConfig.from_dict(settings), record_path(plan, cell, directory)
    if path.exists():
        record = AuditRecord.load(path)
    else:
        seeds = Seeds.derive(int(plan.key(cell), 16) % 2**63)
        checkpoint = path.with_name(CHECKPOINT)
        job = Job(task, config, seeds, config.rounds)
        record = simulate(job, workers=nodes, checkpoint=checkpoint)
        record.save(path)
        remove_checkpoint(checkpoint)
    schedule, clients, counts = config.canary_schedule(), task.num_clients, record.presence.sum(0)
    final, every_round = (seen_by(record, adversary) for adversary in (FINAL_MODEL, EVERY_ROUND))
    accuracy = record.metrics.get("eval_accuracy", np.empty(0))
    return Training(
        schedule,
        clients,
        record.delta,
        float(counts.mean()),
        int(counts.max()),
        _scored(final, schedule, clients, plan),
        _scored(every_round, schedule, clients, plan),
        energy=every_round.weights if record.signal_known() else None,
        accuracy=finite(float(accuracy[-1])) if len(accuracy) else None,
        diverged=tuple(divergence(record)),
    )


def _scored(view: View, schedule: Schedule, clients: int, plan: ComparisonPlan) -> Scored:
    record, observed, sees = view.record, view.scores().observed, view.adversary.sees
    found = Scored(float(observed.mean()), float(observed.var(ddof=1)), len(observed))
    if not record.signal_known() or (sees == "final" and not record.mechanism.server.linear):
        return found
    fit = expected_score_fit(view, confidence=plan.confidence)
    weights = np.zeros(schedule.rounds)  # also for rounds that a stopped run never reached
    weights[: len(view.weights)] = view.weights
    half = (1 + plan.confidence) / 2
    unit = client_sums(schedule, clients, weights, confidence=half, replicates=1, seed=plan.seed)
    law = unit.root() if sees == "all" else unit
    kept = law if law.equal else law.coarse(_KEPT)
    return dataclasses.replace(
        found,
        scale=fit.scale,
        error=(fit.high - fit.low) / 2 / float(scipy.special.ndtri(half)),
        law=dataclasses.replace(kept, drawn=unit.drawn, whole=unit.whole),
    )


def pooled(plan: ComparisonPlan, cell: Cell, trainings: Sequence[Training]) -> Row:
    """The row of the replicates of a cell.

    They are pooled before any ε is computed: their scales κ, with their standard errors, and their
    scores.
    """
    first = trainings[0]
    delta, clients = first.delta, first.clients
    bounds = upper_bounds(first.schedule, cell.noise_multiplier, delta, clients)
    known, unknown = (zero_out(bounds, rounds_known=k) for k in (True, False))
    accuracies = [one.accuracy for one in trainings if one.accuracy is not None]
    every_round = [one.every_round for one in trainings]
    return Row(
        *cell.place,
        replicates=len(trainings),
        delta=delta,
        clients=clients,
        mean_participations=float(np.mean([one.mean_participations for one in trainings])),
        most_participations=max(one.most_participations for one in trainings),
        final=_epsilon(plan, [one.final for one in trainings], known, delta, clients),
        every_round=_epsilon(plan, every_round, known, delta, clients),
        unknown_rounds=_unknown_rounds(plan, trainings, unknown),
        analytical_unknown_rounds=None if unknown is None else unknown.epsilon,
        accuracy=float(np.mean(accuracies)) if accuracies else None,
        diverged=told(["; ".join(one.diverged) for one in trainings]),
    )


def told(reasons: Sequence[str | None]) -> str | None:
    """The first reason of several measurements, with how many give one; ``None`` without any."""
    given = [reason for reason in reasons if reason]
    if not given or len(reasons) == 1:
        return given[0] if given else None
    return f"{given[0]} ({len(given)} of {len(reasons)} measurements)"


def _epsilon(
    plan: ComparisonPlan,
    parts: Sequence[Scored],
    bound: UpperBound | None,
    delta: float,
    clients: int,
) -> Epsilon:
    """For known rounds, from the scores of trainings."""
    usual, strict = quantiles(plan)
    counts = np.array([part.count for part in parts])
    middle = float(np.average([part.mean for part in parts], weights=counts))
    error = math.sqrt(float(np.maximum([part.variance for part in parts], 1.0) @ counts))
    error /= counts.sum()
    mean, low, high, least = (
        epsilon_at(middle + by * error, delta) for by in (0.0, -usual, usual, -strict)
    )
    of_mean = Epsilon(mean, low, high, bound, is_above(least, bound), mean=mean)
    laws = [part.law for part in parts if part.law is not None]
    if len(laws) < len(parts):
        return of_mean
    scale, error = _scale_of(parts)
    law = ExpectedScoreLaw.of(
        np.concatenate([each.expected_scores for each in laws]),
        np.concatenate([each.shares for each in laws]),
    )
    scores, shares = law.expected_scores, law.shares
    epsilon, low, high = (
        known_expected_score_epsilon(max(scale + by * error, 0.0) * scores, delta, weights=shares)
        for by in (0.0, -usual, usual)
    )
    share = scipy.special.ndtr(usual)  # the scale and the largest expected score share the risk
    sizes = [size for each in laws if (size := each.largest(clients, share)) is not None]
    largest = (scale + usual * error) * max(sizes, default=0.0)
    return dataclasses.replace(
        of_mean,
        epsilon=epsilon,
        low=low,
        high=high,
        simulated=any(each.drawn for each in laws),
        worst_case=epsilon_at(largest, delta) if len(sizes) == len(laws) else None,
        unaware=unknown_expected_score_epsilon(max(scale, 0.0) * scores, delta, weights=shares),
    )


def _unknown_rounds(
    plan: ComparisonPlan, trainings: Sequence[Training], bound: UpperBound | None
) -> Epsilon | None:
    """For unknown rounds: at the scale of the known rounds."""
    scaled = [one for one in trainings if one.energy is not None]
    if len(scaled) < len(trainings):
        return None
    usual, strict = quantiles(plan)
    scale, error = _scale_of([one.every_round for one in trainings])

    def at(by: float) -> float | None:
        each = [
            unknown_epsilon(one.schedule, one.energy, scale + by * error, one.delta)
            for one in scaled
            if one.energy is not None
        ]
        known = [epsilon for epsilon in each if epsilon is not None]
        return float(np.mean(known)) if len(known) == len(each) else None

    epsilon, low, high, least = (at(by) for by in (0.0, -usual, usual, -strict))
    if epsilon is None or low is None or high is None or least is None:
        return None
    return Epsilon(epsilon, low, high, bound, is_above(least, bound))


def _scale_of(parts: Sequence[Scored]) -> tuple[float, float]:
    """Mean of independent scales κ, and its standard error."""
    scales = [part.scale for part in parts if part.scale is not None]
    return float(np.mean(scales)), math.sqrt(sum(part.error**2 for part in parts)) / len(parts)
