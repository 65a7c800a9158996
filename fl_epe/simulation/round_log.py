"""`RoundLog`: the participants and the results of each round.

The log starts with the planned cohorts, and each round is corrected when it ends. Records and
checkpoints are made from it.
"""

import logging
from collections.abc import Collection

import numpy as np

from fl_epe.archive import one_line
from fl_epe.auditing import ClientLog, FaultBook, FaultKind
from fl_epe.checks import Booleans, Floats, NamedArrays
from fl_epe.schedules import Cohort
from fl_epe.simulation.dp_fedavg import Plan
from fl_epe.simulation.messages import PartialAggregate, TrainInstruction

logger = logging.getLogger(__name__)

METRICS = ("train_loss", "train_accuracy", "unclipped", "cohort")
"""Names of the log's series that become metrics of a record."""

_SERIES = ("clip_norm", "absent", *METRICS)


class RoundLog:
    """The rounds done so far, and the plan for the remaining ones.

    Args:
        plan: the participation schedule of clients and canaries.

    Attributes:
        cohorts: the clients of each round: the planned ones until the round is closed, and then
            those that took part.
        presence: whether each observed canary is in each round, ``(T, k)``, as in ``cohorts``.
        observed_ids: the canary of each column of ``presence``.
        canaries: number of all canaries.
        rounds_done: number of closed rounds.
        history: values of each series, one for each closed round.
        faults: the faults so far.
    """

    def __init__(self, plan: Plan) -> None:
        self.cohorts = list(plan.cohorts)
        self.presence = plan.presence.copy()
        self.observed_ids = plan.observed_ids
        self.canaries = plan.canaries
        self.rounds_done = 0
        self.history: dict[str, list[float]] = {name: [] for name in _SERIES}
        self.faults = FaultBook()

    def canary_ids(self, t: int) -> Cohort:
        """The observed canaries of round t, which is counted from 0."""
        return np.asarray(self.observed_ids[self.presence[t]])

    def canaries_seen(self) -> Booleans:
        """Whether each observed canary has taken part so far, ``(k,)``."""
        return np.asarray(self.presence[: self.rounds_done].any(axis=0))

    def add_fault(
        self, kind: FaultKind, text: str, number: int | None = None
    ) -> None:
        """Record a fault, and log it; the first of a kind is a warning.

        Args:
            kind: the kind of the fault.
            text: the node, client or canary, and what happened.
            number: number of the round, from 1; by default that of the current round.
        """
        if number is None:
            number = self.rounds_done + 1
        is_first = self.faults.add(number - 1, kind, text)
        level = logging.WARNING if is_first else logging.INFO
        note = "Round %d, %s (faults of this kind are counted)"
        logger.log(level, note, number, one_line(text))

    def close_round(
        self,
        followed: Collection[TrainInstruction],
        total: PartialAggregate,
        clip_norm: float,
    ) -> None:
        """End the current round.

        A client whose update a node lost stays in ``cohorts``. It counts as absent in the series
        "absent", and is among the faults.

        Args:
            followed: the instructions of the nodes that replied; clients and canaries of other
                nodes were absent.
            total: the sum of the replies.
            clip_norm: the clip norm of the round.
        """
        t = self.rounds_done
        scheduled = len(self.cohorts[t]) + len(self.canary_ids(t))
        # Without examples, the means are not known.
        examples = total.examples or np.nan
        row = {
            "clip_norm": clip_norm,
            "absent": scheduled - total.clients - total.canaries,
            "train_loss": total.loss_sum / examples,
            "train_accuracy": total.correct / examples,
            "unclipped": total.unclipped,
            "cohort": total.clients,
        }
        for name, value in row.items():
            self.history[name].append(value)
        clients: list[int] = []
        canaries: list[int] = []
        for instruction in followed:
            clients += instruction.clients
            canaries += instruction.canary_ids
        self.cohorts[t] = np.sort(np.array(clients, np.int64))
        self.presence[t] = np.isin(self.observed_ids, canaries)
        self.rounds_done += 1

    def series(self, name: str) -> Floats:
        """A series of ``history`` as an array, ``(rounds_done,)``."""
        return np.array(self.history[name])

    def clients(self) -> ClientLog:
        """The participants of the rounds done."""
        cohorts = self.cohorts[: self.rounds_done]
        return ClientLog(
            ids=np.concatenate(cohorts),
            offsets=np.cumsum([0, *map(len, cohorts)]),
            absent=self.series("absent").astype(np.int64),
        )

    def state(self) -> NamedArrays:
        """The closed rounds as named arrays, for a checkpoint; the seeds determine the plan."""
        log = self.clients()
        return {
            "rounds_done": np.array(self.rounds_done),
            "presence": self.presence[: self.rounds_done],
            "client_ids": np.asarray(log.ids),
            "client_offsets": np.asarray(log.offsets),
            **{f"history.{name}": self.series(name) for name in _SERIES},
        }

    def restore(self, state: NamedArrays) -> None:
        """The inverse of `state`."""
        rounds = int(state["rounds_done"])
        self.rounds_done = rounds
        self.presence[:rounds] = state["presence"]
        offsets = state["client_offsets"]
        self.cohorts[:rounds] = np.split(state["client_ids"], offsets[1:-1])
        for name in _SERIES:
            series = state[f"history.{name}"]
            if series.shape != (rounds,):
                raise ValueError(
                    f"history.{name} has the shape {series.shape}, not ({rounds},)"
                )
            self.history[name] = series.tolist()
