"""`SeenClients`: which real clients took part in each round of an audited run, and their weight."""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fl_epe.auditing import ClientLog
from fl_epe.checks import Floats32, NamedArrays


class SeenClients:
    """Which real clients answered in each round, numbered in the order in which they came.

    Takes eight bytes for each answer.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._rounds: dict[int, NDArray[np.int32]] = {}
        self._weights: dict[int, Floats32] = {}
        self._last: dict[int, float] = {}

    def note(self, index: int, weights: Mapping[int, float]) -> None:
        """Note the clients that answered in a round; replaces an earlier note of that round.

        Args:
            index: of the round.
            weights: how many times as much as the median reply each client's replies added.
        """
        clients = sorted(weights)
        numbers = [
            self._numbers.setdefault(client % 2**64, len(self._numbers))
            for client in clients
        ]
        self._rounds[index] = np.array(numbers, np.int32)
        self._weights[index] = np.array(
            [weights[client] for client in clients], np.float32
        )
        self._last.update(weights)

    def last_weight(self, client: int) -> float:
        """The weight of a client's last replies; NaN for a client that never answered."""
        return self._last.get(client, math.nan)

    @property
    def count(self) -> int:
        """How many clients have answered."""
        return len(self._numbers)

    def participations(self, rounds: int) -> float | None:
        """Mean number of rounds of a client; ``None`` before anybody answered."""
        answers = sum(len(self._rounds.get(t, ())) for t in range(rounds))
        if answers:
            return answers / self.count
        return None

    def log(self, rounds: int) -> ClientLog:
        """The clients of the first ``rounds`` rounds."""
        none: np.ndarray = np.empty(0, np.int32)
        ids = [self._rounds.get(t, none) for t in range(rounds)]
        weights = [self._weights.get(t, none) for t in range(rounds)]
        return ClientLog(
            ids=np.concatenate([none, *ids], dtype=np.int64),
            offsets=np.cumsum([0, *map(len, ids)], dtype=np.int64),
            weights=np.concatenate([none, *weights], dtype=np.float64),
        )

    def state(self, rounds: int) -> NamedArrays:
        """Named arrays from which `restore` goes on."""
        log = self.log(rounds)
        return {
            "clients": np.array(list(self._numbers), np.uint64),
            "clients.ids": np.asarray(log.ids, np.int32),
            "clients.offsets": np.asarray(log.offsets),
            "clients.weights": np.asarray(log.weights, np.float32),
        }

    def restore(self, state: NamedArrays, rounds: int) -> None:
        """Go on from the first ``rounds`` of a `state`."""
        names = state["clients"].tolist()
        self._numbers = {name: number for number, name in enumerate(names)}
        self._rounds = {}
        self._weights = {}
        self._last = {}
        ends = state["clients.offsets"][1:-1]
        ids = np.split(state["clients.ids"], ends)
        weights = np.split(state["clients.weights"], ends)
        for index in range(rounds):
            clients = [names[number] for number in ids[index]]
            self.note(
                index, dict(zip(clients, weights[index].tolist(), strict=True))
            )
