"""How many canaries an audit takes, and what they can show: known before the run.

A canary place follows a client's schedule, see `fl_epe.canaries.ladder`. P places beside m clients
are P/(m + P) of a round, on average. There are as many as a share of a round allows, at most
1,000, and no more once ε is told to ±10% or ±0.5. Where not even one place fits it keeps a part of
its rounds, unless the schedule hides them: those canaries must follow its law, and be two.

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

import numpy as np
import scipy
from numpy.typing import NDArray

from fl_epe.accounting import gaussian_epsilon, poisson_epsilon, unknown_expected_score_epsilon
from fl_epe.canaries import divided_places, ladder, rungs
from fl_epe.checks import check_count, check_rate
from fl_epe.mechanism import sgd_weights

SHARE = 0.1
"""Largest share of a round's replies and weight that canaries have, unless told otherwise."""

_MOST = 1000
_RELATIVE, _ABSOLUTE = 0.1, 0.5  # half of an interval of ε that is narrow enough
_QUANTILE = 1.96
_AROUND = 1.25  # times the signal, for the slope of ε


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
        return (self.high - self.low) / 2 <= max(_RELATIVE * self.epsilon, _ABSOLUTE)


@dataclasses.dataclass(frozen=True)
class CanaryLoad:
    """Canaries beside a run's clients; make it with `canary_load`.

    Attributes:
        clients: real clients m.
        rounds: T.
        participations: of a client.
        places: how many follow a client's schedule; 0 if too few clients are there.
        kept: share of its rounds that the only place keeps; 1 for whole places.
        secret: whether the schedule hides the rounds, so that each place is one canary.
        momentum: of the server's SGD, which weighs the last rounds less in the final model.
        expected: what they can show; empty if the noise is not known, or there is none.
    """

    clients: int
    rounds: int
    participations: float
    places: int
    kept: float = 1.0
    secret: bool = False
    momentum: float = 0.0
    expected: tuple[Expected, ...] = ()

    @property
    def taken(self) -> float:
        """Participations of all canaries together, expected."""
        return self.places * self.kept * self.participations

    @property
    def share(self) -> float:
        """Canaries among the replies of a round, on average."""
        whole = self.places * self.kept
        return whole / (self.clients + whole) if whole else 0.0

    def presence(self, places: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.bool_]:
        """The rounds of each canary, ``(T, k)``, from those of each place, ``(T, places)``."""
        if self.secret:
            return places
        if self.kept < 1:
            here = [np.flatnonzero(place) for place in places.T]
            places = np.zeros_like(places)
            for place, rounds in enumerate(here):
                count = math.floor(self.kept * len(rounds) + 1e-9)
                places[rng.choice(rounds, count, replace=False), place] = True
        return ladder(places, rng)

    def sentences(self) -> list[str]:
        """What the load is, what it can show, and what would help, in plain English."""
        if not self.places:
            more = "more clients, or a larger share for canaries, would make a measurement possible"
            return [f"No canary fits beside {self.clients} clients; {more}."]
        whose = "one more client" if self.places == 1 else f"{self.places} more clients"
        whose += f" in {self.kept:.0%} of its rounds" if self.kept < 1 else ""
        share = f"beside {self.clients} clients: {100 * self.share:.2g}% of a round"
        lines = [f"Canaries (synthetic clients) take part like {whose} {share}."]
        for found in self.expected:
            seen = "the final model" if found.sees == "final" else "every round's model"
            ends = f"{found.low:.3g} – {found.high:.3g} (95%)"
            lines.append(
                f"If nothing is wrong, ε from {seen} is about {found.epsilon:.3g}, and will be "
                f"measured within {ends}."
            )
        if not all(found.narrow for found in self.expected) or not self.expected:
            more = "Four times as many clients, or a larger share for canaries,"
            lines.append(f"{more} would make an interval half as wide.")
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
        places: how many there are, whatever their share.

    Raises:
        ValueError: for an argument out of range.
    """
    check_count("clients", clients)
    check_count("rounds", rounds)
    check_rate("share", share)
    room = _MOST if share >= 1 else min(clients * share / (1 - share) + 1e-9, float(_MOST))
    load = CanaryLoad(
        clients, rounds, participations, math.floor(room), secret=secret, momentum=momentum
    )
    least = 2 if secret else 1  # whose places are a canary each, of which an ε needs two
    if places is not None:
        load, least = dataclasses.replace(load, places=places), places
    elif secret and room < least:
        return dataclasses.replace(load, places=0)
    elif room < 1:  # a part of a place
        load = dataclasses.replace(load, places=1, kept=room)
    if not noise_multiplier or not load.places:
        return load
    low, high = least, load.places  # interval's width falls with the number of places
    while low < high:
        middle = (low + high) // 2
        narrow = all(e.narrow for e in _expected(load, middle, noise_multiplier, delta))
        low, high = (low, middle) if narrow else (middle + 1, high)
    found = _expected(load, low, noise_multiplier, delta)
    return dataclasses.replace(load, places=low, expected=found)


@functools.cache
def _secret_epsilons(noise: float, rate: float, rounds: int, delta: float) -> tuple[float, ...]:
    """By the theorem of Poisson sampling, at less signal, as it is, and at more."""
    scales = (1 / _AROUND, 1.0, _AROUND)
    return tuple(poisson_epsilon(noise / scale, rate, rounds, delta) for scale in scales)


def _expected(load: CanaryLoad, places: int, noise: float, delta: float) -> tuple[Expected, ...]:
    """For both adversaries, by the error of κ, the inverse root of the sum of squared sizes."""
    often, rounds = load.participations, load.rounds
    if load.secret:
        squares = places * (often**2 + often * (1 - often / rounds))
    else:
        often = max(often, 1.0)  # of a client who takes part
        divided, parts = divided_places(places), rungs(max(1, round(load.kept * often)))
        squares = (places - divided) * often**2 + divided * sum(part**2 for part in parts)
        squares *= load.participations / often
    found, weights = [], sgd_weights(np.ones(rounds), load.momentum)
    even = float(weights.sum() ** 2 / (weights @ weights))  # rounds T, as far as they weigh alike
    for sees, total, mu in (
        ("final", squares * even / rounds**2, often / rounds * math.sqrt(even)),
        ("all", places * load.kept * load.participations, math.sqrt(often)),
    ):
        error = _QUANTILE * noise / math.sqrt(total)
        scales = [1.0, max(1 - error, 1e-6), 1 + error]
        if load.secret and sees == "all":
            least, one, most = _secret_epsilons(noise, often / rounds, rounds, delta)
            values = np.interp(scales, [0.0, 1 / _AROUND, 1.0, _AROUND], [0.0, least, one, most])
            values[2] += max(scales[2] - _AROUND, 0.0) / (_AROUND - 1) * (most - one)
        elif load.secret:  # the score is the number of rounds, which coins decide
            counts, solve = np.arange(rounds + 1), unknown_expected_score_epsilon
            shares = scipy.stats.binom.pmf(counts, rounds, often / rounds)
            scores = counts * math.sqrt(even) / (noise * rounds)
            values = np.array([solve(s * scores, delta, weights=shares) for s in scales])
        else:
            values = np.array([gaussian_epsilon(noise / (s * mu), delta) for s in scales])
        found.append(Expected(sees, *values.tolist()))
    return tuple(found)
