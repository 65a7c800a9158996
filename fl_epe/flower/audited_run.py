"""The audit of one run: from each round's messages to what the record holds of it."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid
from numpy.linalg import LinAlgError
from numpy.typing import NDArray

from fl_epe.auditing import (
    AuditRecord,
    EpsilonEstimate,
    NotMeasured,
    RoundFacts,
    RunAuditor,
    epsilon_from_record,
)
from fl_epe.faults import FaultKind
from fl_epe.flower.audit_log import AuditLog, logger
from fl_epe.flower.audit_settings import AuditSettings
from fl_epe.flower.averaging import Aggregation, Shares, doubts, leave_out_missing, weighted_shares
from fl_epe.flower.checkpoint import Checkpoint, SavedAudit, announce, digest, fingerprint, velocity
from fl_epe.flower.injection import readable
from fl_epe.flower.layout import Layout
from fl_epe.flower.plan import Plan
from fl_epe.flower.round_state import RoundState
from fl_epe.flower.self_auditing import OwnAuditor
from fl_epe.flower.sources import ServerCanaries, SettingsError, Source, TooManyCanariesError
from fl_epe.mechanism import ServerSGD, norm
from fl_epe.message_records import records_of


class AuditedRun:
    """What an audit does in each round. It may raise: `CanaryAudit` keeps that from the run.

    Args:
        settings: of the audit.
        log: keeps faults and answers.
        rounds: of the run; ``None`` if not known.
    """

    def __init__(self, settings: AuditSettings, log: AuditLog, rounds: int | None) -> None:
        self._settings, self._log = settings, log
        self.rounds = rounds
        self.index = 0
        self.plan: Plan | None = None
        self._auditor = settings.auditor()
        self._start: ArrayRecord | None = None
        self._layout: Layout | None = None
        self._source: Source | None = None
        self._averaged: dict[int, str | None] = {}  # by the rounds with canaries
        self._finished: AuditRecord | None = None
        self._num_rounds = rounds  # as this process was told
        self._last: NDArray[np.floating] | None = None  # model, as far as it could be read
        self._is_again = False  # started again, with a model that was not looked at yet
        self.over: str | None = None  # why no more rounds are audited
        self._losses: list[float | None] = []  # of training, by round; None if nobody says
        self._last_is_finite = True
        self._models: list[str] = []  # hashes of the initial model and that after each round
        self._resumed: tuple[int, ...] = ()
        self._awaited: ArrayRecord | None = None
        self._checkpoint: Checkpoint | None = None
        if settings.checkpoint is not None:
            self._checkpoint = Checkpoint(Path(settings.checkpoint), self._failed)

    @property
    def has_own_canaries(self) -> bool:
        """Whether the strategy schedules and scores its canaries itself."""
        return isinstance(self._auditor, OwnAuditor)

    @property
    def source(self) -> Source:
        """Where the canaries come from.

        Raises:
            ValueError: if the server must know the number of rounds, and does not.
        """
        if self._source is None:
            self._source = self._settings.source(self.rounds, self._run_auditor)
        return self._source

    def _failed(self, what: str, why: Exception | str) -> None:
        self._log.failed(self.index, what, why)

    def prepare(self, arrays: object, num_rounds: int | None) -> None:
        """Before the first round: look for a saved audit, and spread the canaries.

        Args:
            arrays: the initial model, if it is known.
            num_rounds: of the run, or those that are left of it; ``None`` if not known.

        Raises:
            SettingsError: if an argument does not go with the run, or with the saved audit.
        """
        self._is_again = self.index > 0
        if self._checkpoint is not None and not (self._is_again and self._is_last(arrays)):
            self._num_rounds, self._awaited = num_rounds or self.rounds, None
            self._checkpoint.look()
            if (saved := self._checkpoint.saved) is not None:
                if not isinstance(arrays, ArrayRecord):
                    saved.check(self._settings)
                elif (done := saved.goes_on_after(arrays, self._settings)) is not None:
                    saved.check(self._settings)
                    saved.check_rounds(done, num_rounds, self._settings.rounds)
                    self._awaited = arrays
                    return
        if num_rounds:
            self.use_rounds(num_rounds)

    def _is_last(self, arrays: object) -> bool:
        """Whether this is the model after the rounds so far."""
        if self._layout is None or self._last is None or not isinstance(arrays, ArrayRecord):
            return False
        with contextlib.suppress(ValueError):
            return np.array_equal(self._layout.flatten(arrays), self._last)
        return False

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
            if (done := saved.goes_on_after(arrays, self._settings)) is not None:
                saved.check(self._settings)
                self._restore(saved, done, arrays)
                announce(saved, done, self._num_rounds, self._settings.rounds)
                return
            logger.warning("Audit: the one in the checkpoint is of another run; a new one begins")
            if (problem := self._checkpoint.problem) is not None:
                kept = f"the one before it knows {saved.index} rounds, and not this model"
                self._failed(f"the newest audit cannot be read, {kept}", problem)
        except Exception as error:  # noqa: BLE001 - a new audit is better than none
            self._failed("the saved audit cannot go on, and a new one begins", error)
        if self.index == 0:
            self.rounds = self._num_rounds or self.rounds

    def _restore(self, saved: SavedAudit, done: int, arrays: ArrayRecord) -> None:
        assert self._checkpoint is not None  # noqa: S101 - `_settle` looks first
        settings = dataclasses.replace(self._settings, seed=saved.settings["seed"])
        start, auditor = self._checkpoint.start(), settings.auditor()
        assert isinstance(auditor, RunAuditor)  # noqa: S101 - others take no checkpoint
        auditor.restore(
            saved.scores,
            done,
            start=saved.layout.flatten(start),
            last=saved.layout.flatten(arrays),
            velocity=velocity(settings, saved.layout),
        )
        source = settings.source(saved.rounds, self._run_auditor)
        source.restore(saved.source)
        self._checkpoint.adopt()
        self._log.restore(saved.log, done)
        self._settings, self._auditor, self._source = settings, auditor, source
        self._start, self._layout, self.plan = start, saved.layout, saved.plan
        self._averaged = {t: how for t, how in saved.averaged.items() if t < done}
        self._models = saved.models[: done + 1]
        self._resumed = (*saved.resumed, done)
        if done < saved.index:
            forgotten = f"rounds {done + 1} to {saved.index}"
            self._log.fault(
                done - 1,
                f"the server went back to the model after this round: {forgotten}, whose models"
                " were sent to clients, are not in the record",
            )
        self.rounds, self.index, self._finished = saved.rounds, done, None
        self._last, self._is_again, self.over = saved.layout.flatten(arrays), False, None

    def _save(self) -> None:
        """Keep the audit; not being able to is a fault."""
        if self._checkpoint is None or self._layout is None or self._start is None:
            return
        try:
            self._catch_up(self.index)
            saved = SavedAudit(
                settings=fingerprint(self._settings),
                rounds=self.rounds,
                layout=self._layout,
                models=self._models,
                scores=self._run_auditor().state(),
                log=self._log.state(),
                averaged=self._averaged,
                source=self.source.state(),
                plan=self.plan,
                resumed=self._resumed,
            )
            self._checkpoint.save(saved, self._start)
        except Exception as error:  # noqa: BLE001 - the run goes on
            text = "the audit could not be saved"
            self._log.failed(max(0, self.index - 1), text, error, FaultKind.NOT_SAVED)

    def _note_model(self, theta: NDArray[np.floating] | None) -> None:
        """Remember the model after ``index`` rounds; ``None`` if it is that of the round before."""
        if self._checkpoint is not None and self._models:
            known = self._models[-1] if theta is None else digest(theta)
            missing = self.index - len(self._models)
            self._models[self.index :] = [*[""] * missing, known]

    def use_rounds(self, rounds: int) -> None:
        """Spread the canaries over so many rounds.

        Raises:
            SettingsError: if they are more than were given, or canaries cannot be spread so.
        """
        by_server = self._settings.clients is None and not self.has_own_canaries
        if (most := self._settings.rounds) is not None:
            if self.index == 0 and rounds > most:
                raise SettingsError(f"Expected num_rounds={rounds} to be at most rounds={most}.")
        elif not by_server:
            self.rounds = self.index + rounds
        elif self.index > 0 or rounds == 1:
            return  # a single round may be one of a loop: how long that is must be said
        else:
            self.rounds = rounds
        try:
            _ = self.source
        except ValueError as error:
            raise SettingsError(str(error)) from error

    def _run_auditor(self) -> RunAuditor:
        assert isinstance(self._auditor, RunAuditor)  # noqa: S101 - asked by its canaries only
        return self._auditor

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
        if self._layout is None:
            self._begin(Layout.of(arrays, self._settings.leave_out), arrays)
        assert self._layout is not None  # noqa: S101
        clip_norm = self._settings.wrapped.clip_norm()
        state = RoundState(self.index, arrays, self._layout, clip_norm, grid)
        if self.plan is None and messages:
            self._make_plan(self._layout, len(messages))
        if not math.isfinite(norm(state.before)):
            raise ValueError("Expected a model without NaN or infinite entries.")
        self._note_model(state.before)
        if self.index == 0:
            self._save()  # before anything is sent
        try:
            self.source.configure(state, messages)
        except TooManyCanariesError as error:
            self._failed("no canary takes part", str(error))
            state.sent, state.sits_out = messages, True
        return state

    def _is_over(self, arrays: ArrayRecord) -> bool:
        """Whether no more rounds are audited; the first time the reason is a fault."""
        own = self.has_own_canaries or self._layout is None
        if self.over is None and self.index > 0 and not own:
            again, self._is_again = self._is_again, False
            if again and not self._is_last(arrays):
                self.over = "start() was called again, with another model: make a new CanaryAudit"
            elif isinstance(self._source, ServerCanaries) and self.index >= (self.rounds or 0):
                self.over = (
                    f"the canaries took part in {self.rounds} rounds: give CanaryAudit rounds=…,"
                    " those of all its starts together"
                )
            if self.over is not None:
                self._failed("this round and later ones are not measured", self.over)
        return self.over is not None

    def _begin(self, layout: Layout, arrays: ArrayRecord) -> None:
        self._auditor = self._settings.auditor()
        start = layout.flatten(arrays)
        models = [] if self._checkpoint is None else [digest(start)]
        self._auditor.begin(start)
        self._layout, self._start, self._models = layout, arrays, models
        self._last = start
        self._catch_up(self.index)

    def _catch_up(self, rounds: int) -> None:
        """Count those of the first ``rounds`` that could not be read as lost."""
        if isinstance(self._auditor, RunAuditor):
            while self._auditor.rounds < rounds:
                self._auditor.observe(None, RoundFacts())

    def _make_plan(self, layout: Layout, clients: int) -> None:
        plan = Plan(0, clients, left_out=layout.left_out)
        if isinstance(self.source, ServerCanaries):
            reduced = self.source.fit(clients)
            if self.source.number == 0:
                self._failed("no canary takes part", reduced)
            canaries = max((len(cohort) for cohort in self.source.cohorts), default=0)
            seconds, memory = self._price(canaries, layout.dim)
            replaced = self.source.replaced(canaries, clients)
            plan = Plan(canaries, clients, replaced, seconds, memory, layout.left_out, reduced)
        self.plan = plan
        for sentence in plan.sentences() if plan.canaries or plan.left_out else ():
            logger.log(logging.WARNING if plan.too_much else logging.INFO, "Audit: %s", sentence)

    def _price(self, canaries: int, dim: int) -> tuple[float, float]:
        """About how long a round's canaries take, in seconds, and their memory, in bytes."""
        start = time.perf_counter()
        self._run_auditor().canaries.vector(0)
        one = time.perf_counter() - start
        waiting = max(1, min(self.rounds or 1, self._settings.score_memory // (4 * dim)))
        if self._checkpoint is not None:
            waiting = 1
        scored = (self._settings.num_canaries + self._settings.unobserved) / waiting
        return one * (canaries + scored), 4.0 * dim * (2 * canaries + waiting)

    def join(self, state: RoundState, replies: list[Message]) -> list[Message]:
        """The replies with the canaries among them.

        Raises:
            ValueError: if canaries cannot join, with the reason.
        """
        self._log.note(state, replies)
        if state.sits_out:
            real = len(readable(replies))
            absent = len(state.sent) - real
            state.facts = RoundFacts(clip_norm=state.clip_norm, replies=real, absent=absent)
            return replies
        if not self._averaged:
            self._fit_layout(state, replies)
        try:
            joined = self.source.join(state, replies)
            self._look_at_replies(state, replies)
            return joined
        finally:
            for reason in state.unreadable:
                self._log.fault(state.index, reason, FaultKind.REFUSED)

    def _look_at_replies(self, state: RoundState, replies: Sequence[Message]) -> None:
        """Note canaries that are not where a client says so, and what else ε is not of."""
        run, preferred = state.index, self._settings.wrapped.arrays_key()
        if state.played and not state.made_up:
            canaries = self._run_auditor().canaries
            for node in leave_out_missing(state, readable(replies), canaries, preferred):
                text = f"node {node} says so, and its answer does not hold it"
                self._log.failed(run, "a canary is missing", text, FaultKind.CANARY_MISSING)
        for text in state.loud:
            self._log.failed(run, "an update hides the others", text, FaultKind.LOUD)
        counted = self._log.fault_counts
        if self._start is None or not self._averaged or FaultKind.NOT_MOVED in counted:
            return
        whole = Layout.of(self._start, self._settings.leave_out)
        if late := state.layout.not_moved_of(whole, readable(replies)):
            text = f"clients answer with {', '.join(late)}, which they kept to themselves at first"
            self._log.failed(run, "arrays have no canary", text, FaultKind.NOT_MOVED)

    def _fit_layout(self, state: RoundState, replies: Sequence[Message]) -> None:
        """Before the first canary: leave alone what clients keep to themselves."""
        if self.has_own_canaries or self._start is None:
            return
        for reply in readable(replies):
            for arrays in records_of(reply.content, ArrayRecord).values():
                with contextlib.suppress(ValueError):
                    layout = state.layout.narrowed(arrays)
                    if layout != state.layout:
                        kept = sorted(set(layout.left_out) - set(state.layout.left_out))
                        logger.warning("Audit: clients keep %s to themselves", ", ".join(kept))
                        self._begin(layout, self._start)
                        state.relaid(layout)
                        self._note_model(state.before)
                    return

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
        self._losses.append(loss)
        try:
            self._score(index, state, arrays, seen)
        finally:
            self._save()

    def _score(
        self,
        index: int,
        state: RoundState | None,
        arrays: ArrayRecord | None,
        seen: Aggregation | None,
    ) -> None:
        if self._layout is None:
            return
        self._note_model(None)
        facts, vectors = RoundFacts(), None
        if state is not None:
            averaging, shares = self._averaging(seen, state) or (None, None)
            if averaging in ("weighted", "equal"):
                self.source.averages_models()
            meant = len(state.played)
            if left_out := state.settle(shares):
                text = f"it did not use {left_out} of {meant} of their answers"
                what, kind = "the strategy left canaries out", FaultKind.CANARY_UNUSED
                self._log.failed(index, what, text, kind, left_out)
            facts, vectors = state.facts, state.vectors
            if facts.present:
                self._averaged[index] = averaging
                self._log.heaviest[index] = state.heaviest
        theta = self._released(index, arrays)
        self._note_model(theta)
        self._catch_up(index)
        self._auditor.observe(theta, facts, vectors)

    def _released(self, index: int, arrays: ArrayRecord | None) -> NDArray[np.floating] | None:
        assert self._layout is not None  # noqa: S101 - `close_round` looks first
        if not arrays:
            self._log.fault(index, "the strategy released no model", FaultKind.NO_MODEL)
            return None
        theta = self._layout.flatten(arrays)
        self._last_is_finite = math.isfinite(norm(theta))
        if self._last_is_finite:
            self._last = theta
            return theta
        text = "the strategy released a model with NaN or infinite entries"
        self._log.fault(index, text, FaultKind.NO_MODEL)
        return None

    @property
    def must_watch(self) -> bool:
        """Whether it is not known how the strategy averages, unless one looks."""
        return not (self._settings.averages or self._settings.wrapped.averages())

    def _averaging(self, seen: Aggregation | None, state: RoundState) -> tuple[str, Shares] | None:
        """How the replies were averaged, and their shares; ``None`` if that is not known."""
        key = self._settings.wrapped.weighted_by()
        with contextlib.suppress(ValueError, TypeError, ZeroDivisionError, LinAlgError):
            if not self.must_watch:
                return "weighted", weighted_shares(state.replies, key, state.used)
            if seen is not None and self._settings.wrapped.plain_layers():
                return seen.shares(key, state.arrays, state.used)
        return None

    def averages(self) -> bool:
        """Whether the innermost strategy is said, or was seen, to average and do nothing else."""
        seen = self.must_watch and bool(self._averaged) and None not in self._averaged.values()
        return self._settings.averages or seen

    def epsilons(self) -> dict[str, EpsilonEstimate]:
        """What is known of ε after the round: "all", and "final" after the last one."""
        found = {"all": self._auditor.epsilon_so_far()}
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
            averaged = self.averages() and self._settings.wrapped.plain_layers()
            if averaged and isinstance(self._auditor, RunAuditor):
                self._auditor.learn_server(ServerSGD())
            if self._layout is not None:
                self._catch_up(self.index)
            record = self._auditor.record(**self.facts())
            found = [] if self.has_own_canaries else doubts(record)
            config = record.provenance.config
            self._finished = record.with_values(config={**config, "doubts": found})
        return self._finished

    def facts(self) -> dict[str, Any]:
        """What the record holds besides scores, by the names of `AuditRecord.by_name`."""
        averages = self.averages()
        claimed, of_sum = self._settings.noise_multipliers(averages=averages)
        facts: dict[str, Any] = {
            "noise_multiplier": claimed,
            "sum_noise_multiplier": of_sum,
            "participation": self._source.participation if self._source else "deployment",
            "faults": tuple(self.faults()),
            "fault_counts": self._log.fault_counts,
            "config": self.config(),
        }
        losses = [loss for loss in self._losses if loss is not None]
        if losses and len(losses) == self.index:
            facts["metrics"] = {"train_loss": np.array(losses)}
        if self.index == self.rounds and isinstance(self._source, ServerCanaries):
            facts["canary_participations"] = float(self._settings.participations)
        return facts

    def config(self) -> dict[str, Any]:
        """What the report says about the set-up."""
        known = self._settings.to_config(averages=self.averages())
        if not self.has_own_canaries:
            shares = np.array([*self._log.heaviest.values()] or [(math.nan, math.nan)])
            known["heaviest_share"], known["heaviest_canary_share"] = (
                float(most) if math.isfinite(most) else None for most in shares.max(axis=0)
            )
        return {
            **known,
            "arrays_left_out": list(self._layout.left_out) if self._layout else [],
            "client_participations": self._log.participations(),
            "plan": [*(self.plan.sentences() if self.plan else []), *self._not_in_canaries()],
            "not_measured": self.reason(),
            "resumed_after": list(self._resumed),
            "last_model_is_finite": self._last_is_finite,
        }

    def _not_in_canaries(self) -> list[str]:
        if not isinstance(self._source, ServerCanaries):
            return []
        return [
            "Canaries are made on the server: what clients do to their own updates before they"
            " send them, such as adding noise, is not in them (it is with canary_mod)."
        ]

    def faults(self) -> list[str]:
        """What went wrong so far, in sentences."""
        missing = self._source.reason() if self._source else None
        return [*self._log.faults, *([missing] if missing else [])]

    def reason(self) -> str | None:
        """Why fewer canaries took part than were meant to; ``None`` if nothing is known."""
        known = self._source.reason() if self._source else None
        return known or self._log.first_failure
