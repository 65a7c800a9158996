"""How many canaries an audit takes, and what they can show: known before the run.

A canary place follows a client's schedule, see `fl_epe.canaries.ladder`. P places beside m clients
are P/(m + P) of a round, on average. There are as many as a share of a round allows, at most
1,000, and no more once ε is told to ±10% or ±0.5. Where not even one place fits it keeps a part of
its rounds; where the noise is known and nobody chose the share, that part grows until every round's
ε is told to ±55% or ±0.5. In a run in which clients take part less than once, each place takes part
once, so that all of them are used. Neither is done where the schedule hides the rounds: those
canaries must follow its law. An ε needs two canaries; where they do not fit there is none.

What they show, for known rounds: κ's deviation is ``1/√(Σ expected score²)``, so that the error of
μ of a client is about 1/√P, whatever the number of rounds and their noise.

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
from fl_epe.canaries import divided_places, ladder, rungs
from fl_epe.checks import Booleans, check_count, check_rate
from fl_epe.mechanism import sgd_weights
from fl_epe.schedules import Schedule, ShuffledEpochs
from fl_epe.wording import counted

SHARE = 0.1
"""Largest share of a round's replies and weight that canaries have, unless told otherwise."""

MOST_SHARE = 1 / 6
"""The same beside fewer than ten clients, where that is needed to tell ε. Above it the measured
training is not that without canaries."""

REAL_UPDATES_LEFT_OUT = (
    "ε is forecast from noise and schedule alone; real updates hide more and lower it, most in "
    "small models."
)
"""What every ε is to be read with that was computed before a run, from noise and schedule alone."""

_MOST = 1000
_RELATIVE, _ABSOLUTE = 0.1, 0.5  # half of an interval of ε that is narrow enough
_ROUGH = 0.55  # the same, relative to ε, beside few clients
_STEP = 0.005  # between the shares that are tried beside few clients
_QUANTILE = 1.96
_AROUND = 1.25  # times the signal, for the slope of ε
_ROUNDING = 1e-9
_MOST_ROUNDS = 1000  # that are tried, where few are too few


@dataclasses.dataclass(frozen=True)
class Expected:
    """What the canaries of a load tell about one adversary's ε, if theory holds.

    Attributes:
        sees: "final" or "all", as of `Adversary`.
        epsilon: of the client, in the high-dimensional limit of equal clip norms.
        low: lower end of a typical 95% interval.
        high: upper end of a typical 95% interval.
    """

    sees: str
    epsilon: float
    low: float
    high: float

    @property
    def narrow(self) -> bool:
        """Whether more canaries are not worth their price."""
        return self.is_within(_RELATIVE)

    def is_within(self, relative: float) -> bool:
        """Whether half of the interval is at most this part of ε, or 0.5."""
        return (self.high - self.low) / 2 <= max(relative * self.epsilon, _ABSOLUTE)


@dataclasses.dataclass(frozen=True)
class CanaryLoad:
    """Canaries beside a run's clients; make it with `canary_load`.

    Attributes:
        clients: real clients beside the canaries; a fraction where canaries replace some of them.
        rounds: T.
        participations: of a client.
        places: how many follow a client's schedule; 0 if fewer than two canaries fit.
        kept: share of its rounds that the only place keeps; 1 for whole places.
        secret: whether the schedule hides the rounds, so that each place is one canary.
        momentum: of the server's SGD, which weighs the last rounds less in the final model.
        expected: what they can show; empty if the noise is not known, or there is none.
        advice: what would make a measurement possible, where there are no places.
    """

    clients: float
    rounds: int
    participations: float
    places: int
    kept: float = 1.0
    secret: bool = False
    momentum: float = 0.0
    expected: tuple[Expected, ...] = ()
    advice: str = ""

    @property
    def place_participations(self) -> float:
        """Of a place: a client's, and at least one where that does not change a secret law."""
        return self.participations if self.secret else max(self.participations, 1.0)

    @property
    def taken(self) -> float:
        """Participations of all canaries together, expected."""
        return self.places * self.kept * self.place_participations

    @property
    def canaries(self) -> int:
        """How many canaries there are at least."""
        if self.secret:
            return self.places
        divided = divided_places(self.places)
        parts = rungs(math.floor(self.kept * self.place_participations + _ROUNDING))
        return self.places - divided + divided * len(parts)

    @property
    def share(self) -> float:
        """Canaries among the replies of a round, on average."""
        real = self.clients * self.participations
        return self.taken / (real + self.taken) if self.taken else 0.0

    def place_schedule(self, clients: Schedule) -> Schedule:
        """The schedule of the places, from that of the clients.

        Where clients take part less than once, each place takes part once, spread over the run.
        """
        if self.place_participations == self.participations:
            return clients
        return ShuffledEpochs(self.rounds, self.place_participations)

    def presence(self, places: Booleans, rng: np.random.Generator) -> Booleans:
        """The rounds of each canary, ``(T, k)``, from those of each place, ``(T, places)``."""
        if self.secret:
            return places
        if self.kept < 1:
            here = [np.flatnonzero(place) for place in places.T]
            places = np.zeros_like(places)
            count = math.floor(self.kept * self.place_participations + _ROUNDING)
            for place, rounds in enumerate(here):
                chosen = rng.choice(rounds, min(count, len(rounds)), replace=False)
                places[chosen, place] = True
        return ladder(places, rng)

    def sentences(self) -> list[str]:
        """What the load is, what it can show, and what would help, in plain English."""
        count = math.ceil(self.clients - _ROUNDING)
        beside = f"beside {counted(count, 'client')}"
        if not self.places:
            return [
                (
                    f"No two canaries fit {beside} in {counted(self.rounds, 'round')}, and ε needs "
                    f"two. {self.advice}"
                ).rstrip()
            ]
        whose = counted(self.places, "more client")
        whose += f" in {self.kept:.0%} of its rounds" if self.kept < 1 else ""
        whose += (
            ", once each," if self.place_participations > self.participations else ""
        )
        lines = [
            f"Canaries (synthetic clients) take part like {whose} {beside}: "
            f"{100 * self.share:.2g}% of a round."
        ]
        if self.expected:
            final, every = self.expected
            lines.append(
                f"Forecast: ε is at most about {final.epsilon:.3g} from the final model and "
                f"{every.epsilon:.3g} from every round's model; with its random error, the audit "
                f"would show up to {final.high:.3g} and {every.high:.3g} (in 95% of runs). "
                f"{REAL_UPDATES_LEFT_OUT}"
            )
        if not (self.expected and all(found.narrow for found in self.expected)):
            lines.append(
                "Four times as many clients, or a larger share for canaries, would make an "
                "interval half as wide."
            )
        return lines


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
    """As many canaries as a share of a round allows, and as are worth it.

    Args:
        clients: real clients m.
        rounds: T.
        participations: of a client, R.
        delta: target δ.
        noise_multiplier: z; without it nothing is said about ε.
        secret: whether the schedule hides the rounds (Poisson, fixed-size, balls-in-bins).
        momentum: of the server's SGD.
        share: of a round's replies that canaries may have, below 1.
        share_of_few: up to which the share may grow where one place is too much and ε could not
            be told; by default it may not.
        replies: clients and canaries together, at most, in units of m; beyond that a canary takes
            the place of a client.
        share_name: of the argument that sets the share, for advice.
        places: how many there are, whatever their share.

    Raises:
        ValueError: for an argument out of range.
    """
    check_count("clients", clients)
    check_count("rounds", rounds)
    check_rate("share", share)

    def load_in(length: int, share: float) -> CanaryLoad:
        beside = min(clients, max(replies * (1 - share), _ROUNDING))
        often = participations * (length / rounds)
        load = CanaryLoad(
            beside, length, often, places or 0, secret=secret, momentum=momentum
        )
        return _filled(load, share) if places is None else load

    largest = share if share_of_few is None or not noise_multiplier else share_of_few
    steps = round((largest - share) / _STEP)
    for tried in np.linspace(share, largest, steps + 1).tolist():
        load = load_in(rounds, tried)
        if load.places and noise_multiplier:
            load = _with_expected(
                load, noise_multiplier, delta, is_given=places is not None
            )
        is_rough = all(
            each.is_within(_ROUGH) for each in load.expected[-1:]
        )  # every round's
        if load.places and (load.kept == 1 or is_rough):
            break
    if load.places or places is not None:
        return load
    return dataclasses.replace(
        load, advice=_advice(load_in, rounds, largest, share_name)
    )


def _advice(
    load_in: Callable[[int, float], CanaryLoad],
    rounds: int,
    share: float,
    share_name: str,
) -> str:
    """The fewest rounds, and the least share, with which two canaries fit; "" if there are none."""
    longer = range(rounds + 1, _MOST_ROUNDS)
    larger = [percent / 100 for percent in range(1, 51) if percent > 100 * share]
    more_rounds = next(
        (length for length in longer if load_in(length, share).places), None
    )
    more_share = next(
        (tried for tried in larger if load_in(rounds, tried).places), None
    )
    ways = [counted(more_rounds, "round")] if more_rounds else []
    if more_share:
        ways.append(f"{share_name}={more_share:g}")
    return f"{' or '.join(ways)} would make a measurement possible." if ways else ""


def _filled(load: CanaryLoad, share: float) -> CanaryLoad:
    """With the places that have at most that share of a round, or none if they are too few."""
    often = load.place_participations
    room = (
        load.clients * load.participations / often * share / (1 - share)
        if share < 1
        else _MOST
    )
    room = min(room + _ROUNDING, float(_MOST))
    if room < 1 and not load.secret:
        found = dataclasses.replace(
            load, places=1, kept=math.floor(room * often) / often
        )
    else:
        found = dataclasses.replace(load, places=math.floor(room))
    return found if found.canaries >= LEAST_CANARIES else load


def _with_expected(
    load: CanaryLoad, noise_multiplier: float, delta: float, *, is_given: bool
) -> CanaryLoad:
    """With what the places show; if their number is not given, no more than narrow intervals need.

    The width of an interval falls with the number of places.
    """
    low = high = load.places
    if not is_given:
        is_divided = (
            not load.secret and load.kept * load.place_participations >= LEAST_CANARIES
        )
        low = min(high, 1 if is_divided else LEAST_CANARIES)
    while low < high:
        middle = (low + high) // 2
        narrow = all(e.narrow for e in _expected(load, middle, noise_multiplier, delta))
        low, high = (low, middle) if narrow else (middle + 1, high)
    return dataclasses.replace(
        load, places=low, expected=_expected(load, low, noise_multiplier, delta)
    )


@functools.cache
def _secret_epsilons(
    noise: float, rate: float, rounds: int, delta: float
) -> tuple[float, ...]:
    """By the theorem of Poisson sampling, at less signal, as it is, and at more."""
    scales = (1 / _AROUND, 1.0, _AROUND)
    return tuple(
        poisson_epsilon(noise / scale, rate, rounds, delta) for scale in scales
    )


def _expected(
    load: CanaryLoad, places: int, noise: float, delta: float
) -> tuple[Expected, ...]:
    """For both adversaries, by the error of κ, the inverse root of the sum of squared sizes."""
    often = load.place_participations
    rounds = load.rounds
    if load.secret:
        squares = places * (often**2 + often * (1 - often / rounds))
    else:
        divided = divided_places(places)
        parts = rungs(max(1, round(load.kept * often)))
        squares = (places - divided) * often**2 + divided * sum(
            part**2 for part in parts
        )
    found = []
    weights = sgd_weights(np.ones(rounds), load.momentum)
    even = float(
        weights.sum() ** 2 / (weights @ weights)
    )  # rounds T, as far as they weigh alike
    for sees, total, mu in (
        ("final", squares * even / rounds**2, often / rounds * math.sqrt(even)),
        ("all", places * load.kept * often, math.sqrt(often)),
    ):
        error = _QUANTILE * noise / math.sqrt(total)
        scales = [1.0, max(1 - error, 1e-6), 1 + error]
        if load.secret and sees == "all":
            least, one, most = _secret_epsilons(noise, often / rounds, rounds, delta)
            values = np.interp(
                scales, [0.0, 1 / _AROUND, 1.0, _AROUND], [0.0, least, one, most]
            ).tolist()
            values[2] += max(scales[2] - _AROUND, 0.0) / (_AROUND - 1) * (most - one)
        elif load.secret:  # the score is the number of rounds, which coins decide
            counts = np.arange(rounds + 1)
            solve = unknown_expected_score_epsilon
            shares = scipy.stats.binom.pmf(counts, rounds, often / rounds)
            scores = counts * math.sqrt(even) / (noise * rounds)
            values = [solve(s * scores, delta, weights=shares) for s in scales]
        else:
            values = [gaussian_epsilon(noise / (s * mu), delta) for s in scales]
        found.append(Expected(sees, *values))
    return tuple(found)
