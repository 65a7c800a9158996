"""One measurement of a comparison: a schedule at one noise, in the limit or by training.

In the limit nothing is drawn where a schedule has a law in closed form: ε is computed. Where it has
none, populations are drawn, the same ones for every noise multiplier.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from fl_epe.accounting import (
    ExpectedScoreLaw,
    clients_law,
    delta_two_gaussians,
    epsilon_two_gaussians,
    known_expected_score_delta,
    known_expected_score_epsilon,
    poisson_epsilon,
    unknown_expected_score_epsilon,
    unknown_rounds_epsilon,
    upper_bounds,
)
from fl_epe.auditing import (
    EVERY_ROUND,
    FINAL_MODEL,
    AuditRecord,
    NotMeasured,
    View,
    divergence,
    expected_score_fit,
    seen_by,
)
from fl_epe.checks import finite, rename_arguments
from fl_epe.limit import limit_weights
from fl_epe.limit.like import CHECKPOINT, RECORD, load_run, rounds_like, server_like
from fl_epe.limit.plan import CLIENTS, COMMON, ROUNDS, Cell, ComparisonPlan
from fl_epe.schedules import Capped, Schedule, make_schedule, trace_of

Floats = NDArray[np.float64]

_load_run = functools.lru_cache(maxsize=1)(load_run)
_MOMENTUM = 0.9
_KEPT = 1e-3  # relative distance of the expected scores that a training's result keeps


def record_path(plan: ComparisonPlan, cell: Cell, directory: Path) -> Path:
    """Where a training run of a comparison in ``directory`` keeps its record."""
    return directory / "cells" / plan.key(cell) / RECORD


def measure(plan: ComparisonPlan, cell: Cell, directory: Path, nodes: int = 1) -> dict[str, Any]:
    """Measure one cell of a plan.

    Returns JSON values, or ``{"skipped": reason}`` if the combination is impossible, or
    ``{"not_measured": reason}`` if it left no ε, such as a training in which no canary took part.

    Args:
        plan: what all cells share.
        cell: which one.
        directory: of the comparison; a training run keeps its record there, and its checkpoint
            while it runs.
        nodes: threads of a training run.
    """
    try:
        if plan.task is None:
            return _in_the_limit(plan, cell)
        seed = int(plan.key(cell), 16) % 2**63
        path = record_path(plan, cell, directory)
        schedule, population, record = _by_training(plan, cell, seed, path, nodes)
        found: dict[str, Any] = {
            adversary.sees: _of_record(seen_by(record, adversary), schedule, population, plan)
            for adversary in (FINAL_MODEL, EVERY_ROUND)
        }
    except NotMeasured as error:
        return {"not_measured": str(error)}
    except ValueError as error:
        return {"skipped": str(error)}
    counts = record.presence.sum(axis=0)
    return {
        "diverged": list(divergence(record)),
        "delta": record.delta,
        "clients": population,
        "participations": {"mean": float(counts.mean()), "most": int(counts.max())},
        **found,
        "unknown": _unknown_rounds(schedule, seen_by(record, EVERY_ROUND).weights)
        if record.signal_known()
        else None,
        "accuracy": _last(record, "eval_accuracy"),
        "guarantees": _guarantees(schedule, cell.noise_multiplier, record.delta, population),
    }


def _guarantees(schedule: Schedule, z: float, delta: float, clients: int) -> list[dict[str, Any]]:
    return [
        {**dataclasses.asdict(bound), "epsilon": finite(bound.epsilon)}
        for bound in upper_bounds(schedule, z, delta, clients)
    ]


def _in_the_limit(plan: ComparisonPlan, cell: Cell) -> dict[str, Any]:
    """ε by the schedule's law, of a client drawn at random and of the worst case of all."""
    like = None if plan.like is None else _load_run(plan.like)
    rounds = rounds_like(like, plan.rounds, ROUNDS)
    schedule = _schedule(cell.schedule, rounds, cell.participations)
    clients = plan.clients or (like and like.design.num_clients) or CLIENTS
    if (trace := trace_of(schedule)) is not None:
        clients = trace.population
    with rename_arguments(learning_rate="server_learning_rate", momentum="server_momentum"):
        setting = server_like(
            like, _MOMENTUM, learning_rate=plan.server_learning_rate, momentum=plan.server_momentum
        )
    setting["decay"] = setting.get("decay", 1.0) * plan.decay ** np.arange(rounds)
    delta = clients**-1.1 if plan.delta is None else plan.delta
    final, every_round = limit_weights(rounds, cell.noise_multiplier, **setting)
    how = clients, plan.confidence, plan.replicates, plan.seed
    counts = _law(schedule, np.ones(rounds).tobytes(), *how)
    found = {}
    for sees, weights in (("final", final), ("all", every_round)):
        scale = float(weights.max())  # so that all noise multipliers share one law
        unit = _law(schedule, np.round(weights / scale, 12).tobytes(), *how)
        law = unit.scaled(scale).root() if sees == "all" else unit.scaled(scale)
        largest = law.largest(clients, plan.confidence)
        found[sees] = {
            **_of_law(law, delta, largest),
            "unaware": unknown_expected_score_epsilon(
                law.expected_scores, delta, weights=law.shares
            )
            if sees == "final"
            else None,
            "drawn": law.drawn,
            "error": _error_of(law, delta) if law.drawn else 0.0,
        }
    unknown = _unknown_rounds(schedule, every_round)
    return {
        "diverged": [],
        "log": None if trace is None else [trace.rounds, trace.rounds_with_clients],
        "delta": delta,
        "clients": clients,
        "participations": {
            "mean": counts.mean,
            "most": round(counts.largest(clients, plan.confidence) or counts.expected_scores[-1]),
        },
        **found,
        "unknown": unknown and {"epsilon": unknown_epsilon(unknown, 1.0, delta)},
        "accuracy": None,
        "guarantees": _guarantees(schedule, cell.noise_multiplier, delta, clients),
    }


@functools.lru_cache(maxsize=64)
def _schedule(spec: str, rounds: int, participations: float) -> Schedule:
    return make_schedule(spec, rounds, participations)


@functools.lru_cache(maxsize=16)
def _law(
    schedule: Schedule, weights: bytes, clients: int, confidence: float, replicates: int, seed: int
) -> ExpectedScoreLaw:
    """The law of Σ w_t over a client's rounds; weights as bytes, which can be a key."""
    found = clients_law(
        schedule,
        np.frombuffer(weights),
        clients,
        confidence=confidence,
        replicates=replicates,
        seed=seed,
    )
    if found is None:
        raise NotMeasured(
            "the schedule has no law in closed form, and to draw clients would take minutes"
        )
    return found


def _of_law(law: ExpectedScoreLaw, delta: float, largest: float | None) -> dict[str, Any]:
    """ε of a client drawn at random, of one with the mean expected score, and of the largest."""
    shifts = np.array([law.mean, largest or 0.0])
    mean, most = np.asarray(epsilon_two_gaussians(0.0, 1.0, shifts, 1.0, delta)).tolist()
    return {
        "epsilon": known_expected_score_epsilon(law.expected_scores, delta, weights=law.shares),
        "mean": mean,
        "worst_case": None if largest is None else most,
    }


def _error_of(law: ExpectedScoreLaw, delta: float) -> float:
    """Standard error of ε of a client drawn at random, by that of the mean of their δ."""
    epsilon = known_expected_score_epsilon(law.expected_scores, delta, weights=law.shares)
    each = np.asarray(delta_two_gaussians(0.0, 1.0, law.expected_scores, 1.0, epsilon))
    variance = max(float(law.shares @ each**2) - float(law.shares @ each) ** 2, 0.0)
    step = 1e-4 * epsilon
    if step == 0 or variance == 0:
        return 0.0
    low, high = (
        known_expected_score_delta(law.expected_scores, epsilon + s, weights=law.shares)
        for s in (-step, step)
    )
    return float(np.sqrt(variance / law.drawn) * 2 * step / (low - high))


def _by_training(
    plan: ComparisonPlan, cell: Cell, seed: int, path: Path, nodes: int
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
    job = Job(task, config, Seeds.derive(seed), config.rounds)
    checkpoint = path.with_name(CHECKPOINT)
    record = simulate(job, workers=nodes, checkpoint=checkpoint)
    record.save(path)
    remove_checkpoint(checkpoint)
    return config.canary_schedule(), task.num_clients, record


def _of_record(
    view: View, schedule: Schedule, clients: int, plan: ComparisonPlan
) -> dict[str, Any]:
    """The scores of a training, and what a client's law and the scale κ need to become an ε."""
    record, observed = view.record, view.scores().observed
    found: dict[str, Any] = {
        "mean": float(observed.mean()),
        "variance": float(observed.var(ddof=1)),
        "count": len(observed),
    }
    linear = record.mechanism.server.linear
    if not record.signal_known() or (view.adversary.sees == "final" and not linear):
        return found
    fit = expected_score_fit(view, confidence=plan.confidence)
    weights = view.weights
    missed = np.zeros(schedule.rounds - len(weights))  # rounds that a stopped run never reached
    half = (1 + plan.confidence) / 2
    unit = _law(schedule, np.append(weights, missed).tobytes(), clients, half, 1, plan.seed)
    law = unit.root() if view.adversary.sees == "all" else unit
    short = law if law.equal else law.coarse(_KEPT)
    return found | {
        "scale": fit.scale,
        "error": (fit.high - fit.low) / 2 / float(scipy.special.ndtri(half)),
        "drawn": unit.drawn,
        "whole": unit.whole,
        "expected_scores": short.expected_scores.tolist(),
        "shares": short.shares.tolist(),
    }


def _unknown_rounds(schedule: Schedule, energy: Floats) -> dict[str, Any] | None:
    """What `unknown_epsilon` takes, where a client's unknown rounds have a law in closed form.

    Args:
        schedule: the participation schedule.
        energy: squared expected score of each round that was, ``(rounds,)``.
    """
    while isinstance(schedule, Capped) and not schedule.refuses:
        schedule = schedule.schedule
    rounds, participations = len(energy), schedule.participations()
    signal = np.sqrt(np.maximum(energy, 1e-18))  # 0 in a round without a release
    if participations >= rounds * (1 - 1e-12):  # everybody in every round
        return {"epochs": [[float(a)] for a in signal]}
    if schedule.unknown_rounds == "coins":
        strength = float(np.sqrt(np.mean(signal**2)))
        return {"strength": strength, "rate": participations / rounds, "rounds": rounds}
    if schedule.unknown_rounds == "epochs" and participations == round(participations):
        return {"epochs": [part.tolist() for part in np.array_split(signal, round(participations))]}
    return None


def unknown_epsilon(facts: dict[str, Any], scale: float, delta: float) -> float:
    """ε of a client whose rounds the adversary does not know, at a scale κ of all signals."""
    if "epsilon" in facts:  # of the limit, where κ is 1
        return float(facts["epsilon"])
    if scale <= 0:
        return 0.0
    if "rate" in facts:
        return poisson_epsilon(
            1 / (scale * facts["strength"]), facts["rate"], facts["rounds"], delta
        )
    return unknown_rounds_epsilon([scale * np.array(part) for part in facts["epochs"]], delta)


def _last(record: AuditRecord, name: str) -> float | None:
    values = record.metrics.get(name, np.empty(0))
    return finite(float(values[-1])) if len(values) else None
