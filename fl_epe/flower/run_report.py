"""The report of an audited run, and the values of each round for loggers."""

import contextlib
import dataclasses
import math
from pathlib import Path

from flwr.app import MetricRecord

from fl_epe.archive import error_text
from fl_epe.flower.audited_run import AuditedRun
from fl_epe.flower.round_state import RoundState


def log_round(
    run: AuditedRun, current: RoundState | None, metrics: object
) -> None:
    """Log the metrics of the strategy and the audit after a round."""
    if run.loggers:
        values: dict[str, object] = {}
        if isinstance(metrics, MetricRecord):
            values.update(metrics)
        values["clip_norm"] = math.nan if current is None else current.clip_norm
        values["canaries_seen"] = run.recording.auditor.canaries_seen
        values["fault_count"] = run.faults.book.total
        run.loggers.log(
            run.state.index, values, resumed=bool(run.state.resumed)
        )


def report(run: AuditedRun, folder: Path | None, details: bool = False) -> str:
    """The report as text; with a folder, also record.npz, report.json and report.html."""
    problems: list[str] = []
    try:
        return _measured(run, folder, details)
    except Exception as error:  # noqa: BLE001 - a report without ε is written
        _note_problem(run, error, problems)
    try:
        return "\n".join([_unmeasured(run, folder, details), *problems])
    except Exception as error:  # noqa: BLE001 - no file is written
        _note_problem(run, error, problems)
    try:
        return "\n".join([_unmeasured(run, None, details), *problems])
    except Exception as error:  # noqa: BLE001 - the faults are returned
        _note_problem(run, error, problems)
    return "\n".join(["ε: not measured", *problems, *run.faults.book.messages])


def _note_problem(
    run: AuditedRun, error: Exception, problems: list[str]
) -> None:
    """Add an error to the problems that are reported, and to the faults of the run."""
    # Before the first round, every report lacks an ε, which is no problem.
    if run.state.index > 0:
        problems.append(f"The report is incomplete: {error_text(error)}")
        index = run.state.index - 1
        run.report_failure("the report could not be made", error, index)


def _measured(run: AuditedRun, folder: Path | None, details: bool) -> str:
    """The report of a run with a record; see `report`."""
    # This package is slow to import.
    from fl_epe.reporting import as_text, summarize, write_report

    record = run.record()
    summary = summarize(record)
    notes = list[str]()
    if folder is not None:
        for name, write in (
            ("record.npz", lambda: record.save(folder / "record.npz")),
            ("the report's files", lambda: write_report(summary, folder)),
        ):
            try:
                write()
            except OSError as error:
                failure = f"{name} could not be written"
                run.report_failure(failure, error, run.state.index - 1)
                notes.append(f"{failure}: {error}")
    run.loggers.close(summary.metrics(), None if notes else folder)
    if folder is not None and not notes:
        notes.append(f"Report: {folder / 'report.html'}")
    return "\n".join([as_text(summary, details=details).rstrip(), *notes])


def _unmeasured(run: AuditedRun, folder: Path | None, details: bool) -> str:
    """The report of a run without a record, with the reason; see `report`."""
    from fl_epe.reporting import as_text, summarize_unmeasured, write_report

    outcome = run.outcome
    values = {"delta": run.settings.delta} | run.faults.book.values()
    # The reason is reported even if the configuration is not known.
    with contextlib.suppress(Exception):
        design = outcome.design().to_settings()
        values["config"] = design | dataclasses.asdict(outcome.findings())
    reason = run.faults.first_failure
    if reason is None and outcome.over is not None:
        reason = outcome.over.reason
    summary = summarize_unmeasured(reason or "the audit saw no round", **values)
    if folder is not None:
        write_report(summary, folder)
    run.loggers.close(summary.metrics(), folder)
    return as_text(summary, details=details)
