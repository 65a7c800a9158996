"""`RunOutcome`: the results of an audit, which are a record and the doubts about its ε."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy

from fl_epe.auditing import (
    EVERY_ROUND,
    AuditRecord,
    Design,
    EarlyStop,
    FaultKind,
    Findings,
    answer,
    seen_by,
)
from fl_epe.flower.client_canaries import HINTS
from fl_epe.flower.phase import Over
from fl_epe.flower.recording import Recording

# The level of the test that canaries' scores differ by more than chance.
_LEVEL = 1e-3
# If scores differ by more than this share of the canaries' signal, ε is doubted.
_MAX_SPREAD = 0.1
# The smallest share of the expected signal that canaries must show.
_MIN_SIGNAL = 0.5
# A dominant update in more than this share of the rounds casts doubt on ε.
_MAX_DOMINATED = 0.1
_MADE_ON_THE_SERVER = (
    "Canaries are made on the server: they do not undergo what clients do to their own updates,"
    " such as adding noise (with canary_mod, they do)."
)

_UNKNOWN_CLIENT_NOISE = (
    "clients' updates look like noise that clients add themselves, as in local DP: canaries made on"
    " the server do not have it, so nothing is proved of a client (with clients=… and canary_mod,"
    " canaries have it too)"
)

_PROMISED_CLIENT_NOISE = (
    "clients add noise themselves, and canaries made on the server do not have it; a better"
    " result is"
)

_OFTEN_DOMINATED = (
    "in many rounds, one client's update had most of the energy of all: it hides the others from"
    " everybody who cannot subtract it, and ε against its sender is larger"
)


@dataclasses.dataclass(frozen=True)
class RunOutcome:
    """The results of a run so far.

    Attributes:
        recording: the measurements.
        over: the phase with the reason why the audit is over; ``None`` before that.
        stop: the early stop of a run that a rule ended before its last round; else ``None``.
        stop_rule: the rule that ended the run, in words.
    """

    recording: Recording
    over: Over | None
    stop: EarlyStop | None
    stop_rule: str

    @property
    def _on_the_server(self) -> bool:
        """Whether the server makes the canaries, over a known number of rounds."""
        is_server = self.recording.settings.clients is None
        return is_server and self.recording.state.rounds is not None

    def record(self) -> AuditRecord:
        """The record of the run so far.

        Raises:
            ValueError: if no model was seen.
        """
        recording = self.recording
        settings = recording.settings
        wrapped = recording.wrapped
        state = recording.state
        auditor = recording.auditor
        if wrapped.plain_layers and state.averages(wrapped):
            auditor.set_plain_sgd()
        recording.catch_up()
        claimed, claimed_of_sum = recording.noise_multipliers()
        notes = state.notes.values()
        log = recording.seen.log(auditor.rounds)
        facts: dict[str, Any] = {
            "clients.ids": log.ids,
            "clients.offsets": log.offsets,
            "clients.weights": log.weights,
        }
        losses = [state.notes_on(index).loss for index in range(state.index)]
        if losses and None not in losses:
            facts["metrics"] = {"train_loss": np.array(losses)}
        is_complete = self._on_the_server and state.index == state.rounds
        if state.plan.load is None and is_complete:
            facts["canary_participations"] = float(settings.participations or 1)
        record = auditor.record(
            noise_multiplier=claimed,
            sum_noise_multiplier=claimed_of_sum,
            noise_cohort_size=wrapped.expected_replies(),
            unit=settings.unit,
            faults=tuple(self.all_faults()),
            seconds=sum(note.seconds for note in notes) / max(1, len(notes)),
            canary_bytes=max((note.canary_bytes for note in notes), default=0),
            design=self.design(),
            findings=self.findings(),
            **facts,
        )
        return record.with_values(doubts=(*self.doubts(), *doubts(record)))

    def doubts(self) -> Iterator[str]:
        """The reasons to doubt ε in the run so far, in sentences without a full stop."""
        if self.over is not None and self.over.is_longer:
            yield f"later rounds are not measured, as {self.over.reason}"
        if self._clients_add_noise():
            promised = self.recording.client_noise.promised
            measured = None if promised is None else promised.measured()
            yield (
                f"{_PROMISED_CLIENT_NOISE}: {measured}"
                if measured
                else _UNKNOWN_CLIENT_NOISE
            )
        dominated = self.recording.faults.book.counts.get(
            FaultKind.DOMINANT_UPDATE, 0
        )
        if dominated > _MAX_DOMINATED * self.recording.state.index:
            yield _OFTEN_DOMINATED
        dominant = self.dominant_node()
        if dominant is not None:
            yield dominant

    def _clients_add_noise(self) -> bool:
        """Whether clients' updates look like noise in most rounds, while canaries have none."""
        notes = self.recording.state.notes.values()
        noisy = [note.noisy for note in notes if note.noisy is not None]
        return sum(noisy) > len(noisy) / 2

    def dominant_node(self) -> str | None:
        """A sentence on the node that hides the others in the final model; else ``None``."""
        dominant = self.recording.contributions.dominant(
            self.recording.seen.count
        )
        if dominant is None:
            return None
        return (
            f"over the whole run, {dominant}: its sender can subtract it, and ε of the final"
            " model against that sender is larger"
        )

    def _missing_canaries(self) -> str | None:
        """The reason why fewer canaries took part than were ordered; ``None`` if all did."""
        state = self.recording.state
        if len(state.answered) == len(state.ordered):
            return None
        hints = [HINTS[reason] for reason in sorted(state.refused)]
        return (
            f"{len(state.answered)} of {len(state.ordered)} canary clients answered with their"
            f" canary; {'; '.join(hints or ['is canary_mod installed?'])}"
        )

    def all_faults(self) -> list[str]:
        """The faults so far, in sentences."""
        faults = self.recording.faults.book.messages
        for text in (self._missing_canaries(), self.dominant_node()):
            if text is not None:
                faults.append(text)
        return faults

    def design(self) -> Design:
        """The settings of the audit and its decisions."""
        recording = self.recording
        settings = recording.settings
        wrapped = recording.wrapped
        state = recording.state
        plan = state.plan
        values: dict[str, object] = {
            "num_examples": settings.num_examples,
            "canary_norm": settings.canary_norm,
            "canary_kind": settings.canary_kind,
            "participations": settings.participations,
            "max_share": settings.largest_share,
            "rounds": state.rounds,
        }
        if self.stop is not None:
            values["stop_when"] = self.stop_rule
        if plan.clients:
            values |= {
                "num_canaries": plan.number,
                "unobserved": settings.unobserved_beside(plan.number),
                "num_clients": plan.nodes,
            }
            if plan.nodes:
                values["clients_per_round"] = plan.clients - plan.replaced
            if settings.clients is not None:
                values["canary_nodes"] = sorted(state.clients)
            if plan.load is not None:
                values["participations"] = plan.load.participations
        averages = state.averages(wrapped)
        caveats = (
            wrapped.caveat(averages=averages),
            wrapped.unclipped(recording.start or {}),
        )
        is_server = settings.clients is None
        values |= {
            "task": wrapped.description,
            "canaries_come_from": "server" if is_server else "clients",
            "caveat": " ".join(text for text in caveats if text) or None,
        }
        return Design.of(values)

    def findings(self) -> Findings:
        """The results besides ε."""
        recording = self.recording
        state = recording.state
        plan = state.plan.sentences()
        if state.unmoved:
            names = ", ".join(sorted(state.unmoved))
            plan.append(
                "In rounds in which no reply moves these arrays, canaries leave them alone:"
                f" {names}."
            )
        if self._on_the_server:
            plan.append(_MADE_ON_THE_SERVER)
        noise = Findings.noise  # the default says that no noise was observed
        noise_faults = tuple[str, ...]()
        if recording.wrapped.noise_std() is not None:
            noise, noise_faults = recording.noise.findings()
        client_noise, client_noise_faults = recording.client_noise.findings()
        is_longer = self.over is not None and self.over.is_longer
        is_final = state.rounds in (None, state.index) and not is_longer
        return Findings(
            mechanism_faults=(*noise_faults, *client_noise_faults),
            noise=(*noise, *client_noise),
            plan=tuple(plan),
            missing_canaries_reason=self._missing_canaries()
            or self.recording.faults.first_failure,
            last_model_is_finite=recording.last_is_finite,
            last_model_is_final=is_final,
            clients_add_noise=self._clients_add_noise(),
            client_participations=recording.seen.participations(state.index),
            arrays_left_out=tuple(state.plan.left_out),
            resumed_after=tuple(state.resumed),
            stopped=self.stop,
        )


def doubts(record: AuditRecord) -> Iterator[str]:
    """The reasons to doubt the ε of a run, in sentences without a full stop.

    If the signal of the canaries is known, their scores are compared with it. In a correct run,
    they are said to differ too much with a probability of at most 0.001.
    """
    fit = answer(record, EVERY_ROUND).fit
    if fit is None or not record.signal_known():
        return
    expected_scores = seen_by(record, EVERY_ROUND).expected_scores.observed
    mean_square = np.mean(expected_scores**2)
    tolerated_width = _MAX_SPREAD * fit.scale * math.sqrt(mean_square)
    freedom = record.num_canaries - 1
    if freedom:
        largest_variance = scipy.stats.chi2.isf(_LEVEL, freedom) / freedom
    else:
        largest_variance = math.inf
    if fit.width > max(tolerated_width, math.sqrt(largest_variance)):
        yield (
            f"canaries' scores differ {fit.width:.2f} times as much as by chance: some of them"
            " do not show up in the model, or add less than others, and ε of those that show"
            " up is larger"
        )
    if fit.high < _MIN_SIGNAL:
        yield (
            f"canaries' scores are {max(fit.scale, 0.0):.2f} times what is expected from their"
            " contributions: the strategy may have left canaries out, or removed them again"
        )
