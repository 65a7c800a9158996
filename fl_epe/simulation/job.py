"""`Job`: what a run is to do, as JSON values in a checkpoint."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fl_epe.checks import ArgumentError, check_count
from fl_epe.config import RunConfig
from fl_epe.seeding import Seeds
from fl_epe.simulation.checkpoint import from_newest, read_checkpoint, values_of
from fl_epe.tasks import Task, load_task


@dataclasses.dataclass(frozen=True)
class Job:
    """A task, how to train it, and with which random streams: all that decides the result.

    Attributes:
        task: whose clients are trained.
        config: how they are trained.
        seeds: the random streams.
        evaluate_every: rounds between evaluations on held-out data; the last is always evaluated.
    """

    task: Task
    config: RunConfig
    seeds: Seeds
    evaluate_every: int = 5

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
        check_count("evaluate_every", self.evaluate_every)

    def to_dict(self) -> dict[str, Any]:
        """The job in JSON values. It has the canary seed: keep it secret until training ended."""
        values = {
            "task": self.task.reference,
            "options": self.task.options(),
            "config": self.config.to_dict(),
            "seeds": self.seeds.to_dict(),
            "evaluate_every": self.evaluate_every,
        }
        found: dict[str, Any] = json.loads(json.dumps(values))
        return found

    def differences(self, values: Mapping[str, Any]) -> list[str]:
        """Names of what another job's `to_dict` has with other values than this one."""
        theirs, ours = _flat(values), _flat(self.to_dict())
        return sorted(name for name in theirs | ours if theirs.get(name) != ours.get(name))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Job:
        """The inverse of `to_dict`."""
        return cls(
            task=load_task(values["task"], **values["options"]),
            config=RunConfig.from_dict(values["config"]),
            seeds=Seeds(**values["seeds"]),
            evaluate_every=values["evaluate_every"],
        )


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        inner = (
            {f"{name}.{key}": one for key, one in value.items()} if isinstance(value, dict) else {}
        )
        flat |= inner or {name: value}
    return flat


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
    values, _ = read_checkpoint(path, job_only=True)
    found = str(values.get("task", ""))
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
    with values_of(path):
        return Job.from_dict(values)
