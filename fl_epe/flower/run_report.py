"""The report of an audited run, and what loggers are told of each round."""

import contextlib
import dataclasses
import functools
import math
from pathlib import Path

from flwr.app import MetricRecord

from fl_epe.archive import error_text
from fl_epe.flower.audited_run import AuditedRun
from fl_epe.flower.round_state import RoundState


def log_round(run: AuditedRun, current: RoundState | None, metrics: object) -> None:
    """Tell the loggers what the strategy and the audit say of the round that is done."""
    if run.loggers:
        values: dict[str, object] = {}
        if isinstance(metrics, MetricRecord):
            values.update(metrics)
        values["clip_norm"] = math.nan if current is None else current.clip_norm
        values["canaries_seen"] = run.recording.auditor.canaries_seen
        values["fault_count"] = run.faults.book.total
        run.loggers.log(run.state.index, values, resumed=bool(run.state.resumed))


def report(run: AuditedRun, folder: Path | None, details: bool = False) -> str:
    """The report as text; with a folder, also record.npz, report.json and report.html."""
    problems: list[str] = []
    for write, where in (
        (_measured, folder),
        (_unmeasured, folder),
        (_unmeasured, None),
    ):
        try:
            return "\n".join([write(run, where, details), *problems])
        except Exception as error:  # noqa: BLE001 - the next one is written
            index = run.state.index
            if index > 0:  # else there is nothing to report
                problems.append(f"The report is incomplete: {error_text(error)}")
                run.failed("the report could not be made", error, index - 1)
    return "\n".join(["ε: not measured", *problems, *run.faults.book.messages])


def _measured(run: AuditedRun, folder: Path | None, details: bool) -> str:
    from fl_epe.reporting import as_text, summarize, write_report  # slow to import

    record = run.record()
    summary = summarize(record)
    notes = list[str]()
    if folder is not None:
        save = functools.partial(record.save, folder / "record.npz")
        write = functools.partial(write_report, summary, folder)
        for name, write_files in (("record.npz", save), ("the report's files", write)):
            try:
                write_files()
            except OSError as error:  # what is measured is said, whatever the disk does
                index = run.state.index - 1
                run.failed(f"{name} could not be written", error, index)
                notes.append(f"{name} could not be written: {error}")
    run.loggers.close(summary.metrics(), None if notes else folder)
    if folder is not None and not notes:
        notes.append(f"Report: {folder / 'report.html'}")
    return "\n".join([as_text(summary, details=details).rstrip(), *notes])


def _unmeasured(run: AuditedRun, folder: Path | None, details: bool) -> str:
    from fl_epe.reporting import as_text, summarize_unmeasured, write_report

    evidence = run.evidence
    values = {"delta": run.settings.delta} | run.faults.book.values()
    with contextlib.suppress(Exception):  # the reason is said without it
        design = evidence.design().to_settings()
        values["config"] = design | dataclasses.asdict(evidence.findings())
    reason = run.faults.first_failure
    if reason is None:
        reason = evidence.over.reason if evidence.over else "the audit saw no round"
    summary = summarize_unmeasured(reason, **values)
    if folder is not None:
        write_report(summary, folder)
    run.loggers.close(summary.metrics(), folder)
    return as_text(summary, details=details)
