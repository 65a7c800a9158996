"""`Job`, what a run is to do; and the files of an unfinished run, its job and its state.

A file is an archive with checksums (`fl_epe.archive`), readable by its owner alone, because the job
holds the canary seed. The job is a JSON text; the state is named arrays.

There are two: ``checkpoint.npz``, and the one before it as ``checkpoint-previous.npz``. At every
moment one of them is whole, and where the first turns out to be broken the second is used.
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

# Version of the file; another one is refused.
SCHEMA = 1

WHAT = "a checkpoint of fl-epe"


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
        check_count("evaluate_every", self.evaluate_every)

    def to_dict(self) -> dict[str, Any]:
        """The job in JSON values. It has the canary seed: keep it secret until training ended."""
        values = {
            "task": self.task.reference,
            "options": self.task.options(),
            "config": dataclasses.asdict(self.config),
            "seeds": dataclasses.asdict(self.seeds),
            "evaluate_every": self.evaluate_every,
        }
        return dict(json.loads(json.dumps(values)))

    def differences(self, values: Mapping[str, Any]) -> list[str]:
        """Names of what another job's `to_dict` has with other values than this one."""
        theirs, ours = _flat(values), _flat(self.to_dict())
        return sorted(
            name for name in theirs | ours if theirs.get(name) != ours.get(name)
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Job:
        """The inverse of `to_dict`."""
        return cls(
            task=load_task(values["task"], **values["options"]),
            config=RunConfig(**values["config"]),
            seeds=Seeds(**values["seeds"]),
            evaluate_every=values["evaluate_every"],
        )


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        inner = value if isinstance(value, dict) and value else None
        flat |= (
            {f"{name}.{key}": one for key, one in inner.items()}
            if inner
            else {name: value}
        )
    return flat


def files_named(values: Mapping[str, Any], folder: Path) -> list[str]:
    """What a job reads outside the folder of its run, beside the places that its task has anyway.

    Args:
        values: as `Job.to_dict` gives them.
        folder: of the run.
    """
    parts = (values.get(name) for name in ("options", "config"))
    options, config = (part if isinstance(part, dict) else {} for part in parts)
    texts = [
        text
        for text in [*options.values(), config.get("mechanism")]
        if isinstance(text, str)
    ]
    paths = {
        text: Path(text).expanduser()
        for text in texts
        if Path(text).suffix or os.sep in text
    }
    named = [
        text
        for text, path in paths.items()
        if path.exists() and not _is_in(path, folder)
    ]
    if not named:
        return []
    usual = [
        field.default
        for field in dataclasses.fields(find_task(values["task"]).settings)
    ]
    return [text for text in named if text not in usual]


def _is_in(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def load_job(path: Path, task: str | None = None, reads: Collection[Path] = ()) -> Job:
    """The job of an unfinished run.

    Where the newest checkpoint is broken, that of the one before it.

    Args:
        path: of the newest checkpoint.
        task: the reference of its task, which must be given if that is "module:name": importing a
            module runs its code, and no file may choose which.
        reads: files and folders elsewhere that the job may read: none may choose those either.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if the file is not a checkpoint, is damaged, or has a newer schema; if its task
            is another one than ``task``.
    """
    # `run_on_grid` warns
    return from_newest(path, lambda place: _job_in(place, task, reads), go_on=False)


def _job_in(path: Path, task: str | None, reads: Collection[Path]) -> Job:
    folder = path.parent
    values, _ = read_checkpoint(inside(folder, path))
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
        named = files_named(values, folder)
    for text in named:
        if not any(_is_in(Path(text).expanduser(), place) for place in reads):
            raise ArgumentError(
                f"Expected {{reads}} to be named again: the checkpoint in {folder} has this read, "
                "which is outside of that folder.",
                reads=text,
            )
    with values_of(path):
        return Job.from_dict(values)


def write_checkpoint(path: Path, job: Mapping[str, Any], state: NamedArrays) -> None:
    """Write an unfinished run, in one step; the file that was there becomes `previous_of` it.

    Args:
        path: where to; its folder is made if it is missing.
        job: JSON values by name.
        state: named arrays; none before the first checkpoint with a model.
    """
    texts, older = {"job": job}, previous_of(path)
    write_archive(path, state, texts, schema=SCHEMA, compress=False, previous=older)


def read_checkpoint(path: Path) -> tuple[dict[str, Any], NamedArrays]:
    """The job and the state that `write_checkpoint` wrote.

    Raises:
        FileNotFoundError: if there is none.
        UnreadableFileError: if the file is not a checkpoint, is damaged, or has another schema.
    """
    (job,), state = read_archive(path, WHAT, schema=SCHEMA, texts=("job",))
    return job, state


def previous_of(path: Path) -> Path:
    """Where the checkpoint before the one at ``path`` is kept."""
    return path.with_name(f"{path.stem}-previous{path.suffix}")


def _damaged(path: Path) -> Path:
    return path.with_name(f"{path.stem}-damaged{path.suffix}")


def has_checkpoint(path: Path) -> bool:
    """Whether there is an unfinished run, in whatever state."""
    return path.exists() or previous_of(path).exists()


def remove_checkpoint(path: Path) -> None:
    """Remove the files of a run that is finished."""
    for file in (_damaged(path), previous_of(path), path):
        file.unlink(missing_ok=True)


def from_newest(path: Path, read: Callable[[Path], T], *, go_on: bool = True) -> T:
    """What ``read`` makes of the newest checkpoint, or of the one before it if that is broken.

    Args:
        path: of the newest.
        read: raises an `UnreadableFileError` if the file at a path cannot be used.
        go_on: where the older one is used, log a warning that names both, and rename the broken
            one, so that the next checkpoint does not put it in the place of the sound one.

    Raises:
        FileNotFoundError: if there is neither.
        UnreadableFileError: if none can be used; the text names the newest.
    """
    older = previous_of(path)
    try:
        return read(path)
    except (FileNotFoundError, UnreadableFileError) as error:
        if not older.exists():
            raise
        try:
            found = read(older)
        except UnreadableFileError as other:
            raise UnreadableFileError(
                f"{error} The one before it cannot be used either: {other}"
            ) from error
        if go_on:
            logger.warning(
                "%s The run goes on from the checkpoint before it, %s.", error, older
            )
            with contextlib.suppress(
                OSError
            ):  # it is missing, or the folder cannot be written
                path.replace(_damaged(path))
        return found


@contextlib.contextmanager
def values_of(path: Path) -> Iterator[None]:
    """What goes wrong with the values in a checkpoint, as an `UnreadableFileError`."""
    try:
        yield
    except UNREADABLE as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise refusal(path, WHAT, reason) from error
