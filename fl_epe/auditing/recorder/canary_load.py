"""`CanaryLoad`: the canaries beside a run's clients, and the ε that they can show.

A place for canaries has the rounds that the clients' schedule would give to one more client. It has
one canary, or is divided among several, see `fl_epe.canaries.ladder`. P places beside m clients are
the share P/(m + P) of a round, on average.

Examples:
    >>> load = CanaryLoad(clients=120, rounds=60, participations=12, places=13)
    >>> load.canaries, f"{load.share:.0%}"
    (19, '10%')
"""

import dataclasses
import math

import numpy as np

from fl_epe.canaries import divided_places, ladder, rungs
from fl_epe.checks import Booleans
from fl_epe.schedules import Schedule, ShuffledEpochs
from fl_epe.wording import counted

REAL_UPDATES_LEFT_OUT = (
    "ε is forecast from noise and schedule alone; real updates hide more and lower it, most in "
    "small models."
)
"""The caveat of every ε that was computed before a run, from noise and schedule."""

# An interval is narrow if its half-width is at most this part of ε, or this number.
_NARROW_RELATIVE = 0.1
_NARROW_ABSOLUTE = 0.5

_ROUNDING = 1e-9  # error of a product that should be a whole number


@dataclasses.dataclass(frozen=True)
class Forecast:
    """The expected result of a load's canaries for one adversary.

    It is computed in the high-dimensional limit, with equal clip norms.

    Attributes:
        sees: "final" or "all", see `Adversary`.
        epsilon: the client's ε.
        low: lower end of a typical 95% interval.
        high: upper end of a typical 95% interval.
    """

    sees: str
    epsilon: float
    low: float
    high: float

    def is_within(self, relative: float) -> bool:
        """Whether the interval's half-width is at most ``relative`` times ε, or at most 0.5."""
        half_width = (self.high - self.low) / 2
        return half_width <= max(relative * self.epsilon, _NARROW_ABSOLUTE)


def are_narrow(forecasts: tuple[Forecast, ...]) -> bool:
    """Whether the intervals for all adversaries are narrow: more canaries are not needed."""
    return all(forecast.is_within(_NARROW_RELATIVE) for forecast in forecasts)


@dataclasses.dataclass(frozen=True)
class CanaryLoad:
    """Canaries beside a run's clients; make it with `canary_load`.

    Attributes:
        clients: number of real clients beside the canaries; a fraction if canaries replace
            some.
        rounds: number of rounds T.
        participations: mean participations of a client; it may be below 1.
        places: number of places that follow a client's schedule; 0 if fewer than two canaries
            fit.
        round_share: fraction of a place's rounds in which its canaries take part. It is below 1
            only for a single place whose canaries would be too large a share of a round.
        secret: whether the schedule hides the rounds, so that each place has one canary.
        momentum: momentum of the server's SGD, by which the last rounds have smaller weights in
            the final model.
        forecasts: the expected results for an adversary who sees the final model, and for one who
            sees every round's; empty if the noise is not known, or there is no noise.
        advice: changes that would make a measurement possible, if there are no places.
    """

    clients: float
    rounds: int
    participations: float
    places: int
    round_share: float = 1.0
    secret: bool = False
    momentum: float = 0.0
    forecasts: tuple[Forecast, ...] = ()
    advice: str = ""

    @property
    def place_participations(self) -> float:
        """Participations of a place: as many as a client's, but at least 1 unless secret."""
        if self.secret:
            return self.participations
        return max(self.participations, 1.0)

    @property
    def total_participations(self) -> float:
        """The expected participations of all canaries together."""
        return self.places * self.round_share * self.place_participations

    @property
    def canaries(self) -> int:
        """The number of canaries if each place has its mean number of rounds, rounded down.

        A divided place with more rounds has more canaries.
        """
        if self.secret:
            return self.places
        divided = divided_places(self.places)
        canaries_per_divided_place = len(rungs(self._rounds_of_place))
        return self.places - divided + divided * canaries_per_divided_place

    @property
    def _rounds_of_place(self) -> int:
        """The mean number of rounds of a place in which its canaries take part, rounded down."""
        return math.floor(
            self.round_share * self.place_participations + _ROUNDING
        )

    @property
    def share(self) -> float:
        """The mean share of canaries among the replies of a round."""
        total = self.total_participations
        if not total:
            return 0.0
        return total / (self.clients * self.participations + total)

    def place_schedule(self, clients: Schedule) -> Schedule:
        """The schedule of the places, from that of the clients.

        If clients take part less than once, each place takes part once, spread over the run.
        """
        if self.place_participations == self.participations:
            return clients
        return ShuffledEpochs(self.rounds, self.place_participations)

    def presence(self, places: Booleans, rng: np.random.Generator) -> Booleans:
        """The rounds of each canary, ``(T, k)``, from those of each place, ``(T, places)``."""
        if self.secret:
            return places
        if self.round_share < 1:
            chosen_rounds = np.zeros_like(places)
            for place in range(places.shape[1]):
                rounds = np.flatnonzero(places[:, place])
                count = min(self._rounds_of_place, len(rounds))
                chosen = rng.choice(rounds, count, replace=False)
                chosen_rounds[chosen, place] = True
            places = chosen_rounds
        return ladder(places, rng)

    def sentences(self) -> list[str]:
        """The load, its forecasts, and advice, in plain English."""
        count = math.ceil(self.clients - _ROUNDING)
        beside = f"beside {counted(count, 'client')}"
        if not self.places:
            rounds = counted(self.rounds, "round")
            line = f"No two canaries fit {beside} in {rounds}, and ε needs two. {self.advice}"
            return [line.rstrip()]
        clients = counted(self.places, "more client")
        if self.round_share < 1:
            clients += f" in {self.round_share:.0%} of its rounds"
        if self.place_participations > self.participations:
            clients += ", once each,"
        lines = [
            f"Canaries (synthetic clients) take part like {clients} {beside}: "
            f"{100 * self.share:.2g}% of a round."
        ]
        if self.forecasts:
            final, every = self.forecasts
            lines.append(
                f"Forecast: ε is at most about {final.epsilon:.3g} from the final model and "
                f"{every.epsilon:.3g} from every round's model; with its random error, the audit "
                f"would show up to {final.high:.3g} and {every.high:.3g} (in 95% of runs). "
                f"{REAL_UPDATES_LEFT_OUT}"
            )
        if not self.forecasts or not are_narrow(self.forecasts):
            lines.append(
                "Four times as many clients, or a larger share for canaries, would make an "
                "interval half as wide."
            )
        return lines
