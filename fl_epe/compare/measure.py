"""One measurement of a comparison: a schedule at one noise, in the limit or by training."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np

from fl_epe.accounting import upper_bounds
from fl_epe.asymptotics import limit_record
from fl_epe.auditing import (
    STATISTICS,
    AuditRecord,
    EpsilonEstimate,
    NotMeasured,
    RunSchedules,
    ThreatModel,
    divergence,
    epsilon_from_record,
    finite,
    footprints,
    random_client,
    scores_from_record,
    unknown_rounds_law,
)
from fl_epe.canaries import SCORE_MEMORY
from fl_epe.checks import ArgumentError, renamed
from fl_epe.compare.like import CHECKPOINT, RECORD, load_run, rounds_like, server_like
from fl_epe.compare.plan import CANARIES, CLIENTS, COMMON, ROUNDS, Cell, Plan
from fl_epe.schedules import Schedule, Trace, TraceSample, make_schedule, parse_schedule

_load_run = functools.lru_cache(maxsize=1)(load_run)
_MOMENTUM = 0.9


def record_path(plan: Plan, cell: Cell, directory: Path) -> Path:
    """Where a training run of a comparison in ``directory`` keeps its record."""
    return directory / "cells" / plan.key(cell) / RECORD


@dataclasses.dataclass(frozen=True)
class Machine:
    """What a training run may use; no influence on the result.

    Attributes:
        nodes: threads.
        score_memory: bytes for rounds that wait to be scored together.
    """

    nodes: int = 1
    score_memory: int = SCORE_MEMORY

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise ArgumentError("Expected {nodes} >= 1.", nodes=self.nodes)


def measure(
    plan: Plan, cell: Cell, directory: Path, machine: Machine | None = None
) -> dict[str, Any]:
    """Measure one cell of a plan.

    Returns JSON values, or ``{"skipped": reason}`` if the combination is impossible, or
    ``{"not_measured": reason}`` if it left no ε, such as a training in which no canary took part.

    Args:
        plan: what all cells share.
        cell: which one.
        directory: of the comparison; a training run keeps its record there, and its checkpoint
            while it runs.
        machine: what a training run may use.
    """
    seed = int(plan.key(cell), 16) % 2**63
    try:
        schedule, population, record = (
            _in_the_limit(plan, cell, seed)
            if plan.task is None
            else _by_training(plan, cell, seed, record_path(plan, cell, directory), machine)
        )
        given = RunSchedules(schedule, schedule, population)
        scores = {
            threat: _scores(record, threat) | _random_client(record, threat, plan.confidence, given)
            for threat in ("final", "all")
        }
        unknown_rounds = _unknown_rounds(record, plan.confidence)
    except NotMeasured as error:
        return {"not_measured": str(error)}
    except ValueError as error:
        return {"skipped": str(error)}
    return {
        "diverged": list(divergence(record)),
        "delta": record.delta,
        "rounds": record.rounds,
        "clients": population,
        "participations": _counts(record),
        **scores,
        "secret": unknown_rounds,
        "accuracy": _last(record, "eval_accuracy"),
        "guarantees": [
            {**dataclasses.asdict(bound), "epsilon": finite(bound.epsilon)}
            for bound in upper_bounds(schedule, cell.noise_multiplier, record.delta, population)
        ],
    }


def _in_the_limit(plan: Plan, cell: Cell, seed: int) -> tuple[Schedule, int, AuditRecord]:
    like = None if plan.like is None else _load_run(plan.like)
    rounds = rounds_like(like, plan.rounds, ROUNDS)
    kind, options = parse_schedule(cell.schedule)
    schedule = make_schedule(kind, rounds, cell.participations, **options)
    population = plan.clients or (like and like.provenance.config.get("clients")) or CLIENTS
    if isinstance(schedule, Trace | TraceSample):
        trace = schedule.trace if isinstance(schedule, TraceSample) else schedule
        population = trace.population
    with renamed(learning_rate="server_learning_rate", momentum="server_momentum"):
        setting = server_like(
            like, _MOMENTUM, learning_rate=plan.server_learning_rate, momentum=plan.server_momentum
        )
    setting["decay"] = setting.get("decay", 1.0) * plan.decay ** np.arange(rounds)
    record = limit_record(
        schedule,
        cell.noise_multiplier,
        population**-1.1 if plan.delta is None else plan.delta,
        num_canaries=plan.num_canaries or min(CANARIES, population),
        unobserved=0,
        population=None if kind == "trace-sample" else population,
        seed=seed,
        **setting,
    )
    return schedule, population, record


def _by_training(
    plan: Plan, cell: Cell, seed: int, path: Path, machine: Machine | None
) -> tuple[Schedule, int, AuditRecord]:
    """Train, or go on where an earlier attempt was stopped."""
    from fl_epe.config import RunConfig
    from fl_epe.flower import Job, simulate
    from fl_epe.seeding import Seeds
    from fl_epe.simulation import remove_checkpoint
    from fl_epe.tasks import load_task

    task = load_task(str(plan.task), **plan.task_options)
    common = {name: getattr(plan, name) for name in COMMON if getattr(plan, name) is not None}
    settings = {
        "unobserved": 0,
        **task.defaults,
        **plan.settings,
        **common,
        "participation": cell.schedule,
        "noise_multiplier": cell.noise_multiplier,
        "canary_participations": cell.participations,
    }
    config = RunConfig.from_dict({"clients": task.num_clients, **settings})
    if path.exists():
        return config.canary_schedule(), task.num_clients, AuditRecord.load(path)
    machine = machine or Machine()
    job = Job(task, config, Seeds.derive(seed), config.rounds, machine.score_memory)
    checkpoint = path.with_name(CHECKPOINT)
    record = simulate(job, workers=machine.nodes, checkpoint=checkpoint)
    record.save(path)
    remove_checkpoint(checkpoint)
    return config.canary_schedule(), task.num_clients, record


def _counts(record: AuditRecord) -> dict[str, float]:
    counts = record.presence.sum(axis=0)
    return {"mean": float(counts.mean()), "most": int(counts.max())}


def _scores(record: AuditRecord, threat: ThreatModel) -> dict[str, Any]:
    """Mean and variance of the scores, and the largest that a canary is expected to have."""
    observed = scores_from_record(record, threat, next(iter(STATISTICS[threat]))).observed
    linear = record.signal_known() and record.mechanism.server.get("name") == "sgd"
    largest = footprints(record, threat).max() if linear or threat == "all" else None
    return {
        "mean": float(observed.mean()),
        "variance": float(observed.var(ddof=1)),
        "count": len(observed),
        "largest": None if largest is None else float(largest),
    }


def _random_client(
    record: AuditRecord, threat: ThreatModel, confidence: float, schedules: RunSchedules
) -> dict[str, Any]:
    """ε of a random client, and of the most exposed of all clients; empty if it is not known."""
    if not record.signal_known() or (
        threat == "final" and record.mechanism.server.get("name") != "sgd"
    ):
        return {}
    found = random_client(record, threat=threat, confidence=confidence, schedules=schedules)
    out: dict[str, Any] = {"known": _ends(found.known), "unknown": _ends(found.unknown)}
    if found.largest is not None:
        out["of_all"] = _ends(found.largest.estimate) | {"clients": found.largest.clients}
    return out


def _ends(estimate: EpsilonEstimate) -> dict[str, float]:
    return {"epsilon": estimate.epsilon, "low": estimate.low, "high": estimate.high}


def _unknown_rounds(record: AuditRecord, confidence: float) -> dict[str, float] | None:
    """ε for an adversary who does not know the rounds, where the law has a closed form."""
    if unknown_rounds_law(record) is None:
        return None
    estimate = epsilon_from_record(
        record, threat="all", statistic="likelihood-ratio", confidence=confidence
    )
    return _ends(estimate)


def _last(record: AuditRecord, name: str) -> float | None:
    values = record.metrics.get(name, np.empty(0))
    return finite(float(values[-1])) if len(values) else None
