"""`AuditedRun`: the work of an audit in each round, and its continuation after a restart."""

import contextlib
import dataclasses
import functools
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import assert_never

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from fl_epe.auditing import AuditRecord, EarlyStop, FaultKind, RoundFacts
from fl_epe.checks import Floats32
from fl_epe.files import run_folder
from fl_epe.flower.audit_record import RunOutcome
from fl_epe.flower.checkpoint import Checkpoint
from fl_epe.flower.dominance import RoundUpdates
from fl_epe.flower.fault_log import FaultLog, logger
from fl_epe.flower.layout import Layout
from fl_epe.flower.phase import (
    BetweenRounds,
    InRound,
    Over,
    Phase,
    StartedAgain,
    current_round,
)
from fl_epe.flower.plan import AuditPlan, check_rounds, make_plan
from fl_epe.flower.recording import Recording
from fl_epe.flower.replies import match_clients, readable
from fl_epe.flower.round_state import RoundState
from fl_epe.flower.settings import CanaryAuditSettings, SettingsError
from fl_epe.flower.sources import ClientAnswers, ServerCanaries
from fl_epe.flower.state import AuditState
from fl_epe.flower.watching import averaging_of, note_noise
from fl_epe.flower.wrapped import Wrapped
from fl_epe.loggers import Loggers
from fl_epe.mechanism import norm

# A larger share of canaries in a round's replies is a warning. The default is at most 10%, up to
# the rounding of the number of canaries.
_MAX_USUAL_SHARE = 0.101


class AuditedRun:
    """The audit of one run. It may raise errors: `CanaryAudit` protects the strategy from them.

    Args:
        wrapped: the strategy.
        settings: the settings of the audit.

    Attributes:
        faults: the faults of the run.
        recording: the measurements.
        phase: the phase of the run.
        checkpoint: the folder in which the audit is saved, if there is one.
        loggers: the loggers, which get the metrics of each round.
        stop_rule: the rule of `CanaryAudit.stop_when` that ended the run, in words.
    """

    def __init__(self, wrapped: Wrapped, settings: CanaryAuditSettings) -> None:
        self.wrapped = wrapped
        self.settings = settings
        self.faults = FaultLog()
        kind = settings.replies or wrapped.reply_kind
        state = AuditState(settings.canary_seed, settings.rounds, kind)
        self.recording = Recording(settings, wrapped, state, self.faults)
        self.phase: Phase = BetweenRounds()
        if not settings.enabled:
            self.phase = Over("the audit was off (enabled=False)")
        self.stop_rule = ""
        self._stop: EarlyStop | None = None
        self._record: AuditRecord | None = None
        self.checkpoint = Checkpoint(settings, wrapped, self.report_failure)
        folder = Path(settings.checkpoint or run_folder("audit"))
        self.loggers = Loggers(settings.log_to, folder, logger.warning)
        if settings.enabled:
            self.recording.client_noise.announce()

    @property
    def state(self) -> AuditState:
        """The state of the audit between two rounds."""
        return self.recording.state

    def enter(self, phase: Phase) -> None:
        """Enter another phase; a record that was made in an earlier phase is outdated."""
        self.phase = phase
        self._record = None

    def report_failure(
        self,
        failure: str,
        reason: Exception | str,
        index: int | None = None,
        kind: FaultKind = FaultKind.AUDIT_STOOD_BACK,
        times: int = 1,
    ) -> None:
        """See `FaultLog.report_failure`; ``index`` is that of the coming round by default."""
        index = self.state.index if index is None else max(0, index)
        self.faults.report_failure(index, failure, reason, kind, times)

    def reject(self, reason: Exception | str) -> None:
        """Add the fault that the strategy failed on canaries.

        From now on, canaries replace clients, or no canary takes part.
        """
        match self.state.inject:
            case "auto":
                self.state.inject = "replace"
                consequence = "from the next round on, canaries replace clients"
            case "replace" | "none":
                self.state.inject = "none"
                consequence = "no canary takes part any more"
            case _:
                assert_never(self.state.inject)
        self.report_failure(
            f"the strategy fails on canaries ({consequence})", reason
        )

    @contextlib.contextmanager
    def noting_failure(
        self, failure: str, index: int | None = None
    ) -> Iterator[None]:
        """Turn an error in this context into a fault with the text ``failure``, and go on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the run goes on
            self.report_failure(failure, error, index)

    def prepare(
        self, arrays: ArrayRecord | None, num_rounds: int | None
    ) -> None:
        """Look for a saved audit and check the number of rounds; called before the first round.

        Args:
            arrays: the initial model, if it is known.
            num_rounds: the number of rounds of the run, or of its remaining rounds; ``None`` if
                it is not known.

        Raises:
            SettingsError: if an argument does not fit the run or the saved audit.
        """
        is_restart = self.state.index > 0
        if not isinstance(self.phase, Over):
            self.enter(StartedAgain() if is_restart else BetweenRounds())
        goes_on = is_restart and self.recording.is_last(arrays)
        if not goes_on and self.checkpoint.can_continue(arrays):
            if not is_restart:
                self.enter(BetweenRounds(awaited=arrays))
                # The number is needed if the saved audit turns out to be unusable.
                self.state.rounds = (
                    self.settings.rounds or num_rounds or self.state.rounds
                )
        elif num_rounds:
            self._use_rounds(num_rounds)

    def _use_rounds(self, rounds: int) -> None:
        """Use the number of rounds of a call of ``start``, unless the settings have one.

        Raises:
            SettingsError: if the number does not fit the settings.
        """
        settings = self.settings
        state = self.state
        if settings.rounds is not None:
            if state.index == 0 and rounds > settings.rounds:
                raise SettingsError(
                    f"Expected num_rounds={rounds} to be at most rounds={settings.rounds}."
                )
        elif settings.clients is not None:
            state.rounds = state.index + rounds
        elif state.index > 0 or rounds == 1:
            # A single round may be one of a loop, whose length must be given as ``rounds``.
            return
        else:
            state.rounds = rounds
        if settings.clients is None:
            try:
                check_rounds(settings, state.rounds)
            except ValueError as error:
                raise SettingsError(str(error)) from error

    def _resume(self, arrays: ArrayRecord) -> None:
        """Continue a saved audit, if there is one to which this model belongs."""
        saved = self.checkpoint.pop_saved(self.state.index)
        if saved is None:
            return
        with self.noting_failure(
            "the saved audit cannot continue, and a new one begins"
        ):
            rounds_done = self.checkpoint.rounds_before(saved, arrays)
            if rounds_done is None:
                logger.warning(
                    "Audit: the saved one is of another run; a new one begins"
                )
                return
            state = saved.audit.after(rounds_done)
            settings = dataclasses.replace(self.settings, seed=state.seed)
            recording = Recording(settings, self.wrapped, state, self.faults)
            recording.resume(saved, arrays)
            self.settings = settings
            self.recording = recording
            # The cached source of the canaries refers to the previous state.
            vars(self).pop("_source", None)
            self.enter(BetweenRounds())
            self.checkpoint.note_continued()
            logger.info(
                "Audit: goes on after round %d of %s",
                rounds_done,
                state.rounds or "an unknown number",
            )
            if rounds_done < saved.audit.index:
                rounds = f"rounds {rounds_done + 1} to {saved.audit.index}"
                logger.warning("Audit: %s are not in the model", rounds)
                self.faults.book.add(
                    rounds_done - 1,
                    FaultKind.ROUNDS_REPEATED,
                    f"the server went back to the model after this round: {rounds}, whose models"
                    " were sent to clients, are not in the record",
                )

    @functools.cached_property
    def _source(self) -> ServerCanaries | ClientAnswers:
        """The source of the canaries; needs a plan."""
        settings = self.settings
        state = self.state
        if settings.clients is not None:
            return ClientAnswers(settings, self.wrapped, state)
        rounds = check_rounds(settings, state.rounds)
        return ServerCanaries(settings, self.wrapped, state, rounds)

    def _begin(
        self, arrays: ArrayRecord, num_messages: int, grid: Grid
    ) -> Layout:
        """Plan the audit in the first round, and begin to record.

        Returns:
            The layout of the model.
        """
        settings = self.settings
        layout = Layout.of(arrays, settings.leave_out)
        nodes = None
        # Grids may not know their nodes, and may raise any error.
        with contextlib.suppress(Exception):
            nodes = max(num_messages, len(list(grid.get_node_ids())))
        if settings.clients is not None:
            count = settings.count_of_clients(nodes or num_messages)
            plan = AuditPlan(count, num_messages)
        else:
            rounds = check_rounds(settings, self.state.rounds)
            plan = make_plan(
                settings, self.wrapped, rounds, num_messages, nodes
            )
        plan = dataclasses.replace(plan, left_out=layout.left_out)
        if not plan.number:
            self.report_failure(
                "no canary takes part", " ".join(plan.sentences())
            )
        else:
            largest_share = plan.load.share if plan.load else plan.largest_share
            is_large = largest_share > _MAX_USUAL_SHARE or plan.reduced
            level = logging.WARNING if is_large else logging.INFO
            for sentence in plan.sentences():
                logger.log(level, "Audit: %s", sentence)
        self.recording.begin(arrays, layout, plan)
        return layout

    def _save(self) -> None:
        """Save the audit in its folder; an error is a fault."""
        start = self.recording.start
        if start is None or self.settings.checkpoint is None:
            return
        try:
            self.checkpoint.save(self.state, start, self.recording.arrays())
        except Exception as error:  # noqa: BLE001 - the run goes on
            kind = FaultKind.CHECKPOINT_NOT_WRITTEN
            index = self.state.index - 1
            self.report_failure(
                "the audit could not be saved", error, index, kind
            )

    def open_round(
        self, arrays: ArrayRecord, messages: list[Message], grid: Grid
    ) -> None:
        """Decide which canaries take part, and which of the strategy's ``messages`` are sent.

        Afterwards the round is in progress, unless the audit is over.

        Raises:
            ValueError: if the model or the round cannot be audited, with the reason.
        """
        self._resume(arrays)
        self._end_if_over(arrays)
        layout = self.state.layout
        if isinstance(self.phase, Over) or (layout is None and not messages):
            return
        layout = layout or self._begin(arrays, len(messages), grid)
        current = RoundState(
            index=self.state.index,
            arrays=arrays,
            layout=layout,
            before=layout.flatten(arrays),
            clip_norm=self.wrapped.clip_norm(),
            grid=grid,
            sent=messages,
        )
        if not math.isfinite(norm(current.before)):
            raise ValueError(
                "Expected a model without NaN or infinite entries."
            )
        self.recording.note_model(arrays)
        if current.index == 0:
            # The audit must be on disk before anything is sent.
            self._save()
        with self.noting_failure("no canary takes part"):
            self._source.configure(current, messages, self.recording.seen)
            current.canaries_may_join = True
        self.enter(InRound(current))

    def _end_if_over(self, arrays: ArrayRecord) -> None:
        """End the audit if no further round belongs to it; the reason is a fault."""
        state = self.state
        is_over = isinstance(self.phase, Over)
        if is_over or state.index == 0 or state.layout is None:
            return
        is_new_start = isinstance(self.phase, StartedAgain)
        if is_new_start and not self.recording.is_last(arrays):
            over = Over(
                "start() was called again, with another model: make a new CanaryAudit"
            )
        elif self.settings.clients is None and state.index == state.rounds:
            over = Over(
                f"the canaries took part in {state.rounds} rounds: give CanaryAudit rounds=…,"
                " those of all its starts together",
                is_longer=True,
            )
        else:
            self.enter(BetweenRounds())
            return
        self.enter(over)
        self.report_failure(
            "this round and later ones are not measured", over.reason
        )

    def join(
        self, current: RoundState, replies: list[Message]
    ) -> list[Message]:
        """The replies with the canaries among them.

        Raises:
            ValueError: if canaries cannot join, with the reason.
        """
        identity = self.settings.identity or int
        clients = match_clients(
            replies, current.sent, identity, self.faults.book, current.index
        )
        current.clients = {
            content: client
            for content, client in clients.items()
            if client not in self.state.clients
        }
        self.recording.seen.note(current.index, current.client_weights(None))
        current.absent = len(current.sent) - len(readable(replies))
        joined = replies
        if current.canaries_may_join:
            try:
                joined = self._source.join(current, replies, self.recording)
            finally:
                with self.noting_failure(
                    "clients' updates could not be compared"
                ):
                    self._compare_updates(current, replies)
        # Each canary is in memory as a vector and in a reply.
        copies = 2 * len(current.canaries.synthetic)
        self.state.notes_on(current.index).canary_bytes = (
            copies * current.before.nbytes
        )
        return joined

    def _compare_updates(
        self, current: RoundState, replies: list[Message]
    ) -> None:
        """Detect nodes that dominate the round, and test the noise of clients."""
        # Clients may have sent replies with canaries.
        canaries = {id(reply) for reply in current.canaries.replies}
        real = [
            reply for reply in readable(replies) if id(reply) not in canaries
        ]
        updates = RoundUpdates.of(
            self.wrapped,
            current.layout,
            current.arrays,
            real,
            kind=self.state.kind,
            clip_norm=current.clip_norm,
        )
        current.updates = updates
        if updates is None:
            return
        dominant = updates.dominant()
        if dominant is not None:
            index = current.index
            kind = FaultKind.DOMINANT_UPDATE
            if self.faults.book.add(index, kind, str(dominant)):
                text = "Audit, round %d, an update hides the others: %s"
                logger.warning(text, index + 1, dominant)
        layout = self.state.whole
        if layout is not None:
            preferred = self.wrapped.arrays_key()
            with self.noting_failure(
                "the noise of clients could not be tested"
            ):
                self.recording.client_noise.test(
                    current, updates, real, layout, preferred, self.faults
                )

    def leave_round(self) -> RoundState | None:
        """Leave the round that is in progress, and return it; ``None`` without one."""
        current = current_round(self.phase)
        if current is not None:
            self.enter(BetweenRounds())
        return current

    def close_round(
        self,
        current: RoundState | None,
        arrays: ArrayRecord | None,
        loss: float | None,
    ) -> None:
        """Score the model that the strategy released.

        Args:
            current: the round; ``None`` if it was not audited.
            arrays: the model.
            loss: the loss of the clients' training; ``None`` if it is not reported.

        Raises:
            ValueError: if the model has another layout than the first one.
        """
        state = self.state
        recording = self.recording
        if isinstance(self.phase, BetweenRounds):
            self.enter(BetweenRounds())  # no saved audit is awaited any more
        self._record = None
        theta = None
        try:
            state.notes_on(state.index).loss = loss
            if state.layout is not None:
                facts = RoundFacts()
                vectors = None
                if current is not None:
                    self._choose_arrays(current, arrays)
                    facts, vectors = self._settle(current)
                theta = recording.release(arrays)
                recording.catch_up()
                if current is not None and theta is not None:
                    with self.noting_failure("the noise could not be checked"):
                        note_noise(recording.noise, current, theta)
                recording.auditor.observe(theta, facts, vectors)
        finally:
            state.index += 1
            recording.note_model(None if theta is None else arrays)
            self._save()

    def _choose_arrays(
        self, current: RoundState, arrays: ArrayRecord | None
    ) -> None:
        """Choose the arrays that canaries move by the model, if no reply could be read."""
        is_undecided = not self.state.settled
        if arrays and is_undecided and self.settings.clients is not None:
            # The model may have other arrays than before, or may not have changed.
            with contextlib.suppress(ValueError):
                model = current.layout.flatten(arrays)
                self.recording.choose_arrays(current, [model], "model")

    def _settle(
        self, current: RoundState
    ) -> tuple[RoundFacts, Floats32 | None]:
        """The contributions of the round's canaries, and their vectors if the server has them.

        Canaries that the strategy did not use are a fault.
        """
        averaging, shares = averaging_of(self.wrapped, current)
        if current.updates is not None:
            self.recording.contributions.add(current.updates, shares)
        facts, vectors = current.settle(shares)
        self.recording.seen.note(
            self.state.index, current.client_weights(shares)
        )
        joined_count = len(current.canaries.replies)
        unused = joined_count - len(facts.present)
        if unused:
            self.report_failure(
                "the strategy left canaries out",
                f"it did not use {unused} of {joined_count} of their answers",
                kind=FaultKind.CANARY_UNUSED,
                times=unused,
            )
        if facts.present:
            self.state.notes_on(self.state.index).averaged = averaging
        return facts, vectors

    def stops_above(
        self, epsilon: float, *_arguments: object, **_named: object
    ) -> bool:
        """Whether the lower bound on ε so far is above ``epsilon``: `CanaryAudit.stop_when`.

        If it is, the run is noted as stopped after this round.
        """
        with self.noting_failure("the rule to stop could not be evaluated"):
            auditor = self.recording.auditor
            z, _ = self.recording.noise_multipliers()
            metrics = auditor.metrics_so_far(z, self.wrapped.expected_replies())
            estimate = auditor.epsilon_so_far()
            if estimate is not None and metrics["epsilon-all-low"] > epsilon:
                self.stop_rule = f"epsilon-all-low > {epsilon:g}"
                self._stop = EarlyStop(self.state.index, estimate)
                self._record = None
                return True
        return False

    @property
    def outcome(self) -> RunOutcome:
        """The results of the run so far."""
        state = self.state
        stop = self._stop
        if stop and (stop.after != state.index or state.index == state.rounds):
            # The run was continued, or had reached its last round.
            stop = None
        return RunOutcome(
            recording=self.recording,
            over=self.phase if isinstance(self.phase, Over) else None,
            stop=stop,
            stop_rule=self.stop_rule,
        )

    def record(self) -> AuditRecord:
        """The record of the run so far.

        Raises:
            ValueError: if no model was seen, with the reasons.
        """
        phase = self.phase
        if isinstance(phase, BetweenRounds) and phase.awaited is not None:
            # The run was restarted after its last round, so that no further round began.
            self._resume(phase.awaited)
        if self._record is None:
            try:
                self._record = self.outcome.record()
            except ValueError as error:
                messages = "; ".join(self.faults.book.messages[:3])
                raise ValueError(f"{error} {messages}".strip()) from error
        return self._record
