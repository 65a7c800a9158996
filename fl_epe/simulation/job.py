"""`Job`: what a run is to do, as text in a checkpoint."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np

from fl_epe.archive import refusal
from fl_epe.canaries import SCORE_MEMORY
from fl_epe.checks import LARGEST, ArgumentError, check_count, raise_invalid
from fl_epe.config import RunConfig
from fl_epe.seeding import Seeds
from fl_epe.simulation.checkpoint import WHAT, from_newest, read_job
from fl_epe.tasks import Task, load_task

_MOST_ROUNDS = 10**6  # of a checkpoint: a schedule of more takes minutes to draw


@dataclasses.dataclass(frozen=True)
class Job:
    """A task, how to train it, and with which random streams: all that decides the result.

    Attributes:
        task: whose clients are trained.
        config: how they are trained.
        seeds: the random streams.
        evaluate_every: rounds between evaluations on held-out data; the last is always evaluated.
        score_memory: bytes for rounds that wait to be scored together, if ``canary_kind`` is
            "sphere"; all canaries are made anew for each such block, and blocks decide last bits.
    """

    task: Task
    config: RunConfig
    seeds: Seeds
    evaluate_every: int = 5
    score_memory: int = SCORE_MEMORY

    def __post_init__(self) -> None:
        if self.config.clients != self.task.num_clients:
            raise ValueError(
                f"Expected clients={self.config.clients} to be those of the task, "
                f"{self.task.num_clients}."
            )
        if not isinstance(self.task.num_clients, int | np.integer):
            raise ValueError(
                f"Expected num_clients={self.task.num_clients!r} of the task to be a whole number."
            )
        if self.evaluate_every < 1:
            raise ArgumentError(
                "Expected {evaluate_every} >= 1.", evaluate_every=self.evaluate_every
            )

    def to_json(self) -> str:
        """The job as text. It holds the canary seed: keep it secret until training has ended."""
        return json.dumps(
            {
                "task": self.task.reference,
                "options": self.task.options(),
                "config": self.config.to_dict(),
                "seeds": self.seeds.to_dict(),
                "evaluate_every": self.evaluate_every,
                "score_memory": self.score_memory,
            }
        )

    def differences(self, text: str) -> list[str]:
        """Names of what a job in JSON has with other values than this one."""
        theirs, ours = json.loads(text), json.loads(self.to_json())
        found = []
        for name, value in ours.items():
            other = theirs.get(name)
            if isinstance(value, dict) and isinstance(other, dict):
                keys = (key for key in value.keys() | other if value.get(key) != other.get(key))
                found += [f"{name}.{key}" for key in sorted(keys)]
            elif value != other:
                found.append(name)
        return found

    @classmethod
    def from_json(cls, text: str) -> Job:
        """The inverse of `to_json`."""
        values = json.loads(text)
        task, options = values["task"], values["options"]
        config, seeds, every = values["config"], values["seeds"], values["evaluate_every"]
        check_count("score_memory", values["score_memory"], LARGEST)
        for name in ("config", "seeds"):
            if not isinstance(values[name], dict):
                raise_invalid(name, values[name], "to be a table")
        rounds = config.get("rounds", 1)
        if not isinstance(rounds, int | float) or rounds > _MOST_ROUNDS:
            raise ValueError(f"Expected config.rounds={rounds!r:.40} <= {_MOST_ROUNDS}.")
        if type(every) is not int or type(task) is not str or type(options) is not dict:
            raise ValueError(f"Expected evaluate_every={every!r:.40} to be a whole number.")
        return cls(
            task=load_task(task, **options),
            config=RunConfig.from_dict(config),
            seeds=Seeds(**seeds),
            evaluate_every=every,
            score_memory=values["score_memory"],
        )


def load_job(path: Path, task: str | None = None) -> Job:
    """The job of an unfinished run, without reading its state.

    Where the newest checkpoint is broken, that of the one before it.

    Args:
        path: of the newest checkpoint.
        task: the reference of its task, which must be given if that is "module:name": importing a
            module runs its code, and no file may choose which.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if the file is not a checkpoint, is damaged, or has a newer schema; if its task
            is another one than ``task``.
    """
    # `run_on_grid` warns
    return from_newest(path, lambda place: _job_in(place, task), go_on=False)


def _job_in(path: Path, task: str | None) -> Job:
    text = read_job(path)
    found = str(json.loads(text).get("task", ""))
    if task is None and ":" in found:
        raise ArgumentError(
            f"Expected {{task}} to be named again: the checkpoint in {path.parent} names this "
            "module, and importing it runs its code.",
            task=found,
        )
    if task not in (None, found):
        raise ValueError(
            f"Expected task={task!r} to be {found!r:.400}, the task of the checkpoint in "
            f"{path.parent}."
        )
    try:
        return Job.from_json(text)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"'job' has no {error}" if isinstance(error, KeyError) else f"'job': {error}"
        raise refusal(path, WHAT, reason) from error
