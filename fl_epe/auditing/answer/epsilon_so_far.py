"""ε after each round of a run, for an adversary who sees every round's model.

It is ε of a client that has taken part as often as planned so far; the client's score is κ of
all canaries so far times its expected score. `EpsilonSoFar` is the only implementation. A
`RunAuditor` adds each round's scores to it during the run and keeps them in the record, from
which `epsilon_by_round` computes the same numbers again. After the last round ε is the answer
of the run (`fl_epe.auditing.answer.answer`), whose interval holds for this round alone.

Its intervals are a confidence sequence (`fl_epe.auditing.estimate.confidence_sequence`): a run may
be stopped when they are narrow enough.

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

METHOD = "κ of all canaries so far, at a client so far, interval valid at every round at once"

UNPLANNED = 100.0
"""Participations at which the interval is tightest, if no number of them is planned."""

# First round after which there is an ε of a client whose rounds are secret.
_FIRST_SECRET = 8

# Smallest signal of a participation, relative to the mean signal.
_LEAST_SIGNAL = 1e-9


class EpsilonSoFar:
    """ε of a client that has taken part as often as planned so far.

    The scores are those of the matched filter of `epsilon_from_record`: each canary's score is
    κ times its expected score plus N(0, 1). κ is fitted over all canaries, as by `LadderFit`.
    One participation of the client adds the canaries' mean so far to its squared expected
    score. ε is that of two Gaussians. If the client's rounds are secret, it is that of the
    mixture over all rounds that the client may have. The mixture takes seconds and is computed
    after 8, 16, 32, … rounds alone, as if rounds were independent (`client_epsilon` checks
    whether they are).

    The intervals are a confidence sequence: with the stated probability those of *all* rounds
    hold. They are intervals for κ or, if κ changes, for its mean over the participations so
    far. See docs/notes/watching.md.

    Args:
        dim: dimension d of the model.
        count: number of canaries.
        planned: planned participations of all canaries together, at which the intervals are
            tightest; ``None`` if not known. The run may have more or fewer.
        window: number of rounds over which correlations are followed, see `Whitener`.
        client: the law of the client's participations; by default it takes part as often as the
            median of the canaries that take part.
    """

    def __init__(
        self,
        dim: int,
        count: int,
        planned: float | None = None,
        window: int = 1,
        client: ParticipationLaw | None = None,
    ) -> None:
        self._dim = dim
        self._planned = planned
        self._window = window
        self._client = client
        # Sums over all canaries and rounds: of squared signals, of signals times scores, and of the
        # variances of these products; and the first participation's variance.
        self._energy = 0.0
        self._gains = 0.0
        self._variance = 0.0
        self._first_variance = 0.0
        self._participations = np.zeros(count, np.int64)  # by canary
        self._rounds = 0
        self._pairs = 0.0
        self._squared_energy = 0.0
        # Squared signal of a participation in each round; NaN without a score.
        self._squared_signals: list[float] = []
        self._signals: deque[Floats] = deque(maxlen=window - 1)
        self._estimates: dict[
            tuple[float, float], tuple[int, EpsilonEstimate]
        ] = {}

    def add(
        self, present: Collection[int], scores: Floats, signals: Floats
    ) -> None:
        """Add the scores of a round.

        All scores of a round share the random norm of its residual, so they are correlated. The
        norm's relative variance is at most 1/(2d), that of noise alone (`scores.mean_spread`).

        Args:
            present: the numbers of the canaries that took part.
            scores: the whitened score of each canary, ``(count,)``.
            signals: each canary's expected contribution to its score, ``(count,)``.
        """
        self._rounds += 1
        self._participations[list(present)] += 1
        previous_signals = np.array(self._signals).reshape(-1, len(signals))
        self._pairs += energy_of_pairs(signals, previous_signals)
        self._signals.append(signals)
        self._squared_signals.append(math.nan)
        if not signals.any():
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
        """Whether ε may be far off, as all canaries took part much less often than the client.

        It is not far off if noise dominates the score of a client
        (`fl_epe.auditing.scoring.reaction`).
        """
        most_participations = self._participations.max(initial=0)
        min_participations = MIN_SHARE_OF_ROUNDS * self.participations
        return bool(most_participations < min_participations)

    @property
    def participations(self) -> float:
        """The client's expected number of rounds so far; at least 1 if they are known."""
        client = self._client
        if client is None or client.rate is None:
            counts = self._participations[self._participations > 0]
            if len(counts):
                return float(np.median(counts))
            return 0.0
        expected = client.rate * self._rounds
        if client.hidden:
            return expected
        return max(expected, min(1.0, self._rounds))

    def estimate(
        self, delta: float, confidence: float = 0.95
    ) -> EpsilonEstimate | None:
        """ε at ``delta``; ``None`` before two canaries took part, or 8 rounds if they are secret.

        It is also ``None`` if the law of secret rounds has no events to compute ε from.
        """
        check_probability("confidence", confidence)
        if self.canaries_seen < 2 or not self._energy > 0:
            return None
        client = self._client
        hidden = client is not None and client.hidden
        due = self._rounds
        if hidden:
            due = 2 ** (self._rounds.bit_length() - 1)
            if due < _FIRST_SECRET:
                return None
        computed, estimate = self._estimates.get((delta, confidence), (0, None))
        if computed >= due:
            return estimate
        events = None
        if client is not None and client.hidden:
            events = client.first(self._rounds).secret_events
            if events is None:
                return None
        signal, scales = self._signal_and_scales(confidence)
        epsilon, low, high = (
            self._epsilon(scale * signal, delta, events) for scale in scales
        )
        adversary = dataclasses.replace(EVERY_ROUND, knows_rounds=not hidden)
        estimate = EpsilonEstimate(
            epsilon=epsilon,
            low=low,
            high=high,
            delta=delta,
            confidence=confidence,
            method=METHOD,
            adversary=adversary,
        )
        self._estimates[delta, confidence] = (due, estimate)
        return estimate

    def _epsilon(
        self, signal: float, delta: float, events: Events | None
    ) -> float:
        """ε of the client so far.

        Args:
            signal: the expected score of one participation.
            delta: target δ.
            events: how the client's rounds so far are drawn, if they are secret.
        """
        if signal <= 0:
            return 0.0
        if events is None:
            expected_score = signal * math.sqrt(self.participations)
            return epsilon_of_signals(np.array([expected_score]), delta)
        mean = self._energy / int(self._participations.sum())
        relative = np.sqrt(
            np.nan_to_num(self._squared_signals, nan=mean) / mean
        )
        signals = signal * np.maximum(relative, _LEAST_SIGNAL)
        return epsilon_of_signals(signals, delta, events)

    def _signal_and_scales(self, confidence: float) -> tuple[float, Floats]:
        """The expected score of one participation, and κ with both ends of its interval.

        The interval allows for three times the error of its unit.
        """
        reach = reach_of(self._rounds, self._window)
        precision = Precision.of(reach, self._dim, SKETCH_PARTS)
        unit_error = precision.unit_error(
            self._pairs, self._squared_energy, self._energy
        )
        participations = int(self._participations.sum())
        signal = precision.unit * math.sqrt(self._energy / participations)
        planned = self._planned is not None
        if self._planned is None:
            length = UNPLANNED
        else:
            length = PLAN_MARGIN * self._planned
        distance = boundary(
            self._variance * precision.own**2,
            (1 - confidence) / 2,
            length * self._first_variance,
            planned,
        )
        mean = self._gains / self._energy
        half = math.hypot(float(distance) / self._energy, 3 * unit_error * mean)
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
    most: int = 200,
) -> list[RoundEstimate]:
    """ε after each round, as `RunAuditor.epsilon_so_far` returned it, and finally the answer.

    For a record without running scores, such as one of independent canaries without a stopping
    rule, ε is computed from the scores of `epsilon_from_record`.

    Args:
        record: the audit record of a run.
        delta: target δ; the record's by default.
        confidence: confidence of all intervals together, and of the answer's interval.
        most: largest number of rounds to return; in a longer run they are evenly spread and
            include the last one.

    Returns:
        The estimates in the order of the rounds, from the first round after which two canaries
        had taken part; empty if nothing was measured.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_count("most", most)
    adversary = claim_adversary(record)
    last = answer(record, adversary, delta, confidence).estimate
    if last is None:
        return []
    client = AuditedClient.of(record, adversary)
    view = seen_by(record, EVERY_ROUND)
    answer_estimate = RoundEstimate(record.rounds, last, client.participations)
    if client.extrapolated(record) and not view.noise_prevails():
        # The other clients' reaction to a client is known only at the end.
        return [answer_estimate]
    running = record.running
    planned = running.planned
    law = record.mechanism.participation
    client_law = law if running.of_law else None
    if running.scores is None:
        if law.rate is not None:
            planned = float(record.presence.sum())
        client_law = law
        if not law.hidden:
            client_law = ParticipationLaw(record.rounds, client.participations)
    count = min(most, record.rounds)
    chosen = set(np.unique(np.linspace(1, record.rounds, count).round()))
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
    for number in range(1, record.rounds):
        t = number - 1
        so_far.add(np.flatnonzero(record.presence[t]), scores[t], signals[t])
        # At secret rounds `estimate` must be called after every round: it computes ε after some
        # rounds alone, whichever are chosen.
        if number not in chosen and client.secret is None:
            continue
        estimate = so_far.estimate(last.delta, confidence)
        if number in chosen and estimate is not None:
            estimates.append(
                RoundEstimate(number, estimate, so_far.participations)
            )
    return [*estimates, answer_estimate]
