"""Strategies that have canaries of their own: what `CanaryAudit` asks of them.

`fl_epe.flower.DPFedAvg` is one. Any strategy with these members is audited by its own canaries;
`CanaryAudit` then puts none into the round, sets the canaries' seed, and adds ε to the metrics.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fl_epe.auditing import AuditRecord, EpsilonEstimate, RoundFacts, RunningEstimate


@runtime_checkable
class SelfAuditing(Protocol):
    """A strategy that schedules and scores its canaries itself."""

    @property
    def rounds_done(self) -> int:
        """Rounds aggregated so far."""

    @property
    def num_canaries(self) -> int:
        """How many canaries may take part."""

    def use_canary_seed(self, seed: int) -> None:
        """Draw the canaries from this seed; called before the first round."""

    def running_estimate(self, dim: int) -> RunningEstimate:
        """A new estimate, without a round yet, for the canaries of a model with ``dim`` numbers."""

    def round_facts(self) -> RoundFacts:
        """Who took part in the round that was aggregated last, and what each canary added to it."""

    def audit_record(self, theta: NDArray[np.floating]) -> AuditRecord:
        """What the run leaves behind so far, with the final model ``theta`` of shape ``(dim,)``."""


class OwnAuditor:
    """Audits a `SelfAuditing` strategy; used as `RunAuditor` is for other strategies.

    Args:
        strategy: which one.
        delta: target δ.
        seed: of the canaries.
    """

    def __init__(self, strategy: SelfAuditing, delta: float, seed: int) -> None:
        strategy.use_canary_seed(seed)
        self._strategy = strategy
        self._delta = delta
        self._last: NDArray[Any] = np.empty(0)
        self._running: RunningEstimate | None = None

    @property
    def rounds(self) -> int:
        """Rounds seen so far."""
        return self._strategy.rounds_done

    def begin(self, theta: NDArray[Any]) -> None:
        """Note the initial model, shape ``(dim,)``."""
        self._last = theta
        self._running = self._strategy.running_estimate(len(theta))

    def observe(
        self, theta: NDArray[Any] | None, facts: RoundFacts, vectors: NDArray[Any] | None = None
    ) -> None:
        """Note the model after a round, ``None`` if it was lost; the strategy knows the rest."""
        if theta is not None and self._running is not None:
            self._running.add(theta - self._last, self._strategy.round_facts())
            self._last = theta

    def epsilon_so_far(self, confidence: float = 0.95) -> EpsilonEstimate | None:
        """See `RunningEstimate.epsilon`; at the target δ."""
        return None if self._running is None else self._running.epsilon(self._delta, confidence)

    def record(self, **facts: Any) -> AuditRecord:
        """The strategy's record at the audit's δ; it knows all of the ``facts`` itself."""
        return dataclasses.replace(self._strategy.audit_record(self._last), delta=self._delta)
