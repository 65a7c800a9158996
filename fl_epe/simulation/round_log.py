"""`RoundLog`: who took part in each round, and what became of it.

The log starts with the planned cohorts and is corrected as answers come in; records and checkpoints
are filled from it.
"""

import logging
from collections.abc import Collection

import numpy as np

from fl_epe.archive import one_line
from fl_epe.auditing import ClientLog, FaultBook, FaultKind
from fl_epe.checks import Booleans, Floats, NamedArrays
from fl_epe.schedules import Cohort
from fl_epe.simulation.dp_fedavg import Plan
from fl_epe.simulation.messages import (
    PartialAggregate,
    TrainInstruction,
)

logger = logging.getLogger(__name__)

# The series of a training that a record has.
METRICS = ("train_loss", "train_accuracy", "unclipped", "cohort")

_PER_ROUND = ("clip_norm", "absent", *METRICS)


class RoundLog:
    """The rounds done so far, and the plan for the others.

    Args:
        plan: who takes part in which round.

    Attributes:
        faults: the book of what went wrong.
    """

    def __init__(self, plan: Plan) -> None:
        self.cohorts = list(plan.cohorts)
        self.presence = plan.presence.copy()
        self.observed_ids, self.canaries = plan.observed_ids, plan.canaries
        self.rounds_done = 0
        self.history: dict[str, list[float]] = {name: [] for name in _PER_ROUND}
        self.faults = FaultBook()

    def canary_ids(self, t: int) -> Cohort:
        """The canaries of round t, counted from 0."""
        return np.asarray(self.observed_ids[self.presence[t]])

    def canaries_seen(self) -> Booleans:
        """Which observed canaries have taken part so far."""
        return np.asarray(self.presence[: self.rounds_done].any(axis=0))

    def fault(self, kind: FaultKind, text: str, number: int | None = None) -> None:
        """Enter a fault in the book, and log it; the first of a kind is a warning.

        Args:
            kind: of the fault.
            text: who, and what.
            number: of the round, from 1; by default the one under way.
        """
        number = self.rounds_done + 1 if number is None else number
        is_first = self.faults.add(number - 1, kind, text)
        level = logging.WARNING if is_first else logging.INFO
        logger.log(
            level,
            "Round %d, %s (faults of this kind are counted)",
            number,
            one_line(text),
        )

    def close_round(
        self,
        answered: Collection[TrainInstruction],
        found: PartialAggregate,
        clip_norm: float,
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

    def series(self, name: str) -> Floats:
        """A series of ``history`` as an array, ``(rounds_done,)``."""
        return np.array(self.history[name])

    def clients(self) -> ClientLog:
        """Who took part in the rounds done."""
        cohorts = self.cohorts[: self.rounds_done]
        return ClientLog(
            ids=np.concatenate(cohorts),
            offsets=np.cumsum([0, *map(len, cohorts)]),
            absent=self.series("absent").astype(np.int64),
        )

    def state(self) -> NamedArrays:
        """The rounds done as named arrays, for a checkpoint; the plan follows from the seeds."""
        log = self.clients()
        history = {
            f"history.{name}": np.array(values) for name, values in self.history.items()
        }
        return history | {
            "rounds_done": np.array(self.rounds_done),
            "presence": self.presence[: self.rounds_done],
            "client_ids": np.asarray(log.ids),
            "client_offsets": np.asarray(log.offsets),
        }

    def restore(self, state: NamedArrays) -> None:
        """Take up what `state` returned."""
        done = int(state["rounds_done"])
        self.rounds_done, self.presence[:done] = done, state["presence"]
        self.cohorts[:done] = np.split(
            state["client_ids"], state["client_offsets"][1:-1]
        )
        for name in _PER_ROUND:
            series = state[f"history.{name}"]
            if series.shape != (done,):
                raise ValueError(
                    f"history.{name} has the shape {series.shape}, not ({done},)"
                )
            self.history[name] = series.tolist()
