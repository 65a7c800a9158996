"""The files of an unfinished run: its job and its state, from which it goes on.

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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fl_epe.archive import Archive, UnreadableFileError, read_archive, refusal, write_archive
from fl_epe.auditing import SKETCH_PARTS

logger = logging.getLogger(__name__)

T = TypeVar("T")

SCHEMA = 2
"""Version of the file; since 2 it has checksums. A newer one is refused."""

WHAT = "a checkpoint of fl-epe"

SCORER = "tracker."
"""Before the names of the scorer's arrays."""

WATCHED = "watched."
"""Before the names of what a run that may stop early knows of ε."""

KINDS, COUNTS = "fault_kinds", "fault_counts"
"""Names of the arrays that count faults by their kind."""

_JOB = "job"


def write_checkpoint(path: Path, job: str, state: Mapping[str, NDArray[Any]]) -> None:
    """Write an unfinished run, in one step; the file that was there becomes `previous_of` it.

    Args:
        path: where to; its folder is made if it is missing.
        job: a JSON object as text.
        state: named arrays; none before the first checkpoint with a model.
    """
    text = {"schema": SCHEMA, **json.loads(job)}
    write_archive(path, state, {_JOB: text}, compress=False, previous=previous_of(path))


def previous_of(path: Path) -> Path:
    """Where the checkpoint before the one at ``path`` is kept."""
    return path.with_name(f"{path.stem}-previous{path.suffix}")


def damaged(path: Path) -> Path:
    """Where a newest checkpoint is kept that turned out to be broken."""
    return path.with_name(f"{path.stem}-damaged{path.suffix}")


def has_checkpoint(path: Path) -> bool:
    """Whether there is an unfinished run, in whatever state."""
    return path.exists() or previous_of(path).exists()


def remove_checkpoint(path: Path) -> None:
    """Remove the files of a run that is finished."""
    damaged(path).unlink(missing_ok=True)
    previous_of(path).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


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
            text = f"{error} The one before it cannot be used either: {other}"
            raise UnreadableFileError(text) from error
        if go_on:
            logger.warning("%s The run goes on from the checkpoint before it, %s.", error, older)
            with contextlib.suppress(OSError):  # it is missing, or the folder cannot be written
                path.replace(damaged(path))
        return found


def read_job(path: Path) -> str:
    """The job in a checkpoint, as text; the state is not read.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if the file is not a checkpoint, is damaged, or has a newer schema.
    """
    archive = _open(path, only=(_JOB,))
    values = archive.text(_JOB)
    archive.check_schema(values.pop("schema", 1), SCHEMA)
    return json.dumps(values)


def read_state(path: Path) -> dict[str, NDArray[Any]]:
    """The state that `write_checkpoint` wrote; raises what `read_job` does."""
    archive = _open(path)
    archive.text(_JOB)
    return archive.arrays()


def _open(path: Path, only: tuple[str, ...] | None = None) -> Archive:
    if not path.exists():
        raise FileNotFoundError(f"Expected path={str(path)!r} to exist: no unfinished run there.")
    return read_archive(path, WHAT, only)


@dataclasses.dataclass(frozen=True)
class Shape:
    """What the state of a run must fit: sizes that its job decides.

    Attributes:
        dim: parameters of the model.
        rounds: of the whole run.
        clients: real clients.
        observed: canaries that take part.
        canaries: all canaries.
        series: names of the vectors that are scored in each round.
        optimizer: the server optimizer's state before the first round.
        evaluated: names of the series of evaluations.
        history: names of the series of rounds.
        watched: whether the run may stop early.
    """

    dim: int
    rounds: int
    clients: int
    observed: int
    canaries: int
    series: Sequence[str]
    optimizer: Mapping[str, NDArray[Any]]
    evaluated: Sequence[str]
    history: Sequence[str]
    watched: bool = False


State = Mapping[str, NDArray[Any]]


def check_state(path: Path, state: State, fits: Shape) -> None:
    """Raise an `UnreadableFileError` that names the first array that does not fit the job.

    Args:
        path: where ``state`` was read from.
        state: what `read_state` returned, with at least one round done.
        fits: the sizes of the job.
    """
    try:
        done = int(_take(state, "rounds_done", "i", ()))
        if not 1 <= done <= fits.rounds:
            raise ValueError(f"rounds_done={done} is not in [1, {fits.rounds}]")
        _check_model(state, fits)
        _check_log(state, fits, done)
        _check_scores(state, fits, done)
        if fits.watched:
            _check_watched(state, fits, done)
    except ValueError as error:
        raise refusal(path, WHAT, error) from error


def _take(
    state: State, name: str, kinds: str, shape: tuple[int, ...], *, finite: bool = False
) -> NDArray[Any]:
    """The array ``name``; -1 in its shape stands for any length."""
    if name not in state:
        raise ValueError(f"it has no {name!r}")
    array = state[name]
    fits = array.ndim == len(shape) and all(
        wanted in (-1, found) for wanted, found in zip(shape, array.shape, strict=True)
    )
    if array.dtype.kind not in kinds or not fits:
        raise ValueError(
            f"{name} is {array.dtype} of shape {array.shape}, not {_KINDS[kinds]} of shape {shape}"
        )
    if finite and not np.all(np.isfinite(array)):
        raise ValueError(f"{name} is not finite")
    return array


_KINDS = {
    "f": "real numbers",
    "if": "numbers",
    "i": "whole numbers",
    "b": "true and false",
    "U": "texts",
}


def _check_model(state: State, fits: Shape) -> None:
    for name in ("theta", "start"):
        if _take(state, name, "f", (fits.dim,), finite=True).dtype != np.float32:
            raise ValueError(f"{name} is {state[name].dtype}, not float32")
    if not _take(state, "clip_norm", "f", (), finite=True) > 0:
        raise ValueError(f"clip_norm={state['clip_norm']} is not > 0")
    for name, before in fits.optimizer.items():
        _take(state, f"optimizer.{name}", "f", before.shape, finite=True)


def _check_log(state: State, fits: Shape, done: int) -> None:
    _take(state, "presence", "b", (fits.rounds, fits.observed))
    _take(state, "faults", "U", (-1,))
    if KINDS in state:  # older files lack them
        kinds = _take(state, KINDS, "U", (-1,))
        if np.any(_take(state, COUNTS, "i", kinds.shape) < 0):
            raise ValueError(f"{COUNTS} are not >= 0")
    ids = _take(state, "client_ids", "i", (-1,))
    offsets = _take(state, "client_offsets", "i", (fits.rounds + 1,))
    if offsets[0] != 0 or offsets[-1] != len(ids) or np.any(np.diff(offsets) < 0):
        raise ValueError(f"client_offsets do not rise from 0 to {len(ids)}")
    if len(ids) and not 0 <= ids.min() <= ids.max() < fits.clients:
        raise ValueError(f"client_ids are not in [0, {fits.clients})")
    for name in fits.history:
        _take(state, f"history.{name}", "if", (done,))
    lengths = {len(_take(state, f"series.{name}", "if", (-1,))) for name in fits.evaluated}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(
            f"series.{fits.evaluated[0]} and the others differ in length, or are empty"
        )


def _check_watched(state: State, fits: Shape, done: int) -> None:
    sums = _take(state, f"{WATCHED}sums", "f", (2, fits.canaries), finite=True)
    unit = _take(state, f"{WATCHED}unit", "f", (), finite=True)
    if np.any(sums[1] < 0) or unit < 0 or (unit == 0 and np.any(sums != 0)):
        raise ValueError(f"{WATCHED}unit={unit} and {WATCHED}sums are not those of one run")
    if f"{WATCHED}sketches" in state:  # earlier versions did not keep them
        _take(state, f"{WATCHED}sketches", "f", (done, min(fits.dim, SKETCH_PARTS)), finite=True)


def _check_scores(state: State, fits: Shape, done: int) -> None:
    names = _take(state, f"{SCORER}waiting.names", "U", (-1,)).tolist()
    _take(state, f"{SCORER}waiting.vectors", "f", (len(names), fits.dim), finite=True)
    if unknown := set(names) - set(fits.series):
        raise ValueError(f"{SCORER}waiting.names has {sorted(unknown)[0]!r:.40}")
    for name in fits.series:
        lengths = _take(state, f"{SCORER}norms.{name}", "f", (done,), finite=True)
        if np.any(lengths < 0):
            raise ValueError(f"{SCORER}norms.{name} are not >= 0")
        scored = done - names.count(name)
        _take(state, f"{SCORER}dots.{name}", "f", (scored, fits.canaries), finite=True)
