"""The client whose ε is the answer, and the adversary of a privacy claim.

The client is the median one by its contribution to the run: the sum of its squared weights over
its rounds, which is the number of its rounds if all weights are 1. The norm of its update is the
clip norm. Clients that take part less often, or have smaller updates, leak less.

If the client's rounds are known, it takes part at least once. A client that takes part in few of
many runs leaks in those runs as much as one round leaks.
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
from fl_epe.checks import Floats, Integers
from fl_epe.schedules import Events

# Largest number of clients whose patterns are used, of those with the median contribution.
_MAX_PATTERNS = 100

# A canary with less than this share of a client's rounds takes part clearly less often.
MIN_SHARE_OF_ROUNDS = 0.75

# The client's score is extrapolated if canaries that take part clearly less often than the
# client have more than this share of all canaries' participations.
_MAX_SHARE_OF_RARE_CANARIES = 0.2

# Relative difference of contributions that are equal but for rounding.
_ROUNDING = 1e-6

_LAW_UNKNOWN = "the law of a client's secret rounds is not known"


@dataclasses.dataclass(frozen=True, eq=False)
class AuditedClient:
    """The client whose ε is the answer.

    Attributes:
        participations: the number of its rounds; the expected number if they are secret.
        patterns: the weights of m such clients in each round, 0 where they took no part, shape
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
        worst_case: bool = False,
    ) -> AuditedClient:
        """The client of a record.

        It is derived from the participation log, from the design if there is no log, and from
        the canaries if there is neither.

        Args:
            record: the audit record of a run.
            adversary: the adversary; by default that of `claim_adversary`.
            worst_case: whether to choose the client with the largest expected score instead of
                the median one. A privacy claim covers it, and other clients leak at most as much.

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
            contributions = log.summed_squared_weights(np.ones(record.rounds))
            if contributions.any():
                if worst_case:
                    clients = np.array([_worst_case_client(record, adversary)])
                else:
                    clients = _median_clients(contributions)
                patterns = log.weights_by_round(clients)
                return cls(float(np.count_nonzero(patterns[:, 0])), patterns)
        participations = _expected_participations(record)
        max_participations = record.mechanism.participation.most
        if worst_case and max_participations is not None:
            participations = max(
                participations, min(max_participations, record.rounds)
            )
        # Canaries with as many rounds show the pattern of such a client.
        counts = record.presence.sum(axis=0)
        canaries = np.flatnonzero(counts == np.round(participations))
        return cls(participations, record.presence[:, canaries[:_MAX_PATTERNS]])

    def extrapolated(self, record: AuditRecord) -> bool:
        """Whether the client's score is extrapolated from canaries with fewer rounds.

        It is if the client is one of the participation log, and more than a fifth of the
        canaries' participations are of canaries that took part clearly less often.
        """
        if record.clients.ids is None or self.secret is not None:
            return False
        counts = record.presence.sum(axis=0)
        rare_counts = counts[counts < MIN_SHARE_OF_ROUNDS * self.participations]
        max_rare = _MAX_SHARE_OF_RARE_CANARIES * counts.sum()
        return bool(rare_counts.sum() > max_rare)

    def view(self, record: AuditRecord, adversary: Adversary) -> View:
        """The view of the adversary in which the canaries' scores predict this client's.

        Raises:
            NotMeasured: if the other clients' reaction to a client cannot be fitted.
        """
        adversary = Adversary(adversary.sees)
        # In the limit of large models, whose records have no running scores, no client reacts. For
        # correlated noise there is no model of a reaction.
        is_limit = record.running.scores is None
        has_strategy = record.mechanism.strategy is not None
        if is_limit or has_strategy or not self.extrapolated(record):
            return seen_by(record, adversary)
        every_round = seen_by(record, EVERY_ROUND)
        reaction: Reaction | None = None
        if not every_round.noise_prevails():
            reaction = every_round.fitted_reaction
        elif adversary.sees == "all":
            reaction = Reaction()
        return seen_by(record, adversary, reaction)

    def expected_score(self, view: View) -> float:
        """The client's expected score for an adversary who knows its rounds."""
        if self.patterns.shape[1]:
            return float(np.mean(view.expected_scores.of(self.patterns)))
        return view.expected_scores.of_rounds(self.participations)

    def error_of_secret_rounds(self, view: View) -> float:
        """Relative error of expected scores at secret rounds, as if rounds were independent.

        It is 0 at known rounds and for the final model. It is computed for the number of rounds
        that a client exceeds with probability δ.
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
    # By the law each canary would take part in each event.
    follows_other_counts = (
        is_certain
        and counts.any()
        and np.median(counts) != len(events.independent)
    )
    # Weights are another law, unless the law has counts, which are then the weights.
    has_other_weights = (
        record.mechanism.canary_weights is not None and events.counts is None
    )
    if follows_other_counts or has_other_weights:
        raise NotMeasured(_LAW_UNKNOWN)
    return events


def _median_clients(contributions: Floats) -> Integers:
    """The numbers of clients with the median contribution, evenly spread if they are many."""
    median = np.quantile(contributions[contributions > 0], 0.5, method="lower")
    clients = np.flatnonzero(np.isclose(contributions, median, rtol=_ROUNDING))
    spread = np.linspace(0, len(clients) - 1, _MAX_PATTERNS)
    return clients[np.unique(spread.astype(np.int64))]


def _worst_case_client(record: AuditRecord, adversary: Adversary) -> int:
    """The number of the client with the largest expected score, as far as the record shows."""
    weights = np.ones(record.rounds)
    with contextlib.suppress(NotMeasured):
        round_weights = seen_by(
            record, Adversary(adversary.sees)
        ).expected_scores.weights
        if round_weights.any():
            weights = round_weights
    # The expected score in the final model is a sum over rounds; in all rounds, the root of a sum
    # of squares.
    if adversary.sees == "final":
        scores = record.clients.summed_weights(weights)
    else:
        scores = record.clients.summed_squared_weights(weights)
    return int(np.argmax(scores))


def _expected_participations(record: AuditRecord) -> float:
    """The expected participations of the client, if there is no participation log."""
    design = record.design
    counted_mean = record.findings.client_participations
    if counted_mean:
        expected = float(round(counted_mean))
    elif design.num_clients and design.clients_per_round:
        expected = record.rounds * design.clients_per_round / design.num_clients
    else:
        counts = record.presence.sum(axis=0)
        if counts.any():
            return float(np.median(counts[counts > 0]))
        return math.nan
    return min(max(expected, 1.0), record.rounds)
