"""`RunState`: all that an audit holds of a run between two rounds."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from fl_epe.auditing import RoundFacts, RunAuditor
from fl_epe.flower.arrays import Layout
from fl_epe.flower.checkpoint import SavedAudit, digest, fingerprint
from fl_epe.flower.rounds import AuditLog, AuditPlan
from fl_epe.flower.settings import CanaryAuditSettings
from fl_epe.flower.sources import ClientAnswers, ServerCanaries, Source
from fl_epe.flower.wrapped import Wrapped

Vector = NDArray[np.floating]


class RunState:
    """An audit after some rounds.

    Args:
        wrapped: the strategy.
        settings: of the audit.

    Attributes:
        log: keeps faults and answers.
        rounds: of the run, over which the canaries are spread; ``None`` if not known.
        index: how many rounds are done.
        auditor: scores the canaries.
        layout: of the model; ``None`` before the first round.
        start: the initial model.
        last: the newest model that could be read, as a vector.
        last_is_finite: whether the newest model has no NaN or infinite entries.
        plan: what the audit does to the run; ``None`` before the first round.
        averaged: how the strategy averaged, by the rounds in which canaries took part.
        losses: of the clients' training in each round; ``None`` where nobody says.
        resumed: after how many rounds the audit went on, each time that it was started again.
    """

    def __init__(self, wrapped: Wrapped, settings: CanaryAuditSettings) -> None:
        self.wrapped, self.settings = wrapped, settings
        self.log = AuditLog(settings.identity)
        self.rounds = settings.rounds
        self.index = 0
        self.auditor = self._new_auditor(settings)
        self.layout: Layout | None = None
        self.start: ArrayRecord | None = None
        self.last: Vector | None = None
        self.last_is_finite = True
        self.plan: AuditPlan | None = None
        self.averaged: dict[int, str | None] = {}
        self.losses: list[float | None] = []
        self.resumed: tuple[int, ...] = ()
        self.known_source: Source | None = None
        self._models: list[str] = []  # hashes of the initial model and that after each round

    def _new_auditor(self, settings: CanaryAuditSettings) -> RunAuditor:
        by_server = settings.clients is None
        return RunAuditor(
            settings.num_canaries,
            settings.unobserved,
            seed=settings.seed,
            delta=settings.delta,
            server=self.wrapped.server(),
            planned=settings.num_canaries * settings.participations if by_server else None,
            kind=settings.canary_kind,
        )

    @property
    def source(self) -> Source:
        """Where the canaries come from.

        Raises:
            ValueError: if the server must know the number of rounds, and does not.
        """
        if self.known_source is None:
            self.known_source = self._new_source(self.settings, self.rounds)
        return self.known_source

    def _new_source(self, settings: CanaryAuditSettings, rounds: int | None) -> Source:
        if (clients := settings.client_canaries()) is not None:
            return ClientAnswers(self.wrapped, settings, clients, self._vectors)
        if rounds is None:
            raise ValueError(
                "Expected rounds=… in CanaryAudit, those of all starts together, as start() does"
                " not tell them, or has a single one."
            )
        return ServerCanaries(self.wrapped, settings, rounds, self._vectors)

    def _vectors(self, numbers: list[int]) -> NDArray[np.float32]:
        return self.auditor.canaries.vectors(numbers)

    def begin(self, layout: Layout, arrays: ArrayRecord) -> None:
        """Note the initial model; rounds that went by before count as lost."""
        auditor, start = self._new_auditor(self.settings), layout.flatten(arrays)
        auditor.begin(start)
        self.auditor, self.layout, self.start, self.last = auditor, layout, arrays, start
        self._models = [] if self.settings.checkpoint is None else [digest(start)]
        self.catch_up(self.index)

    def catch_up(self, rounds: int) -> None:
        """Count those of the first ``rounds`` that could not be read as lost."""
        while self.auditor.rounds < rounds:
            self.auditor.observe(None, RoundFacts())

    def is_last(self, arrays: object) -> bool:
        """Whether this is the model after the rounds so far."""
        if self.layout is None or self.last is None or not isinstance(arrays, ArrayRecord):
            return False
        try:
            return np.array_equal(self.layout.flatten(arrays), self.last)
        except ValueError:
            return False

    def note_model(self, theta: Vector | None) -> None:
        """Remember the model after ``index`` rounds; ``None`` if it is that of the round before."""
        if self._models:
            known = self._models[-1] if theta is None else digest(theta)
            missing = self.index - len(self._models)
            self._models[self.index :] = [*[""] * missing, known]

    def failed(self, what: str, why: Exception | str, index: int | None = None) -> None:
        """Note what could not be done, in the coming round by default; this may not end a run."""
        index = self.index if index is None else max(0, index)
        try:
            self.log.failed(index, what, why)
        except Exception as error:  # noqa: BLE001 - of the log itself
            self.log.entries.append((index, f"{what}: {why}; it could not be logged: {error}"))

    @contextlib.contextmanager
    def goes_on(self, what: str, index: int | None = None) -> Iterator[None]:
        """An error in this context is a fault (``what`` cannot be done), and the run goes on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the run goes on
            self.failed(what, error, index)

    def saved(self) -> SavedAudit | None:
        """What a checkpoint keeps; ``None`` before the model is known."""
        if self.layout is None:
            return None
        self.catch_up(self.index)
        return SavedAudit(
            settings=fingerprint(self.settings, self.wrapped),
            seed=self.settings.seed,
            rounds=self.rounds,
            layout=self.layout,
            models=self._models,
            scores=self.auditor.state(),
            log=self.log.state(),
            averaged=self.averaged,
            source=self.source.state(),
            plan=self.plan,
            resumed=self.resumed,
        )

    def restore(self, saved: SavedAudit, done: int, start: ArrayRecord, last: ArrayRecord) -> None:
        """Go on after the first ``done`` rounds of an audit that was saved.

        Args:
            saved: the audit.
            done: how many of its rounds count.
            start: its initial model.
            last: the model after those rounds.

        Raises:
            ValueError: if it does not fit; nothing is changed then.
        """
        settings = dataclasses.replace(self.settings, seed=saved.seed)
        theta, auditor = saved.layout.flatten(last), self._new_auditor(settings)
        auditor.restore(
            saved.scores,
            done,
            start=saved.layout.flatten(start),
            last=theta,
            velocity=self._velocity(saved.layout),
        )
        source = self._new_source(settings, saved.rounds)
        source.restore(saved.source)
        self.log.restore(saved.log, done)
        self.settings, self.auditor, self.known_source = settings, auditor, source
        self.start, self.layout, self.last, self.plan = start, saved.layout, theta, saved.plan
        self.averaged = {t: how for t, how in saved.averaged.items() if t < done}
        self._models = saved.models[: done + 1]
        self.resumed = (*saved.resumed, done)
        self.rounds, self.index = saved.rounds, done
        if done < saved.index:
            forgotten = f"rounds {done + 1} to {saved.index}"
            self.log.fault(
                done - 1,
                f"the server went back to the model after this round: {forgotten}, whose models"
                " were sent to clients, are not in the record",
            )

    def _velocity(self, layout: Layout) -> Vector | None:
        """The velocity that the strategy goes on with; ``None`` if it begins at 0."""
        momentum = getattr(self.wrapped.base, "momentum_vector", None)
        if momentum is None:
            return None
        named = zip(layout.names, momentum, strict=True)
        arrays = {name: Array(np.asarray(value)) for name, value in named}
        return -layout.flatten(ArrayRecord(arrays))
