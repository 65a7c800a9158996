"""The client whose ε is the answer, and the adversary of a privacy claim.

The client is as often in the run as the median real client that takes part, and as heavy.

Its update has the length of the clip norm. Clients who take part less often, or whose updates are
shorter, leak less. Where its rounds are known it takes part at least once: a client who is in one
round of three in a hundred runs leaks, in those, what one round leaks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

from fl_epe.auditing.epsilon_estimate import EVERY_ROUND, Adversary
from fl_epe.auditing.measured import NotMeasured
from fl_epe.auditing.record import AuditRecord
from fl_epe.auditing.statistics import SecretRounds, secret_rounds
from fl_epe.auditing.view import View, seen_by
from fl_epe.schedules import Schedule, make_schedule

_MOST_PATTERNS = 100  # of clients with the median number of participations
SECRET_KINDS = ("poisson", "fixed-size", "balls-in-bins")
"""Kinds of schedules whose privacy rests on hiding a client's rounds."""


@dataclasses.dataclass(frozen=True, eq=False)
class AuditedClient:
    """The client whose ε is the answer.

    Attributes:
        participations: its number of rounds; the expected one where its rounds are secret.
        patterns: ``(T, m)`` bool, rounds of clients with that many; empty if nobody knows any.
        secret: how its rounds are drawn, where privacy rests on hiding them; else ``None``.
    """

    participations: float
    patterns: NDArray[np.bool_]
    secret: SecretRounds | None = None

    @classmethod
    def of(
        cls, record: AuditRecord, adversary: Adversary | None = None, *, most: bool = False
    ) -> AuditedClient:
        """From the clients' log of a record, or what else it says; if nothing, as the canaries.

        Args:
            record: the audit record of a run.
            adversary: who knows its rounds or not; by default that of `claim_adversary`.
            most: the client with the largest expected score, instead of the median one: all that a
                privacy claim covers are at most as exposed.

        Raises:
            NotMeasured: if the adversary does not know the rounds, and their law is not known.
        """
        adversary = adversary or claim_adversary(record)
        if not adversary.knows_rounds:
            if (secret := secret_rounds(record)) is None:
                raise NotMeasured("the law of a client's secret rounds is not known")
            coins = secret.law == "coins"
            expected = secret.rate * record.rounds if coins else len(secret.blocks)
            return cls(float(expected), np.empty((record.rounds, 0), bool), secret)
        if (ids := record.clients.ids) is not None and len(ids):
            counts = np.bincount(ids)
            taken = counts[counts > 0]
            if most:
                exposed = _most_exposed(record, ids, adversary)
                return cls(int(counts[exposed]), _patterns(record, np.array([exposed])))
            typical = int(np.quantile(taken, 0.5, method="lower"))
            return cls(typical, _patterns(record, np.flatnonzero(counts == typical)))
        participations = _expected(record)
        if most and (schedule := schedule_of(record)) is not None:
            participations = max(participations, min(schedule.most_participations(), record.rounds))
        own = record.presence.sum(axis=0)
        alike = np.flatnonzero(own == np.round(participations))[:_MOST_PATTERNS]
        return cls(participations, record.presence[:, alike])

    def size(self, view: View) -> float:
        """Its expected score for an adversary who knows its rounds."""
        sizes, weight = view.sizes, view.record.median_weight
        if self.patterns.shape[1]:
            return weight * float(np.mean(sizes.of(self.patterns)))
        return weight * sizes.of_rounds(self.participations)


def claim_adversary(record: AuditRecord) -> Adversary:
    """The adversary against whom privacy accounting holds: who sees every round's model.

    The rounds of a client are known, unless the accounting rests on hiding them.
    """
    mechanism = record.mechanism
    hidden = mechanism.participation in SECRET_KINDS
    sampled = hidden and mechanism.canary_participations < (
        record.design.num_rounds or record.rounds
    )
    return dataclasses.replace(EVERY_ROUND, knows_rounds=not sampled)


def schedule_of(record: AuditRecord) -> Schedule | None:
    """The clients' schedule by the settings in a record; ``None`` if they do not tell."""
    design, mechanism = record.design, record.mechanism
    kind, rounds, each = mechanism.participation, record.rounds, mechanism.canary_participations
    if design.schedule and design.num_clients and design.clients_per_round:
        kind, rounds = design.schedule, design.num_rounds or record.rounds
        each = rounds * design.clients_per_round / design.num_clients
    with contextlib.suppress(OSError, ValueError):  # an edited file, or a kind with options
        return make_schedule(kind, rounds, each)
    return None


def _most_exposed(record: AuditRecord, ids: NDArray[np.int64], adversary: Adversary) -> int:
    """Number of the client with the largest expected score, of those in most rounds if unknown."""
    by_round, offsets = np.ones(record.rounds), record.clients.offsets
    if offsets is None:
        return int(np.argmax(np.bincount(ids)))
    with contextlib.suppress(NotMeasured):
        weights = seen_by(record, Adversary(adversary.sees)).sizes.weights
        if weights.any():
            by_round = weights if adversary.sees == "final" else weights**2
    return int(np.argmax(np.bincount(ids, weights=np.repeat(by_round, np.diff(offsets)))))


def _patterns(record: AuditRecord, clients: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Rounds of some of the clients, evenly spread over their numbers."""
    chosen = clients[np.unique(np.linspace(0, len(clients) - 1, _MOST_PATTERNS).astype(np.int64))]
    found = np.zeros((record.rounds, len(chosen)), bool)
    ids, offsets = record.clients.ids, record.clients.offsets
    if ids is not None and offsets is not None:
        column = np.full(int(ids.max()) + 1, -1)
        column[chosen] = np.arange(len(chosen))
        rounds, at = np.repeat(np.arange(record.rounds), np.diff(offsets)), column[ids]
        found[rounds[at >= 0], at[at >= 0]] = True
    return found


def _expected(record: AuditRecord) -> float:
    design, counted = record.design, record.findings.client_participations
    if counted:
        expected = float(round(counted))
    elif design.num_clients and design.clients_per_round:
        expected = record.rounds * design.clients_per_round / design.num_clients
    else:
        taken = record.presence.sum(axis=0)
        return float(np.median(taken[taken > 0])) if taken.any() else math.nan
    return min(max(expected, 1.0), record.rounds)
