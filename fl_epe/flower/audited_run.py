"""`AuditedRun`: what an audit does in each round, and where it goes on after a restart."""

from __future__ import annotations

import contextlib
import logging
import math
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid
from numpy.linalg import LinAlgError
from numpy.typing import NDArray

from fl_epe.auditing import (
    AuditRecord,
    EpsilonEstimate,
    FaultKind,
    NotMeasured,
    RoundFacts,
    epsilon_from_record,
)
from fl_epe.flower.arrays import Layout
from fl_epe.flower.audit_record import make_record
from fl_epe.flower.checkpoint import Checkpoint
from fl_epe.flower.replies import readable
from fl_epe.flower.rounds import AuditPlan, RoundState, SettingsError, TooManyCanariesError, logger
from fl_epe.flower.run_state import RunState
from fl_epe.flower.settings import CanaryAuditSettings
from fl_epe.flower.sources import ServerCanaries
from fl_epe.flower.watching import Aggregation, Shares, weighted_shares
from fl_epe.flower.wrapped import Wrapped
from fl_epe.mechanism import norm


class AuditedRun(RunState):
    """The audit of one self. It may raise: `CanaryAudit` keeps that from the self.

    Args:
        wrapped: the strategy.
        settings: of the audit.

    Attributes:
        over: why no more rounds are audited; ``None`` while they are.
    """

    def __init__(self, wrapped: Wrapped, settings: CanaryAuditSettings) -> None:
        super().__init__(wrapped, settings)
        self.over: str | None = None
        self._finished: AuditRecord | None = None
        self._num_rounds = self.rounds  # as this process was told
        self._is_again = False  # started again, with a model that was not looked at yet
        self._awaited: ArrayRecord | None = None
        self._checkpoint: Checkpoint | None = None
        if settings.checkpoint is not None:
            self._checkpoint = Checkpoint(Path(settings.checkpoint), self.failed)

    def prepare(self, arrays: object, num_rounds: int | None) -> None:
        """Before the first round: look for a saved audit, and spread the canaries.

        Args:
            arrays: the initial model, if it is known.
            num_rounds: of the run, or those that are left of it; ``None`` if not known.

        Raises:
            SettingsError: if an argument does not go with the run, or with the saved audit.
        """
        settings = self.settings
        self._is_again = self.index > 0
        if self._checkpoint is not None and not (self._is_again and self.is_last(arrays)):
            self._num_rounds, self._awaited = num_rounds or self.rounds, None
            self._checkpoint.look()
            if (saved := self._checkpoint.saved) is not None:
                if not isinstance(arrays, ArrayRecord):
                    saved.check(settings, self.wrapped)
                elif (done := saved.goes_on_after(arrays, settings, self.wrapped)) is not None:
                    saved.check_rounds(done, num_rounds, settings.rounds)
                    self._awaited = arrays
                    return
        if num_rounds:
            self._use_rounds(num_rounds)

    def _use_rounds(self, rounds: int) -> None:
        """Spread the canaries over so many rounds."""
        settings = self.settings
        if settings.rounds is not None:
            if self.index == 0 and rounds > settings.rounds:
                raise SettingsError(
                    f"Expected num_rounds={rounds} to be at most rounds={settings.rounds}."
                )
        elif settings.clients is not None:
            self.rounds = self.index + rounds
        elif self.index > 0 or rounds == 1:
            return  # a single round may be one of a loop: how long that is must be said
        else:
            self.rounds = rounds
        try:
            _ = self.source
        except ValueError as error:
            raise SettingsError(str(error)) from error

    def _settle(self, arrays: ArrayRecord) -> None:
        """Once, when the model is known: go on with the saved audit, or begin a new one."""
        if self._checkpoint is None or self._checkpoint.settled:
            return
        if self._checkpoint.saved is None and self.index == 0:
            self._checkpoint.look()  # hooked without `start`, or nothing is there
        self._checkpoint.settled = True
        if (saved := self._checkpoint.saved) is None:
            return
        try:
            done = saved.goes_on_after(arrays, self.settings, self.wrapped)
            if done is not None:
                self.restore(saved, done, self._checkpoint.start(), arrays)
                self._checkpoint.adopt()
                self._finished, self._is_again, self.over = None, False, None
                logger.info("Audit: goes on after round %d of %s", done, saved.rounds or "some")
                if done < saved.index:
                    text = "Audit: rounds %d to %d are not in the model"
                    logger.warning(text, done + 1, saved.index)
                return
            logger.warning("Audit: the one in the checkpoint is of another run; a new one begins")
        except Exception as error:  # noqa: BLE001 - a new audit is better than none
            self.failed("the saved audit cannot go on, and a new one begins", error)
        if self.index == 0:
            self.rounds = self._num_rounds or self.rounds

    def _save(self) -> None:
        """Keep the audit; not being able to is a fault."""
        if self._checkpoint is None:
            return
        try:
            saved, start = self.saved(), self.start
            if saved is not None and start is not None:
                self._checkpoint.save(saved, start)
        except Exception as error:  # noqa: BLE001 - the run goes on
            index, text = max(0, self.index - 1), "the audit could not be saved"
            self.log.failed(index, text, error, FaultKind.NOT_SAVED)

    def open_round(
        self, arrays: ArrayRecord, messages: list[Message], grid: Grid | None
    ) -> RoundState | None:
        """Decide who takes part, and what is sent of the strategy's ``messages``.

        ``None`` if the audit is over, and the round is no longer part of it.

        Raises:
            ValueError: if the model or the round cannot be audited, with the reason.
        """
        self._settle(arrays)
        if self._is_over(arrays):
            return None
        if self.layout is None:
            self.begin(Layout.of(arrays, self.settings.leave_out), arrays)
        assert self.layout is not None  # noqa: S101 - it has begun
        state = RoundState(self.index, arrays, self.layout, self.wrapped.clip_norm(), grid)
        if self.plan is None and messages:
            self._make_plan(self.layout, len(messages))
        if not math.isfinite(norm(state.before)):
            raise ValueError("Expected a model without NaN or infinite entries.")
        self.note_model(state.before)
        if self.index == 0:
            self._save()  # before anything is sent
        try:
            self.source.configure(state, messages)
        except TooManyCanariesError as error:
            self.failed("no canary takes part", str(error))
            state.sent, state.sits_out = messages, True
        return state

    def _is_over(self, arrays: ArrayRecord) -> bool:
        """Whether no more rounds are audited; the first time the reason is a fault."""
        if self.over is None and self.index > 0 and self.layout is not None:
            again, self._is_again = self._is_again, False
            if again and not self.is_last(arrays):
                self.over = "start() was called again, with another model: make a new CanaryAudit"
            elif self.settings.clients is None and self.index == self.rounds:
                self.over = (
                    f"the canaries took part in {self.rounds} rounds: give CanaryAudit rounds=…,"
                    " those of all its starts together"
                )
            if self.over is not None:
                self.failed("this round and later ones are not measured", self.over)
        return self.over is not None

    def _make_plan(self, layout: Layout, clients: int) -> None:
        if isinstance(self.source, ServerCanaries):
            plan = self.source.plan(clients, layout.left_out)
        else:
            plan = AuditPlan(0, clients, left_out=layout.left_out)
        self.plan = plan
        if plan.reduced and not plan.canaries:
            self.failed("no canary takes part", plan.reduced)
        for sentence in plan.sentences() if plan.canaries or plan.left_out else ():
            logger.log(logging.WARNING if plan.too_much else logging.INFO, "Audit: %s", sentence)

    def join(self, state: RoundState, replies: list[Message]) -> list[Message]:
        """The replies with the canaries among them.

        Raises:
            ValueError: if canaries cannot join, with the reason.
        """
        self.log.note(state, replies)
        real = len(readable(replies))
        absent = len(state.sent) - real
        state.facts = RoundFacts(clip_norm=state.clip_norm, replies=real, absent=absent)
        if state.sits_out:
            return replies
        try:
            return self.source.join(state, replies)
        finally:
            for reason in state.unreadable:
                self.log.fault(state.index, reason, FaultKind.REFUSED)
            for text in state.dominant:
                self.log.failed(state.index, "an update hides the others", text, FaultKind.LOUD)

    def close_round(
        self,
        state: RoundState | None,
        arrays: ArrayRecord | None,
        seen: Aggregation | None,
        loss: float | None = None,
    ) -> None:
        """Score the model that the strategy released; ``state`` is ``None`` if it went by unseen.

        Args:
            state: of the round.
            arrays: the model.
            seen: what the strategy was given, and what it made of it.
            loss: of the clients' training; ``None`` if nobody says.

        Raises:
            ValueError: if the model is not like the first one.
        """
        index, self.index = self.index, self.index + 1
        self._finished = None
        self.losses.append(loss)
        try:
            if self.layout is not None:
                self.note_model(None)
                if state is not None:
                    self._settle_canaries(index, state, seen)
                theta = self._released(index, self.layout, arrays)
                self.note_model(theta)
                self.catch_up(index)
                facts, vectors = (state.facts, state.vectors) if state else (RoundFacts(), None)
                self.auditor.observe(theta, facts, vectors)
        finally:
            self._save()

    def _settle_canaries(self, index: int, state: RoundState, seen: Aggregation | None) -> None:
        """Note which canaries the strategy used, and with which share."""
        averaging, shares = self._averaging(seen, state) or (None, None)
        meant = len(state.played)
        if left_out := state.settle(shares):
            text = f"it did not use {left_out} of {meant} of their answers"
            what, kind = "the strategy left canaries out", FaultKind.CANARY_UNUSED
            self.log.failed(index, what, text, kind, left_out)
        if state.facts.present:
            self.averaged[index] = averaging
            self.log.heaviest[index] = state.heaviest

    def _averaging(self, seen: Aggregation | None, state: RoundState) -> tuple[str, Shares] | None:
        """How the replies were averaged, and their shares; ``None`` if that is not known."""
        key = self.wrapped.weighted_by()
        with contextlib.suppress(ValueError, TypeError, ZeroDivisionError, LinAlgError):
            if self.wrapped.averages():
                return "weighted", weighted_shares(state.replies, key, state.used)
            if seen is not None and self.wrapped.plain_layers():
                return seen.shares(key, state.layout, self.wrapped.arrays_key(), state.used)
        return None

    def _released(
        self, index: int, layout: Layout, arrays: ArrayRecord | None
    ) -> NDArray[np.floating] | None:
        if not arrays:
            self.log.fault(index, "the strategy released no model", FaultKind.NO_MODEL)
            return None
        theta = layout.flatten(arrays)
        self.last_is_finite = math.isfinite(norm(theta))
        if self.last_is_finite:
            self.last = theta
            return theta
        text = "the strategy released a model with NaN or infinite entries"
        self.log.fault(index, text, FaultKind.NO_MODEL)
        return None

    def epsilons(self) -> dict[str, EpsilonEstimate]:
        """What is known of ε after the round: "all", and "final" after the last one."""
        found = {"all": self.auditor.epsilon_so_far()}
        if self.index == self.rounds and found["all"] is not None:
            with contextlib.suppress(NotMeasured):
                found["final"] = epsilon_from_record(self.record())
        return {name: estimate for name, estimate in found.items() if estimate is not None}

    def record(self) -> AuditRecord:
        """What the run leaves behind so far.

        Raises:
            ValueError: if nothing was seen.
        """
        if self._awaited is not None and self.index == 0:
            self._settle(self._awaited)  # started again after the last round
        if self._finished is None:
            self._finished = make_record(self)
        return self._finished
