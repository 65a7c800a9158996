"""Carries a plan out in parallel processes."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from fl_epe.auditing import NotMeasured
from fl_epe.checks import check_count
from fl_epe.limit.measure import measure
from fl_epe.limit.plan import Cell, ComparisonPlan
from fl_epe.limit.rows import Row
from fl_epe.limit.trained import Training, pooled, told, train

Result = Row | Training


def carry_out(
    plan: ComparisonPlan,
    directory: Path,
    *,
    workers: int = 1,
    nodes: int = 1,
    on_cell: Callable[[int, int], None] | None = None,
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
        ValueError: if ``workers`` or ``nodes`` is less than 1.
        RuntimeError: if a worker process dies.
    """
    check_count("workers", workers)
    check_count("nodes", nodes)
    cells = list(plan.cells())
    report = on_cell or (lambda done, total: None)
    report(0, len(cells))
    found: dict[Cell, Result] = {}
    for results in _measured(plan, cells, directory, workers, nodes):
        found |= results
        report(len(found), len(cells))
    groups: dict[Any, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.place, []).append(cell)
    return [_row(plan, group[0], [found[cell] for cell in group]) for group in groups.values()]


def _row(plan: ComparisonPlan, cell: Cell, results: list[Result]) -> Row:
    trainings = [result for result in results if isinstance(result, Training)]
    if len(trainings) == len(results):
        return pooled(plan, cell, trainings)
    rows = [result for result in results if isinstance(result, Row)]
    if len(results) == 1 or rows[0].not_measured is None:
        return rows[0]
    reasons = [r.not_measured if isinstance(r, Row) else None for r in results]
    return Row(*cell.place, not_measured=told(reasons))


def _measured(
    plan: ComparisonPlan, cells: list[Cell], directory: Path, workers: int, nodes: int
) -> Iterator[dict[Cell, Result]]:
    groups: dict[Any, list[Cell]] = {}
    for cell in cells:  # without a task, all noise multipliers share the law of a schedule
        alone = cell if plan.task is not None else (cell.schedule, cell.participations)
        groups.setdefault(alone, []).append(cell)
    if workers == 1 or len(groups) < 2:
        yield from (_each(plan, [cell], directory, nodes) for cell in cells)
        return
    # A fresh interpreter: threads of torch or BLAS do not survive a fork.
    pool = concurrent.futures.ProcessPoolExecutor(
        min(workers, len(groups)), multiprocessing.get_context("spawn"), _as_worker
    )
    try:
        futures = [pool.submit(_each, plan, group, directory, nodes) for group in groups.values()]
        for future in concurrent.futures.as_completed(futures):
            yield future.result()
    except concurrent.futures.process.BrokenProcessPool as error:
        raise RuntimeError(
            "A worker process died (out of memory?). Run the same command again, with fewer "
            "workers."
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _each(
    plan: ComparisonPlan, cells: list[Cell], directory: Path, nodes: int
) -> dict[Cell, Result]:
    """What is found of each cell, or a row that says why nothing is."""
    found: dict[Cell, Result] = {}
    for cell in cells:
        try:
            found[cell] = (
                measure(plan, cell) if plan.task is None else train(plan, cell, directory, nodes)
            )
        except NotMeasured as error:
            found[cell] = Row(*cell.place, not_measured=str(error))
        except ValueError as error:
            found[cell] = Row(*cell.place, skipped=str(error))
    return found


def _as_worker() -> None:
    """One thread for BLAS; a worker ends with the process that started it, however that ends."""
    threadpool_limits(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
