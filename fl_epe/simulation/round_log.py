"""What happened in each round of `DPFedAvg`: who took part, the numbers of the round, the faults.

The log starts with the planned cohorts and is corrected as answers come in; records and checkpoints
are filled from it.
"""

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
from fl_epe.simulation.messages import PartialAggregate, TrainInstruction

logger = logging.getLogger(__name__)

METRICS = ("train_loss", "train_accuracy", "unclipped", "cohort")
"""The series of a training that a record has."""

_PER_ROUND = ("clip_norm", "absent", *METRICS)
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

    def canary_ids(self, t: int) -> NDArray[np.int64]:
        """The canaries of round t, counted from 0."""
        return np.asarray(self.observed_ids[self.presence[t]])

    def canaries_seen(self) -> NDArray[np.bool_]:
        """Which observed canaries have taken part so far."""
        return np.asarray(self.presence[: self.rounds_done].any(axis=0))

    def fault(self, kind: FaultKind, text: str, number: int | None = None) -> None:
        """Count a fault, and keep a message about it; the first hundred are kept.

        The first of a kind is logged as a warning.

        Args:
            kind: of the fault.
            text: who, and what.
            number: of the round, from 1; by default the one under way.
        """
        number = self.rounds_done + 1 if number is None else number
        text = one_line(text)
        self.fault_counts[str(kind)] += 1
        level = logging.WARNING if self.fault_counts[str(kind)] == 1 else logging.INFO
        logger.log(level, "Round %d, %s (faults of this kind are counted)", number, text)
        if len(self.faults) < _FAULTS_KEPT:
            self.faults.append(f"round {number}, {text}")

    def close_round(
        self, answered: Collection[TrainInstruction], found: PartialAggregate, clip_norm: float
    ) -> None:
        """End the round under way.

        Clients that a node lost one by one count as having taken part; they are among the faults.

        Args:
            answered: orders of the round; whoever is in another one was absent.
            found: the sum of their answers.
            clip_norm: of the round.
        """
        t, examples = self.rounds_done, found.examples or np.nan
        scheduled = len(self.cohorts[t]) + len(self.canary_ids(t))
        row = {
            "clip_norm": clip_norm,
            "absent": scheduled - found.clients - found.canaries,
            "train_loss": found.loss_sum / examples,
            "train_accuracy": found.correct / examples,
            "unclipped": found.unclipped,
            "cohort": found.clients,
        }
        for name, value in row.items():
            self.history[name].append(value)
        clients = [client for order in answered for client in order.clients]
        self.cohorts[t] = np.sort(np.array(clients, np.int64))
        canaries = [canary for order in answered for canary in order.canary_ids]
        self.presence[t] = np.isin(self.observed_ids, canaries)
        self.rounds_done += 1

    def series(self, name: str) -> NDArray[np.float64]:
        """A series of ``history`` as an array, ``(rounds_done,)``."""
        return np.array(self.history[name])

    def clients(self) -> ClientLog:
        """Who took part in the rounds done."""
        return ClientLog(*self._who(), self.series("absent").astype(np.int64))

    def _who(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        cohorts = self.cohorts[: self.rounds_done]
        return np.concatenate(cohorts), np.cumsum([0, *map(len, cohorts)])

    def state(self) -> dict[str, NDArray[Any]]:
        """The rounds done as named arrays, for a checkpoint; the plan follows from the seeds."""
        ids, offsets = self._who()
        history = {f"history.{name}": np.array(values) for name, values in self.history.items()}
        return history | {
            "rounds_done": np.array(self.rounds_done),
            "faults": np.array(self.faults, dtype=np.str_),
            "fault_kinds": np.array(list(self.fault_counts), dtype=np.str_),
            "fault_counts": np.array(list(self.fault_counts.values()), np.int64),
            "presence": self.presence[: self.rounds_done],
            "client_ids": ids,
            "client_offsets": offsets,
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take up what `state` returned.

        Raises:
            ValueError: if it is of another plan.
        """
        (rounds, canaries), done = self.presence.shape, int(state["rounds_done"])
        if not 1 <= done <= rounds:
            raise ValueError(f"rounds_done={done} is not in [1, {rounds}]")
        wanted: dict[str, tuple[str, tuple[int, ...]]] = {
            "rounds_done": ("i", ()),
            "presence": ("b", (done, canaries)),
            "faults": ("U", (-1,)),
            "fault_kinds": ("U", (-1,)),
            "fault_counts": ("i", (-1,)),
            "client_ids": ("i", (-1,)),
            "client_offsets": ("i", (done + 1,)),
        }
        check_arrays(state, wanted | {f"history.{name}": ("if", (done,)) for name in _PER_ROUND})
        ids, offsets = state["client_ids"], state["client_offsets"]
        if offsets[0] != 0 or offsets[-1] != len(ids) or np.any(np.diff(offsets) < 0):
            raise ValueError(f"client_offsets do not rise from 0 to {len(ids)}")
        counts = zip(state["fault_kinds"].tolist(), state["fault_counts"].tolist(), strict=True)
        self.rounds_done, self.presence[:done] = done, state["presence"]
        self.cohorts[:done] = np.split(ids, offsets[1:-1])
        self.faults, self.fault_counts = state["faults"].tolist(), Counter(dict(counts))
        self.history = {name: state[f"history.{name}"].tolist() for name in _PER_ROUND}
