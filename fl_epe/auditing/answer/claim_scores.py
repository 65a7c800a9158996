"""Scores by which a privacy claim is tested: those of the adversary and client of the claim.

Canaries that take part more often than the client, or are heavier, do not count. Where the rounds
are secret, nothing is chosen by them: canaries that were drawn for no round count as members.

Likelihood ratios at secret rounds have no closed-form null, but a known one: whitened scores of a
direction that took no part are independent N(0, 1). Where the ratio L is large its tail follows
from members' draws, ``P₀[L ≥ x] = E₁[e^(−L); L ≥ x]``, at any depth; elsewhere from draws of the
null. So ratios are turned into scores whose null is N(0, 1), and no unobserved canary is needed.
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

_ABOVE = 1.1  # times the client's expected score that a canary may have
_HALF = 0.5  # of the client's rounds that a canary has at least, if enough have
_ENOUGH = 4
_WORK = 2 * 10**7  # numbers drawn for a null
_DRAWS = 2_000, 20_000  # at least and at most
_AT_ONCE = 2 * 10**6
_SEED = 0
_DIRECT = 0.02  # a tail that is larger comes from draws of the null
_SAFE = 3.0  # standard errors that are added to a drawn tail
_BEYOND = (
    5.0  # draws that may be missing beyond the largest, of probability e⁻⁵ at most
)
_DIM = 10**9  # of scores whose null is N(0, 1)


def scores_for_claim(
    record: AuditRecord,
    adversary: Adversary | None = None,
    client: AuditedClient | None = None,
) -> Scores:
    """Scores of the canaries that a claim about a client covers.

    Args:
        record: the audit record of a run.
        adversary: of the claim; by default that of `claim_adversary`.
        client: who is covered; by default the one that takes part most often.

    Raises:
        NotMeasured: if fewer than two canaries count, or the law of secret rounds is not known.
    """
    adversary = adversary or claim_adversary(record)
    client = client or AuditedClient.of(record, adversary, most=True)
    view = seen_by(record, Adversary(adversary.sees))
    scores = scores_of(view)
    secret = client.secret
    if secret is None:
        return _covered(client.view(record, adversary), client, scores)
    if adversary.sees == "all":
        return _ratios(view, secret)
    rest = view.alone.unobserved.displacement * math.sqrt(record.dim)
    observed = np.append(
        scores.observed, _drawn_for_none(record, secret, rest, scores.observed)
    )
    return dataclasses.replace(
        scores, observed=observed, unobserved=None, expected=None
    )


def _covered(view: View, client: AuditedClient, scores: Scores) -> Scores:
    """Scores of canaries who took part at most as often, and as strongly, as the client.

    Args:
        view: which says how strongly; the scores do not depend on how it was fitted.
        client: who.
        scores: of all canaries.
    """
    record = view.record
    sizes = view.sizes.observed
    taken = record.presence.sum(axis=0)
    if len(sizes) < len(taken):  # those that never took part have no score
        taken = taken[taken > 0]
    most = math.ceil(client.participations * (1 - 1e-9))
    fits = (taken <= most) & (sizes <= _ABOVE * client.size(view)) & (taken > 0)
    often = fits & (taken >= _HALF * client.participations)
    chosen = often if often.sum() >= _ENOUGH else fits
    if (count := int(chosen.sum())) < 2:
        raise NotMeasured(
            f"only {count} of {len(taken)} canaries took part at most as often as the client, "
            f"{how_often(most)}, and with no larger weight"
        )
    return dataclasses.replace(
        scores,
        observed=scores.observed[chosen],
        unobserved=None if scores.dim is not None else scores.unobserved,
        expected=None if scores.expected is None else scores.expected[chosen],
    )


def _ratios(view: View, events: Events) -> Scores:
    """Likelihood ratios at secret rounds, as scores that are N(0, 1) for non-members.

    They are those of independent rounds: of a round that is correlated with earlier ones counts
    what is new in it.
    """
    record = view.record
    precision = view.precision
    factor = record.correlation.factor
    signal = np.ones(record.rounds)
    if record.signal_known():
        signal = view.round_signal / record.correlation.innovations
    safe = 1 + 3 * view.unit_error  # the null may be as much wider

    def ratios(side: Floats, width: float) -> Floats:
        cosines = cosines_of(side / width / safe, record.dim)
        return mixture_ratios(
            normal_deviates(cosines, record.dim, 0.0), events, signal[:, None]
        )

    # Of all rounds: those that were kept during a run may be of a canary's own rounds alone.
    observed = ratios(record.correlation.whiten(view.round_scores), precision.own)
    null = ratios(view.whitened_null, precision.width)
    absent = _drawn_for_none(record, events, null, observed)
    observed = np.append(observed, absent)
    null = null[len(absent) :]
    adversary = dataclasses.replace(EVERY_ROUND, knows_rounds=False)
    if factor is None:  # rounds may be correlated
        others = null if len(null) > 1 else None
        return Scores(observed, others, None, UNKNOWN_ROUNDS, adversary=adversary)
    law = _null_law(signal.astype("<f4").tobytes(), events)
    return Scores(
        _normal(observed, *law),
        None,
        _DIM,
        UNKNOWN_ROUNDS,
        linear=True,
        adversary=adversary,
    )


def members_of(record: AuditRecord, events: Events) -> int:
    """Number of canaries that are members, with those that were drawn for no round."""
    count = record.num_canaries
    planned = record.design.num_canaries
    chances = np.array([event.chance for event in events.independent])
    if not record.presence.any(axis=0).all() or np.any(chances == 1):
        return count
    if record.mechanism.inclusion == "fixed" and planned is not None:
        return max(planned, count)
    # As many as one expects to draw for no round, if those of no round were left out.
    drawn_once = -math.expm1(float(np.log1p(-chances).sum()))
    return max(round(count / drawn_once), count)


def _drawn_for_none(
    record: AuditRecord, events: Events, null: Floats, observed: Floats
) -> Floats:
    """Scores of canaries that are members, but were drawn for no round.

    A record has them among the unobserved ones; where it lacks them, the lowest score stands in.
    """
    absent = members_of(record, events) - record.num_canaries
    found = null[:absent]
    return np.append(found, np.full(absent - len(found), observed.min(initial=0.0)))


def _normal(ratios: Floats, members: Floats, null: Floats) -> Floats:
    """Scores that are N(0, 1) for canaries that took no part, or below; rising.

    By sorted draws of likelihood ratios of members, and of canaries that took no part.
    """
    count = len(null)
    above = count - np.searchsorted(null, ratios, side="left")
    direct = (above + _SAFE * np.sqrt(above) + 1) / (count + 1)
    weights = np.exp(-np.maximum(members, -50.0))
    first = tail_sums(weights)
    second = tail_sums(weights**2)
    at = np.searchsorted(members, ratios, side="left")
    far = _BEYOND * np.exp(-np.maximum(ratios, -50.0)) / count
    drawn = (first[at] + _SAFE * np.sqrt(second[at])) / count + far
    tail = np.where(above > _DIRECT * count, direct, np.minimum(direct, drawn))
    return np.asarray(-scipy.special.ndtri(np.clip(tail, 1e-300, 1 - 1 / (count + 1))))


@functools.lru_cache(maxsize=16)
def _null_law(signal: bytes, events: Events) -> tuple[Floats, Floats]:
    """The draws that `_normal` needs, of signals in a form that can be kept."""
    means = np.frombuffer(signal, "<f4")[:, None]
    rounds = len(means)
    rng = generator(_SEED, len(means))
    members: list[Floats] = []
    null: list[Floats] = []
    draws = np.clip(_WORK // rounds, *_DRAWS)
    block = max(_AT_ONCE // rounds, 20)
    while len(null) * block < draws:
        noise = rng.standard_normal((rounds, block), np.float32)
        null.append(mixture_ratios(noise, events, means))
        noise += means * _times(events, rounds, block, rng)
        members.append(mixture_ratios(noise, events, means))
    return np.sort(np.concatenate(members)), np.sort(np.concatenate(null))


def _times(
    events: Events, rounds: int, count: int, rng: np.random.Generator
) -> Floats32:
    """How many times each of ``count`` members is in each round, ``(T, count)``."""
    found = np.zeros((rounds, count), np.float32)
    chances = np.zeros((rounds, 1), np.float32)
    for event in events.independent:
        if event.is_coin:
            chances[event.rounds[0]] = event.chance
    if chances.any():
        found += rng.random((rounds, count), np.float32) < chances
    for event in events.independent:
        if event.is_uniform:
            taken = rng.random(count) < event.chance if event.chance < 1 else True
            found[rng.choice(event.rounds, count), np.arange(count)] = taken
        elif not event.is_coin:
            row = np.searchsorted(np.cumsum(event.chances), rng.random(count))
            who = np.flatnonzero(row < len(event.rounds))
            found[event.rounds[row[who]], who] = event.counts[row[who]]
    return found
