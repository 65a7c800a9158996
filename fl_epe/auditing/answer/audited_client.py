"""The client whose ε is the answer, and the adversary of a privacy claim.

The client is the median one by its contribution to the run: the sum of its squared weights over
its rounds, which is the number of its rounds if all weights are 1. The norm of its update is the
clip norm. Clients that take part less often, or have smaller updates, leak less.

If the client's rounds are known, an expected number of rounds below 1 is raised to 1: ε is for a
run in which the client takes part.
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

# Largest number of clients, or of canaries in their place, whose patterns are used.
_MAX_PATTERNS = 100

# A canary is rare if it has less than this fraction of the client's number of rounds.
MIN_SHARE_OF_ROUNDS = 0.75

# The client's score is extrapolated if rare canaries have more than this fraction of all canaries'
# participations.
_MAX_SHARE_OF_RARE_CANARIES = 0.2

# Relative difference of contributions that are equal but for rounding.
_ROUNDING = 1e-6

_LAW_UNKNOWN = "the law of a client's secret rounds is not known"


@dataclasses.dataclass(frozen=True, eq=False)
class AuditedClient:
    """The client whose ε is the answer.

    Attributes:
        participations: how many rounds it takes part in; the expected number if the rounds are
            secret.
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

        It is derived from the participation log. Without a log it has the counted mean number of
        rounds, else that of the design, and else that of the median canary.

        Args:
            record: the audit record of a run.
            adversary: the adversary; by default that of `claim_adversary`.
            worst_case: whether to choose the client with the largest expected score instead of
                the median one. A privacy claim covers it, and other clients leak at most as much.
                At secret rounds it has no effect, as all clients follow one law.

        Raises:
            NotMeasured: if the adversary does not know the rounds, and their law is not known.
        """
        adversary = adversary or claim_adversary(record)
        if not adversary.knows_rounds:
            law = record.mechanism.participation.first(record.rounds)
            secret = hidden_events(record)
            expected = law.participations or math.nan
            no_patterns = np.empty((record.rounds, 0))
            return cls(expected, no_patterns, secret)
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
        # Canaries with the same number of rounds have the patterns of such a client.
        counts = record.presence.sum(axis=0)
        canaries = np.flatnonzero(counts == np.round(participations))
        return cls(participations, record.presence[:, canaries[:_MAX_PATTERNS]])

    def is_extrapolated(self, record: AuditRecord) -> bool:
        """Whether the client's score is extrapolated from canaries with fewer rounds.

        It is ``True`` if the client is from the participation log, its rounds are known, and more
        than a fifth of the canaries' participations are of rare canaries, which have less than
        three quarters of the client's rounds. `Answer.extrapolated` has another condition: every
        canary has fewer rounds than the client.
        """
        if record.clients.ids is None or self.secret is not None:
            return False
        counts = record.presence.sum(axis=0)
        rare_counts = counts[counts < MIN_SHARE_OF_ROUNDS * self.participations]
        max_rare = _MAX_SHARE_OF_RARE_CANARIES * counts.sum()
        return bool(rare_counts.sum() > max_rare)

    def view(self, record: AuditRecord, adversary: Adversary) -> View:
        """The adversary's view, with the scores from which this client's are predicted.

        If canaries with few rounds predict a client with many, expected scores allow for the
        reaction of the other clients' later updates to its contributions, see `Reaction`.

        Raises:
            NotMeasured: if the other clients' reaction to a client cannot be fitted.
        """
        # A canary's score uses its known rounds, also if the client's rounds are secret.
        adversary = Adversary(adversary.sees)
        # A record without scores during the run treats rounds as independent: it is simulated for
        # the limit of large models, or its canaries are drawn independently.
        has_independent_rounds = record.running.scores is None
        # For correlated noise there is no model of a reaction.
        has_strategy = record.mechanism.strategy is not None
        if (
            has_independent_rounds
            or has_strategy
            or not self.is_extrapolated(record)
        ):
            return seen_by(record, adversary)
        every_round = seen_by(record, EVERY_ROUND)
        if not every_round.noise_prevails():
            return seen_by(record, adversary, every_round.fitted_reaction)
        if adversary.sees == "all":
            # Noise dominates: later rounds react to a client as they react to the noise.
            return seen_by(record, adversary, Reaction())
        # Noise dominates, and only the final model is seen: no correction.
        return seen_by(record, adversary)

    def expected_score(self, view: View) -> float:
        """The client's expected score for an adversary who knows its rounds."""
        if self.patterns.shape[1]:
            return float(np.mean(view.expected_scores.of(self.patterns)))
        return view.expected_scores.of_rounds(self.participations)

    def error_of_secret_rounds(self, view: View) -> float:
        """Relative error of the expected score if correlated rounds are treated as independent.

        It is computed for secret rounds, and for a client with more rounds than all but a fraction
        δ of clients. It is 0 at known rounds and for the final model.
        """
        record = view.record
        if self.secret is None or view.adversary.sees == "final":
            return 0.0
        probabilities = np.array(
            [event.chance for event in self.secret.independent]
        )
        uncertain = probabilities[probabilities < 1]
        num_certain = len(probabilities) - len(uncertain)
        max_rounds = float(num_certain)
        if len(uncertain):
            max_rounds += float(
                scipy.stats.binom.isf(
                    record.delta, len(uncertain), uncertain.mean()
                )
            )
        error_in_all_rounds = record.correlation.error_of_independence(
            view.expected_scores.weights, record.dim
        )
        error_of_square = max_rounds / record.rounds * error_in_all_rounds
        # An expected score is a square root, which has half the relative error.
        return error_of_square / 2


def claim_adversary(record: AuditRecord) -> Adversary:
    """The adversary of privacy accounting, who sees every round's model.

    The rounds of a client are known, unless the accounting rests on hiding them.
    """
    return dataclasses.replace(
        EVERY_ROUND, knows_rounds=not record.mechanism.participation.hidden
    )


def hidden_events(record: AuditRecord) -> Events:
    """The independent events by which the secret rounds of a client, and of a canary, are drawn.

    Raises:
        NotMeasured: if they are not known, or canaries follow another law.
    """
    events = record.mechanism.participation.first(record.rounds).secret_events
    if events is None or not events.independent:
        raise NotMeasured(_LAW_UNKNOWN)
    counts = record.presence.sum(axis=0)
    is_certain = all(event.chance == 1 for event in events.independent)
    # If every event is certain, a canary takes part once in each. Another median number of rounds
    # shows that canaries follow another law.
    follows_other_counts = (
        is_certain
        and counts.any()
        and np.median(counts) != len(events.independent)
    )
    # Canaries with weights follow another law, unless its events have counts (how often a unit is
    # in a release): the weights are then these counts.
    has_other_weights = (
        record.mechanism.canary_weights is not None and events.counts is None
    )
    if follows_other_counts or has_other_weights:
        raise NotMeasured(_LAW_UNKNOWN)
    return events


def _median_clients(contributions: Floats) -> Integers:
    """The ids of clients with the median contribution.

    If there are more than `_MAX_PATTERNS`, as many of them are chosen, evenly spaced by id.

    Args:
        contributions: the contribution of each client, indexed by client id.
    """
    median = np.quantile(contributions[contributions > 0], 0.5, method="lower")
    clients = np.flatnonzero(np.isclose(contributions, median, rtol=_ROUNDING))
    positions = np.linspace(0, len(clients) - 1, _MAX_PATTERNS)
    return clients[np.unique(positions.astype(np.int64))]


def _worst_case_client(record: AuditRecord, adversary: Adversary) -> int:
    """The id of the client with the largest expected score, as far as the record shows."""
    # Without known expected scores, all rounds count alike.
    weights = np.ones(record.rounds)
    with contextlib.suppress(NotMeasured):
        round_weights = seen_by(
            record, Adversary(adversary.sees)
        ).expected_scores.weights
        if round_weights.any():
            weights = round_weights
    log = record.clients
    if adversary.sees == "final":
        return int(np.argmax(log.summed_weights(weights)))
    # With every round's model, the expected score is the root of a sum of squares.
    return int(np.argmax(log.summed_squared_weights(weights)))


def _expected_participations(record: AuditRecord) -> float:
    """The client's expected number of rounds, if there is no participation log.

    It is at least 1, or NaN if nothing is known.
    """
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
