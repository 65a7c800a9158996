"""Canaries on a ladder of participations, each in the rounds of a place of the clients' schedule.

The rounds of a place are those that the schedule gives to one more client. Most places have one
canary, which takes part as a client does. Some are divided among several canaries, which take part
half as often, a quarter as often, and so on to once. So the ladder needs no further participations,
and its canaries follow the clients' schedule, whatever that is.

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
    """How many of the places are divided: one in six, and at least one."""
    return min(places, max(1, places // _DIVIDED))


def rungs(rounds: int) -> list[int]:
    """Participations of each canary of a divided place with so many ``rounds``."""
    participations = []
    while rounds > 0:
        participations.append(rounds - rounds // 2)
        rounds //= 2
    return participations


def ladder(places: Booleans, rng: np.random.Generator) -> Booleans:
    """The rounds of each canary, ``(T, k)``, from those of each place, ``(T, places)``.

    Args:
        places: which place is in which round; the last ones are divided.
        rng: draws which canary of a divided place has which of its rounds.
    """
    undivided = places.shape[1] - divided_places(places.shape[1])
    columns = list(places[:, :undivided].T)
    for place in places[:, undivided:].T:
        rounds = rng.permutation(np.flatnonzero(place))
        for part in np.split(rounds, np.cumsum(rungs(len(rounds)))[:-1]):
            column = np.zeros(len(place), bool)
            column[part] = True
            columns.append(column)
    return np.array(columns, bool).T.reshape(len(places), -1)
