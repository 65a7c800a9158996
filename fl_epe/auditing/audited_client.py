"""The client whose ε is the answer: as often in the run, and as heavy, as the median real client.

Its update has the length of the clip norm. Clients who take part less often, or whose updates are
shorter, leak less.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

from fl_epe.auditing.record import AuditRecord
from fl_epe.auditing.statistics import SecretRounds, secret_rounds
from fl_epe.auditing.view import View
from fl_epe.checks import Floats
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
    def of(cls, record: AuditRecord) -> AuditedClient:
        """From the clients' log of a record, or what else it says; if nothing, as the canaries."""
        if (secret := secret_of_claim(record)) is not None:
            rounds = record.rounds if secret.law == "coins" else 1
            expected = secret.rate * rounds if secret.law == "coins" else len(secret.blocks)
            return cls(float(expected), np.empty((record.rounds, 0), bool), secret)
        if (counts := _counted(record)) is not None:
            typical = int(np.quantile(counts, 0.5, method="lower"))
            if typical > 0:
                return cls(typical, _patterns(record, counts, typical))
        participations = _expected(record)
        own = record.presence.sum(axis=0)
        alike = np.flatnonzero(own == np.round(participations))[:_MOST_PATTERNS]
        return cls(participations, record.presence[:, alike])

    def size(self, view: View) -> float:
        """Its expected score for an adversary who knows its rounds."""
        sizes = view.sizes
        weight = 1.0
        if (weights := view.record.mechanism.canary_weights) is not None:
            weight = float(np.median(weights[view.record.presence]))
        if self.patterns.shape[1]:
            return weight * float(np.mean(sizes.of(self.patterns)))
        return weight * sizes.of_rounds(self.participations)


def secret_of_claim(record: AuditRecord) -> SecretRounds | None:
    """How a client's rounds are drawn, where a privacy claim rests on hiding them."""
    if record.mechanism.participation not in SECRET_KINDS:
        return None
    secret = secret_rounds(record)
    return secret if secret is not None and secret.rate < 1 else None


def schedule_of(record: AuditRecord) -> Schedule | None:
    """The clients' schedule by the settings in a record; ``None`` if they do not tell."""
    design, mechanism = record.design, record.mechanism
    with contextlib.suppress(OSError, ValueError):  # an edited file, or a kind with options
        if design.schedule is None or None in (design.num_clients, design.clients_per_round):
            return make_schedule(
                mechanism.participation, record.rounds, mechanism.canary_participations
            )
        rounds = design.num_rounds or record.rounds
        each = rounds * float(design.clients_per_round or 0) / int(design.num_clients or 1)
        return make_schedule(design.schedule, rounds, each)
    return None


def _counted(record: AuditRecord) -> NDArray[np.int64] | None:
    """How often each real client took part."""
    ids = record.clients.ids
    if ids is None or not len(ids):
        return None
    return np.bincount(ids, minlength=record.design.num_clients or 0)


def _patterns(record: AuditRecord, counts: NDArray[np.int64], typical: int) -> NDArray[np.bool_]:
    """Rounds of some clients who took part so often, evenly spread over their numbers."""
    clients = np.flatnonzero(counts == typical)
    chosen = clients[np.unique(np.linspace(0, len(clients) - 1, _MOST_PATTERNS).astype(np.int64))]
    column = np.full(len(counts), -1)
    column[chosen] = np.arange(len(chosen))
    found = np.zeros((record.rounds, len(chosen)), bool)
    ids, offsets = record.clients.ids, record.clients.offsets
    if ids is not None and offsets is not None:
        rounds, at = np.repeat(np.arange(record.rounds), np.diff(offsets)), column[ids]
        found[rounds[at >= 0], at[at >= 0]] = True
    return found


def _expected(record: AuditRecord) -> float:
    design, counted = record.design, record.findings.client_participations
    if counted:
        return min(float(round(counted)) or 1.0, record.rounds)
    if design.num_clients and design.clients_per_round:
        return record.rounds * design.clients_per_round / design.num_clients
    taken = record.presence.sum(axis=0)
    return float(np.median(taken[taken > 0])) if taken.any() else math.nan


def typical_rounds(client: AuditedClient, rounds: int) -> Floats:
    """How likely the client is to be in each round, ``(T,)``."""
    if client.patterns.shape[1]:
        return np.asarray(client.patterns.mean(axis=1))
    return np.full(rounds, client.participations / max(rounds, 1))
