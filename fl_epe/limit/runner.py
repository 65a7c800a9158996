"""Carries a plan out in parallel processes: measures its cells, or trains and averages them."""

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

import numpy as np
import scipy
from threadpoolctl import threadpool_limits

from fl_epe.auditing import (
    Answer,
    AuditRecord,
    NotMeasured,
    answers,
    divergence,
    updates_lost,
)
from fl_epe.checks import finite
from fl_epe.config import RunConfig
from fl_epe.files import CHECKPOINT, RECORD, inside
from fl_epe.limit.client import ClientEpsilon, exceeds
from fl_epe.limit.measure import Row, measure
from fl_epe.limit.plan import COMMON, Cell, ComparisonPlan
from fl_epe.seeding import Seeds


def record_path(plan: ComparisonPlan, cell: Cell, directory: Path) -> Path:
    """Where a training run of a comparison in ``directory`` keeps its record."""
    return inside(directory, directory / "cells" / plan.key(cell) / RECORD)


def train(plan: ComparisonPlan, cell: Cell, directory: Path, nodes: int) -> Row:
    """Train, unless the record is there, or go on where an earlier attempt was stopped.

    Raises:
        ValueError: if the combination is impossible.
        NotMeasured: if there is no ε.
    """
    from fl_epe.simulation import Job, remove_checkpoint, simulate
    from fl_epe.tasks import load_task

    task = load_task(str(plan.task), **plan.task_options)
    common = {
        name: getattr(plan, name) for name in COMMON if getattr(plan, name) is not None
    }
    settings = {"clients": task.num_clients, **task.defaults, **plan.settings, **common}
    if (
        "clients_per_round" not in plan.settings
    ):  # clients take part as often as canaries
        share = cell.participations / settings.get("rounds", RunConfig.rounds)
        settings["clients_per_round"] = max(1, round(share * task.num_clients))
    settings |= {
        "participation": cell.schedule,
        "mechanism": cell.mechanism,
        "noise_multiplier": cell.noise_multiplier,
        "canary_participations": cell.participations,
    }
    config = RunConfig(**settings)
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
    accuracy = record.metrics.get("eval_accuracy", np.empty(0))
    return Row(
        *cell.place,
        delta=record.delta,
        clients=task.num_clients,
        answers=tuple(map(measured, answers(record, confidence=plan.confidence))),
        accuracy=finite(float(accuracy[-1])) if len(accuracy) else None,
        diverged="; ".join(filter(None, [*divergence(record), updates_lost(record)]))
        or None,
    )


def measured(answer: Answer) -> ClientEpsilon:
    """An answer of a report.

    Raises:
        NotMeasured: if there is no ε.
    """
    found = answer.estimate
    if found is None:
        raise NotMeasured(answer.reason)
    return ClientEpsilon(
        "median",
        answer.adversary.sees,
        answer.analytical,
        answer.participations,
        found.epsilon,
        found.low,
        found.high,
    )


def mean_of(plan: ComparisonPlan, found: Sequence[ClientEpsilon]) -> ClientEpsilon:
    """The mean of what independent trainings measured, with its interval."""
    low, middle, high = np.array(
        [(each.low, each.epsilon, each.high) for each in found]
    ).T
    mean, below, beyond = float(middle.mean()), 0.0, 0.0
    if math.isfinite(mean):
        below, beyond = (
            float(np.linalg.norm(middle - ends)) / len(found) for ends in (low, high)
        )
    often = float(np.mean([each.participations for each in found]))
    bounds = [each.theory.epsilon for each in found if each.theory.epsilon is not None]
    limit = float(np.mean(bounds)) if len(bounds) == len(found) else None
    # By more than chance allows, all comparisons of the plan taken together (Bonferroni).
    levels = (
        (1 + plan.confidence) / 2,
        1 - (1 - plan.confidence) / (2 * plan.combinations),
    )
    usual, strict = scipy.special.ndtri(levels)
    least = mean - max(float(strict / usual), 1.0) * below
    theory = dataclasses.replace(found[0].theory, epsilon=limit)
    return dataclasses.replace(
        found[0],
        participations=often,
        epsilon=mean,
        low=max(mean - below, 0.0),
        high=mean + beyond,
        theory=theory,
        above=exceeds(least, theory),
    )


def averaged(plan: ComparisonPlan, trainings: Sequence[Row]) -> Row:
    """The row of several trainings: the mean of their answers."""
    accuracies = [one.accuracy for one in trainings if one.accuracy is not None]
    return dataclasses.replace(
        trainings[0],
        answers=tuple(
            mean_of(plan, each)
            for each in zip(*(one.answers for one in trainings), strict=True)
        ),
        accuracy=float(np.mean(accuracies)) if accuracies else None,
        diverged=joined_reasons([one.diverged for one in trainings]),
    )


def joined_reasons(reasons: Sequence[str | None]) -> str | None:
    """The first reason of several measurements, with how many give one; ``None`` without any."""
    given = [reason for reason in reasons if reason]
    if not given or len(reasons) == 1:
        return given[0] if given else None
    return f"{given[0]} ({len(given)} of {len(reasons)} measurements)"


def carry_out(
    plan: ComparisonPlan,
    directory: Path,
    *,
    workers: int = 1,
    nodes: int = 1,
    on_cell: Callable[[int, int], None] = lambda done, total: None,
) -> list[Row]:
    """The rows of a comparison, in the order of the plan.

    Trainings whose records ``directory`` holds are not repeated, and one that was stopped goes on
    where it stood.

    Args:
        plan: what to measure.
        directory: where trainings keep their records.
        workers: processes; with 1, everything happens in this one.
        nodes: threads of each training run; no influence on the result.
        on_cell: called with how many cells are done, and of how many.

    Raises:
        RuntimeError: if a worker process dies.
    """
    # All noise multipliers of a schedule share a law, which its worker keeps.
    cells = sorted(plan.cells(), key=lambda cell: (cell.schedule, cell.participations))
    on_cell(0, len(cells))
    found: dict[Cell, Row] = {}
    for result in _measured(plan, cells, directory, workers, nodes):
        found[cells[len(found)]] = result
        on_cell(len(found), len(cells))
    groups = itertools.groupby(plan.cells(), lambda cell: cell.place)
    return [_row(plan, [found[cell] for cell in group]) for _, group in groups]


def _row(plan: ComparisonPlan, found: Sequence[Row]) -> Row:
    if failed := [row for row in found if row.skipped or row.not_measured]:
        reasons = joined_reasons([row.not_measured for row in found])
        return dataclasses.replace(failed[0], not_measured=reasons)
    return found[0] if plan.task is None else averaged(plan, found)


def _measured(
    plan: ComparisonPlan, cells: list[Cell], directory: Path, workers: int, nodes: int
) -> Iterator[Row]:
    one = functools.partial(_result, plan, directory, nodes)
    if min(workers, len(cells)) == 1:
        yield from map(one, cells)
        return
    # A fresh interpreter: threads of torch or BLAS do not survive a fork.
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(workers, context, _as_worker)
    together = len(plan.noise_multipliers) if plan.task is None else 1
    try:
        yield from pool.map(one, cells, chunksize=together)
    except concurrent.futures.process.BrokenProcessPool as error:
        raise RuntimeError(
            "A worker process died (out of memory?). Run the same again with fewer workers."
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _result(plan: ComparisonPlan, directory: Path, nodes: int, cell: Cell) -> Row:
    """What is found of a cell, or a row that says why nothing is."""
    try:
        return (
            measure(plan, cell)
            if plan.task is None
            else train(plan, cell, directory, nodes)
        )
    except NotMeasured as error:
        return Row(*cell.place, not_measured=str(error))
    except ValueError as error:
        return Row(*cell.place, skipped=str(error))


def _as_worker() -> None:
    """One thread for BLAS; a worker ends with the process that started it, however that ends."""
    threadpool_limits(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
