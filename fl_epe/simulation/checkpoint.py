"""`Job`, the definition of a run, and the checkpoint files of an unfinished run.

A checkpoint has the job, as JSON text, and the state, as named arrays. It is an archive with
checksums (`fl_epe.archive`) that only its owner can read, because the job has the canary seed.

There are two files: the newest checkpoint, ``checkpoint.npz``, and the previous one,
``checkpoint-previous.npz``. At every moment one of them is complete. If the newest is damaged,
the previous one is used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fl_epe.archive import (
    UNREADABLE,
    UnreadableFileError,
    read_archive,
    refusal,
    write_archive,
)
from fl_epe.checks import ArgumentError, NamedArrays, check_count
from fl_epe.config import RunConfig
from fl_epe.files import inside
from fl_epe.seeding import Seeds
from fl_epe.tasks import find_task, load_task

if TYPE_CHECKING:
    from fl_epe.tasks import Task

logger = logging.getLogger(__name__)

T = TypeVar("T")

SCHEMA = 1
"""Version of the file; other versions are refused."""

WHAT = "a checkpoint of fl-epe"
"""The kind of file, in messages."""


@dataclasses.dataclass(frozen=True)
class Job:
    """Everything that determines the result of a run: task, settings and seeds.

    Attributes:
        task: the task whose clients are trained.
        config: the settings of the training.
        seeds: the seeds of the random streams.
        evaluate_every: number of rounds between evaluations on held-out data; the last round is
            always evaluated.
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
        check_count("evaluate_every", self.evaluate_every)

    def to_dict(self) -> dict[str, Any]:
        """The job as JSON values, with the canary seed: keep it secret until training ends."""
        values = {
            "task": self.task.reference,
            "options": self.task.options(),
            "config": dataclasses.asdict(self.config),
            "seeds": dataclasses.asdict(self.seeds),
            "evaluate_every": self.evaluate_every,
        }
        # Values that were read from JSON have lists instead of tuples.
        return dict(json.loads(json.dumps(values)))

    def differences(self, values: Mapping[str, Any]) -> list[str]:
        """Names of the values in which this job differs from another job's `to_dict`."""
        second = _flattened(values)
        first = _flattened(self.to_dict())
        names = sorted(first | second)
        return [name for name in names if first.get(name) != second.get(name)]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Job:
        """The inverse of `to_dict`."""
        return cls(
            task=load_task(values["task"], **values["options"]),
            config=RunConfig(**values["config"]),
            seeds=Seeds(**values["seeds"]),
            evaluate_every=values["evaluate_every"],
        )


def _flattened(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with those of nested mappings under names such as ``config.rounds``."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        # An empty mapping keeps its name.
        if value and isinstance(value, dict):
            flat |= {f"{name}.{key}": entry for key, entry in value.items()}
        else:
            flat[name] = value
    return flat


def files_named(values: Mapping[str, Any], folder: Path) -> list[str]:
    """Names of files that a job reads outside of its folder, except the task's defaults.

    Args:
        values: the job, as from `Job.to_dict`.
        folder: the folder of the run.
    """
    flat = _flattened(values)
    texts = [flat[name] for name in flat if name.startswith("options.")]
    texts.append(flat.get("config.mechanism"))
    names: list[str] = []
    for text in texts:
        # A text without a separator or an ending is a name, such as that of a column.
        if not isinstance(text, str) or not (
            os.sep in text or Path(text).suffix
        ):
            continue
        path = Path(text).expanduser()
        if path.exists() and not _is_in(path, folder):
            names.append(text)
    if not names:
        return []
    fields = dataclasses.fields(find_task(values["task"]).settings)
    defaults = [field.default for field in fields]
    return [name for name in dict.fromkeys(names) if name not in defaults]


def _is_in(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def load_job(
    path: Path, task: str | None = None, reads: Collection[Path] = ()
) -> Job:
    """The job of an unfinished run, from the newest checkpoint that is not damaged.

    The folder may come from somebody else. So its checkpoint must choose neither the module
    that is imported, whose code would run, nor files elsewhere that are read: the user names
    both again.

    Args:
        path: the path of the newest checkpoint.
        task: the reference of the job's task, required if it is "module:name".
        reads: files and folders outside of the folder of ``path`` that the job may read.

    Raises:
        FileNotFoundError: if there is no checkpoint.
        ValueError: if the file is not a checkpoint, is damaged, or has another schema; if its
            task is not ``task``; or if the job reads other files outside of the folder.
    """

    def read_job(file: Path) -> Job:
        values, _ = read_checkpoint(inside(path.parent, file))
        _check_task(values, path.parent, task)
        with checkpoint_errors(file):
            names = files_named(values, path.parent)
        for name in names:
            read_path = Path(name).expanduser()
            if not any(_is_in(read_path, allowed) for allowed in reads):
                raise ArgumentError(
                    f"Expected {{reads}} to be named again: the checkpoint in {path.parent} "
                    "reads this path, which is outside of that folder.",
                    reads=name,
                )
        with checkpoint_errors(file):
            return Job.from_dict(values)

    # `run_on_grid` reads the checkpoint again, and warns then if the newest one is damaged.
    return from_newest(path, read_job, go_on=False)


def _check_task(
    values: Mapping[str, Any], folder: Path, task: str | None
) -> None:
    """Refuse the task of a job unless the user named it, or named none and it is built in."""
    stored_task = str(values.get("task", ""))
    if task is None and ":" in stored_task:
        raise ArgumentError(
            f"Expected {{task}} to be named again: the checkpoint in {folder} names this "
            "module, and importing it runs its code.",
            task=stored_task,
        )
    if task not in (None, stored_task):
        raise ValueError(
            f"Expected task={task!r} to be {stored_task!r:.400}, the task of the checkpoint in "
            f"{folder}."
        )


def write_checkpoint(
    path: Path, job: Mapping[str, Any], state: NamedArrays
) -> None:
    """Write a checkpoint atomically; an existing file is renamed to `previous_of` it.

    Args:
        path: the path of the file; its folder is created if it is missing.
        job: the job, as JSON values by name.
        state: the state, as named arrays; empty before the first round.
    """
    write_archive(
        path,
        state,
        {"job": job},
        schema=SCHEMA,
        compress=False,
        previous=previous_of(path),
    )


def read_checkpoint(path: Path) -> tuple[dict[str, Any], NamedArrays]:
    """The job and the state that `write_checkpoint` wrote.

    Raises:
        FileNotFoundError: if there is no such file.
        UnreadableFileError: if the file is not a checkpoint, is damaged, or has another schema.
    """
    (job,), state = read_archive(path, WHAT, schema=SCHEMA, texts=("job",))
    return job, state


def previous_of(path: Path) -> Path:
    """The path of the checkpoint before the one at ``path``."""
    return path.with_name(f"{path.stem}-previous{path.suffix}")


def damaged_of(path: Path) -> Path:
    """The path to which a damaged checkpoint at ``path`` is renamed."""
    return path.with_name(f"{path.stem}-damaged{path.suffix}")


def has_checkpoint(path: Path) -> bool:
    """Whether there is an unfinished run, even if its files are damaged."""
    return path.exists() or previous_of(path).exists()


def remove_checkpoint(path: Path) -> None:
    """Remove the checkpoints of a finished run."""
    for file in (damaged_of(path), previous_of(path), path):
        file.unlink(missing_ok=True)


def from_newest(
    path: Path, read: Callable[[Path], T], *, go_on: bool = True
) -> T:
    """The result of ``read`` for the newest checkpoint, or for the previous if it is damaged.

    Args:
        path: the path of the newest checkpoint.
        read: a function of a path that raises an `UnreadableFileError` if the file is not
            usable.
        go_on: whether the run goes on from this checkpoint. If it is the previous one, a
            warning names both, and the damaged one is renamed: the next checkpoint would
            otherwise make it the previous one.

    Raises:
        FileNotFoundError: if there is no checkpoint.
        UnreadableFileError: if no checkpoint is usable; the message names the newest.
    """
    previous = previous_of(path)
    try:
        return read(path)
    except (FileNotFoundError, UnreadableFileError) as error:
        if not previous.exists():
            raise
        try:
            result = read(previous)
        except UnreadableFileError as second:
            raise UnreadableFileError(
                f"{error} The one before it cannot be used either: {second}"
            ) from error
        if go_on:
            logger.warning(
                "%s The run goes on from the checkpoint before it, %s.",
                error,
                previous,
            )
            # The newest file may be missing, or the folder may not be writable.
            with contextlib.suppress(OSError):
                path.replace(damaged_of(path))
        return result


@contextlib.contextmanager
def checkpoint_errors(path: Path) -> Iterator[None]:
    """Turn errors about the values in a checkpoint into an `UnreadableFileError`."""
    try:
        yield
    except UNREADABLE as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise refusal(path, WHAT, reason) from error
