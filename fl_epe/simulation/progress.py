"""`Progress`: the state of a run after a round, to show or to log."""

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Progress:
    """The state of a run after a round.

    Attributes:
        round: number of rounds done.
        rounds: number of all rounds.
        loss: mean training loss of the round's clients.
        accuracy: the last value of the task's metric on held-out data; NaN without one.
        clip_norm: clip norm of the round.
        canaries_seen: number of observed canaries that have taken part at least once.
        seconds_left: expected time until the last round is done.
        epsilons: estimates of ε so far, by their names in metrics: ε of a client against an
            adversary who sees every round's model, its interval, which holds for all rounds at
            once, and the analytical ε. After the last round, they are those of the final
            result. A value is NaN if it is not known.
        metric: name of the task's metric, see `fl_epe.tasks.Task.metric`.
        eval_loss: loss of the last evaluation, on held-out data.
        faults: the first messages about faults.
        fault_counts: the number of faults of each kind.
    """

    round: int
    rounds: int
    loss: float
    accuracy: float
    clip_norm: float
    canaries_seen: int
    seconds_left: float
    metric: str
    epsilons: Mapping[str, float]
    eval_loss: float
    faults: Sequence[str]
    fault_counts: Mapping[str, int]

    def metrics(self) -> dict[str, float]:
        """The metrics for loggers, under the names of the record's metrics; NaN if unknown."""
        return {
            "train_loss": self.loss,
            "eval_loss": self.eval_loss,
            f"eval_{self.metric or 'accuracy'}": self.accuracy,
            "clip_norm": self.clip_norm,
            "canaries_seen": self.canaries_seen,
            "fault_count": sum(self.fault_counts.values()),
            **self.epsilons,
        }
