"""Canaries on a ladder of participations, each at places that a client's schedule gives out.

A place is a client's: its rounds are those that the schedule gives one more client. Most places are
one canary's, who takes part as a client does. Some are divided among several canaries, who take
part half as often, a quarter as often, and so on to once. So the ladder costs no participation, and
its canaries follow the clients' schedule, whatever that is.

Examples:
    >>> rungs(12), rungs(30)
    ([6, 3, 2, 1], [15, 8, 4, 2, 1])
    >>> divided_places(13), divided_places(1)
    (2, 1)
"""

import numpy as np

from fl_epe.checks import Booleans

_DIVIDED = 6  # one place in so many


def divided_places(places: int) -> int:
    """How many of the places are divided: the only one, or one in six, and at least one."""
    return min(places, max(1, places // _DIVIDED))


def rungs(rounds: int) -> list[int]:
    """How often each canary of a divided place takes part, which has so many ``rounds``."""
    found = []
    while rounds > 0:
        found.append(rounds - rounds // 2)
        rounds //= 2
    return found


def ladder(places: Booleans, rng: np.random.Generator) -> Booleans:
    """The rounds of each canary, ``(T, k)``, from those of each place, ``(T, places)``.

    Args:
        places: which place is in which round; the last ones are divided.
        rng: draws which rounds of a divided place are whose.
    """
    whole = places.shape[1] - divided_places(places.shape[1])
    columns = list(places[:, :whole].T)
    for place in places[:, whole:].T:
        rounds = rng.permutation(np.flatnonzero(place))
        for part in np.split(rounds, np.cumsum(rungs(len(rounds)))[:-1]):
            column = np.zeros(len(place), bool)
            column[part] = True
            columns.append(column)
    return np.array(columns, bool).T.reshape(len(places), -1)
