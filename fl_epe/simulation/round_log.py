"""What happened in each round of `DPFedAvg`: who took part, the numbers of the round, the faults.

The log starts with the planned cohorts and is corrected as answers come in; records and checkpoints
are filled from it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_epe.archive import one_line
from fl_epe.auditing import ClientLog, FaultKind
from fl_epe.simulation.checkpoint import check_arrays
from fl_epe.simulation.dp_fedavg import Plan
from fl_epe.simulation.messages import TrainInstruction

logger = logging.getLogger(__name__)

_PER_ROUND = ("clip_norm", "absent", "cohort", "unclipped", "loss", "accuracy")
_METRICS = {
    "train_loss": "loss",
    "train_accuracy": "accuracy",
    "unclipped": "unclipped",
    "cohort": "cohort",
}
_FAULTS_KEPT = 100


class RoundLog:
    """The rounds done so far, and the plan for the others.

    Args:
        plan: who takes part in which round.
    """

    def __init__(self, plan: Plan) -> None:
        self.cohorts = list(plan.cohorts)
        self.presence = plan.presence.copy()
        self.observed_ids = plan.observed_ids
        self.rounds_done = 0
        self.history: dict[str, list[float]] = {name: [] for name in _PER_ROUND}
        self.faults: list[str] = []
        self.fault_counts: Counter[str] = Counter()
        self._here: Counter[FaultKind] = Counter()  # in this process

    def canary_ids(self, t: int) -> NDArray[np.int64]:
        """The canaries of round t, counted from 0."""
        ids: NDArray[np.int64] = self.observed_ids[self.presence[t]]
        return ids

    def canaries_seen(self) -> int:
        """How many observed canaries have taken part so far."""
        return int(self.presence[: self.rounds_done].any(axis=0).sum())

    def scheduled(self) -> int:
        """How many updates the round under way should bring, canaries included."""
        t = self.rounds_done
        return len(self.cohorts[t]) + int(self.presence[t].sum())

    def fault(self, kind: FaultKind, text: str, number: int | None = None) -> None:
        """Count a fault, and keep a message about it; the first hundred are kept.

        The first of a kind is logged as a warning, then the tenth, the hundredth and so on.

        Args:
            kind: of the fault.
            text: who, and what.
            number: of the round, from 1; by default the one under way.
        """
        number = self.rounds_done + 1 if number is None else number
        text = one_line(text)
        self.fault_counts[str(kind)] += 1
        self._tell(kind, f"Round {number}, {text}")
        if len(self.faults) < _FAULTS_KEPT:
            self.faults.append(f"round {number}, {text}")

    def _tell(self, kind: FaultKind, text: str) -> None:
        self._here[kind] += 1
        count = self._here[kind]
        if count == 1:
            logger.warning("%s (More faults of this kind are counted, see the report.)", text)
        elif str(count).strip("0") == "1":
            logger.warning("%s (%s: %d times so far.)", text, kind, count)
        else:
            logger.info("%s", text)

    def took_part(self, orders: Collection[TrainInstruction]) -> None:
        """Correct the plan of the round under way: these orders were answered, others were not.

        Clients that such a node lost one by one are among the faults.
        """
        clients = [client for order in orders for client in order.clients]
        canaries = [canary for order in orders for canary in order.canary_ids]
        self.cohorts[self.rounds_done] = np.sort(np.array(clients, np.int64))
        self.presence[self.rounds_done] = np.isin(self.observed_ids, canaries)

    def close_round(self, row: Mapping[str, float]) -> None:
        """End the round under way with its numbers, one for each series of ``history``."""
        for name in _PER_ROUND:
            self.history[name].append(row[name])
        self.rounds_done += 1

    def series(self, name: str) -> NDArray[np.float64]:
        """A series of ``history`` as an array, ``(rounds_done,)``."""
        return np.array(self.history[name])

    def metrics(self) -> dict[str, NDArray[np.float64]]:
        """The training's series by their names in a record."""
        return {name: self.series(own) for name, own in _METRICS.items()}

    def clients(self) -> ClientLog:
        """Who took part in the rounds done."""
        rounds = self.rounds_done
        absent = self.series("absent").astype(np.int64)
        return ClientLog(
            np.concatenate(self.cohorts[:rounds]), self._offsets()[: rounds + 1], absent
        )

    def _offsets(self) -> NDArray[np.int64]:
        return np.cumsum([0, *map(len, self.cohorts)])

    def state(self) -> dict[str, NDArray[Any]]:
        """All of it as named arrays, for a checkpoint."""
        history = {f"history.{name}": np.array(values) for name, values in self.history.items()}
        return history | {
            "rounds_done": np.array(self.rounds_done),
            "faults": np.array(self.faults, dtype=np.str_),
            "fault_kinds": np.array(list(self.fault_counts), dtype=np.str_),
            "fault_counts": np.array(list(self.fault_counts.values()), np.int64),
            "presence": self.presence,
            "client_ids": np.concatenate(self.cohorts),
            "client_offsets": self._offsets(),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take up what `state` returned.

        Raises:
            ValueError: if it is of another plan.
        """
        (rounds, _), done = self.presence.shape, int(state["rounds_done"])
        if not 1 <= done <= rounds:
            raise ValueError(f"rounds_done={done} is not in [1, {rounds}]")
        wanted: dict[str, tuple[str, tuple[int, ...]]] = {
            "rounds_done": ("i", ()),
            "presence": ("b", self.presence.shape),
            "faults": ("U", (-1,)),
            "fault_kinds": ("U", (-1,)),
            "fault_counts": ("i", (-1,)),
            "client_ids": ("i", (-1,)),
            "client_offsets": ("i", (rounds + 1,)),
        }
        check_arrays(state, wanted | {f"history.{name}": ("if", (done,)) for name in _PER_ROUND})
        ids, offsets = state["client_ids"], state["client_offsets"]
        if offsets[0] != 0 or offsets[-1] != len(ids) or np.any(np.diff(offsets) < 0):
            raise ValueError(f"client_offsets do not rise from 0 to {len(ids)}")
        counts = zip(state["fault_kinds"].tolist(), state["fault_counts"].tolist(), strict=True)
        self.rounds_done, self.presence = done, state["presence"]
        self.cohorts = np.split(ids, offsets[1:-1])
        self.faults, self.fault_counts = state["faults"].tolist(), Counter(dict(counts))
        self.history = {name: state[f"history.{name}"].tolist() for name in _PER_ROUND}
