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

from fl_epe.archive import UnreadableFileError, read_archive, refusal, write_archive

logger = logging.getLogger(__name__)

T = TypeVar("T")

SCHEMA = 1
"""Version of the file; another one is refused."""

WHAT = "a checkpoint of fl-epe"

AUDITOR = "auditor."
"""Before the names of the recorder's arrays."""

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
    texts, previous = {_JOB: json.loads(job)}, previous_of(path)
    write_archive(path, state, texts, schema=SCHEMA, compress=False, previous=previous)


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
        UnreadableFileError: if the file is not a checkpoint, is damaged, or has another schema.
    """
    return json.dumps(_read(path, job_only=True)[0])


def read_state(path: Path) -> dict[str, NDArray[Any]]:
    """The state that `write_checkpoint` wrote; raises what `read_job` does."""
    return _read(path)[1]


def _read(path: Path, *, job_only: bool = False) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    if not path.exists():
        raise FileNotFoundError(f"Expected path={str(path)!r} to exist: no unfinished run there.")
    (job,), state = read_archive(path, WHAT, schema=SCHEMA, texts=(_JOB,), texts_only=job_only)
    return job, state


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
        sketch: length of what is kept of each round's mean.
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
    sketch: int


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


def _check_scores(state: State, fits: Shape, done: int) -> None:
    names = _take(state, f"{AUDITOR}waiting.names", "U", (-1,)).tolist()
    _take(state, f"{AUDITOR}waiting.vectors", "f", (len(names), fits.dim), finite=True)
    if unknown := set(names) - set(fits.series):
        raise ValueError(f"{AUDITOR}waiting.names has {sorted(unknown)[0]!r:.40}")
    for name in fits.series:
        lengths = _take(state, f"{AUDITOR}norms.{name}", "f", (done,), finite=True)
        if np.any(lengths < 0):
            raise ValueError(f"{AUDITOR}norms.{name} are not >= 0")
        scored = done - names.count(name)
        _take(state, f"{AUDITOR}dots.{name}", "f", (scored, fits.canaries), finite=True)
    _check_rounds(state, fits, done)


def _check_rounds(state: State, fits: Shape, done: int) -> None:
    """What `RunAuditor` keeps of each round."""
    for name in ("contribution", "clip_norm", "replies", "absent", "update_norms"):
        _take(state, AUDITOR + name, "f", (done,), finite=True)
    ends = _take(state, f"{AUDITOR}ends", "i", (done,))
    ids = _take(state, f"{AUDITOR}present", "i", (-1,))
    if ends[-1] != len(ids) or np.any(np.diff(ends, prepend=0) < 0):
        raise ValueError(f"{AUDITOR}ends do not rise from 0 to {len(ids)}")
    if len(ids) and not 0 <= ids.min() <= ids.max() < fits.canaries:
        raise ValueError(f"{AUDITOR}present is not in [0, {fits.canaries})")
    _take(state, f"{AUDITOR}weights", "f", ids.shape, finite=True)
    if np.any(_take(state, f"{AUDITOR}gains", "f", (2, len(ids)), finite=True)[1] < 0):
        raise ValueError(f"{AUDITOR}gains has energies below 0")
    if not np.all(_take(state, f"{AUDITOR}widths", "f", (done, 3), finite=True) >= 1):
        raise ValueError(f"{AUDITOR}widths are not >= 1")
    _take(state, f"{AUDITOR}sketches", "f", (done, fits.sketch), finite=True)
