"""Scores that test a privacy claim, for the adversary and the client of the claim.

Canaries that take part more often than the client, or with larger weights, do not count. If the
rounds are secret, canaries are not chosen by their rounds, and canaries that were drawn for no
round count as members.

The null of likelihood ratios at secret rounds has no closed form but can be simulated: whitened
scores of a direction that took no part are independent N(0, 1). The tail of a large ratio L is
computed from draws of members, ``P₀[L ≥ x] = E₁[e^(−L); L ≥ x]``, however small it is, and the
tail of other ratios from draws of the null. So ratios are turned into scores whose null is
N(0, 1), and no unobserved canary is needed.
"""

import dataclasses
import functools
import math

import numpy as np
import scipy

from fl_epe.auditing.answer.audited_client import AuditedClient, claim_adversary
from fl_epe.auditing.estimate import EVERY_ROUND, Adversary
from fl_epe.auditing.record import AuditRecord, NotMeasured
from fl_epe.auditing.scoring import (
    UNKNOWN_ROUNDS,
    Scores,
    View,
    cosines_of,
    mixture_ratios,
    normal_deviates,
    scores_of,
    seen_by,
)
from fl_epe.checks import Floats, Floats32, tail_sums
from fl_epe.schedules import Events
from fl_epe.seeding import generator
from fl_epe.wording import how_often

# Largest expected score of a canary, over the client's expected score.
_LARGEST_SIZE = 1.1

# If at least `_ENOUGH` canaries have at least this share of the client's rounds, only they
# count.
_LEAST_SHARE = 0.5
_ENOUGH = 4

# Draws of a null, each of as many random numbers as there are rounds.
_WORK = 2 * 10**7  # random numbers in all
_LEAST_DRAWS = 2_000
_MOST_DRAWS = 20_000
_AT_ONCE = 2 * 10**6  # random numbers that are in memory at once
_SEED = 0

# A larger tail probability is estimated from draws of the null.
_DIRECT = 0.02

# Standard errors that are added to an estimated tail.
_STANDARD_ERRORS = 3.0

# If more than 5 draws were expected above a value, none would be with probability below e⁻⁵. So
# the tail above all draws is at most 5 over their number.
_MISSING = 5.0

# Scores whose null is N(0, 1) get this dimension, as if it were infinite.
_DIM = 10**9


def scores_for_claim(
    record: AuditRecord,
    adversary: Adversary | None = None,
    client: AuditedClient | None = None,
) -> Scores:
    """Scores of the canaries that a claim about a client covers.

    Args:
        record: the audit record of a run.
        adversary: the adversary of the claim; by default that of `claim_adversary`.
        client: the client of the claim; by default the one that takes part most often.

    Raises:
        NotMeasured: if fewer than two canaries count, or the law of secret rounds is not known.
    """
    adversary = adversary or claim_adversary(record)
    client = client or AuditedClient.of(record, adversary, most=True)
    view = seen_by(record, Adversary(adversary.sees))
    # It raises an error if too few canaries took part.
    scores = scores_of(view)
    if client.secret is None:
        return _covered_scores(client.view(record, adversary), client, scores)
    if adversary.sees == "all":
        return _ratio_scores(view, client.secret)
    null = view.signals.leave_one_out.unobserved.displacement * math.sqrt(
        record.dim
    )
    absent = _absent_member_scores(record, client.secret, null, scores.observed)
    observed = np.append(scores.observed, absent)
    return dataclasses.replace(
        scores, observed=observed, unobserved=None, expected=None
    )


def _covered_scores(
    view: View, client: AuditedClient, scores: Scores
) -> Scores:
    """Scores of canaries that took part at most as often, and as strongly, as the client.

    Args:
        view: the view with the canaries' expected scores.
        client: the client of the claim.
        scores: the scores of all canaries, which do not depend on a fit of the view.

    Raises:
        NotMeasured: if fewer than two canaries count.
    """
    sizes = view.expected_scores.observed
    counts = view.record.presence.sum(axis=0)
    if len(sizes) < len(counts):  # Canaries that never took part have no score.
        counts = counts[counts > 0]
    most_rounds = math.ceil(client.participations * (1 - 1e-9))
    is_small = sizes <= _LARGEST_SIZE * client.size(view)
    is_covered = (counts <= most_rounds) & is_small & (counts > 0)
    is_frequent = is_covered & (counts >= _LEAST_SHARE * client.participations)
    chosen = is_frequent if is_frequent.sum() >= _ENOUGH else is_covered
    number = int(chosen.sum())
    if number < 2:
        raise NotMeasured(
            f"only {number} of {len(counts)} canaries took part at most as often as the client, "
            f"{how_often(most_rounds)}, and with no larger weight"
        )
    return dataclasses.replace(
        scores,
        observed=scores.observed[chosen],
        unobserved=None if scores.dim is not None else scores.unobserved,
        expected=None if scores.expected is None else scores.expected[chosen],
    )


def _ratio_scores(view: View, events: Events) -> Scores:
    """Likelihood ratios at secret rounds, as scores that are N(0, 1) for non-members.

    The ratios assume independent rounds: of a round that is correlated with earlier ones only
    its innovation counts.
    """
    record = view.record
    correlation = record.correlation
    precision = view.precision
    signal = np.ones(record.rounds)
    if record.signal_known():
        signal = view.signals.by_round / correlation.innovations
    # The null may be wider by three standard errors of its unit.
    safe = 1 + 3 * view.unit_error

    def ratios(scores: Floats, width: float) -> Floats:
        cosines = cosines_of(scores / width / safe, record.dim)
        deviates = normal_deviates(cosines, record.dim, 0.0)
        return mixture_ratios(deviates, events, signal[:, None])

    # These are scores of all rounds: scores of a running audit may be of a canary's rounds alone.
    members = ratios(
        correlation.whiten(view.round_scores), precision.observed_std
    )
    null = ratios(view.whitened_null, precision.null_std)
    absent = _absent_member_scores(record, events, null, members)
    members = np.append(members, absent)
    null = null[len(absent) :]
    adversary = dataclasses.replace(EVERY_ROUND, knows_rounds=False)
    # Without a factor rounds may be correlated, and the null is not known.
    if correlation.factor is None:
        unobserved = null if len(null) > 1 else None
        return Scores(
            members, unobserved, None, UNKNOWN_ROUNDS, adversary=adversary
        )
    drawn_members, drawn_null = _null_law(
        signal.astype("<f4").tobytes(), events
    )
    return Scores(
        _normal(members, drawn_members, drawn_null),
        None,
        _DIM,
        UNKNOWN_ROUNDS,
        linear=True,
        adversary=adversary,
    )


def members_of(record: AuditRecord, events: Events) -> int:
    """The number of canaries that are members, including those that were drawn for no round."""
    count = record.num_canaries
    planned = record.design.num_canaries
    chances = np.array([event.chance for event in events.independent])
    if not record.presence.any(axis=0).all() or np.any(chances == 1):
        return count
    if record.mechanism.inclusion == "fixed" and planned is not None:
        return max(planned, count)
    # A canary that is drawn for no round is missing with a known probability.
    drawn_once = -math.expm1(float(np.log1p(-chances).sum()))
    return max(round(count / drawn_once), count)


def _absent_member_scores(
    record: AuditRecord, events: Events, null: Floats, observed: Floats
) -> Floats:
    """Scores of canaries that are members, but were drawn for no round.

    A record has them among the unobserved canaries; for missing ones the lowest score is used.
    """
    absent = members_of(record, events) - record.num_canaries
    scores = null[:absent]
    lowest = observed.min(initial=0.0)
    return np.append(scores, np.full(absent - len(scores), lowest))


def _normal(ratios: Floats, members: Floats, null: Floats) -> Floats:
    """Scores whose law for canaries that took no part is N(0, 1), or below it.

    They rise with the ratio.

    Args:
        ratios: log likelihood ratios of canaries.
        members: sorted draws of the ratio of members.
        null: equally many sorted draws of the ratio of canaries that took no part.
    """
    count = len(null)
    above = count - np.searchsorted(null, ratios, side="left")
    direct = (above + _STANDARD_ERRORS * np.sqrt(above) + 1) / (count + 1)
    weights = np.exp(-np.maximum(members, -50.0))
    sums = tail_sums(weights)
    squares = tail_sums(weights**2)
    at = np.searchsorted(members, ratios, side="left")
    missing = _MISSING * np.exp(-np.maximum(ratios, -50.0)) / count
    drawn = (
        sums[at] + _STANDARD_ERRORS * np.sqrt(squares[at])
    ) / count + missing
    tail = np.where(above > _DIRECT * count, direct, np.minimum(direct, drawn))
    return np.asarray(
        -scipy.special.ndtri(np.clip(tail, 1e-300, 1 - 1 / (count + 1)))
    )


@functools.lru_cache(maxsize=16)
def _null_law(signal: bytes, events: Events) -> tuple[Floats, Floats]:
    """Sorted draws of the ratio of members and of the null, for `_normal`.

    Args:
        signal: bytes of the float32 signals, which can be a key of the cache.
        events: how the rounds are drawn.
    """
    means = np.frombuffer(signal, "<f4")[:, None]
    rounds = len(means)
    rng = generator(_SEED, rounds)
    members: list[Floats] = []
    null: list[Floats] = []
    draws = np.clip(_WORK // rounds, _LEAST_DRAWS, _MOST_DRAWS)
    block = max(_AT_ONCE // rounds, 20)
    while len(null) * block < draws:
        noise = rng.standard_normal((rounds, block), np.float32)
        null.append(mixture_ratios(noise, events, means))
        noise += means * _drawn_counts(events, rounds, block, rng)
        members.append(mixture_ratios(noise, events, means))
    return np.sort(np.concatenate(members)), np.sort(np.concatenate(null))


def _drawn_counts(
    events: Events, rounds: int, count: int, rng: np.random.Generator
) -> Floats32:
    """Draws how many times each of ``count`` members is in each round, ``(T, count)``."""
    counts = np.zeros((rounds, count), np.float32)
    members = np.arange(count)
    chances = np.zeros((rounds, 1), np.float32)
    for event in events.independent:
        if event.is_coin:
            chances[event.rounds[0]] = event.chance
    if chances.any():
        counts += rng.random((rounds, count), np.float32) < chances
    for event in events.independent:
        if event.is_uniform:
            is_drawn = np.ones(count, bool)
            if event.chance < 1:
                is_drawn = rng.random(count) < event.chance
            counts[rng.choice(event.rounds, count), members] = is_drawn
        elif not event.is_coin:
            row = np.searchsorted(np.cumsum(event.chances), rng.random(count))
            drawn = np.flatnonzero(row < len(event.rounds))
            counts[event.rounds[row[drawn]], drawn] = event.counts[row[drawn]]
    return counts
