"""The ladder: canaries that take part as often as a client, half as often, … down to once.

The clients' schedule gives rounds to places for canaries as it would to further clients. Most
places have one canary, which takes part as often as a client. Some are divided among several
canaries: the first takes part in half of the place's rounds, the next in a quarter, and so on down
to one round. So the ladder needs no additional participations, and its canaries follow any schedule
of the clients.

Examples:
    >>> rungs(12), rungs(30)
    ([6, 3, 2, 1], [15, 8, 4, 2, 1])
    >>> divided_places(13), divided_places(1)
    (2, 1)
"""

import numpy as np

from fl_epe.checks import Booleans

_PLACES_PER_DIVIDED = 6  # one place of this number is divided


def divided_places(places: int) -> int:
    """The number of places that are divided: one in six, and at least one."""
    return min(places, max(1, places // _PLACES_PER_DIVIDED))


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
        ends = np.cumsum(rungs(len(rounds)))[:-1]
        for canary_rounds in np.split(rounds, ends):
            column = np.zeros(len(place), bool)
            column[canary_rounds] = True
            columns.append(column)
    return np.array(columns, bool).T.reshape(len(places), -1)
