"""Carries a plan out in parallel processes: measures its cells, or trains and pools them."""

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
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from fl_epe.accounting import (
    ExpectedScoreLaw,
    UpperBound,
    known_expected_score_epsilon,
    unknown_expected_score_epsilon,
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
from fl_epe.checks import finite
from fl_epe.config import RunConfig
from fl_epe.files import CHECKPOINT, RECORD
from fl_epe.limit.measure import (
    Epsilon,
    Row,
    bounds_of,
    client_law,
    epsilon_at,
    epsilon_beside,
    epsilon_of_unknown_rounds,
    measure,
    quantiles,
)
from fl_epe.limit.plan import COMMON, Cell, ComparisonPlan
from fl_epe.mechanism import strategy_matrix
from fl_epe.schedules import Schedule
from fl_epe.seeding import Seeds

_KEPT = 1e-3  # relative distance of the expected scores that are kept of a training


@dataclasses.dataclass(frozen=True)
class Scored:
    """The scores of a training, seen by one adversary."""

    mean: float
    variance: float
    count: int
    scale: float | None = None  # κ, how many times their expected size they have, if known
    error: float = 0.0  # standard error of the scale
    law: ExpectedScoreLaw | None = None  # of a client's expected score, if known


@dataclasses.dataclass(frozen=True)
class Training:
    """What is kept of a training."""

    schedule: Schedule  # of the canaries
    clients: int
    delta: float
    mean_participations: float  # of a canary
    most_participations: int  # of any canary
    final: Scored
    every_round: Scored
    energy: NDArray[np.float64] | None  # squared expected score of each round, if known
    accuracy: float | None  # on held-out data, if there are any
    diverged: tuple[str, ...] = ()  # why


def record_path(plan: ComparisonPlan, cell: Cell, directory: Path) -> Path:
    """Where a training run of a comparison in ``directory`` keeps its record."""
    return directory / "cells" / plan.key(cell) / RECORD


def train(plan: ComparisonPlan, cell: Cell, directory: Path, nodes: int) -> Training:
    """Train, unless the record is there, or go on where an earlier attempt was stopped."""
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
        "mechanism": cell.mechanism,
        "noise_multiplier": cell.noise_multiplier,
        "canary_participations": cell.participations,
    }
    config, path = RunConfig(**settings), record_path(plan, cell, directory)
    if path.exists():
        record = AuditRecord.load(path)
    else:
        seeds = Seeds.derive(int(plan.key(cell), 16) % 2**63)
        checkpoint, job = path.with_name(CHECKPOINT), Job(task, config, seeds, config.rounds)
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
        energy=every_round.weights if record.signal_known() and not config.strategy() else None,
        accuracy=finite(float(accuracy[-1])) if len(accuracy) else None,
        diverged=tuple(divergence(record)),
    )


def _scored(view: View, schedule: Schedule, clients: int, plan: ComparisonPlan) -> Scored:
    record, observed, sees = view.record, view.scores().observed, view.adversary.sees
    found = Scored(float(observed.mean()), float(observed.var(ddof=1)), len(observed))
    if not record.signal_known() or (sees == "final" and not record.mechanism.server.linear):
        return found
    fit = expected_score_fit(view, confidence=plan.confidence)
    half = (1 + plan.confidence) / 2
    if not view.adds_up(schedule):
        law = view.drawn_law(schedule, clients, confidence=half, seed=plan.seed)
    else:
        law = client_law(schedule, view.weights, clients, half, plan.seed)
        law = law.root() if sees == "all" else law
    return dataclasses.replace(
        found,
        scale=fit.scale,
        error=(fit.high - fit.low) / 2 / float(scipy.special.ndtri(half)),
        law=law if law.equal else law.coarse(_KEPT),
    )


def pooled(plan: ComparisonPlan, cell: Cell, trainings: Sequence[Training]) -> Row:
    """The row of a cell: scales κ and scores of its replicates are pooled before any ε."""
    schedule, clients, delta = trainings[0].schedule, trainings[0].clients, trainings[0].delta
    strategy = strategy_matrix(cell.mechanism, schedule.rounds)
    known, unknown = bounds_of(schedule, cell.noise_multiplier, delta, clients, strategy)
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
        analytical_unknown_rounds=unknown.epsilon,
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
    plan: ComparisonPlan, parts: Sequence[Scored], bound: UpperBound, delta: float, clients: int
) -> Epsilon:
    usual, _ = quantiles(plan)
    counts = np.array([part.count for part in parts])
    middle = float(np.average([part.mean for part in parts], weights=counts))
    error = math.sqrt(float(np.maximum([part.variance for part in parts], 1.0) @ counts))
    error /= counts.sum()
    of_mean = epsilon_beside(
        bound,
        plan,
        lambda by: epsilon_at(middle + by * error, delta),
        mean=epsilon_at(middle, delta),
    )
    laws = [part.law for part in parts if part.law is not None]
    if len(laws) < len(parts):
        return of_mean
    scale, spread = _scale_of(parts)
    law = ExpectedScoreLaw.of(
        np.concatenate([each.expected_scores for each in laws]),
        np.concatenate([each.shares for each in laws]),
    )
    scores, shares = law.expected_scores, law.shares
    epsilon, low, high = (
        known_expected_score_epsilon(max(scale + by * spread, 0.0) * scores, delta, weights=shares)
        for by in (0.0, -usual, usual)
    )
    share = scipy.special.ndtr(usual)  # the scale and the largest expected score share the risk
    sizes = [size for each in laws if (size := each.largest(clients, share)) is not None]
    largest = (scale + usual * spread) * max(sizes, default=0.0)
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
    plan: ComparisonPlan, trainings: Sequence[Training], bound: UpperBound
) -> Epsilon | None:
    """At the scale of the known rounds."""
    of_unknown = epsilon_of_unknown_rounds(trainings[0].schedule)
    energies = [one.energy for one in trainings if one.energy is not None]
    if of_unknown is None or len(energies) < len(trainings):
        return None
    scale, error = _scale_of([one.every_round for one in trainings])

    def epsilon_by(errors: float) -> float:
        sized = scale + errors * error
        return float(np.mean([of_unknown(each, sized, trainings[0].delta) for each in energies]))

    return epsilon_beside(bound, plan, epsilon_by)


def _scale_of(parts: Sequence[Scored]) -> tuple[float, float]:
    """Mean of independent scales κ, and its standard error."""
    scales = [part.scale for part in parts if part.scale is not None]
    return float(np.mean(scales)), math.sqrt(sum(part.error**2 for part in parts)) / len(parts)


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
    found: dict[Cell, Row | Training] = {}
    for result in _measured(plan, cells, directory, workers, nodes):
        found[cells[len(found)]] = result
        on_cell(len(found), len(cells))
    groups = itertools.groupby(plan.cells(), lambda cell: cell.place)
    return [_row(plan, [(cell, found[cell]) for cell in group]) for _, group in groups]


def _row(plan: ComparisonPlan, found: list[tuple[Cell, Row | Training]]) -> Row:
    trainings = [result for _, result in found if isinstance(result, Training)]
    if len(trainings) == len(found):
        return pooled(plan, found[0][0], trainings)
    first = next(result for _, result in found if isinstance(result, Row))
    reasons = [getattr(result, "not_measured", None) for _, result in found]
    return dataclasses.replace(first, not_measured=told(reasons))


def _measured(
    plan: ComparisonPlan, cells: list[Cell], directory: Path, workers: int, nodes: int
) -> Iterator[Row | Training]:
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


def _result(plan: ComparisonPlan, directory: Path, nodes: int, cell: Cell) -> Row | Training:
    """What is found of a cell, or a row that says why nothing is."""
    try:
        return measure(plan, cell) if plan.task is None else train(plan, cell, directory, nodes)
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
