"""`canary_load`: the number of canaries of an audit, chosen before the run, and its forecasts.

A *place* has the rounds that the clients' schedule would give to one more client. It has one
canary, or is divided among several (`fl_epe.canaries.ladder`). The places of a `CanaryLoad` are at
most a given share of a round, and at most 1,000. No more are chosen than needed to estimate ε to
±10% or ±0.5.

If there are few clients, a single place may exceed the share. There is then one place, whose
canaries take part in only a part of its rounds. If the noise is known, and a larger limit on the
share is given, the share then grows until ε for an adversary who sees every round's model is
estimated to ±55% or ±0.5. If clients take part less than once in a run, each place takes part once,
so that all places are used. If the schedule hides the rounds, places are neither restricted to a
part of their rounds nor made to take part once, as canaries must follow the schedule's law. An ε
needs two canaries; if they do not fit, there are none.

κ is the factor between measured and expected scores, and a client whose expected score is m has
the score μ = κ·m. If rounds are known, the standard error of κ is ``1/√(Σ expected score²)`` over
the canaries. P canaries that take part as often as the client have the same m, so the error of μ
is about 1/√P, for any number of rounds and any noise.

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
"""The largest share to which an audit raises the default, if ε could not be estimated otherwise.

This occurs only beside fewer than ten clients. With a larger share, reports warn that the audited
training differs from training without canaries.
"""

_MAX_PLACES = 1000

# The share grows until the interval's half-width, relative to ε, is at most this.
_MAX_HALF_WIDTH = 0.55

# Step by which the share grows.
_SHARE_STEP = 0.005

_QUANTILE = 1.96  # half-width of a 95% interval in standard errors
_KAPPA_RATIO = 1.25  # ε of secret rounds is tabulated at κ = 1/1.25, 1 and 1.25
_MIN_KAPPA = 1e-6  # least κ for which ε is forecast
_ROUNDING = 1e-9  # error of a product that should be a whole number
_MIN_CLIENTS = 1e-9  # number of clients if canaries replace nearly all
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
    max_share: float | None = None,
    replies: float = math.inf,
    share_name: str = "canary_share",
    places: int | None = None,
) -> CanaryLoad:
    """The load with as many canaries as fit into a share of a round, or fewer if these are enough.

    Args:
        clients: number of real clients m.
        rounds: number of rounds T.
        participations: participations R of a client.
        delta: target δ.
        noise_multiplier: z; without it no ε is forecast.
        secret: whether the schedule hides the rounds (Poisson, fixed-size, balls-in-bins).
        momentum: momentum of the server's SGD.
        share: largest share of a round's replies that are canaries', below 1.
        max_share: a larger limit, up to which the share grows while no place fits in all its
            rounds and ε could not be estimated; by default, or without ``noise_multiplier``, it
            does not grow.
        replies: largest number of clients and canaries together over the run, counted as
            ``clients`` is; if places would exceed it, they replace clients.
        share_name: name of the argument that sets the share, for advice.
        places: the number of places, if it is fixed whatever their share.

    Raises:
        ValueError: for an argument out of range.
    """
    check_count("clients", clients)
    check_count("rounds", rounds)
    check_rate("share", share)

    def empty_load(num_rounds: int, tried_share: float) -> CanaryLoad:
        """The load without places in a run with this number of rounds."""
        return CanaryLoad(
            clients=min(
                clients, max(replies * (1 - tried_share), _MIN_CLIENTS)
            ),
            rounds=num_rounds,
            participations=participations * (num_rounds / rounds),
            places=0,
            secret=secret,
            momentum=momentum,
        )

    def load_in(num_rounds: int, tried_share: float) -> CanaryLoad:
        load = empty_load(num_rounds, tried_share)
        return _with_places(load, tried_share)

    if places is not None:
        load = dataclasses.replace(empty_load(rounds, share), places=places)
        if not places or not noise_multiplier:
            return load
        forecasts = _forecasts(load, places, noise_multiplier, delta)
        return dataclasses.replace(load, forecasts=forecasts)
    if max_share is None or not noise_multiplier:
        max_share = share
    steps = round((max_share - share) / _SHARE_STEP)
    for tried_share in np.linspace(share, max_share, steps + 1).tolist():
        load = load_in(rounds, tried_share)
        if load.places and noise_multiplier:
            load = _with_forecasts(load, noise_multiplier, delta)
        if load.places and _is_sufficient(load):
            break
    if load.places:
        return load
    advice = _advice(load_in, rounds, max_share, share_name)
    return dataclasses.replace(load, advice=advice)


def _is_sufficient(load: CanaryLoad) -> bool:
    """Whether the share need not grow: places have all their rounds, or ε is estimated well."""
    if load.round_share == 1 or not load.forecasts:
        return True
    _, every_round = load.forecasts
    return every_round.is_within(_MAX_HALF_WIDTH)


def _advice(
    load_in: Callable[[int, float], CanaryLoad],
    rounds: int,
    share: float,
    share_name: str,
) -> str:
    """Advice with the fewest rounds, or the least share, with which two canaries fit.

    It is empty if neither is within the limits of advice.
    """
    changes = []
    for num_rounds in range(rounds + 1, _MAX_ADVISED_ROUNDS):
        if load_in(num_rounds, share).places:
            changes.append(counted(num_rounds, "round"))
            break
    for percent in range(1, _MAX_ADVISED_PERCENT + 1):
        if percent > 100 * share and load_in(rounds, percent / 100).places:
            changes.append(f"{share_name}={percent / 100:g}")
            break
    if not changes:
        return ""
    return f"{' or '.join(changes)} would make a measurement possible."


def _with_places(load: CanaryLoad, share: float) -> CanaryLoad:
    """The load with as many places as fit into this share of a round.

    If less than one fits, there is one place, with canaries in a part of its rounds. If the
    places have fewer than two canaries, the load is returned without places.
    """
    max_places = float(_MAX_PLACES)
    if share < 1:
        # The number of places that have as many participations as all clients together.
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

    The width of an interval falls with the number of places. If it is not narrow with all of
    them, the load keeps all.
    """
    high = load.places
    low = min(high, LEAST_CANARIES)
    rounds_of_place = load.round_share * load.place_participations
    if not load.secret and rounds_of_place >= LEAST_CANARIES:
        # A single place is divided among several canaries.
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

    The expected score of a canary with R participations is √R/z if every round's model is seen,
    and R·√T_eff/(T·z) for the final model. T_eff is the effective number of rounds, (Σw)²/Σw² for
    the weights w of the rounds in the final model: T without momentum.
    """
    rounds = load.rounds
    participations = load.place_participations
    rate = participations / rounds
    weights = sgd_weights(np.ones(rounds), load.momentum)
    effective_rounds = float(weights.sum() ** 2 / (weights @ weights))
    # The sum of the canaries' squared numbers of rounds, R² in expectation if R is random.
    if load.secret:
        squares = places * (participations**2 + participations * (1 - rate))
    else:
        divided = divided_places(places)
        canary_rounds = rungs(max(1, round(load.round_share * participations)))
        squares = (places - divided) * participations**2
        squares += divided * sum(count**2 for count in canary_rounds)
    final_kappas = _kappas(noise, squares * effective_rounds / rounds**2)
    every_kappas = _kappas(noise, places * load.round_share * participations)
    if load.secret:
        # The number of a client's rounds is approximated by a binomial law.
        counts = np.arange(rounds + 1)
        probabilities = scipy.stats.binom.pmf(counts, rounds, rate)
        scores = counts * math.sqrt(effective_rounds) / (noise * rounds)
        final = [
            unknown_expected_score_epsilon(
                kappa * scores, delta, weights=probabilities
            )
            for kappa in final_kappas
        ]
        every = _secret_epsilons_at(every_kappas, noise, rate, rounds, delta)
    else:
        final_signal = rate * math.sqrt(effective_rounds)
        every_signal = math.sqrt(participations)
        final = [
            gaussian_epsilon(noise / (kappa * final_signal), delta)
            for kappa in final_kappas
        ]
        every = [
            gaussian_epsilon(noise / (kappa * every_signal), delta)
            for kappa in every_kappas
        ]
    return (Forecast("final", *final), Forecast("all", *every))


def _kappas(noise: float, energy: float) -> list[float]:
    """κ = 1, and the lower and the upper end of its 95% interval, as in `Forecast`.

    Args:
        noise: the noise multiplier z.
        energy: the sum of the canaries' squared expected scores, times z².
    """
    error = _QUANTILE * noise / math.sqrt(energy)
    return [1.0, max(1 - error, _MIN_KAPPA), 1 + error]


def _secret_epsilons_at(
    kappas: list[float], noise: float, rate: float, rounds: int, delta: float
) -> list[float]:
    """ε of secret rounds for every round's model, at each of the `_kappas`.

    Computing ε for each number of places that is tried would take too long. So it is
    interpolated, and for a large upper end of κ extrapolated, from a table.
    """
    at_small, at_one, at_large = _secret_epsilons(noise, rate, rounds, delta)
    table_kappas = [0.0, 1 / _KAPPA_RATIO, 1.0, _KAPPA_RATIO]
    epsilon, low, high = np.interp(
        kappas, table_kappas, [0.0, at_small, at_one, at_large]
    ).tolist()
    _, _, high_kappa = kappas
    beyond_table = max(high_kappa - _KAPPA_RATIO, 0.0) / (_KAPPA_RATIO - 1)
    high += beyond_table * (at_large - at_one)
    return [epsilon, low, high]


@functools.cache
def _secret_epsilons(
    noise: float, rate: float, rounds: int, delta: float
) -> tuple[float, ...]:
    """ε by Poisson sampling at κ = 0.8, 1 and 1.25."""
    kappas = (1 / _KAPPA_RATIO, 1.0, _KAPPA_RATIO)
    return tuple(
        poisson_epsilon(noise / kappa, rate, rounds, delta) for kappa in kappas
    )
