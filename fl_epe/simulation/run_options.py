"""What a run takes besides its job, and what it tells after every round."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from fl_epe.auditing import EpsilonEstimate
from fl_epe.simulation.stopping import StopRequest


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
        epsilon: ε of every round so far, its interval for all rounds at once, and what the rule
            for an early stop says, in words; empty where nothing is known yet.
        metric: what ``accuracy`` is, see `fl_epe.tasks.Task.metric`.
        estimate: that ε with its interval; ``None`` where nothing is known yet.
        evaluated: how many rounds were done at the last evaluation.
        eval_loss: loss of the last evaluation, on held-out data.
        kept: rounds in the newest checkpoint.
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
    epsilon: str = ""
    metric: str = "accuracy"
    estimate: EpsilonEstimate | None = None
    evaluated: int = 0
    eval_loss: float = math.nan
    kept: int = 0
    faults: Sequence[str] = ()
    fault_counts: Mapping[str, int] = dataclasses.field(default_factory=dict)


class RunOptions(TypedDict, total=False):
    """What `run_on_grid` takes besides the job; none of it changes the result.

    Attributes:
        checkpoint: where to keep the state of an unfinished run, from before the first round on,
            and the state before that beside it. If the file exists, the run goes on from there, or
            from the one before if it is broken. Both hold the canary seed and are readable by their
            owner alone. A disk that is full is a fault, and the run goes on.
        checkpoint_every: how often: a number of rounds (10 by default), or a time such as "5min".
            Whatever it is, there is one after the last round, before the scoring, and one when
            the run ends while it waits for clients: by a `StopRequest`, a signal or an error.
        stop: asks the run to stop.
        round_timeout: seconds to wait for the answers of a round, 3600 by default; who has not
            answered by then counts as absent.
        on_round: called after every round.
        on_model: called with the final model, float32 of shape (dim,), after the last round.
    """

    checkpoint: Path | None
    checkpoint_every: int | str
    stop: StopRequest | None
    round_timeout: float
    on_round: Callable[[Progress], None] | None
    on_model: Callable[[NDArray[np.float32]], None] | None
