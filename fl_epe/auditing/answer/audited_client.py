"""The client whose ε is the answer, and the adversary of a privacy claim.

The client is the median one by what it adds to the run: its number of rounds, or where clients
differ in weight the sum of its squared weights over its rounds. With equal weights it takes part as
often as the median client.

Its update has the length of the clip norm. Clients who take part less often, or whose updates are
shorter, leak less. Where its rounds are known it takes part at least once: a client who is in one
round of three in a hundred runs leaks, in those, what one round leaks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math

import numpy as np
import scipy

from fl_epe.auditing.estimate import EVERY_ROUND, Adversary
from fl_epe.auditing.record import AuditRecord, NotMeasured
from fl_epe.auditing.scoring import Reaction, View, fitted_reaction, seen_by
from fl_epe.schedules import Events

_MOST_PATTERNS = 100  # of clients with the median number of participations
AS_OFTEN = (
    0.75  # of a client's rounds, below which a canary takes part clearly less often
)
_LESS_OFTEN = (
    0.2  # of the canaries' participations, from which on a score is extrapolated
)
_ALIKE = 1e-6  # relative difference of weights that are equal but for rounding


@dataclasses.dataclass(frozen=True, eq=False)
class AuditedClient:
    """The client whose ε is the answer.

    Attributes:
        participations: its number of rounds; the expected one where its rounds are secret.
        patterns: ``(T, m)``, how many times a round's contribution such clients added in each
            round, 0 where they took no part; empty if nobody knows any.
        secret: how its rounds are drawn, where privacy rests on hiding them; else ``None``.
    """

    participations: float
    patterns: np.ndarray
    secret: Events | None = None

    @classmethod
    def of(
        cls,
        record: AuditRecord,
        adversary: Adversary | None = None,
        *,
        most: bool = False,
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
            law = record.mechanism.participation.first(record.rounds)
            secret = hidden_events(record)
            expected = law.participations or math.nan
            return cls(expected, np.empty((record.rounds, 0), bool), secret)
        log = record.clients
        if log.ids is not None and (added := log.sums(np.ones(record.rounds), 2)).any():
            typical = np.quantile(added[added > 0], 0.5, method="lower")
            chosen = np.flatnonzero(np.isclose(added, typical, rtol=_ALIKE))
            if most:
                chosen = np.array([_most_exposed(record, adversary)])
            spread_out = np.linspace(0, len(chosen) - 1, _MOST_PATTERNS).astype(
                np.int64
            )
            patterns = log.shares_of(chosen[np.unique(spread_out)])
            return cls(float(np.count_nonzero(patterns[:, 0])), patterns)
        participations = _expected(record)
        limit = record.mechanism.participation.most
        if most and limit is not None:
            participations = max(participations, min(limit, record.rounds))
        own = record.presence.sum(axis=0)
        alike = np.flatnonzero(own == np.round(participations))[:_MOST_PATTERNS]
        return cls(participations, record.presence[:, alike])

    def extrapolated(self, record: AuditRecord) -> bool:
        """Whether canaries say little of the client but by extrapolation from fewer rounds.

        That is where more than a fifth of their participations are of canaries that took part
        clearly less often than a client of the log.
        """
        if record.clients.ids is None:
            return False
        taken = record.presence.sum(axis=0)
        fewer = taken[taken < AS_OFTEN * self.participations]
        return self.secret is None and bool(fewer.sum() > _LESS_OFTEN * taken.sum())

    def view(self, record: AuditRecord, adversary: Adversary) -> View:
        """What the adversary sees, as canaries' scores say it of this client.

        Raises:
            NotMeasured: if they do not.
        """
        sees = Adversary(adversary.sees)
        watched = (
            record.running.scores is not None
        )  # in the limit of large models none reacts
        if (
            not self.extrapolated(record)
            or not watched
            or record.mechanism.strategy is not None
        ):
            return seen_by(record, sees)
        every = seen_by(record, EVERY_ROUND)
        if every.noise_prevails():
            return seen_by(
                record, sees, Reaction() if adversary.sees == "all" else None
            )
        return seen_by(record, sees, fitted_reaction(every))

    def size(self, view: View) -> float:
        """Its expected score for an adversary who knows its rounds."""
        if self.patterns.shape[1]:
            return float(np.mean(view.sizes.of(self.patterns)))
        return view.sizes.of_rounds(self.participations)

    def error_of_secret_rounds(self, view: View) -> float:
        """Relative error of its signals, as its secret rounds are taken to be independent.

        It is that of a client with as many rounds as decide δ.
        """
        record = view.record
        if self.secret is None or view.adversary.sees == "final":
            return 0.0
        chances = np.array([event.chance for event in self.secret.independent])
        tossed = chances[chances < 1]
        most = float(len(chances) - len(tossed))
        if len(tossed):
            most += float(
                scipy.stats.binom.isf(record.delta, len(tossed), tossed.mean())
            )
        loss = record.correlation.loss_by_pairs(view.sizes.weights, record.dim)
        return most / record.rounds * loss / 2


def claim_adversary(record: AuditRecord) -> Adversary:
    """The adversary against whom privacy accounting holds: who sees every round's model.

    The rounds of a client are known, unless the accounting rests on hiding them.
    """
    return dataclasses.replace(
        EVERY_ROUND, knows_rounds=not record.mechanism.participation.hidden
    )


def hidden_events(record: AuditRecord) -> Events:
    """How the rounds of a client, and of a canary, are drawn.

    Raises:
        NotMeasured: if that is not known, or canaries follow another law.
    """
    events = record.mechanism.participation.first(record.rounds).secret_events
    drawn = () if events is None else events.independent
    taken = record.presence.sum(axis=0)
    certain = bool(drawn) and all(event.chance == 1 for event in drawn)
    on_ladder = certain and taken.any() and np.median(taken) != len(drawn)
    # Canaries may all have been once in each of their rounds, also where the law has counts.
    weighted = record.mechanism.canary_weights is not None
    if events is None or not drawn or on_ladder or (weighted and events.counts is None):
        raise NotMeasured("the law of a client's secret rounds is not known")
    return events


def _most_exposed(record: AuditRecord, adversary: Adversary) -> int:
    """Number of the client with the largest expected score, as far as the record tells."""
    by_round = np.ones(record.rounds)
    power = 1 if adversary.sees == "final" else 2
    with contextlib.suppress(NotMeasured):
        weights = seen_by(record, Adversary(adversary.sees)).sizes.weights
        by_round = weights if weights.any() else by_round
    return int(np.argmax(record.clients.sums(by_round, power)))


def _expected(record: AuditRecord) -> float:
    design = record.design
    counted = record.findings.client_participations
    if counted:
        expected = float(round(counted))
    elif design.num_clients and design.clients_per_round:
        expected = record.rounds * design.clients_per_round / design.num_clients
    else:
        taken = record.presence.sum(axis=0)
        return float(np.median(taken[taken > 0])) if taken.any() else math.nan
    return min(max(expected, 1.0), record.rounds)
