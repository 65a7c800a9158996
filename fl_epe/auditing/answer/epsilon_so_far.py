"""ε after each round of a run, for an adversary who sees every round's model.

It is ε of a client that has taken part as often as planned so far. The client's mean score is κ,
fitted to all canaries so far, times its expected score. `EpsilonSoFar` is the only
implementation. A `RunAuditor` adds each round's scores to it during the run and keeps the scores
in the record, from which `epsilon_by_round` computes the same numbers again.

The intervals are a confidence sequence (`fl_epe.auditing.estimate.confidence_sequence`), so a run
may be stopped when they are narrow enough. After the last round ε is the answer of the run
(`fl_epe.auditing.answer.answer`), whose interval holds for this round alone.

Examples:
    >>> so_far = EpsilonSoFar(dim=10_000, count=2, planned=4.0)
    >>> so_far.add([0, 1], np.array([3.0, 2.5]), np.ones(2))
    >>> so_far.estimate(1e-5).epsilon < so_far.estimate(1e-9).epsilon
    True
"""

import dataclasses
import math
from collections import deque
from collections.abc import Collection

import numpy as np

from fl_epe.accounting import epsilon_of_signals
from fl_epe.auditing.answer.answer import answer
from fl_epe.auditing.answer.audited_client import (
    MIN_SHARE_OF_ROUNDS,
    AuditedClient,
    claim_adversary,
)
from fl_epe.auditing.estimate import (
    EVERY_ROUND,
    PLAN_MARGIN,
    EpsilonEstimate,
    boundary,
)
from fl_epe.auditing.record import (
    SKETCH_PARTS,
    AuditRecord,
    Precision,
    energy_of_pairs,
    reach_of,
)
from fl_epe.auditing.scoring import seen_by
from fl_epe.checks import Floats, check_count, check_probability
from fl_epe.schedules import Events, ParticipationLaw

METHOD = (
    "κ of all canaries so far, at the client's expected score so far, interval valid for all rounds"
    " simultaneously"
)

UNPLANNED = 100.0
"""Participations at which the interval is tightest, if no number of them is planned."""

# First round after which there is an ε of a client whose rounds are secret.
_FIRST_SECRET_ROUND = 8

# The signal of a round is at least this share of the mean signal, as a mixture over rounds needs
# signals above 0.
_MIN_RELATIVE_SIGNAL = 1e-9

# Standard errors of the unit of the expected scores that the interval includes.
_STANDARD_ERRORS = 3


class EpsilonSoFar:
    """ε of a client that has taken part as often as planned so far.

    The scores are those of the matched filter of `epsilon_from_record`: each canary's score is
    κ times its expected score plus N(0, 1). κ is fitted over all canaries, as by `LadderFit`.
    The squared expected score of the client is its number of participations times the mean
    squared signal of a canary's participation so far. ε is that of two Gaussians.

    If the client's rounds are secret, ε is that of the mixture over all rounds that the client
    may have, as if rounds were independent. The mixture takes seconds, so it is computed only
    after 8, 16, 32, … rounds.

    The intervals are a confidence sequence: with the stated probability those of *all* rounds
    hold. They are intervals for κ or, if κ changes from round to round, for its mean over the
    participations so far. See docs/notes/watching.md.

    Args:
        dim: dimension d of the model.
        count: number of canaries.
        planned: planned participations of all canaries together, at which the intervals are
            tightest; ``None`` if not known. The run may have more or fewer.
        window: number of rounds over which correlations are followed, see `Whitener`.
        client_law: the law of the client's participations; by default it takes part as often as
            the median of the canaries that take part.
    """

    def __init__(
        self,
        dim: int,
        count: int,
        planned: float | None = None,
        window: int = 1,
        client_law: ParticipationLaw | None = None,
    ) -> None:
        self._dim = dim
        self._planned = planned
        self._window = window
        self._client_law = client_law
        # Sums over all canaries and rounds: of squared signals, of signals times scores, and of
        # the variances of these products.
        self._energy = 0.0
        self._gains = 0.0
        self._variance = 0.0
        # The variance of one participation, in the first round that has scores.
        self._first_variance = 0.0
        self._participations = np.zeros(count, np.int64)  # by canary
        self._rounds = 0
        # The sums over rounds that `Precision.unit_error` needs.
        self._pairs = 0.0
        self._squared_energy = 0.0
        # Squared signal of a participation in each round; NaN without a score.
        self._squared_signals: list[float] = []
        # The signals of the rounds that may be correlated with the next one.
        self._signals: deque[Floats] = deque(maxlen=window - 1)
        # The last estimate for each δ and confidence, and the round after which it was due.
        self._estimates: dict[
            tuple[float, float], tuple[int, EpsilonEstimate]
        ] = {}

    def add(
        self, present: Collection[int], scores: Floats, signals: Floats
    ) -> None:
        """Add the scores of a round.

        All scores of a round share the random norm of its residual, so they are correlated. The
        relative variance of this norm is at most 1/(2d), which is that of noise alone
        (`scores.mean_spread`).

        Args:
            present: ids of the canaries that took part.
            scores: the whitened score of each canary, ``(count,)``.
            signals: each canary's expected contribution to its score, ``(count,)``.
        """
        self._rounds += 1
        self._participations[list(present)] += 1
        previous_signals = np.array(self._signals).reshape(-1, len(signals))
        self._pairs += energy_of_pairs(signals, previous_signals)
        self._signals.append(signals)
        self._squared_signals.append(math.nan)
        if not signals.any():  # no canary contributed to the round
            return
        # Exact sums do not depend on the canaries' order.
        energy = math.fsum(signals**2)
        gain = math.fsum(signals * scores)
        variance = energy + gain**2 / (2 * self._dim)
        self._energy += energy
        self._gains += gain
        self._variance += variance
        self._squared_energy += energy**2
        if len(present):
            self._squared_signals[-1] = energy / len(present)
        if not self._first_variance:
            self._first_variance = variance / max(len(present), 1)

    @property
    def canaries_seen(self) -> int:
        """The number of canaries that have taken part so far."""
        return int(np.count_nonzero(self._participations))

    @property
    def extrapolates(self) -> bool:
        """Whether all canaries took part clearly less often than the client.

        ε may then be far off, unless noise dominates the residual
        (`fl_epe.auditing.scoring.reaction`).
        """
        most_participations = self._participations.max(initial=0)
        min_participations = MIN_SHARE_OF_ROUNDS * self.participations
        return bool(most_participations < min_participations)

    @property
    def participations(self) -> float:
        """The client's expected number of rounds so far; at least 1 if they are known."""
        law = self._client_law
        if law is None or law.rate is None:
            counts = self._participations[self._participations > 0]
            if len(counts):
                return float(np.median(counts))
            return 0.0
        expected = law.rate * self._rounds
        if law.hidden:
            return expected
        return max(expected, min(1.0, self._rounds))

    def estimate(
        self, delta: float, confidence: float = 0.95
    ) -> EpsilonEstimate | None:
        """ε at ``delta``; ``None`` before two canaries took part.

        If the client's rounds are secret, it is ``None`` before 8 rounds, and otherwise the ε after
        the last of 8, 16, 32, … rounds.

        It is also ``None`` if the law of secret rounds has no events to compute ε from.
        """
        check_probability("confidence", confidence)
        if self.canaries_seen < 2 or not self._energy > 0:
            return None
        law = self._client_law
        due_round = self._rounds
        if law is not None and law.hidden:
            # The last power of 2.
            due_round = 2 ** (self._rounds.bit_length() - 1)
            if due_round < _FIRST_SECRET_ROUND:
                return None
        last_round, estimate = self._estimates.get(
            (delta, confidence), (0, None)
        )
        if last_round >= due_round:
            return estimate
        events = None
        if law is not None and law.hidden:
            events = law.first(self._rounds).secret_events
            if events is None:
                return None
        signal, scales = self._signal_and_scales(confidence)
        epsilon, low, high = (
            self._epsilon(scale * signal, delta, events) for scale in scales
        )
        adversary = dataclasses.replace(
            EVERY_ROUND, knows_rounds=events is None
        )
        estimate = EpsilonEstimate(
            epsilon=epsilon,
            low=low,
            high=high,
            delta=delta,
            confidence=confidence,
            method=METHOD,
            adversary=adversary,
        )
        self._estimates[delta, confidence] = (due_round, estimate)
        return estimate

    def _epsilon(
        self, signal: float, delta: float, events: Events | None
    ) -> float:
        """ε of the client so far.

        Args:
            signal: the mean score of one participation.
            delta: target δ.
            events: how the client's rounds so far are drawn, if they are secret.
        """
        if signal <= 0:
            return 0.0
        if events is None:
            expected_score = signal * math.sqrt(self.participations)
            return epsilon_of_signals(np.array([expected_score]), delta)
        mean_square = self._energy / int(self._participations.sum())
        squares = np.nan_to_num(self._squared_signals, nan=mean_square)
        relative = np.sqrt(squares / mean_square)
        signals = signal * np.maximum(relative, _MIN_RELATIVE_SIGNAL)
        return epsilon_of_signals(signals, delta, events)

    def _signal_and_scales(self, confidence: float) -> tuple[float, Floats]:
        """The expected score of one participation, and κ with both ends of its interval."""
        reach = reach_of(self._rounds, self._window)
        precision = Precision.of(reach, self._dim, SKETCH_PARTS)
        unit_error = precision.unit_error(
            self._pairs, self._squared_energy, self._energy
        )
        participations = int(self._participations.sum())
        signal = precision.unit * math.sqrt(self._energy / participations)
        is_planned = self._planned is not None
        horizon = UNPLANNED  # in participations
        if self._planned is not None:
            horizon = PLAN_MARGIN * self._planned
        distance = boundary(
            self._variance * precision.observed_std**2,
            (1 - confidence) / 2,
            horizon * self._first_variance,
            is_planned,
        )
        mean = self._gains / self._energy
        half = math.hypot(
            float(distance) / self._energy, _STANDARD_ERRORS * unit_error * mean
        )
        return signal, np.array([mean, mean - half, mean + half])


@dataclasses.dataclass(frozen=True)
class RoundEstimate:
    """ε so far, after one of a run's rounds.

    Attributes:
        round: the round, counted from 1.
        estimate: ε, whose interval belongs to a confidence sequence; after the last round it is
            the answer of the run, whose interval holds for this round alone.
        participations: the client's participations so far.
    """

    round: int
    estimate: EpsilonEstimate
    participations: float


def epsilon_by_round(
    record: AuditRecord,
    delta: float | None = None,
    *,
    confidence: float = 0.95,
    max_rounds: int = 200,
) -> list[RoundEstimate]:
    """ε after each round, as `RunAuditor.epsilon_so_far` returned it, and finally the answer.

    A record may have no running scores, for example if its canaries are independent and the run
    has no stopping rule. ε is then computed from the scores of `epsilon_from_record`.

    Args:
        record: the audit record of a run.
        delta: target δ; the record's by default.
        confidence: confidence of all intervals together, and of the answer's interval.
        max_rounds: largest number of rounds to return; in a longer run they are evenly spread
            and include the last one.

    Returns:
        The estimates in the order of the rounds, from the first round after which two canaries
        had taken part; empty if nothing was measured.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_count("max_rounds", max_rounds)
    adversary = claim_adversary(record)
    last = answer(record, adversary, delta, confidence).estimate
    if last is None:
        return []
    client = AuditedClient.of(record, adversary)
    view = seen_by(record, EVERY_ROUND)
    answer_estimate = RoundEstimate(record.rounds, last, client.participations)
    if client.is_extrapolated(record) and not view.noise_prevails():
        # The other clients' reaction to a client can be fitted only at the end.
        return [answer_estimate]
    running = record.running
    planned = running.planned
    law = record.mechanism.participation
    client_law = law if running.law_was_known else None
    if running.scores is None:
        # No plan was recorded. The answer's client and the run's participations replace it.
        if law.rate is not None:
            planned = float(record.presence.sum())
        client_law = law
        if not law.hidden:
            client_law = ParticipationLaw(record.rounds, client.participations)
    count = min(max_rounds, record.rounds)
    returned_rounds = set(np.linspace(1, record.rounds, count).round())
    so_far = EpsilonSoFar(
        record.dim,
        record.num_canaries,
        planned,
        record.correlation.window,
        client_law,
    )
    scores = view.whitened_scores
    signals = view.whitened_signals
    estimates = []
    for round_number in range(1, record.rounds):
        t = round_number - 1
        so_far.add(np.flatnonzero(record.presence[t]), scores[t], signals[t])
        is_returned = round_number in returned_rounds
        # At secret rounds ε is computed after some rounds only, so `estimate` must be called after
        # every round.
        if not is_returned and client.secret is None:
            continue
        estimate = so_far.estimate(last.delta, confidence)
        if is_returned and estimate is not None:
            estimates.append(
                RoundEstimate(round_number, estimate, so_far.participations)
            )
    return [*estimates, answer_estimate]
