"""The number of canaries of an audit, and their precision, which are known before the run.

The number of a `CanaryLoad`'s places is limited by a share of a round and by 1,000, and no more are
taken than needed to estimate ε to ±10% or ±0.5. If not even one place fits, one place takes
part in some of its rounds; if the noise is known and the share was not set, the number of these
rounds grows until ε for an adversary who sees every round's model is estimated to ±55% or ±0.5.
In a run in which clients take part less than once, each place takes part once, so that all of
them are used. Neither is done if the schedule hides the rounds, as those canaries must follow
its law. An ε needs two canaries; if they do not fit, there are none.

For known rounds the standard error of κ is ``1/√(Σ expected score²)``, so that the error of a
client's μ is about 1/√P, whatever the number of rounds and their noise.

Examples:
    >>> load = canary_load(120, rounds=60, participations=12, delta=1e-5, noise_multiplier=0.25)
    >>> load.places, f"{load.share:.0%}"
    (13, '10%')
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
import scipy

from fl_epe.accounting import (
    gaussian_epsilon,
    poisson_epsilon,
    unknown_expected_score_epsilon,
)
from fl_epe.auditing.record import LEAST_CANARIES
from fl_epe.auditing.recorder.canary_load import (
    CanaryLoad,
    Expected,
    all_narrow,
)
from fl_epe.canaries import divided_places, rungs
from fl_epe.checks import check_count, check_rate
from fl_epe.mechanism import sgd_weights
from fl_epe.wording import counted

SHARE = 0.1
"""Largest share of a round's replies and weight that canaries have by default."""

MOST_SHARE = 1 / 6
"""The same beside fewer than ten clients, if it is needed to estimate ε.

With a larger share the audited training would differ from training without canaries.
"""

_MOST_PLACES = 1000
_ROUGH = 0.55  # half-width of an interval relative to ε that is enough beside few clients
_STEP = 0.005  # difference of the shares that are tried beside few clients
_QUANTILE = 1.96  # half-width of a 95% interval in standard errors
_AROUND = 1.25  # factor on the signal by which the slope of ε is computed
_ROUNDING = 1e-9  # error of a product that should be a whole number
_MOST_ROUNDS = 1000  # largest number of rounds that is tried for advice


def canary_load(
    clients: int,
    *,
    rounds: int,
    participations: float,
    delta: float,
    noise_multiplier: float | None = None,
    secret: bool = False,
    momentum: float = 0.0,
    share: float = SHARE,
    share_of_few: float | None = None,
    replies: float = math.inf,
    share_name: str = "canary_share",
    places: int | None = None,
) -> CanaryLoad:
    """The load with the most canaries that a share of a round allows, and no more than are useful.

    Args:
        clients: number of real clients m.
        rounds: number of rounds T.
        participations: participations R of a client.
        delta: target δ.
        noise_multiplier: z; without it no ε is forecast.
        secret: whether the schedule hides the rounds (Poisson, fixed-size, balls-in-bins).
        momentum: momentum of the server's SGD.
        share: largest share of a round's replies that are canaries', below 1.
        share_of_few: limit to which the share may grow if one place is too much and ε could not
            be estimated; by default it does not grow.
        replies: largest number of clients and canaries together, in the unit of ``clients``;
            above it a canary replaces a client.
        share_name: name of the argument that sets the share, for advice.
        places: the number of places, if it is fixed whatever their share.

    Raises:
        ValueError: for an argument out of range.
    """
    check_count("clients", clients)
    check_count("rounds", rounds)
    check_rate("share", share)

    def without_places(length: int, share: float) -> CanaryLoad:
        real_clients = min(clients, max(replies * (1 - share), _ROUNDING))
        in_length = participations * (length / rounds)
        return CanaryLoad(
            real_clients, length, in_length, 0, secret=secret, momentum=momentum
        )

    def load_in(length: int, share: float) -> CanaryLoad:
        return _with_places(without_places(length, share), share)

    if places is not None:
        load = dataclasses.replace(without_places(rounds, share), places=places)
        if not places or not noise_multiplier:
            return load
        expected = _expected(load, places, noise_multiplier, delta)
        return dataclasses.replace(load, expected=expected)
    largest = share
    if share_of_few is not None and noise_multiplier:
        largest = share_of_few
    steps = round((largest - share) / _STEP)
    for tried_share in np.linspace(share, largest, steps + 1).tolist():
        load = load_in(rounds, tried_share)
        if load.places and noise_multiplier:
            load = _with_expected(load, noise_multiplier, delta)
        is_precise = not load.expected or load.expected[-1].is_within(_ROUGH)
        if load.places and (load.kept == 1 or is_precise):
            break
    if load.places:
        return load
    advice = _advice(load_in, rounds, largest, share_name)
    return dataclasses.replace(load, advice=advice)


def _advice(
    load_in: Callable[[int, float], CanaryLoad],
    rounds: int,
    share: float,
    share_name: str,
) -> str:
    """Advice with the fewest rounds, or the least share, with which two canaries fit; or ""."""
    changes = []
    for length in range(rounds + 1, _MOST_ROUNDS):
        if load_in(length, share).places:
            changes.append(counted(length, "round"))
            break
    for percent in range(1, 51):
        if percent > 100 * share and load_in(rounds, percent / 100).places:
            changes.append(f"{share_name}={percent / 100:g}")
            break
    if not changes:
        return ""
    return f"{' or '.join(changes)} would make a measurement possible."


def _with_places(load: CanaryLoad, share: float) -> CanaryLoad:
    """The load with the places that fit into this share of a round; without if too few fit."""
    limit = float(_MOST_PLACES)
    if share < 1:
        client_places = (
            load.clients * load.participations / load.place_participations
        )
        limit = min(client_places * share / (1 - share) + _ROUNDING, limit)
    if limit < 1 and not load.secret:
        rounds = math.floor(limit * load.place_participations)
        share_of_place = rounds / load.place_participations
        filled = dataclasses.replace(load, places=1, kept=share_of_place)
    else:
        filled = dataclasses.replace(load, places=math.floor(limit))
    if filled.canaries >= LEAST_CANARIES:
        return filled
    return load


def _with_expected(
    load: CanaryLoad, noise_multiplier: float, delta: float
) -> CanaryLoad:
    """The load with its expected results, and the fewest places that have narrow intervals.

    The width of an interval falls with the number of places. If it is never narrow, all places
    stay.
    """
    high = load.places
    low = min(high, LEAST_CANARIES)
    if (
        not load.secret
        and load.kept * load.place_participations >= LEAST_CANARIES
    ):
        # The ladder of a single place has several canaries.
        low = 1
    while low < high:
        middle = (low + high) // 2
        if all_narrow(_expected(load, middle, noise_multiplier, delta)):
            high = middle
        else:
            low = middle + 1
    expected = _expected(load, low, noise_multiplier, delta)
    return dataclasses.replace(load, places=low, expected=expected)


def _expected(
    load: CanaryLoad, places: int, noise: float, delta: float
) -> tuple[Expected, ...]:
    """The results for both adversaries; the error of κ is 1/√(sum of squared expected scores)."""
    rounds = load.rounds
    participations = load.place_participations
    rate = participations / rounds
    weights = sgd_weights(np.ones(rounds), load.momentum)
    # The number of rounds of equal weight that give the same error: T without momentum.
    equal_rounds = float(weights.sum() ** 2 / (weights @ weights))
    if load.secret:
        squares = places * (participations**2 + participations * (1 - rate))
    else:
        divided = divided_places(places)
        parts = rungs(max(1, round(load.kept * participations)))
        squares = (places - divided) * participations**2
        squares += divided * sum(part**2 for part in parts)
    final_scales = _scales(noise, squares * equal_rounds / rounds**2)
    every_scales = _scales(noise, places * load.kept * participations)
    if load.secret:
        # The score is the number of rounds, which coins decide.
        counts = np.arange(rounds + 1)
        shares = scipy.stats.binom.pmf(counts, rounds, rate)
        scores = counts * math.sqrt(equal_rounds) / (noise * rounds)
        final = [
            unknown_expected_score_epsilon(
                scale * scores, delta, weights=shares
            )
            for scale in final_scales
        ]
        every = _secret_epsilons_at(every_scales, noise, rate, rounds, delta)
    else:
        final_size = rate * math.sqrt(equal_rounds)
        every_size = math.sqrt(participations)
        final = [
            gaussian_epsilon(noise / (s * final_size), delta)
            for s in final_scales
        ]
        every = [
            gaussian_epsilon(noise / (s * every_size), delta)
            for s in every_scales
        ]
    return (Expected("final", *final), Expected("all", *every))


def _scales(noise: float, energy: float) -> list[float]:
    """κ = 1, and the ends of its 95% interval."""
    error = _QUANTILE * noise / math.sqrt(energy)
    return [1.0, max(1 - error, 1e-6), 1 + error]


def _secret_epsilons_at(
    scales: list[float], noise: float, rate: float, rounds: int, delta: float
) -> list[float]:
    """ε of hidden rounds for every round's model, at these scales of the signal, interpolated."""
    low, middle, high = _secret_epsilons(noise, rate, rounds, delta)
    known_scales = [0.0, 1 / _AROUND, 1.0, _AROUND]
    epsilons: list[float] = np.interp(
        scales, known_scales, [0.0, low, middle, high]
    ).tolist()
    beyond_table = max(scales[2] - _AROUND, 0.0) / (_AROUND - 1)
    epsilons[2] += beyond_table * (high - middle)
    return epsilons


@functools.cache
def _secret_epsilons(
    noise: float, rate: float, rounds: int, delta: float
) -> tuple[float, ...]:
    """ε by Poisson sampling at a smaller signal, at the signal itself, and at a larger one."""
    scales = (1 / _AROUND, 1.0, _AROUND)
    return tuple(
        poisson_epsilon(noise / scale, rate, rounds, delta) for scale in scales
    )
