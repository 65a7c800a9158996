"""`AuditedRun`: what an audit does in each round, and where it goes on after a restart."""

import contextlib
import dataclasses
import functools
import logging
import math
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from fl_epe.archive import digest, under
from fl_epe.auditing import AuditRecord, EarlyStop, FaultKind, RoundFacts, RunAuditor
from fl_epe.checks import Vector
from fl_epe.files import run_folder
from fl_epe.flower import free_arrays
from fl_epe.flower.audit_record import make_record, noise_multipliers
from fl_epe.flower.checkpoint import Checkpoint, SavedAudit
from fl_epe.flower.client_noise import announce_promise, check_replies, restore_promise
from fl_epe.flower.dominance import NodeContributions, RoundUpdates, note_dominant
from fl_epe.flower.layout import Layout, ReplyKind
from fl_epe.flower.replies import base_of, readable
from fl_epe.flower.seen_clients import SeenClients
from fl_epe.flower.settings import CanaryAuditSettings, SettingsError
from fl_epe.flower.sources import ClientAnswers, ServerCanaries
from fl_epe.flower.state import AuditState, RoundState, logger
from fl_epe.flower.watching import averaging_of, note_noise
from fl_epe.flower.wrapped import Wrapped
from fl_epe.loggers import Loggers
from fl_epe.mechanism import norm
from fl_epe.messages import pack
from fl_epe.noise import RUN_LEVEL, NoiseHealth, PromisedNoise

_WARN_ABOVE = 0.101  # share of a round's replies


class AuditedRun(AuditState):
    """The audit of one run. It may raise: `CanaryAudit` keeps that from the strategy.

    Args:
        wrapped: the strategy.
        settings: of the audit.

    Attributes:
        auditor: scores the canaries.
        loggers: that are told each round.
        start: the initial model.
        last: the newest model that could be read, as a vector.
        last_is_finite: whether the newest model has no NaN or infinite entries.
        over: why no more rounds are audited; ``None`` while they are.
        is_longer: whether the run went on then.
        noise: that of Flower's DP wrappers, as far as it was seen apart from updates.
        contributions: what each node added to the model.
        promised: what replies show of the noise that clients promise; ``None`` before the first.
        less_noise: nodes that were named for having less of it than others seem to add.
        stop_rule: by which a rule of `CanaryAudit.stop_when` ended the run, in words.
    """

    def __init__(self, wrapped: Wrapped, settings: CanaryAuditSettings) -> None:
        known: ReplyKind | None = "model" if wrapped.takes_models else None
        super().__init__(
            settings.canary_seed, settings.rounds, settings.replies or known
        )
        self.wrapped, self.settings, self.seen = wrapped, settings, SeenClients()
        self._score_with(self._new_auditor(self))
        self.promised: PromisedNoise | None = None
        self.less_noise = set[int]()
        self.start: ArrayRecord | None = None
        self.last: Vector | None = None
        self.last_is_finite = True
        self.over = None if settings.enabled else "the audit was off (enabled=False)"
        self.is_longer = False
        self._noise_fails: bool | None = None  # as it was seen last
        self.stop_rule = ""
        self._stopped: EarlyStop | None = None
        self._finished: AuditRecord | None = None
        self._is_again = False  # started again, with a model that was not looked at yet
        self._awaited: object = None  # a model with which a saved audit goes on
        self._checkpoint = Checkpoint(self)
        folder = Path(settings.checkpoint or run_folder("audit"))
        self.loggers = Loggers(settings.log_to, folder, logger.warning)
        if settings.enabled and settings.client_noise is not None:
            announce_promise(settings.client_noise)

    def _score_with(self, auditor: RunAuditor) -> None:
        """Take this auditor; what was seen of noise and nodes before is forgotten."""
        self.auditor = auditor
        self.noise = NoiseHealth(level=RUN_LEVEL)
        self.contributions = NodeContributions(self.seed)

    def _new_auditor(self, state: AuditState) -> RunAuditor:
        plan = state.plan
        return RunAuditor(
            max(2, plan.number),
            self.settings.unobserved_beside(plan.number),
            seed=state.seed,
            delta=self.settings.delta,
            server=self.wrapped.server(),
            planned=plan.planned,
            client=plan.law(self.rounds or 1)
            if self.settings.clients is None
            else None,
            kind=self.settings.canary_kind,
            faults=self.faults,
        )

    @functools.cached_property
    def source(self) -> ServerCanaries | ClientAnswers:
        """Where the canaries come from.

        Raises:
            ValueError: if the number of rounds must be known, and is not.
        """
        if self.settings.clients is not None:
            return ClientAnswers(self)
        if self.rounds is None:
            raise ValueError(
                "Expected rounds=… in CanaryAudit, those of all starts together: start() does not"
                " tell them, or has a single round, which may be one of many (pass rounds=1, if"
                " that is all)."
            )
        return ServerCanaries(self, self.rounds)

    @contextlib.contextmanager
    def goes_on(self, what: str, index: int | None = None) -> Iterator[None]:
        """An error in this context is a fault (``what`` cannot be done), and the run goes on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the run goes on
            self.failed(what, error, index)

    def prepare(self, arrays: object, num_rounds: int | None) -> None:
        """Before the first round: look for a saved audit, and spread the canaries.

        Args:
            arrays: the initial model, if it is known.
            num_rounds: of the run, or those that are left of it; ``None`` if not known.

        Raises:
            SettingsError: if an argument does not go with the run, or with the saved audit.
        """
        self._is_again = self.index > 0
        goes_on = self._is_again and self._is_last(arrays)
        if not goes_on and self._checkpoint.holds(arrays):
            self._awaited = arrays
            if not self._is_again:
                # If it cannot go on after all.
                self.rounds = self.settings.rounds or num_rounds or self.rounds
        elif num_rounds:
            self._use_rounds(num_rounds)

    def _use_rounds(self, rounds: int) -> None:
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

    def leave(self) -> None:
        """A start has ended: let other processes have the folder of the checkpoint."""
        self._checkpoint.close()

    def restore(self, saved: SavedAudit, done: int, last: ArrayRecord) -> None:
        """Go on after the first ``done`` rounds of an audit that was saved; ``last`` is the model.

        Raises:
            ValueError: if it does not fit; nothing is changed then.
        """
        auditor, theta = self._new_auditor(saved.audit), saved.layout.flatten(last)
        start = saved.layout.flatten(saved.start)
        momentum, velocity = getattr(self.wrapped.base, "momentum_vector", None), None
        if momentum is not None:
            named = dict(
                zip(saved.layout.shapes, map(np.asarray, momentum), strict=True)
            )
            velocity = -saved.layout.flatten(pack(**named))
        auditor.restore(saved.scores, done, start=start, last=theta, velocity=velocity)
        self.go_on(saved.audit, done)
        self.seen.restore(saved.scores, done)
        self.settings = dataclasses.replace(self.settings, seed=self.seed)
        self._score_with(auditor)
        if done == saved.audit.index:
            self.noise.restore(under(saved.scores, "noise."))
            self.contributions.restore(under(saved.scores, "nodes."))
            restore_promise(self, saved.whole, under(saved.scores, "promised."))
        self.start, self.last = saved.start, theta
        self._finished, self._is_again, self.over = None, False, None
        vars(self).pop("source", None)  # another one, that knows what was saved

    def noise_fails(self) -> bool:
        """Whether the noise failed a check, as of the last look.

        Each look may be wrong, and takes long after many rounds: there is one after 1, 2, 4, 8, …
        rounds.
        """
        is_power_of_two = self.index & (self.index - 1) == 0
        if is_power_of_two or self._noise_fails is None:
            self._noise_fails = bool(self.noise.findings()[1])
        return self._noise_fails

    def _is_last(self, arrays: object) -> bool:
        with contextlib.suppress(ValueError):
            if (
                self.layout
                and self.last is not None
                and isinstance(arrays, ArrayRecord)
            ):
                return np.array_equal(self.layout.flatten(arrays), self.last)
        return False

    def catch_up(self) -> None:
        """Count rounds that could not be read as lost."""
        while self.auditor.rounds < self.index:
            self.auditor.observe(None, RoundFacts())

    def _begin(self, arrays: ArrayRecord, asked: int, grid: Grid) -> Layout:
        layout, nodes = Layout.of(arrays, self.settings.leave_out), None
        start = layout.flatten(arrays)
        with contextlib.suppress(Exception):  # it need not tell
            nodes = max(asked, len(list(grid.get_node_ids())))
        self.plan = dataclasses.replace(
            self.source.plan(asked, nodes), left_out=layout.left_out
        )
        self._announce_plan()
        if self.settings.checkpoint is not None:
            self.models = {0: digest(start)}
        self.auditor = self._new_auditor(self)
        self.auditor.begin(start)
        self.layout = self.whole = layout
        self.start, self.last = arrays, start
        self.catch_up()
        return layout

    def _announce_plan(self) -> None:
        plan = self.plan
        if not plan.number:
            self.failed("no canary takes part", " ".join(plan.sentences()))
            return
        most = plan.load.share if plan.load else plan.most
        level = logging.WARNING if most > _WARN_ABOVE or plan.reduced else logging.INFO
        for sentence in plan.sentences():
            logger.log(level, "Audit: %s", sentence)

    def choose_arrays(
        self, state: RoundState, answers: Sequence[Vector], kind: ReplyKind | None
    ) -> None:
        """Note which arrays canaries leave alone: at first for good, then in this round.

        Args:
            state: of the round; its arrays that no answer moved are noted in it.
            answers: of clients drawn at random, each of shape ``(dim,)``.
            kind: what they are.

        Raises:
            ValueError: if there is none, or none moved at least two entries that canaries may move.
        """
        if not answers:
            raise ValueError("Expected a reply that can be read.")
        if base_of(kind, state.before) is None:
            answers = [state.before + update for update in answers]
        before = state.layout.split(state.before)
        models = [state.layout.split(answer) for answer in answers]
        if not self.settled:
            self._settle(state, free_arrays.not_free(before, models))
            return
        unmoved = free_arrays.unmoved(before, models)
        state.moved_part = math.sqrt(
            state.layout.without(unmoved).dim / state.layout.dim
        )
        state.unmoved = unmoved
        self.unmoved |= unmoved

    def _settle(self, state: RoundState, left_out: Collection[str]) -> None:
        """Leave these arrays alone from now on; canaries have the dimension of the others."""
        layout = state.layout.without(left_out)
        if left_out and self.start is not None:
            before, auditor = layout.flatten(state.arrays), self._new_auditor(self)
            auditor.begin(layout.flatten(self.start))
            for _ in range(self.index):  # which had no canary
                auditor.observe(before, RoundFacts())
            self._score_with(auditor)
            self.layout = state.layout = layout
            self.last = state.before = before
            self.plan = dataclasses.replace(self.plan, left_out=layout.left_out)
            logger.info("Audit: %s", self.plan.sentences()[-1])
        self.settled = True

    def _remember(self, arrays: ArrayRecord | None) -> None:
        """Note the model after ``index`` rounds; ``None`` if it is that of the round before."""
        if self.models and self.whole is not None:
            with contextlib.suppress(
                ValueError
            ):  # it lacks arrays that canaries leave alone
                last = self.models[max(self.models)]
                known = last if arrays is None else digest(self.whole.flatten(arrays))
                self.models[self.index] = known

    def open_round(
        self, arrays: ArrayRecord, messages: list[Message], grid: Grid
    ) -> RoundState | None:
        """Decide who takes part, and what is sent of the strategy's ``messages``.

        ``None`` if the audit is over, and the round is no longer part of it.

        Raises:
            ValueError: if the model or the round cannot be audited, with the reason.
        """
        self._checkpoint.go_on(arrays)
        if self._is_over(arrays) or (self.layout is None and not messages):
            return None
        layout = self.layout or self._begin(arrays, len(messages), grid)
        before, clip_norm = layout.flatten(arrays), self.wrapped.clip_norm()
        state = RoundState(
            self.index, arrays, layout, before, clip_norm, grid, messages
        )
        if not math.isfinite(norm(before)):
            raise ValueError("Expected a model without NaN or infinite entries.")
        self._remember(arrays)
        if self.index == 0:
            self._checkpoint.save()  # before anything is sent
        with self.goes_on("no canary takes part"):
            self.source.configure(state, messages)
            state.sits_out = False
        return state

    def _is_over(self, arrays: ArrayRecord) -> bool:
        """Whether no more rounds are audited; the first time the reason is a fault."""
        if self.over is None and self.index > 0 and self.layout is not None:
            again, self._is_again = self._is_again, False
            if again and not self._is_last(arrays):
                self.over = "start() was called again, with another model: make a new CanaryAudit"
            elif self.settings.clients is None and self.index == self.rounds:
                self.is_longer = True
                self.over = (
                    f"the canaries took part in {self.rounds} rounds: give CanaryAudit rounds=…,"
                    " those of all its starts together"
                )
            if self.over is not None:
                self._finished = None
                self.failed("this round and later ones are not measured", self.over)
        return self.over is not None

    def join(self, state: RoundState, replies: list[Message]) -> list[Message]:
        """The replies with the canaries among them.

        Raises:
            ValueError: if canaries cannot join, with the reason.
        """
        heard = self.hear(state, replies, self.settings.identity or int)
        state.clients = {
            i: client for i, client in heard.items() if client not in self.clients
        }
        self.seen.note(state.index, state.client_weights(None))
        state.absent = len(state.sent) - len(readable(replies))
        if state.sits_out:
            joined = replies
        else:
            try:
                joined = self.source.join(state, replies)
            finally:
                with self.goes_on(
                    "clients' updates could not be compared", state.index
                ):
                    self._compare_updates(state, replies)
        copies = 2 * len(state.synthetic)  # as vectors, and in replies
        self.note(state.index).canary_bytes = copies * state.before.nbytes
        return joined

    def _compare_updates(self, state: RoundState, replies: list[Message]) -> None:
        """Who dominates the round, with or without canaries in it."""
        canaries = {id(reply) for reply in state.played}
        real = [reply for reply in readable(replies) if id(reply) not in canaries]
        state.updates = RoundUpdates.of(
            self.wrapped,
            state.layout,
            state.arrays,
            real,
            kind=self.kind,
            clip_norm=state.clip_norm,
        )
        if state.updates is not None:
            note_dominant(self, state, state.updates)
        with self.goes_on("the noise of clients could not be tested", state.index):
            check_replies(self, state, real)

    def close_round(
        self, state: RoundState | None, arrays: ArrayRecord | None, loss: float | None
    ) -> None:
        """Score the model that the strategy released; ``state`` is ``None`` if it went by unseen.

        Args:
            state: of the round.
            arrays: the model.
            loss: of the clients' training; ``None`` if nobody says.

        Raises:
            ValueError: if the model is not like the first one.
        """
        theta, self._finished = None, None
        try:
            self.note(self.index).loss = loss
            if self.layout is not None:
                facts, vectors = RoundFacts(), None
                if state is not None:
                    if (
                        arrays
                        and not self.settled
                        and self.settings.clients is not None
                    ):
                        with contextlib.suppress(ValueError):  # no reply could be read
                            self.choose_arrays(
                                state, [self.layout.flatten(arrays)], "model"
                            )
                    facts = self._settle_canaries(state)
                    vectors = None if state.unmoved else state.vectors
                theta = self._released(self.layout, arrays)
                self.catch_up()
                if state is not None and theta is not None:
                    with self.goes_on("the noise could not be checked"):
                        note_noise(self.noise, state, theta)
                self.auditor.observe(theta, facts, vectors)
        finally:
            self.index += 1
            self._remember(None if theta is None else arrays)
            self._checkpoint.save()

    def _settle_canaries(self, state: RoundState) -> RoundFacts:
        averaging, shares = averaging_of(self.wrapped, state) or (None, None)
        if state.updates is not None:
            self.contributions.add(state.updates, shares)
        facts = state.settle(shares)
        self.seen.note(self.index, state.client_weights(shares))
        if left_out := len(state.played) - len(facts.present):
            self.failed(
                "the strategy left canaries out",
                f"it did not use {left_out} of {len(state.played)} of their answers",
                kind=FaultKind.CANARY_UNUSED,
                times=left_out,
            )
        if facts.present:
            self.note(self.index).averaged = averaging or ""
        return facts

    def _released(self, layout: Layout, arrays: ArrayRecord | None) -> Vector | None:
        text = "the strategy released no model"
        if arrays:
            theta = layout.flatten(arrays)
            self.last_is_finite = math.isfinite(norm(theta))
            if self.last_is_finite:
                self.last = theta
                return theta
            text = "the strategy released a model with NaN or infinite entries"
        self.faults.add(self.index, FaultKind.NO_MODEL_RELEASED, text)
        return None

    def stops_above(self, epsilon: float, *_given: object, **_named: object) -> bool:
        """Whether ε so far is shown to be above ``epsilon``; see `CanaryAudit.stop_when`."""
        with self.goes_on("the rule to stop could not be asked"):
            z, _ = noise_multipliers(self)
            known = self.auditor.metrics_so_far(z, self.wrapped.expected_replies())
            found = self.auditor.epsilon_so_far()
            if found is not None and known["epsilon-all-low"] > epsilon:
                self.stop_rule = f"epsilon-all-low > {epsilon:g}"
                self._stopped, self._finished = EarlyStop(self.index, found), None
                return True
        return False

    @property
    def early_stop(self) -> EarlyStop | None:
        """Where a rule ended the run before its last round; ``None`` if it went on."""
        stop = self._stopped
        return (
            stop
            if stop and stop.after == self.index and self.index != self.rounds
            else None
        )

    def record(self) -> AuditRecord:
        """What the run leaves behind so far.

        Raises:
            ValueError: if nothing was seen, with the reasons.
        """
        if isinstance(self._awaited, ArrayRecord) and self.index == 0:
            self._checkpoint.go_on(self._awaited)  # started again after the last round
        try:
            self._finished = self._finished or make_record(self)
        except ValueError as error:
            raise ValueError(
                f"{error} {'; '.join(self.faults.messages[:3])}".strip()
            ) from error
        return self._finished
