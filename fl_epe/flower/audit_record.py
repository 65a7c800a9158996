"""What an audit leaves behind: the record, why its ε is in doubt, and the report."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
from flwr.app import MetricRecord

from fl_epe.archive import error_text
from fl_epe.auditing import (
    EVERY_ROUND,
    AuditRecord,
    Design,
    FaultKind,
    Findings,
    answer,
    seen_by,
)
from fl_epe.flower.client_canaries import HINTS
from fl_epe.flower.client_noise import promise_findings
from fl_epe.mechanism import ServerSGD

if TYPE_CHECKING:
    from fl_epe.flower.audited_run import AuditedRun
    from fl_epe.flower.state import RoundState

_RARE = 1e-3
_UNEQUAL = 0.1  # of what canaries add, by which their scores differ
_WEAK = 0.5  # of what canaries should add
_OFTEN = 0.1  # of the rounds
_ON_THE_SERVER = (
    "Canaries are made on the server: what clients do to their own updates before they send them,"
    " such as adding noise, is not in them (it is with canary_mod)."
)

_CLIENTS_NOISE = (
    "clients' updates look like noise that clients add themselves, as in local DP: canaries made on"
    " the server have none of it, so nothing is proved of a client (with clients=… and canary_mod"
    " canaries have it too)"
)

_THEIR_OWN_NOISE = (
    "clients add noise themselves, and canaries made on the server have none of it; "
    "what counts is"
)

_OFTEN_DOMINATED = (
    "in many rounds one client's update was most of the energy of all: it hides the others from"
    " everybody who cannot subtract it, and ε is not that of a client without it"
)


def _averages(run: AuditedRun) -> bool:
    seen = [note.averaged for note in run.notes.values() if note.averaged is not None]
    return not run.wrapped.averages and bool(seen) and "" not in seen


def _on_the_server(run: AuditedRun) -> bool:
    """Whether canaries are made there, over a known number of rounds."""
    return run.settings.clients is None and run.rounds is not None


def noise_multipliers(run: AuditedRun) -> tuple[float | None, float | None]:
    """Claimed noise multiplier, and that of the sum alone; ``None`` if not known."""
    if (z := run.settings.noise_multiplier) is not None:
        return z, z
    return run.wrapped.noise_multipliers(averages=_averages(run))


def make_record(run: AuditedRun) -> AuditRecord:
    """What the run leaves behind so far.

    Raises:
        ValueError: if no model was seen.
    """
    if run.wrapped.plain_layers and _averages(run):
        run.auditor.learn_server(ServerSGD())
    run.catch_up()
    claimed, of_sum = noise_multipliers(run)
    notes = run.notes.values()
    log = run.seen.log(run.auditor.rounds)
    facts: dict[str, Any] = {
        "clients.ids": log.ids,
        "clients.offsets": log.offsets,
        "clients.weights": log.weights,
    }
    losses = [run.note(index).loss for index in range(run.index)]
    if losses and None not in losses:
        facts["metrics"] = {"train_loss": np.array(losses)}
    if run.plan.load is None and _on_the_server(run) and run.index == run.rounds:
        facts["canary_participations"] = float(run.settings.participations or 1)
    record = run.auditor.record(
        noise_multiplier=claimed,
        sum_noise_multiplier=of_sum,
        noise_is_for=run.wrapped.expected_replies(),
        unit=run.settings.unit,
        faults=tuple(all_faults(run)),
        seconds=sum(note.seconds for note in notes) / max(1, len(notes)),
        canary_bytes=max((note.canary_bytes for note in notes), default=0),
        design=_design(run),
        findings=_findings(run),
        **facts,
    )
    return record.with_values(doubts=(*run_doubts(run), *doubts(record)))


def run_doubts(run: AuditedRun) -> Iterator[str]:
    """Why ε is in doubt by what happened so far, in sentences without a full stop."""
    if run.is_longer:
        yield f"later rounds are not measured, as {run.over}"
    if _clients_add_noise(run):
        known = None if run.promised is None else run.promised.measured()
        yield f"{_THEIR_OWN_NOISE}: {known}" if known else _CLIENTS_NOISE
    if run.faults.counts.get(FaultKind.DOMINANT_UPDATE, 0) > _OFTEN * run.index:
        yield _OFTEN_DOMINATED
    if (dominant := dominant_node(run)) is not None:
        yield dominant


def _clients_add_noise(run: AuditedRun) -> bool:
    """Whether updates look like noise in most rounds, beside canaries that have none of it."""
    noisy = [note.noisy for note in run.notes.values() if note.noisy is not None]
    return sum(noisy) > len(noisy) / 2


def dominant_node(run: AuditedRun) -> str | None:
    """Who moved the final model so far that the others are hidden; ``None`` if nobody did."""
    found = run.contributions.dominant(run.seen.count)
    if found is None:
        return None
    return (
        f"over the whole run {found}: who sent that can subtract it, and ε of the final model"
        " against that adversary is larger"
    )


def _design(run: AuditedRun) -> Design:
    settings, plan, wrapped = run.settings, run.plan, run.wrapped
    caveats = (
        wrapped.caveat(averages=_averages(run)),
        wrapped.unclipped(run.start or {}),
    )
    known: dict[str, object] = {
        name: getattr(settings, name)
        for name in ("num_examples", "canary_norm", "canary_kind", "participations")
    }
    known |= {"max_share": settings.largest_share, "rounds": run.rounds}
    if run.early_stop is not None:
        known["stop_when"] = run.stop_rule
    if plan.clients:
        known |= {
            "num_canaries": plan.number,
            "unobserved": settings.unobserved_beside(plan.number),
            "num_clients": plan.nodes,
            "clients_per_round": plan.clients - plan.replaced if plan.nodes else None,
        }
        if settings.clients is not None:
            known["canary_nodes"] = sorted(run.clients)
        if plan.load is not None:
            known["participations"] = plan.load.participations
    return Design.of(
        known
        | {
            "task": wrapped.description,
            "canaries_come_from": "server" if settings.clients is None else "clients",
            "caveat": " ".join(filter(None, caveats)) or None,
        }
    )


def _missing(run: AuditedRun) -> str | None:
    """Why fewer canaries took part than clients were told; ``None`` if nothing is known."""
    if len(run.answered) == len(run.ordered):
        return None
    hints = [HINTS[answer] for answer in sorted(run.refused)] or [
        "is canary_mod installed?"
    ]
    return (
        f"{len(run.answered)} of {len(run.ordered)} canary clients answered with their"
        f" canary; {'; '.join(hints)}"
    )


def _findings(run: AuditedRun) -> Findings:
    noise, faults, plan = Findings.noise, tuple[str, ...](), run.plan.sentences()
    if run.unmoved:
        names = ", ".join(sorted(run.unmoved))
        plan.append(
            f"In rounds in which no reply moves them canaries leave alone: {names}."
        )
    if _on_the_server(run):
        plan.append(_ON_THE_SERVER)
    if run.wrapped.noise_std() is not None:
        noise, faults = run.noise.findings()
    of_clients, their_faults = promise_findings(run)
    return Findings(
        step_faults=(*faults, *their_faults),
        noise=(*noise, *of_clients),
        plan=tuple(plan),
        not_measured=_missing(run) or run.first_failure,
        last_model_is_finite=run.last_is_finite,
        last_model_is_final=run.rounds in (None, run.index) and not run.is_longer,
        clients_add_noise=_clients_add_noise(run),
        client_participations=run.seen.participations(run.index),
        arrays_left_out=tuple(run.plan.left_out),
        resumed_after=tuple(run.resumed),
        stopped=run.early_stop,
    )


def all_faults(run: AuditedRun) -> list[str]:
    """What went wrong so far, in sentences."""
    return [*run.faults.messages, *filter(None, [_missing(run), dominant_node(run)])]


def log_round(run: AuditedRun, state: RoundState | None, metrics: object) -> None:
    """Tell the loggers what the strategy and the audit say of the round that is done."""
    if run.loggers:
        values: dict[str, object] = (
            dict(metrics) if isinstance(metrics, MetricRecord) else {}
        )
        values["clip_norm"] = math.nan if state is None else state.clip_norm
        values["canaries_seen"] = run.auditor.canaries_seen
        values["fault_count"] = run.faults.total
        run.loggers.log(run.index, values, resumed=bool(run.resumed))


def doubts(record: AuditRecord) -> Iterator[str]:
    """Why the ε of a run is in doubt, in sentences without a full stop; nothing if it is not.

    Where it is known what canaries add, their scores are compared with it: of 1,000 right runs one
    has scores that differ by too much for chance, and by a tenth of what they should be.
    """
    fit = answer(record, EVERY_ROUND).fit
    if fit is not None and record.signal_known():
        freedom, sizes = (
            record.num_canaries - 1,
            seen_by(record, EVERY_ROUND).sizes.observed,
        )
        least = _UNEQUAL * fit.scale * math.sqrt(np.mean(sizes**2))
        chance = scipy.stats.chi2.isf(_RARE, freedom) / freedom if freedom else math.inf
        if fit.width > max(least, math.sqrt(chance)):
            yield (
                f"canaries' scores differ {fit.width:.2f} times as much as by chance: some of them"
                " do not show up in the model, or add less than others, and ε of those that show"
                " up is larger"
            )
        if fit.high < _WEAK:
            yield (
                f"canaries show up {max(fit.scale, 0.0):.2f} times as strongly as what they added"
                " to the mean should: they may have been left out, or taken out again"
            )


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
            if run.index > 0:  # else there is nothing to report
                problems.append(f"The report is incomplete: {error_text(error)}")
                run.failed("the report could not be made", error, run.index - 1)
    return "\n".join(["ε: not measured", *problems, *run.faults.messages])


def _measured(run: AuditedRun, folder: Path | None, details: bool) -> str:
    from fl_epe.reporting import as_text, summarize, write_report  # slow to import

    found, lost = run.record(), list[str]()
    summary = summarize(found)
    if folder is not None:
        save = functools.partial(found.save, folder / "record.npz")
        write = functools.partial(write_report, summary, folder)
        for name, written in (("record.npz", save), ("the report's files", write)):
            try:
                written()
            except OSError as error:  # what is measured is said, whatever the disk does
                run.failed(f"{name} could not be written", error, run.index - 1)
                lost.append(f"{name} could not be written: {error}")
    run.loggers.close(summary.metrics(), None if lost else folder)
    if folder is not None and not lost:
        lost.append(f"Report: {folder / 'report.html'}")
    return "\n".join([as_text(summary, details=details).rstrip(), *lost])


def _unmeasured(run: AuditedRun, folder: Path | None, details: bool) -> str:
    from fl_epe.reporting import as_text, summarize_unmeasured, write_report

    known = {"delta": run.settings.delta} | run.faults.values()
    with contextlib.suppress(Exception):  # the reason is said without it
        known["config"] = {
            **_design(run).to_settings(),
            **dataclasses.asdict(_findings(run)),
        }
    reason = run.first_failure or run.over or "the audit saw no round"
    summary = summarize_unmeasured(reason, **known)
    if folder is not None:
        write_report(summary, folder)
    run.loggers.close(summary.metrics(), folder)
    return as_text(summary, details=details)
