"""Carries a plan out in parallel processes, without what was measured before."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import json
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from fl_epe.checks import check_count
from fl_epe.files import no_link, write_text
from fl_epe.limit.measure import measure
from fl_epe.limit.plan import Cell, ComparisonPlan

RESULTS = "results.jsonl"

Result = dict[str, Any]
Results = dict[Cell, Result]


def carry_out(
    plan: ComparisonPlan,
    directory: Path,
    *,
    workers: int = 1,
    nodes: int = 1,
    on_cell: Callable[[int, int], None] | None = None,
) -> Results:
    """Measure every cell of a plan that ``directory`` does not hold yet.

    A comparison that was stopped goes on where it stood, and a larger one measures what is new.

    Args:
        plan: what to measure.
        directory: made if it is missing.
        workers: processes; with 1, everything happens in this one.
        nodes: threads of each training run; no influence on the result.
        on_cell: called with how many cells are done, and of how many.

    Raises:
        ValueError: if ``workers`` or ``nodes`` is less than 1.
        RuntimeError: if a worker process dies.
    """
    check_count("workers", workers)
    check_count("nodes", nodes)
    directory.mkdir(parents=True, exist_ok=True)
    cells, path = list(plan.cells()), directory / RESULTS
    known = _read(path)
    results = {cell: known[plan.key(cell)] for cell in cells if plan.key(cell) in known}
    missing = [cell for cell in cells if cell not in results]
    report = on_cell or (lambda done, total: None)
    report(len(results), len(cells))
    with open(path, "a", encoding="utf-8", opener=no_link) as file:
        one = functools.partial(measure, plan, directory=directory, nodes=nodes)
        for cell, result in _measured(plan, missing, one, workers):
            line = {"key": plan.key(cell), "cell": dataclasses.asdict(cell), "result": result}
            file.write(json.dumps(line, allow_nan=False) + "\n")
            file.flush()
            results[cell] = result
            report(len(results), len(cells))
    return {cell: results[cell] for cell in cells}


def _measured(
    plan: ComparisonPlan, cells: list[Cell], one: Callable[..., Result], workers: int
) -> Iterator[tuple[Cell, Result]]:
    if workers == 1 or len(cells) < 2:
        yield from ((cell, one(cell=cell)) for cell in cells)
        return
    # A fresh interpreter: threads of torch or BLAS do not survive a fork.
    pool = concurrent.futures.ProcessPoolExecutor(
        min(workers, len(cells)), multiprocessing.get_context("spawn"), _as_worker
    )
    try:
        groups: dict[Any, list[Cell]] = {}
        for cell in cells:  # without a task, all noise multipliers share the law of a schedule
            alone = cell if plan.task is not None else (cell.schedule, cell.participations)
            groups.setdefault(alone, []).append(cell)
        futures = [pool.submit(_each, one, group) for group in groups.values()]
        for future in concurrent.futures.as_completed(futures):
            yield from future.result()
    except concurrent.futures.process.BrokenProcessPool as error:
        raise RuntimeError(
            "A worker process died (out of memory?). Run the same command again to go on, with "
            "fewer workers."
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _each(one: Callable[..., Result], cells: list[Cell]) -> list[tuple[Cell, Result]]:
    return [(cell, one(cell=cell)) for cell in cells]


def _as_worker() -> None:
    """One thread for BLAS; a worker ends with the process that started it, however that ends."""
    threadpool_limits(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """Results by key; a last line that was cut off is dropped, from the file too.

    Raises:
        ValueError: if another line is not a result.
    """
    if not path.exists():
        return {}
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"Expected {path} to be text: {error}. Remove it to measure anew."
        ) from error
    if lines[-1]:  # every whole line ends in a newline
        write_text(path, "".join(line + "\n" for line in lines[:-1]))
    found = {}
    for number, line in enumerate(lines[:-1], 1):
        try:
            entry = json.loads(line)
            key, result = entry["key"], entry["result"]
            if not isinstance(key, str) or not isinstance(result, dict):
                raise TypeError
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(
                f"Expected line {number} of {path} to be a result. Remove it to measure it anew."
            ) from error
        found[key] = result
    return found
