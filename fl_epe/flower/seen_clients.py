"""`SeenClients`: the real clients in each round of an audited run, and their weights."""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fl_epe.auditing import ClientLog
from fl_epe.checks import Floats32, NamedArrays

# Ids of clients are stored as unsigned integers, while a user's ids may be negative.
ID_RANGE = 1 << 64


class SeenClients:
    """The real clients that answered in each round, numbered by the order of first answers.

    Each answer takes eight bytes.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._rounds: dict[int, NDArray[np.int32]] = {}
        self._weights: dict[int, Floats32] = {}
        self._last_weights: dict[int, float] = {}

    def note(self, index: int, weights: Mapping[int, float]) -> None:
        """Store the clients that answered in a round, replacing what was stored for it before.

        Args:
            index: the index of the round, from 0.
            weights: the weight of each client's replies, relative to the median reply.
        """
        by_id = {client % ID_RANGE: weights[client] for client in weights}
        ids = sorted(by_id)
        numbers = [
            self._numbers.setdefault(client, len(self._numbers))
            for client in ids
        ]
        self._rounds[index] = np.array(numbers, np.int32)
        self._weights[index] = np.array(
            [by_id[client] for client in ids], np.float32
        )
        self._last_weights.update(by_id)

    def last_weight(self, client: int) -> float:
        """The weight of a client's last replies; NaN for a client that never answered."""
        return self._last_weights.get(client % ID_RANGE, math.nan)

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
        """The clients of the first ``rounds`` rounds, by their numbers in place of their ids."""
        empty: np.ndarray = np.empty(0, np.int32)
        numbers = [self._rounds.get(t, empty) for t in range(rounds)]
        weights = [self._weights.get(t, empty) for t in range(rounds)]
        return ClientLog(
            ids=np.concatenate([empty, *numbers], dtype=np.int64),
            offsets=np.cumsum([0, *map(len, numbers)], dtype=np.int64),
            weights=np.concatenate([empty, *weights], dtype=np.float64),
        )

    def state(self, rounds: int) -> NamedArrays:
        """The state as named arrays, for `restore`."""
        log = self.log(rounds)
        # "clients" has the id of each number, and "clients.ids" the numbers.
        return {
            "clients": np.array(list(self._numbers), np.uint64),
            "clients.ids": np.asarray(log.ids, np.int32),
            "clients.offsets": np.asarray(log.offsets),
            "clients.weights": np.asarray(log.weights, np.float32),
        }

    def restore(self, state: NamedArrays, rounds: int) -> None:
        """Continue from the first ``rounds`` rounds of a `state`, before any other round."""
        ids = state["clients"]
        inner_offsets = state["clients.offsets"][1:-1]
        numbers = np.split(state["clients.ids"], inner_offsets)
        weights = np.split(state["clients.weights"], inner_offsets)
        self._numbers = {
            client: number for number, client in enumerate(ids.tolist())
        }
        for index in range(rounds):
            clients = ids[numbers[index]].tolist()
            self.note(
                index, dict(zip(clients, weights[index].tolist(), strict=True))
            )
