"""Measures the cells of a plan in parallel processes, or trains them and averages the results."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import itertools
import math
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import scipy
from threadpoolctl import threadpool_limits

from fl_epe.auditing import (
    AuditRecord,
    NotMeasured,
    answers,
    divergence,
    updates_lost,
)
from fl_epe.auditing.estimate import half_width
from fl_epe.checks import finite
from fl_epe.config import RunConfig
from fl_epe.files import CHECKPOINT, RECORD, inside
from fl_epe.limit.client import ClientEpsilon, exceeds
from fl_epe.limit.measure import Row, measure
from fl_epe.limit.plan import RUN_SETTINGS, Cell, ComparisonPlan
from fl_epe.seeding import Seeds

if TYPE_CHECKING:
    from fl_epe.tasks import Task


def record_path(plan: ComparisonPlan, cell: Cell, directory: Path) -> Path:
    """The path of the record of a training, for a comparison in ``directory``."""
    return inside(directory, directory / "cells" / plan.key(cell) / RECORD)


def train(plan: ComparisonPlan, cell: Cell, directory: Path, nodes: int) -> Row:
    """The row of one training, which is not repeated if ``directory`` has its record.

    A training that was stopped is continued.

    Raises:
        ValueError: if the combination is impossible.
        NotMeasured: if there is no ε.
    """
    from fl_epe.simulation import Job, remove_checkpoint, simulate
    from fl_epe.tasks import load_task

    task = load_task(str(plan.task), **plan.task_options)
    config = _config_of(plan, cell, task)
    path = record_path(plan, cell, directory)
    if path.exists():
        record = AuditRecord.load(path)
    else:
        seeds = Seeds.derive(int(plan.key(cell), 16) % 2**63)
        checkpoint = path.with_name(CHECKPOINT)
        job = Job(task, config, seeds, config.rounds)
        record = simulate(job, workers=nodes, checkpoint=checkpoint)
        record.save(path)
        remove_checkpoint(checkpoint)
    client_epsilons = []
    for answer in answers(record, confidence=plan.confidence):
        if answer.estimate is None:
            raise NotMeasured(answer.reason)
        client_epsilons.append(
            ClientEpsilon(
                client="median",
                sees=answer.adversary.sees,
                theory=answer.analytical,
                participations=answer.participations,
                epsilon=answer.estimate.epsilon,
                low=answer.estimate.low,
                high=answer.estimate.high,
            )
        )
    accuracy = record.metrics.get("eval_accuracy", np.empty(0))
    reasons = list(divergence(record))
    lost = updates_lost(record)
    if lost:
        reasons.append(lost)
    return Row(
        *cell.combination,
        delta=record.delta,
        clients=task.num_clients,
        answers=tuple(client_epsilons),
        accuracy=finite(float(accuracy[-1])) if len(accuracy) else None,
        diverged="; ".join(reasons) or None,
    )


def _config_of(plan: ComparisonPlan, cell: Cell, task: Task) -> RunConfig:
    """The settings of a training; by default, clients take part as often as canaries."""
    settings = {"clients": task.num_clients, **task.defaults, **plan.settings}
    for name in RUN_SETTINGS:
        value = getattr(plan, name)
        if value is not None:
            settings[name] = value
    if "clients_per_round" not in plan.settings:
        rounds = settings.get("rounds", RunConfig.rounds)
        size = round(cell.participations / rounds * task.num_clients)
        settings["clients_per_round"] = max(1, size)
    settings["participation"] = cell.schedule
    settings["mechanism"] = cell.mechanism
    settings["noise_multiplier"] = cell.noise_multiplier
    settings["canary_participations"] = cell.participations
    return RunConfig(**settings)


def averaged(plan: ComparisonPlan, trainings: Sequence[Row]) -> Row:
    """The row of several trainings, with the means of their answers."""
    accuracies = [row.accuracy for row in trainings if row.accuracy is not None]
    by_adversary = zip(*(row.answers for row in trainings), strict=True)
    return dataclasses.replace(
        trainings[0],
        answers=tuple(_mean(plan, answers) for answers in by_adversary),
        accuracy=float(np.mean(accuracies)) if accuracies else None,
        diverged=_joined_reasons([row.diverged for row in trainings]),
    )


def _mean(
    plan: ComparisonPlan, trainings: Sequence[ClientEpsilon]
) -> ClientEpsilon:
    """The mean ε of independent trainings, with its interval."""
    epsilons = np.array([training.epsilon for training in trainings])
    lows = np.array([training.low for training in trainings])
    highs = np.array([training.high for training in trainings])
    epsilon = float(epsilons.mean())
    lower_width = 0.0
    upper_width = 0.0
    if math.isfinite(epsilon):
        lower_width = float(np.linalg.norm(epsilons - lows)) / len(trainings)
        upper_width = float(np.linalg.norm(epsilons - highs)) / len(trainings)
    limits = [
        training.theory.epsilon
        for training in trainings
        if training.theory.epsilon is not None
    ]
    mean_limit = None
    if len(limits) == len(trainings):
        mean_limit = float(np.mean(limits))
    theory = dataclasses.replace(trainings[0].theory, epsilon=mean_limit)
    # ε exceeds the theoretical bound if a one-sided lower confidence bound does. The bounds of all
    # combinations and of both adversaries hold simultaneously (Bonferroni).
    strict_confidence = 1 - (1 - plan.confidence) / (2 * plan.combinations)
    quantile = float(scipy.special.ndtri(strict_confidence))
    widening = max(quantile / half_width(plan.confidence), 1.0)
    lower_bound = epsilon - widening * lower_width
    return dataclasses.replace(
        trainings[0],
        participations=float(
            np.mean([training.participations for training in trainings])
        ),
        epsilon=epsilon,
        low=max(epsilon - lower_width, 0.0),
        high=epsilon + upper_width,
        theory=theory,
        above=exceeds(lower_bound, theory),
    )


def _joined_reasons(reasons: Sequence[str | None]) -> str | None:
    """The first of the reasons why measurements failed, with the number of failures.

    It is ``None`` if all reasons are.
    """
    failures = [reason for reason in reasons if reason]
    if not failures:
        return None
    if len(reasons) == 1:
        return failures[0]
    return f"{failures[0]} ({len(failures)} of {len(reasons)} measurements)"


def carry_out(
    plan: ComparisonPlan,
    directory: Path,
    *,
    workers: int = 1,
    nodes: int = 1,
    on_cell: Callable[[int, int], None] = lambda done, total: None,
) -> list[Row]:
    """The rows of a comparison, in the order of the plan.

    Trainings whose records are in ``directory`` are not repeated, and one that was stopped is
    continued.

    Args:
        plan: the plan of the comparison.
        directory: the folder of the records of trainings.
        workers: the number of processes; with 1, everything runs in this one.
        nodes: the number of threads of each training, which does not change the result.
        on_cell: called with the number of measured cells, and the number of all cells.

    Raises:
        RuntimeError: if a worker process dies.
    """
    # All noise multipliers of a schedule share a law, which its worker computes once.
    cells = sorted(
        plan.cells(), key=lambda cell: (cell.schedule, cell.participations)
    )
    on_cell(0, len(cells))
    rows: dict[Cell, Row] = {}
    results = _results(plan, cells, directory, workers, nodes)
    for cell, row in zip(cells, results, strict=True):
        rows[cell] = row
        on_cell(len(rows), len(cells))
    groups = itertools.groupby(plan.cells(), lambda cell: cell.combination)
    return [
        _pooled(plan, [rows[cell] for cell in group]) for _, group in groups
    ]


def _pooled(plan: ComparisonPlan, replicates: Sequence[Row]) -> Row:
    """The row of all replicates; a row that has no ε if one of them has none."""
    for row in replicates:
        if row.skipped or row.not_measured:
            reasons = [replicate.not_measured for replicate in replicates]
            return dataclasses.replace(
                row, not_measured=_joined_reasons(reasons)
            )
    if plan.task is None:
        return replicates[0]
    return averaged(plan, replicates)


def _results(
    plan: ComparisonPlan,
    cells: list[Cell],
    directory: Path,
    workers: int,
    nodes: int,
) -> Iterator[Row]:
    """The row of each cell, in the order of ``cells``."""
    result_of = functools.partial(_result, plan, directory, nodes)
    if min(workers, len(cells)) == 1:
        yield from map(result_of, cells)
        return
    # Workers are fresh interpreters, as threads of torch or BLAS do not survive a fork.
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(workers, context, _as_worker)
    chunk = len(plan.noise_multipliers) if plan.task is None else 1
    try:
        yield from pool.map(result_of, cells, chunksize=chunk)
    except concurrent.futures.process.BrokenProcessPool as error:
        raise RuntimeError(
            "A worker process died (out of memory?). Run the same again with fewer workers."
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _result(
    plan: ComparisonPlan, directory: Path, nodes: int, cell: Cell
) -> Row:
    """The row of a cell, or a row with the reason why there is no ε."""
    try:
        if plan.task is None:
            return measure(plan, cell)
        return train(plan, cell, directory, nodes)
    except NotMeasured as error:
        return Row(*cell.combination, not_measured=str(error))
    except ValueError as error:
        return Row(*cell.combination, skipped=str(error))


def _as_worker() -> None:
    """Limit BLAS to one thread, and end this worker when the process that started it ends."""
    threadpool_limits(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
