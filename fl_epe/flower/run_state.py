"""`RunState`: all that an audit holds of a run between two rounds."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from fl_epe.auditing import RoundFacts, RunAuditor
from fl_epe.flower.arrays import Layout
from fl_epe.flower.checkpoint import SavedAudit, digest
from fl_epe.flower.rounds import AuditLog, Choices
from fl_epe.flower.settings import CanaryAuditSettings
from fl_epe.flower.sources import ClientAnswers, ServerCanaries, Source
from fl_epe.flower.wrapped import Wrapped

Vector = NDArray[np.floating]


class RunState(SavedAudit):
    """An audit after some rounds: what a checkpoint keeps, and what is made again from that.

    Args:
        wrapped: the strategy.
        settings: of the audit.

    Attributes:
        auditor: scores the canaries.
        start: the initial model.
        last_is_finite: whether the newest model has no NaN or infinite entries.
        losses: of the clients' training in each round; ``None`` where nobody says.
        known_source: where the canaries come from; ``None`` if nobody asked yet.
    """

    def __init__(self, wrapped: Wrapped, settings: CanaryAuditSettings) -> None:
        kind = "model" if settings.replies is None and wrapped.takes_models() else settings.replies
        super().__init__(
            seed=settings.seed,
            rounds=settings.rounds,
            choices=Choices(settings.num_canaries, settings.max_share, kind),
            log=AuditLog(identity=settings.identity or int),
        )
        self.wrapped, self.settings = wrapped, settings
        self.auditor = self._new_auditor(settings)
        self.start: ArrayRecord | None = None
        self.last_is_finite = True
        self.losses: list[float | None] = []
        self.known_source: Source | None = None

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
            clients, rounds = self.settings.client_canaries(), self.rounds
            given = self.wrapped, self.settings
            if clients is not None:
                self.known_source = ClientAnswers(*given, clients, self._vectors)
            elif rounds is not None:
                self.known_source = ServerCanaries(*given, rounds, self._vectors, self.choices)
            else:
                raise ValueError(
                    "Expected rounds=… in CanaryAudit, those of all starts together, as start()"
                    " does not tell them, or has a single one."
                )
        return self.known_source

    def _vectors(self, numbers: list[int]) -> NDArray[np.float32]:
        return self.auditor.canaries.vectors(numbers)

    def begin(self, layout: Layout, arrays: ArrayRecord) -> None:
        """Note the initial model; rounds that went by before count as lost."""
        auditor, start = self._new_auditor(self.settings), layout.flatten(arrays)
        auditor.begin(start)
        self.auditor, self.layout, self.start = auditor, layout, arrays
        self.first = self.newest = digest(start)
        self.catch_up(self.index)

    def catch_up(self, rounds: int) -> None:
        """Count those of the first ``rounds`` that could not be read as lost."""
        while self.auditor.rounds < rounds:
            self.auditor.observe(None, RoundFacts())

    def failed(self, what: str, why: Exception | str, index: int | None = None) -> None:
        """Note what could not be done, in the coming round by default; this may not end a run."""
        index = self.index if index is None else max(0, index)
        try:
            self.log.failed(index, what, why)
        except Exception as error:  # noqa: BLE001 - of the log itself
            self.log.faults.append(f"{what}: {why}; it could not be logged: {error}")

    @contextlib.contextmanager
    def goes_on(self, what: str, index: int | None = None) -> Iterator[None]:
        """An error in this context is a fault (``what`` cannot be done), and the run goes on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the run goes on
            self.failed(what, error, index)

    def restore(
        self, saved: SavedAudit, scores: Mapping[str, Any], start: ArrayRecord, last: ArrayRecord
    ) -> None:
        """Go on with an audit that was saved.

        Args:
            saved: the audit.
            scores: of its rounds, see `RunAuditor.state`.
            start: its initial model.
            last: the model after those rounds.

        Raises:
            ValueError: if it does not fit; nothing is changed then.
        """
        assert saved.layout is not None  # noqa: S101 - it has begun
        settings = dataclasses.replace(self.settings, seed=saved.seed)
        auditor, flatten = self._new_auditor(settings), saved.layout.flatten
        auditor.restore(
            scores,
            saved.index,
            start=flatten(start),
            last=flatten(last),
            velocity=self._velocity(saved.layout),
        )
        saved.log.identity, saved.log.warned = self.log.identity, self.log.warned
        saved.log.faults += self.log.faults
        vars(self).update(vars(saved))
        self.resumed = (*saved.resumed, saved.index)
        self.settings, self.auditor, self.start, self.known_source = settings, auditor, start, None

    def _velocity(self, layout: Layout) -> Vector | None:
        """The velocity that the strategy goes on with; ``None`` if it begins at 0."""
        momentum = getattr(self.wrapped.base, "momentum_vector", None)
        if momentum is None:
            return None
        named = zip(layout.names, momentum, strict=True)
        arrays = {name: Array(np.asarray(value)) for name, value in named}
        return -layout.flatten(ArrayRecord(arrays))
