"""`Progress`: where a run stands after a round, for whoever shows or logs it."""

import dataclasses
import math
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where a run stands after a round.

    Attributes:
        round: rounds done.
        rounds: rounds in all.
        loss: mean training loss of the round's clients.
        accuracy: the last accuracy on held-out data, or the task's other metric; NaN without one.
        clip_norm: clip norm of the round.
        canaries_seen: observed canaries that have taken part at least once.
        seconds_left: expected time until the last round is done.
        epsilons: ε of a client so far, against who sees every round's model, its interval for all
            rounds at once, and what theory allows, by their names in metrics; after the last round
            the answer; NaN where nothing is known.
        metric: what ``accuracy`` is, see `fl_epe.tasks.Task.metric`.
        eval_loss: loss of the last evaluation, on held-out data.
        faults: the first messages about what went wrong.
        fault_counts: how often each kind of fault happened.
    """

    round: int
    rounds: int
    loss: float
    accuracy: float
    clip_norm: float
    canaries_seen: int
    seconds_left: float
    metric: str = "accuracy"
    epsilons: Mapping[str, float] = dataclasses.field(default_factory=dict)
    eval_loss: float = math.nan
    faults: Sequence[str] = ()
    fault_counts: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def metrics(self) -> dict[str, float]:
        """What loggers are told, under the names of the record's metrics; NaN if not known."""
        return {
            "train_loss": self.loss,
            "eval_loss": self.eval_loss,
            f"eval_{self.metric or 'accuracy'}": self.accuracy,
            "clip_norm": self.clip_norm,
            "canaries_seen": self.canaries_seen,
            "fault_count": sum(self.fault_counts.values()),
            **self.epsilons,
        }
