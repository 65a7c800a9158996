"""The client whose ε is the answer, and the adversary of a privacy claim.

It is the median client by its contribution to the run. The contribution is the number of its
rounds or, if clients differ in weight, the sum of its squared weights over its rounds. With
equal weights it takes part as often as the median client.

The norm of its update is the clip norm. Clients that take part less often, or have smaller
updates, leak less. If its rounds are known it takes part at least once: a client that takes
part in three of a hundred runs, in one round each, leaks in those three as much as one round
leaks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math

import numpy as np
import scipy

from fl_epe.auditing.estimate import EVERY_ROUND, Adversary
from fl_epe.auditing.record import AuditRecord, NotMeasured
from fl_epe.auditing.scoring import Reaction, View, seen_by
from fl_epe.schedules import Events

# Largest number of clients whose patterns are used, of those with the median contribution.
_MOST_PATTERNS = 100

# Share of a client's rounds below which a canary takes part clearly less often.
AS_OFTEN = 0.75

# The client's score is extrapolated if canaries that take part clearly less often than the
# client have more than this share of all canaries' participations.
_LESS_OFTEN = 0.2

# Relative difference of weights that are equal but for rounding.
_ALIKE = 1e-6

_LAW_UNKNOWN = "the law of a client's secret rounds is not known"


@dataclasses.dataclass(frozen=True, eq=False)
class AuditedClient:
    """The client whose ε is the answer.

    Attributes:
        participations: the number of its rounds; the expected number if they are secret.
        patterns: the weight of m such clients in each round, 0 where they took no part, shape
            ``(T, m)``; ``m`` is 0 if no such client is known.
        secret: how its rounds are drawn, if privacy rests on hiding them; else ``None``.
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
        """The client of a record: by its participation log, else its design, else its canaries.

        Args:
            record: the audit record of a run.
            adversary: the adversary; by default that of `claim_adversary`.
            most: whether to choose the client with the largest expected score instead of the
                median one; all other clients of a privacy claim leak at most as much.

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
        if log.ids is not None:
            energies = log.sums(np.ones(record.rounds), 2)
            if energies.any():
                if most:
                    clients = np.array([_most_exposed(record, adversary)])
                else:
                    typical = np.quantile(
                        energies[energies > 0], 0.5, method="lower"
                    )
                    clients = np.flatnonzero(
                        np.isclose(energies, typical, rtol=_ALIKE)
                    )
                spread = np.linspace(0, len(clients) - 1, _MOST_PATTERNS)
                patterns = log.shares_of(
                    clients[np.unique(spread.astype(np.int64))]
                )
                return cls(float(np.count_nonzero(patterns[:, 0])), patterns)
        participations = _expected_participations(record)
        limit = record.mechanism.participation.most
        if most and limit is not None:
            participations = max(participations, min(limit, record.rounds))
        counts = record.presence.sum(axis=0)
        canaries = np.flatnonzero(counts == np.round(participations))
        return cls(
            participations, record.presence[:, canaries[:_MOST_PATTERNS]]
        )

    def extrapolated(self, record: AuditRecord) -> bool:
        """Whether the client's score is extrapolated from canaries with fewer rounds.

        It is if more than a fifth of the canaries' participations are of canaries that took part
        clearly less often than a client of the log.
        """
        if record.clients.ids is None or self.secret is not None:
            return False
        counts = record.presence.sum(axis=0)
        fewer = counts[counts < AS_OFTEN * self.participations]
        return bool(fewer.sum() > _LESS_OFTEN * counts.sum())

    def view(self, record: AuditRecord, adversary: Adversary) -> View:
        """The view of the adversary in which the canaries' scores predict this client's.

        Raises:
            NotMeasured: if the other clients' reaction to a client cannot be fitted.
        """
        sees = Adversary(adversary.sees)
        # In the limit of large models, whose records have no running scores, no client reacts.
        is_limit = record.running.scores is None
        has_strategy = record.mechanism.strategy is not None
        if is_limit or has_strategy or not self.extrapolated(record):
            return seen_by(record, sees)
        every = seen_by(record, EVERY_ROUND)
        if not every.noise_prevails():
            return seen_by(record, sees, every.fitted_reaction)
        return seen_by(record, sees, Reaction() if sees.sees == "all" else None)

    def size(self, view: View) -> float:
        """The client's expected score for an adversary who knows its rounds."""
        if self.patterns.shape[1]:
            return float(np.mean(view.expected_scores.of(self.patterns)))
        return view.expected_scores.of_rounds(self.participations)

    def error_of_secret_rounds(self, view: View) -> float:
        """Relative error of the signals in secret rounds, which are assumed to be independent.

        It is the error for the number of rounds that a client exceeds with probability δ.
        """
        record = view.record
        if self.secret is None or view.adversary.sees == "final":
            return 0.0
        chances = np.array([event.chance for event in self.secret.independent])
        uncertain = chances[chances < 1]
        rounds = float(len(chances) - len(uncertain))
        if len(uncertain):
            rounds += float(
                scipy.stats.binom.isf(
                    record.delta, len(uncertain), uncertain.mean()
                )
            )
        loss = record.correlation.error_of_independence(
            view.expected_scores.weights, record.dim
        )
        return rounds / record.rounds * loss / 2


def claim_adversary(record: AuditRecord) -> Adversary:
    """The adversary of privacy accounting, who sees every round's model.

    The rounds of a client are known, unless the accounting rests on hiding them.
    """
    return dataclasses.replace(
        EVERY_ROUND, knows_rounds=not record.mechanism.participation.hidden
    )


def hidden_events(record: AuditRecord) -> Events:
    """The events by which the rounds of a client, and of a canary, are drawn.

    Raises:
        NotMeasured: if that is not known, or canaries follow another law.
    """
    events = record.mechanism.participation.first(record.rounds).secret_events
    if events is None or not events.independent:
        raise NotMeasured(_LAW_UNKNOWN)
    counts = record.presence.sum(axis=0)
    is_certain = all(event.chance == 1 for event in events.independent)
    is_ladder = (
        is_certain
        and counts.any()
        and np.median(counts) != len(events.independent)
    )
    # Canaries may all have been once in each of their rounds, also where the law has counts.
    is_weighted = (
        record.mechanism.canary_weights is not None and events.counts is None
    )
    if is_ladder or is_weighted:
        raise NotMeasured(_LAW_UNKNOWN)
    return events


def _most_exposed(record: AuditRecord, adversary: Adversary) -> int:
    """The number of the client with the largest expected score, as far as the record shows."""
    power = 1 if adversary.sees == "final" else 2
    weights = np.ones(record.rounds)
    with contextlib.suppress(NotMeasured):
        round_weights = seen_by(
            record, Adversary(adversary.sees)
        ).expected_scores.weights
        if round_weights.any():
            weights = round_weights
    return int(np.argmax(record.clients.sums(weights, power)))


def _expected_participations(record: AuditRecord) -> float:
    """The expected participations of the client, if there is no participation log."""
    design = record.design
    counted = record.findings.client_participations
    if counted:
        expected = float(round(counted))
    elif design.num_clients and design.clients_per_round:
        expected = record.rounds * design.clients_per_round / design.num_clients
    else:
        counts = record.presence.sum(axis=0)
        if counts.any():
            return float(np.median(counts[counts > 0]))
        return math.nan
    return min(max(expected, 1.0), record.rounds)
