"""`CanaryLoad`: the canaries beside a run's clients, and the ε that they can show.

A canary place follows a client's schedule, see `fl_epe.canaries.ladder`. P places beside m clients
have the share P/(m + P) of a round, on average.

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

_RELATIVE = (
    0.1  # half-width of an interval that is narrow enough, relative to ε
)
_ABSOLUTE = 0.5  # half-width of an interval that is narrow enough for any ε
_ROUNDING = 1e-9  # error of a product that should be a whole number


@dataclasses.dataclass(frozen=True)
class Expected:
    """The ε of one adversary that the canaries of a load show if theory is exact.

    Attributes:
        sees: "final" or "all", see `Adversary`.
        epsilon: the client's ε, in the high-dimensional limit of equal clip norms.
        low: lower end of a typical 95% interval.
        high: upper end of a typical 95% interval.
    """

    sees: str
    epsilon: float
    low: float
    high: float

    @property
    def narrow(self) -> bool:
        """Whether more canaries are not worth their cost."""
        return self.is_within(_RELATIVE)

    def is_within(self, relative: float) -> bool:
        """Whether the half-width of the interval is at most this part of ε, or 0.5."""
        return (self.high - self.low) / 2 <= max(
            relative * self.epsilon, _ABSOLUTE
        )


def all_narrow(expected: tuple[Expected, ...]) -> bool:
    """Whether more canaries are not worth their cost for any adversary."""
    return all(forecast.narrow for forecast in expected)


@dataclasses.dataclass(frozen=True)
class CanaryLoad:
    """Canaries beside a run's clients; make it with `canary_load`.

    Attributes:
        clients: number of real clients beside the canaries; a fraction if canaries replace
            some.
        rounds: number of rounds T.
        participations: participations of a client.
        places: number of places that follow a client's schedule; 0 if fewer than two canaries
            fit.
        kept: share of its rounds in which the only place takes part; otherwise 1.
        secret: whether the schedule hides the rounds, so that each place is one canary.
        momentum: momentum of the server's SGD, by which the last rounds have smaller weights in
            the final model.
        expected: the expected results; empty if the noise is not known, or there is no noise.
        advice: changes that would make a measurement possible, if there are no places.
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
        """Participations of a place: those of a client, and at least one if they are not secret."""
        if self.secret:
            return self.participations
        return max(self.participations, 1.0)

    @property
    def taken(self) -> float:
        """The expected participations of all canaries together."""
        return self.places * self.kept * self.place_participations

    @property
    def canaries(self) -> int:
        """The smallest possible number of canaries."""
        if self.secret:
            return self.places
        divided = divided_places(self.places)
        return (
            self.places - divided + divided * len(rungs(self._rounds_of_place))
        )

    @property
    def _rounds_of_place(self) -> int:
        """Whole number of rounds of a place."""
        return math.floor(self.kept * self.place_participations + _ROUNDING)

    @property
    def share(self) -> float:
        """The mean share of canaries among the replies of a round."""
        if not self.taken:
            return 0.0
        return self.taken / (self.clients * self.participations + self.taken)

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
        if self.kept < 1:
            thinned = np.zeros_like(places)
            for place in range(places.shape[1]):
                rounds = np.flatnonzero(places[:, place])
                count = min(self._rounds_of_place, len(rounds))
                chosen = rng.choice(rounds, count, replace=False)
                thinned[chosen, place] = True
            places = thinned
        return ladder(places, rng)

    def sentences(self) -> list[str]:
        """The load, its expected results, and advice, in plain English."""
        count = math.ceil(self.clients - _ROUNDING)
        beside = f"beside {counted(count, 'client')}"
        if not self.places:
            rounds = counted(self.rounds, "round")
            line = f"No two canaries fit {beside} in {rounds}, and ε needs two. {self.advice}"
            return [line.rstrip()]
        clients = counted(self.places, "more client")
        if self.kept < 1:
            clients += f" in {self.kept:.0%} of its rounds"
        if self.place_participations > self.participations:
            clients += ", once each,"
        lines = [
            f"Canaries (synthetic clients) take part like {clients} {beside}: "
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
        if not self.expected or not all_narrow(self.expected):
            lines.append(
                "Four times as many clients, or a larger share for canaries, would make an "
                "interval half as wide."
            )
        return lines
