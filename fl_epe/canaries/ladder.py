"""Canaries on a ladder of participations, each in the rounds of a place of the clients' schedule.

The rounds of a place are those that the schedule gives to one more client. Most places have one
canary, which takes part as a client does. Some are divided among several canaries, which take part
half as often, a quarter as often, and so on down to once. So the ladder needs no additional
participations, and its canaries follow any schedule of the clients.

Examples:
    >>> rungs(12), rungs(30)
    ([6, 3, 2, 1], [15, 8, 4, 2, 1])
    >>> divided_places(13), divided_places(1)
    (2, 1)
"""

import numpy as np

from fl_epe.checks import Booleans

_DIVIDED = 6  # one of so many places is divided


def divided_places(places: int) -> int:
    """The number of places that are divided: one in six, and at least one."""
    return min(places, max(1, places // _DIVIDED))


def rungs(rounds: int) -> list[int]:
    """The participations of each canary of a divided place that has ``rounds`` rounds."""
    participations = []
    while rounds > 0:
        participations.append(rounds - rounds // 2)
        rounds //= 2
    return participations


def ladder(places: Booleans, rng: np.random.Generator) -> Booleans:
    """The rounds of each canary, ``(T, k)``, from those of each place, ``(T, places)``.

    Args:
        places: the rounds of each place, ``(T, places)``; the last places are divided.
        rng: the generator that assigns the rounds of a divided place to its canaries.
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
