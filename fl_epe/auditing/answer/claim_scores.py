"""Scores that test a privacy claim, for the adversary and the client of the claim.

If the rounds are known, canaries that take part more often than the client, or with larger
weights, do not count. If the rounds are secret, all members count. A member is a canary whose
rounds were drawn by the client's law, even if it was drawn for no round.

An adversary who sees every round's model at secret rounds uses L, the logarithm of the likelihood
ratio of a member to a canary that took no part. The law of L for canaries that took no part, the
null, has no closed form. But it can be simulated, as the whitened scores of these canaries are
independent N(0, 1). The tail of a small ratio is computed from draws of the null. The tail of a
large ratio x is computed from draws of members, however small the tail is: P₀[L ≥ x] =
E₁[e^(−L); L ≥ x], with P₀ for the null and E₁ for members. Each ratio is then replaced by the
N(0, 1) score with the same tail, so no unobserved canary is needed.
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

# A canary counts if its expected score, divided by the client's, is at most this.
_MAX_RELATIVE_EXPECTED_SCORE = 1.1

# Relative rounding error of a sum of probabilities, which may exceed a whole number by it.
_ROUNDING = 1e-9

# Canaries with few rounds have low scores. So if at least `_MIN_CANARIES` have at least this
# share of the client's rounds, only they count.
_MIN_SHARE_OF_ROUNDS = 0.5
_MIN_CANARIES = 4

# The law of the likelihood ratio is simulated by this number of draws. Each draw needs one random
# number for each round, so long runs have fewer draws.
_MIN_DRAWS = 2_000
_MAX_DRAWS = 20_000
_MAX_RANDOM_NUMBERS = 2 * 10**7
_MAX_RANDOM_NUMBERS_IN_MEMORY = 2 * 10**6
_MIN_DRAWS_IN_MEMORY = 20
_SEED = 0

# Draws of members estimate a small tail with a smaller error than draws of the null do. A tail
# above this one is estimated from draws of the null alone.
_MAX_TAIL_BY_MEMBERS = 0.02

# Standard errors that are added to an estimated tail, and to the unit of the null's scores.
_STANDARD_ERRORS = 3.0

# If more than 5 draws of members were expected to exceed a value, the probability that none does
# would be below e⁻⁵. So the members' tail above all draws is at most 5 over their number.
_MAX_EXPECTED_MISSED = 5.0

# Smaller ratios count as this one, whose weight e⁵⁰ does not overflow. The tails of such ratios are
# estimated from draws of the null.
_MIN_RATIO = -50.0

# The smallest tail whose N(0, 1) quantile is computed, as that of 0 is infinite.
_MIN_TAIL = 1e-300

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
    client = client or AuditedClient.of(record, adversary, worst_case=True)
    view = seen_by(record, Adversary(adversary.sees))
    # It raises an error if too few canaries took part, in all of the cases below.
    scores = scores_of(view)
    if client.secret is None:
        return _covered_scores(client.view(record, adversary), client, scores)
    if adversary.sees == "all":
        return _ratio_scores(view, client.secret)
    # Members of the final model at secret rounds keep their scores, whatever their rounds were.
    cosines = view.signals.leave_one_out.unobserved.displacement
    null_scores = math.sqrt(record.dim) * cosines
    absent_scores = _absent_member_scores(
        record, client.secret, null_scores, scores.observed
    )
    return dataclasses.replace(
        scores,
        observed=np.append(scores.observed, absent_scores),
        unobserved=None,
        expected=None,
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
    expected_scores = view.expected_scores.observed
    client_score = client.expected_score(view)
    max_expected_score = _MAX_RELATIVE_EXPECTED_SCORE * client_score
    counts = view.record.presence.sum(axis=0)
    # Statistics of every round have no scores of canaries that never took part.
    if len(expected_scores) < len(counts):
        counts = counts[counts > 0]
    max_rounds = math.ceil(client.participations * (1 - _ROUNDING))
    is_covered = (
        (counts > 0)
        & (counts <= max_rounds)
        & (expected_scores <= max_expected_score)
    )
    is_frequent = is_covered & (
        counts >= _MIN_SHARE_OF_ROUNDS * client.participations
    )
    chosen = is_covered
    if is_frequent.sum() >= _MIN_CANARIES:
        chosen = is_frequent
    num_chosen = int(chosen.sum())
    if num_chosen < 2:
        raise NotMeasured(
            f"only {num_chosen} of {len(counts)} canaries took part at most as often as the client,"
            f" {how_often(max_rounds)}, and with no larger weight"
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
    its innovation counts. If correlations were not measured, the scores are the logarithms of the
    ratios, whose null is that of the unobserved canaries.
    """
    record = view.record
    correlation = record.correlation
    signal = np.ones(record.rounds)
    if record.signal_known():
        signal = view.signals.participant_scores / correlation.innovations
    # The unit of the scores is estimated, so the null may be wider than N(0, 1).
    width_margin = 1 + _STANDARD_ERRORS * view.unit_error

    def ratios(scores: Floats, width: float) -> Floats:
        cosines = cosines_of(scores / width / width_margin, record.dim)
        deviates = normal_deviates(cosines, record.dim, shift=0.0)
        return mixture_ratios(deviates, events, signal[:, None])

    # These scores are of all rounds. `view.whitened_scores` of a running audit may have a
    # canary's scores only in the rounds in which it took part.
    member_scores = correlation.whiten(view.round_scores)
    member_ratios = ratios(member_scores, view.precision.observed_std)
    null_ratios = ratios(view.whitened_null, view.precision.null_std)
    absent_ratios = _absent_member_scores(
        record, events, null_ratios, member_ratios
    )
    member_ratios = np.append(member_ratios, absent_ratios)
    null_ratios = null_ratios[len(absent_ratios) :]
    adversary = dataclasses.replace(EVERY_ROUND, knows_rounds=False)
    if correlation.factor is None:
        # Rounds may be correlated, so the null cannot be simulated.
        return Scores(
            member_ratios,
            null_ratios if len(null_ratios) > 1 else None,
            None,
            UNKNOWN_ROUNDS,
            adversary=adversary,
        )
    drawn_member_ratios, drawn_null_ratios = _ratio_draws(
        signal.astype("<f4").tobytes(), events
    )
    return Scores(
        _scores_of_ratios(
            member_ratios, drawn_member_ratios, drawn_null_ratios
        ),
        None,
        _DIM,
        UNKNOWN_ROUNDS,
        linear=True,
        adversary=adversary,
    )


def num_members(record: AuditRecord, events: Events) -> int:
    """The number of canaries that are members, including those that were drawn for no round."""
    num_recorded = record.num_canaries
    num_planned = record.design.num_canaries
    chances = np.array([event.chance for event in events.independent])
    # Nothing is missing if the record has canaries without a round, or if all have a round.
    has_absent_canaries = not record.presence.any(axis=0).all()
    is_certain = bool(np.any(chances == 1))
    if has_absent_canaries or is_certain:
        return num_recorded
    if record.mechanism.inclusion == "fixed" and num_planned is not None:
        return max(num_planned, num_recorded)
    # The record lacks the canaries that were drawn for no round. Their number is estimated.
    chance_of_any_round = -math.expm1(float(np.log1p(-chances).sum()))
    return max(round(num_recorded / chance_of_any_round), num_recorded)


def _absent_member_scores(
    record: AuditRecord,
    events: Events,
    null_scores: Floats,
    member_scores: Floats,
) -> Floats:
    """Scores of canaries that are members, but were drawn for no round.

    A record counts such canaries as unobserved, and has them before all others of that group.
    Those that it lacks get the lowest score of a recorded member, or 0 if that is lower.
    """
    num_absent = num_members(record, events) - record.num_canaries
    absent_scores = null_scores[:num_absent]
    lowest = member_scores.min(initial=0.0)
    num_without_score = num_absent - len(absent_scores)
    return np.append(absent_scores, np.full(num_without_score, lowest))


def _scores_of_ratios(
    ratios: Floats, member_ratios: Floats, null_ratios: Floats
) -> Floats:
    """Scores whose law for canaries that took no part is N(0, 1), or below it.

    A score increases with its ratio.

    Args:
        ratios: log likelihood ratios of canaries.
        member_ratios: sorted draws of the ratio of members.
        null_ratios: equally many sorted draws of the ratio of canaries that took no part.
    """
    count = len(null_ratios)
    num_null_above = count - np.searchsorted(null_ratios, ratios, side="left")
    max_null_above = num_null_above + _STANDARD_ERRORS * np.sqrt(num_null_above)
    tail_by_null = (max_null_above + 1) / (count + 1)
    # A draw of a member with the ratio L has the weight e^(−L) in the null's tail.
    weights = np.exp(-np.maximum(member_ratios, _MIN_RATIO))
    first_above = np.searchsorted(member_ratios, ratios, side="left")
    sums = tail_sums(weights)[first_above]
    squares = tail_sums(weights**2)[first_above]
    max_sums = sums + _STANDARD_ERRORS * np.sqrt(squares)
    # A member with a larger ratio than all draws has at most the weight e^(−x).
    max_weights = np.exp(-np.maximum(ratios, _MIN_RATIO))
    tail_of_missed = _MAX_EXPECTED_MISSED * max_weights / count
    tail_by_members = max_sums / count + tail_of_missed
    tail = np.where(
        num_null_above > _MAX_TAIL_BY_MEMBERS * count,
        tail_by_null,
        np.minimum(tail_by_null, tail_by_members),
    )
    return np.asarray(
        -scipy.special.ndtri(np.clip(tail, _MIN_TAIL, 1 - 1 / (count + 1)))
    )


@functools.lru_cache(maxsize=16)
def _ratio_draws(signal: bytes, events: Events) -> tuple[Floats, Floats]:
    """Sorted draws of the ratio of members, and of canaries that took no part.

    Args:
        signal: bytes of the float32 signals, which can be a key of the cache.
        events: how the rounds are drawn.
    """
    means = np.frombuffer(signal, "<f4")[:, None]
    rounds = len(means)
    rng = generator(_SEED, rounds)
    draws = np.clip(_MAX_RANDOM_NUMBERS // rounds, _MIN_DRAWS, _MAX_DRAWS)
    block = max(_MAX_RANDOM_NUMBERS_IN_MEMORY // rounds, _MIN_DRAWS_IN_MEMORY)
    member_blocks: list[Floats] = []
    null_blocks: list[Floats] = []
    for _ in range(math.ceil(draws / block)):
        noise = rng.standard_normal((rounds, block), np.float32)
        null_blocks.append(mixture_ratios(noise, events, means))
        scores = noise + means * _drawn_counts(events, rounds, block, rng)
        member_blocks.append(mixture_ratios(scores, events, means))
    member_ratios = np.concatenate(member_blocks)
    null_ratios = np.concatenate(null_blocks)
    return np.sort(member_ratios), np.sort(null_ratios)


def _drawn_counts(
    events: Events, rounds: int, count: int, rng: np.random.Generator
) -> Floats32:
    """Draws how many times each of ``count`` members is in each round, ``(T, count)``."""
    counts = np.zeros((rounds, count), np.float32)
    # All coins are tossed at once, as there may be one for each round.
    coin_chances = np.zeros((rounds, 1), np.float32)
    choices = []
    for event in events.independent:
        if event.is_coin:
            coin_chances[event.rounds[0]] = event.chance
        else:
            choices.append(event)
    if coin_chances.any():
        counts += rng.random((rounds, count), np.float32) < coin_chances
    member_indices = np.arange(count)
    for event in choices:
        if event.is_uniform:
            takes_part = np.ones(count, bool)
            if event.chance < 1:
                takes_part = rng.random(count) < event.chance
            counts[rng.choice(event.rounds, count), member_indices] = takes_part
        else:
            # Each member draws an option of the event, or none if its index is beyond the last.
            drawn = np.searchsorted(np.cumsum(event.chances), rng.random(count))
            present = np.flatnonzero(drawn < len(event.rounds))
            option = drawn[present]
            counts[event.rounds[option], present] = event.counts[option]
    return counts
