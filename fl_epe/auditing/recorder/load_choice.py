"""`canary_load`: the number of canaries of an audit, chosen before the run, and its forecasts.

The places of a `CanaryLoad` are at most a given share of a round, and at most 1,000. No more are
chosen than needed to estimate ε to ±10% or ±0.5.

Beside few clients not even one place may fit. One place then takes part in some of its rounds. If
the noise is known and the share was not set, the share grows until ε for an adversary who sees
every round's model is estimated to ±55% or ±0.5. In a run in which clients take part less than
once, each place takes part once, so that all places are used. Neither is done if the schedule
hides the rounds, as canaries must then follow its law. An ε needs two canaries; if they do not
fit, there are none.

If rounds are known, the standard error of κ is ``1/√(Σ expected score²)``, so the error of a
client's μ is about 1/√P with P places, for any number of rounds and any noise.

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
    Forecast,
    are_narrow,
)
from fl_epe.canaries import divided_places, rungs
from fl_epe.checks import check_count, check_rate
from fl_epe.mechanism import sgd_weights
from fl_epe.wording import counted

CANARY_SHARE = 0.1
"""Largest share of a round's replies and weight that canaries have by default."""

MAX_CANARY_SHARE = 1 / 6
"""The same beside fewer than ten clients, if it is needed to estimate ε.

With a larger share the audited training would differ from training without canaries.
"""

_MAX_PLACES = 1000

# Half-width of an interval, relative to ε, that is enough beside few clients.
_MAX_HALF_WIDTH = 0.55

# Difference of the shares that are tried beside few clients.
_SHARE_STEP = 0.005

_QUANTILE = 1.96  # half-width of a 95% interval in standard errors
_SIGNAL_RATIO = 1.25  # of the signals at which ε of secret rounds is tabulated
_MIN_SCALE = 1e-6  # least κ for which ε is forecast
_ROUNDING = 1e-9  # error of a product that should be a whole number
_MAX_ADVISED_ROUNDS = 1000
_MAX_ADVISED_PERCENT = 50


def canary_load(
    clients: int,
    *,
    rounds: int,
    participations: float,
    delta: float,
    noise_multiplier: float | None = None,
    secret: bool = False,
    momentum: float = 0.0,
    share: float = CANARY_SHARE,
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
        share_of_few: a larger limit on the share, up to which it grows if one place is too much
            and ε could not be estimated; by default it does not grow.
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

    def empty_load(length: int, share: float) -> CanaryLoad:
        """The load without places in a run of ``length`` rounds."""
        return CanaryLoad(
            clients=min(clients, max(replies * (1 - share), _ROUNDING)),
            rounds=length,
            participations=participations * (length / rounds),
            places=0,
            secret=secret,
            momentum=momentum,
        )

    def load_in(length: int, share: float) -> CanaryLoad:
        return _with_places(empty_load(length, share), share)

    if places is not None:
        load = dataclasses.replace(empty_load(rounds, share), places=places)
        if not places or not noise_multiplier:
            return load
        forecasts = _forecasts(load, places, noise_multiplier, delta)
        return dataclasses.replace(load, forecasts=forecasts)
    max_share = share
    if share_of_few is not None and noise_multiplier:
        max_share = share_of_few
    steps = round((max_share - share) / _SHARE_STEP)
    for tried_share in np.linspace(share, max_share, steps + 1).tolist():
        load = load_in(rounds, tried_share)
        if load.places and noise_multiplier:
            load = _with_forecasts(load, noise_multiplier, delta)
        # The last forecast is for an adversary who sees every round's model.
        is_precise = (
            load.round_share == 1
            or not load.forecasts
            or load.forecasts[-1].is_within(_MAX_HALF_WIDTH)
        )
        if load.places and is_precise:
            break
    if load.places:
        return load
    advice = _advice(load_in, rounds, max_share, share_name)
    return dataclasses.replace(load, advice=advice)


def _advice(
    load_in: Callable[[int, float], CanaryLoad],
    rounds: int,
    share: float,
    share_name: str,
) -> str:
    """Advice with the fewest rounds, or the least share, with which two canaries fit; or ""."""
    changes = []
    for length in range(rounds + 1, _MAX_ADVISED_ROUNDS):
        if load_in(length, share).places:
            changes.append(counted(length, "round"))
            break
    for percent in range(1, _MAX_ADVISED_PERCENT + 1):
        if percent > 100 * share and load_in(rounds, percent / 100).places:
            changes.append(f"{share_name}={percent / 100:g}")
            break
    if not changes:
        return ""
    return f"{' or '.join(changes)} would make a measurement possible."


def _with_places(load: CanaryLoad, share: float) -> CanaryLoad:
    """The load with the places that fit into this share of a round; without if too few fit."""
    max_places = float(_MAX_PLACES)
    if share < 1:
        # The number of places that would have as many participations as the clients.
        client_places = (
            load.clients * load.participations / load.place_participations
        )
        fitting = client_places * share / (1 - share) + _ROUNDING
        max_places = min(fitting, max_places)
    if max_places < 1 and not load.secret:
        rounds = math.floor(max_places * load.place_participations)
        round_share = rounds / load.place_participations
        filled = dataclasses.replace(load, places=1, round_share=round_share)
    else:
        filled = dataclasses.replace(load, places=math.floor(max_places))
    if filled.canaries >= LEAST_CANARIES:
        return filled
    return load


def _with_forecasts(
    load: CanaryLoad, noise_multiplier: float, delta: float
) -> CanaryLoad:
    """The load with its forecasts, and the fewest places that have narrow intervals.

    The width of an interval falls with the number of places. If it is never narrow, all places
    stay.
    """
    high = load.places
    low = min(high, LEAST_CANARIES)
    rounds_of_place = load.round_share * load.place_participations
    if not load.secret and rounds_of_place >= LEAST_CANARIES:
        # The ladder of a single place has several canaries.
        low = 1
    while low < high:
        middle = (low + high) // 2
        if are_narrow(_forecasts(load, middle, noise_multiplier, delta)):
            high = middle
        else:
            low = middle + 1
    forecasts = _forecasts(load, low, noise_multiplier, delta)
    return dataclasses.replace(load, places=low, forecasts=forecasts)


def _forecasts(
    load: CanaryLoad, places: int, noise: float, delta: float
) -> tuple[Forecast, ...]:
    """The forecasts for both adversaries, if the load had this number of places.

    Expected scores are 1/z times: for every round's model the root of the number of rounds, and
    for the final model the number of rounds times ``√(equal rounds)/T``.
    """
    rounds = load.rounds
    participations = load.place_participations
    rate = participations / rounds
    weights = sgd_weights(np.ones(rounds), load.momentum)
    # The number of rounds of equal weight that give the same error: T without momentum.
    equal_rounds = float(weights.sum() ** 2 / (weights @ weights))
    # The sum of the canaries' squared numbers of rounds.
    if load.secret:
        squares = places * (participations**2 + participations * (1 - rate))
    else:
        divided = divided_places(places)
        parts = rungs(max(1, round(load.round_share * participations)))
        squares = (places - divided) * participations**2
        squares += divided * sum(part**2 for part in parts)
    final_scales = _scales(noise, squares * equal_rounds / rounds**2)
    every_scales = _scales(noise, places * load.round_share * participations)
    if load.secret:
        # The number of a client's rounds is approximated by a binomial law.
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
        final_signal = rate * math.sqrt(equal_rounds)
        every_signal = math.sqrt(participations)
        final = [
            gaussian_epsilon(noise / (scale * final_signal), delta)
            for scale in final_scales
        ]
        every = [
            gaussian_epsilon(noise / (scale * every_signal), delta)
            for scale in every_scales
        ]
    return (Forecast("final", *final), Forecast("all", *every))


def _scales(noise: float, energy: float) -> list[float]:
    """κ = 1, and the ends of its 95% interval.

    Args:
        noise: the noise multiplier z.
        energy: the sum of the canaries' squared expected scores, times z².
    """
    error = _QUANTILE * noise / math.sqrt(energy)
    return [1.0, max(1 - error, _MIN_SCALE), 1 + error]


def _secret_epsilons_at(
    scales: list[float], noise: float, rate: float, rounds: int, delta: float
) -> list[float]:
    """ε of secret rounds for every round's model, at κ and the ends of its interval.

    ε takes too long for each number of places that is tried. So it is interpolated, and for a
    large upper end extrapolated, from a table.
    """
    low, middle, high = _secret_epsilons(noise, rate, rounds, delta)
    table_scales = [0.0, 1 / _SIGNAL_RATIO, 1.0, _SIGNAL_RATIO]
    epsilons: list[float] = np.interp(
        scales, table_scales, [0.0, low, middle, high]
    ).tolist()
    _, _, upper_end = scales
    beyond_table = max(upper_end - _SIGNAL_RATIO, 0.0) / (_SIGNAL_RATIO - 1)
    epsilons[2] += beyond_table * (high - middle)
    return epsilons


@functools.cache
def _secret_epsilons(
    noise: float, rate: float, rounds: int, delta: float
) -> tuple[float, ...]:
    """ε by Poisson sampling at a smaller signal, at the signal itself, and at a larger one."""
    scales = (1 / _SIGNAL_RATIO, 1.0, _SIGNAL_RATIO)
    return tuple(
        poisson_epsilon(noise / scale, rate, rounds, delta) for scale in scales
    )
