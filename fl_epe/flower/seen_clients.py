"""`SeenClients`: which real clients took part in each round of an audited run."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


class SeenClients:
    """Which real clients answered in each round, numbered in the order in which they came.

    Takes four bytes for each answer.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._rounds: dict[int, NDArray[np.int32]] = {}

    def note(self, index: int, clients: Collection[int]) -> None:
        """Note who answered in a round."""
        numbers = self._numbers
        found = [numbers.setdefault(c % 2**64, len(numbers)) for c in sorted(clients)]
        self._rounds[index] = np.array(found, np.int32)

    def log(self, rounds: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The ``ids`` and ``offsets`` of a `ClientLog` of so many rounds."""
        found = [self._rounds.get(t, np.empty(0, np.int32)) for t in range(rounds)]
        offsets = np.cumsum([0, *map(len, found)], dtype=np.int64)
        return np.concatenate([np.empty(0, np.int64), *found], dtype=np.int64), offsets

    def state(self, rounds: int) -> dict[str, NDArray[Any]]:
        """Named arrays from which `restore` goes on."""
        ids, offsets = self.log(rounds)
        names = np.array(list(self._numbers), np.uint64)
        return {"clients": names, "clients.ids": ids.astype(np.int32), "clients.offsets": offsets}

    def restore(self, state: Mapping[str, NDArray[Any]], rounds: int) -> None:
        """Know the first ``rounds`` of a state."""
        self._numbers = {name: number for number, name in enumerate(state["clients"].tolist())}
        by_round = np.split(state["clients.ids"], state["clients.offsets"][1:-1])
        self._rounds = dict(enumerate(by_round[:rounds]))
