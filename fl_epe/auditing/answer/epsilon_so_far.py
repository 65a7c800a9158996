"""ε after each round of a run, for an adversary who sees every round's model.

It is that of a client who has taken part as often as is planned up to then: κ of all canaries so
far times the expected score of that client. `EpsilonSoFar` is the only implementation. A
`RunAuditor` adds each round's scores to one during the run and keeps them in the record, from which
`epsilon_by_round` says the same numbers again. After the last round ε is the answer of the run
(`fl_epe.auditing.answer.answer`), with its interval for one look.

Its intervals are a confidence sequence (`fl_epe.auditing.estimate.confidence_sequence`): one
may stop when they say enough.

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
    AS_OFTEN,
    AuditedClient,
    claim_adversary,
)
from fl_epe.auditing.estimate import EVERY_ROUND, PLAN_MARGIN, EpsilonEstimate, boundary
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
UNPLANNED = (
    100.0  # scores after which it is tightest, where nobody said how many there will be
)

_FIRST_SECRET = (
    8  # rounds before which nothing is said of a client whose rounds are secret
)
_LEAST_SIGNAL = 1e-9  # of the mean one


class EpsilonSoFar:
    """ε of a client who has taken part as often as planned so far.

    The scores are those of the matched filter of `epsilon_from_record`: each canary's is κ times
    its expected score plus N(0, 1). κ is fitted over all canaries, as by `LadderFit`. What one
    participation of the client adds to its squared expected score is the canaries' mean so far.
    ε is that of two Gaussians; where the client's rounds are secret, that of the mixture over all
    it may have had, which takes seconds and is computed after 8, 16, 32, … rounds alone, as if
    rounds were independent (`client_epsilon` says where they are not).

    The interval is a confidence sequence: with the stated probability those of *all* rounds hold.
    It is for κ, which in a round of weight a moves the expected score to κ·a; if κ changes, for its
    mean over the participations so far. See docs/notes/watching.md.

    Args:
        dim: dimension d of the model.
        count: number of canaries.
        planned: participations of all canaries together that the run is planned for, at which the
            intervals are tightest; ``None`` if nobody knows. It is no promise.
        window: rounds back to which correlations are followed, see `Whitener`.
        client: whose ε; by default of one who takes part as often as the median canary that does.
    """

    def __init__(
        self,
        dim: int,
        count: int,
        planned: float | None = None,
        window: int = 1,
        client: ParticipationLaw | None = None,
    ) -> None:
        self._dim, self._planned, self._window, self._client = (
            dim,
            planned,
            window,
            client,
        )
        self._gains = self._energy = 0.0  # of all canaries
        self._counts = np.zeros(count, np.int64)  # participations
        self._variance = self._first = (
            0.0  # of the sum of gains, and of its first participation
        )
        self._rounds, self._pairs, self._by_round = 0, 0.0, 0.0
        self._each: list[
            float
        ] = []  # squared signal of a participation, by round; NaN: not seen
        self._signals: deque[Floats] = deque(maxlen=window - 1)
        self._kept: dict[tuple[float, float], tuple[int, EpsilonEstimate]] = {}

    def add(self, present: Collection[int], scores: Floats, signals: Floats) -> None:
        """Note a round.

        All scores of a round share the random norm of its residual, so they are correlated. The
        norm's relative variance is at most 1/(2d), as of noise alone (`scores.mean_spread`).

        Args:
            present: numbers of the canaries that took part.
            scores: whitened score of each canary, ``(count,)``.
            signals: what it added to that, ``(count,)``.
        """
        self._rounds += 1
        self._counts[list(present)] += 1
        self._pairs += energy_of_pairs(
            signals, np.array(self._signals).reshape(-1, len(signals))
        )
        self._signals.append(signals)
        self._each.append(math.nan)
        if not signals.any():
            return
        # Exact sums do not depend on the canaries' order.
        energy = math.fsum(signals**2)
        gain = math.fsum(signals * scores)
        variance = energy + gain**2 / (2 * self._dim)
        self._gains += gain
        self._energy += energy
        self._variance += variance
        self._by_round += energy**2
        if len(present):
            self._each[-1] = energy / len(present)
        self._first = self._first or variance / max(len(present), 1)

    @property
    def canaries_seen(self) -> int:
        """How many canaries have taken part so far."""
        return int(np.count_nonzero(self._counts))

    @property
    def extrapolates(self) -> bool:
        """Whether all canaries took part so much less often than the client that ε may be far off.

        It is not where noise hides most of a client (`fl_epe.auditing.scoring.reaction`).
        """
        return bool(self._counts.max(initial=0) < AS_OFTEN * self.participations)

    @property
    def participations(self) -> float:
        """Of the client so far, expected; at least one where its rounds are known."""
        if self._client is not None and self._client.rate is not None:
            expected = self._client.rate * self._rounds
            return (
                expected
                if self._client.hidden
                else max(expected, min(1.0, self._rounds))
            )
        taken = self._counts[self._counts > 0]
        return float(np.median(taken)) if len(taken) else 0.0

    def estimate(
        self, delta: float, confidence: float = 0.95
    ) -> EpsilonEstimate | None:
        """ε at ``delta``; ``None`` before two canaries took part, or 8 rounds of secret ones.

        ``None`` also where the law of secret rounds has no events that ε could be computed from.
        """
        check_probability("confidence", confidence)
        if np.count_nonzero(self._counts) < 2 or not self._energy > 0:
            return None
        client = self._client
        known = client is None or not client.hidden
        due = self._rounds if known else 2 ** (self._rounds.bit_length() - 1)
        if not known and due < _FIRST_SECRET:
            return None
        asked = delta, confidence
        if asked not in self._kept or self._kept[asked][0] < due:
            events = None
            if client is not None and client.hidden:
                events = client.first(self._rounds).secret_events
                if events is None:
                    return None
            signal, scales = self._signal_and_scales(confidence)
            epsilon, low, high = (
                self._epsilon(scale * signal, delta, events) for scale in scales
            )
            adversary = dataclasses.replace(EVERY_ROUND, knows_rounds=known)
            self._kept[asked] = (
                due,
                EpsilonEstimate(
                    epsilon, low, high, delta, confidence, METHOD, adversary
                ),
            )
        return self._kept[asked][1]

    def _epsilon(self, signal: float, delta: float, events: Events | None) -> float:
        """ε where ``signal`` is the expected score of one participation.

        Args:
            signal: see above.
            delta: target δ.
            events: how the client's rounds so far are drawn, if they are secret.
        """
        if signal <= 0:
            return 0.0
        if events is None:
            return epsilon_of_signals(
                np.array([signal * math.sqrt(self.participations)]), delta
            )
        mean = self._energy / int(self._counts.sum())
        each = np.sqrt(np.nan_to_num(self._each, nan=mean) / mean)
        return epsilon_of_signals(
            signal * np.maximum(each, _LEAST_SIGNAL), delta, events
        )

    def _signal_and_scales(self, confidence: float) -> tuple[float, Floats]:
        """The expected score of one participation, and κ with both ends of its interval.

        The interval allows for three times the error of its unit.
        """
        precision = Precision.of(
            reach_of(self._rounds, self._window), self._dim, SKETCH_PARTS
        )
        unit_error = precision.unit_error(self._pairs, self._by_round, self._energy)
        signal = precision.unit * math.sqrt(self._energy / int(self._counts.sum()))
        length = UNPLANNED if self._planned is None else PLAN_MARGIN * self._planned
        known = self._variance * precision.own**2
        error = (1 - confidence) / 2
        planned = self._planned is not None
        half = (
            float(boundary(known, error, length * self._first, planned)) / self._energy
        )
        mean = self._gains / self._energy
        half = math.hypot(half, 3 * unit_error * mean)
        return signal, np.array([mean, mean - half, mean + half])


@dataclasses.dataclass(frozen=True)
class RoundEstimate:
    """ε so far, after one of a run's rounds.

    Attributes:
        round: counted from 1.
        estimate: its interval is one of a confidence sequence; after the last round it is the
            answer's, for one look.
        participations: of the client so far.
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
    """ε so far after each round: what `RunAuditor.epsilon_so_far` said, and at last the answer.

    Of a record that nobody watched, such as that of independent canaries without a rule to stop,
    it is what would have been said, from the scores of `epsilon_from_record`.

    Args:
        record: the audit record of a run.
        delta: target δ; the record's by default.
        confidence: of all intervals together, and of the answer's.
        most: number of rounds to return at most; of longer runs they are evenly spread, with the
            last one.

    Returns:
        In the order of the rounds, from the first after which two canaries had taken part; empty if
        nothing was measured.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_count("most", most)
    adversary = claim_adversary(record)
    last = answer(record, adversary, delta, confidence).estimate
    if last is None:
        return []
    audited = AuditedClient.of(record, adversary)
    view = seen_by(record, EVERY_ROUND)
    whole = [RoundEstimate(record.rounds, last, audited.participations)]
    if audited.extrapolated(record) and not view.noise_prevails():
        return whole  # how the others react to a client is known at the end
    secret = audited.secret
    running = record.running
    law = record.mechanism.participation
    planned = running.planned
    client = law if running.of_law else None
    if running.scores is None:
        if law.rate is not None:
            planned = float(record.presence.sum())
        client = (
            law
            if law.hidden
            else ParticipationLaw(record.rounds, audited.participations)
        )
    chosen = set(
        np.unique(np.linspace(1, record.rounds, min(most, record.rounds)).round())
    )
    window = record.correlation.window
    so_far = EpsilonSoFar(record.dim, record.num_canaries, planned, window, client)
    found = []
    for t, (scores, signals) in enumerate(
        zip(view.whitened_scores[:-1], view.whitened_signals[:-1], strict=True)
    ):
        so_far.add(np.flatnonzero(record.presence[t]), scores, signals)
        if t + 1 not in chosen and secret is None:
            continue  # at secret rounds ε is computed after some rounds, whichever are chosen
        estimate = so_far.estimate(last.delta, confidence)
        if t + 1 in chosen and estimate is not None:
            found.append(RoundEstimate(t + 1, estimate, so_far.participations))
    return [*found, *whole]
