"""`SeenClients`: the real clients in each round of an audited run, and their weights."""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fl_epe.auditing import ClientLog
from fl_epe.checks import Floats32, NamedArrays


class SeenClients:
    """The real clients that answered in each round, numbered by the order of first answers.

    Each answer takes eight bytes.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._rounds: dict[int, NDArray[np.int32]] = {}
        self._weights: dict[int, Floats32] = {}
        self._last: dict[int, float] = {}

    def note(self, index: int, weights: Mapping[int, float]) -> None:
        """Store the clients that answered in a round, instead of those stored before.

        Args:
            index: the index of the round.
            weights: the weight of each client's replies, relative to the median reply.
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
        """The number of clients that have answered."""
        return len(self._numbers)

    def participations(self, rounds: int) -> float | None:
        """The mean number of rounds of a client; ``None`` before the first answer."""
        answers = sum(len(self._rounds.get(t, ())) for t in range(rounds))
        if answers:
            return answers / self.count
        return None

    def log(self, rounds: int) -> ClientLog:
        """The clients of the first ``rounds`` rounds."""
        empty: np.ndarray = np.empty(0, np.int32)
        ids = [self._rounds.get(t, empty) for t in range(rounds)]
        weights = [self._weights.get(t, empty) for t in range(rounds)]
        return ClientLog(
            ids=np.concatenate([empty, *ids], dtype=np.int64),
            offsets=np.cumsum([0, *map(len, ids)], dtype=np.int64),
            weights=np.concatenate([empty, *weights], dtype=np.float64),
        )

    def state(self, rounds: int) -> NamedArrays:
        """The state as named arrays, for `restore`."""
        log = self.log(rounds)
        return {
            "clients": np.array(list(self._numbers), np.uint64),
            "clients.ids": np.asarray(log.ids, np.int32),
            "clients.offsets": np.asarray(log.offsets),
            "clients.weights": np.asarray(log.weights, np.float32),
        }

    def restore(self, state: NamedArrays, rounds: int) -> None:
        """Continue from the first ``rounds`` rounds of a `state`."""
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
