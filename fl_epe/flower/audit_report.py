"""The report of an audit, which never raises: training is over, and must not be lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fl_epe.auditing import AuditRecord
from fl_epe.flower.audit_record import config
from fl_epe.flower.run_state import RunState

Record = Callable[[], AuditRecord]


def report(record: Record, run: RunState, folder: Path | None) -> str:
    """The report as text; with a folder, also record.npz, report.json and report.html.

    Args:
        record: makes the record; raises where there is none.
        run: what is known without it.
        folder: where to write.
    """
    problems: list[str] = []
    for write in (_measured, _unmeasured):
        try:
            return "\n".join([write(record, run, folder), *problems])
        except Exception as error:  # noqa: BLE001 - the other is written
            if run.index == 0:
                continue  # there is nothing to report
            problems.append(f"The report is incomplete: {type(error).__name__}: {error}")
            run.failed("the report could not be made", error, run.index - 1)
    with contextlib.suppress(Exception):
        return "\n".join([_unmeasured(record, run, None), *problems])
    return "\n".join(["ε: not measured", *problems, *run.log.faults])


def _measured(record: Record, run: RunState, folder: Path | None) -> str:
    from fl_epe.reporting import as_text, summarize, write_report  # slow to import

    found, lost = record(), list[str]()
    if folder is not None:
        writers: dict[str, Callable[[], object]] = {
            "record.npz": lambda: found.save(folder / "record.npz"),
            "the report's files": lambda: write_report(found, folder),
        }
        for name, write in writers.items():
            try:
                write()
            except OSError as error:  # what is measured is said, whatever the disk does
                run.failed(f"{name} could not be written", error, run.index - 1)
                lost.append(f"{name} could not be written: {error}")
    return "\n".join([as_text(summarize(found)), *lost])


def _unmeasured(record: Record, run: RunState, folder: Path | None) -> str:
    from fl_epe.reporting import as_text, summarize_unmeasured, write_unmeasured

    known: dict[str, Any] = {"delta": run.settings.delta, "faults": run.log.faults}
    known["fault_counts"] = run.log.fault_counts
    with contextlib.suppress(Exception):  # the reason is said without it
        known["config"] = config(run)
    reason = run.log.first_failure or "the audit saw no round"
    if folder is None:
        return as_text(summarize_unmeasured(reason, **known))
    return as_text(write_unmeasured(folder, reason, **known))
