"""Saves the audit of a run after every round, so that it can continue if the process is killed.

A folder has ``audit.npz``, which is replaced in one step before the first round and after each
round, ``rounds-….npz`` with the scores of a hundred rounds each, and ``start-….npz`` with the
initial model, named by its hash. The last two are written once, so that the cost of a round
does not grow during a run. All have checksums and are readable only by their owner, because the
first contains the canary seed. None contains vectors that wait to be scored, nor a model other
than the initial one: a model is recognized by its hash.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import itertools
import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pydantic
from flwr.app import Array, ArrayRecord

from fl_epe.archive import (
    UNREADABLE,
    digest,
    read_archive,
    refusal,
    write_archive,
)
from fl_epe.checks import ArgumentError, NamedArrays
from fl_epe.files import inside, locked
from fl_epe.flower.fault_log import logger
from fl_epe.flower.layout import Layout
from fl_epe.flower.settings import CanaryAuditSettings, SettingsError
from fl_epe.flower.state import AuditState
from fl_epe.flower.wrapped import Wrapped
from fl_epe.messages import read_only

SCHEMA = 1
"""The version of the files; files with a newer version are not read."""

_WHAT = "an audit saved by CanaryAudit"
# The number of rounds of a file of scores, which is written once.
_BLOCK = 100
# The arrays that get new rows in each round, while their old rows do not change.
_GROWING = (
    "presence",
    "scores",
    "signals",
    "weights",
    "factor",
    "dots.mean",
    "dots.delta",
    "noise.sketch",
    "noise.marks",
    "clients.ids",
    "clients.weights",
)
# The arguments that may differ when an audit continues.
_FREE = {
    "seed",
    "rounds",
    "identity",
    "checkpoint",
    "log_to",
    "enabled",
    "canary_seed",
    "unit",
}
_JSON = pydantic.TypeAdapter(AuditState)


class SavedAudit(NamedTuple):
    """An audit in a checkpoint.

    Attributes:
        audit: the state of the audit after some rounds.
        layout: the layout of the model.
        whole: the layout of the model with all arrays, see `AuditState`.
        scores: the arrays of `RunAuditor.state`.
        start: the initial model.
    """

    audit: AuditState
    layout: Layout
    whole: Layout
    scores: NamedArrays
    start: ArrayRecord


class _Folder(enum.Enum):
    """What is known of a checkpoint folder."""

    UNREAD = enum.auto()
    # The folder is empty, or has an audit that this run does not continue (yet).
    FOREIGN = enum.auto()
    OURS = enum.auto()


# The locks of folders that this process uses. It may save several audits in the same folder.
_LOCKED: dict[Path, contextlib.ExitStack] = {}


def fingerprint(
    settings: CanaryAuditSettings, wrapped: Wrapped
) -> dict[str, Any]:
    """The values that must not change when an audit continues, for JSON, by argument names."""
    names = {field.name for field in dataclasses.fields(settings)} - _FREE
    values = {name: getattr(settings, name) for name in sorted(names)}
    if not isinstance(settings.clients, float | int | None):
        values["clients"] = sorted(map(int, settings.clients))
    values |= {
        "strategy": wrapped.description,
        "strategy's server optimizer": str(wrapped.server()),
        "strategy's noise multiplier": wrapped.noise_multipliers()[1],
    }
    if settings.client_noise is not None:
        values["client_noise"] = dataclasses.asdict(settings.client_noise)
    return dict(
        json.loads(json.dumps(values, default=lambda number: number.item()))
    )


class Checkpoint:
    """The folder in which an audit is saved, if its settings name one.

    The audit of another run in the folder is never overwritten: unless this run continues it,
    it is renamed before this run's audit is saved. Two processes cannot save audits in the same
    folder.

    Args:
        settings: the settings of the audit.
        wrapped: the strategy.
        failed: a function that gets a text that says what failed, and the error.
    """

    def __init__(
        self,
        settings: CanaryAuditSettings,
        wrapped: Wrapped,
        failed: Callable[[str, Exception], object],
    ) -> None:
        self._settings = settings
        self._wrapped = wrapped
        self._failed = failed
        self._directory = Path(settings.checkpoint or "")
        # A `SavedAudit` is here until it is decided whether the run continues it.
        self._content: _Folder | SavedAudit = _Folder.UNREAD

    def close(self) -> None:
        """Unlock the folder for other processes."""
        lock = _LOCKED.pop(self._directory.resolve(), None)
        if lock is not None:
            lock.close()

    def _lock(self) -> None:
        """Lock the folder, if there is one and it can be written to.

        Raises:
            SettingsError: if another process has locked it; the text names both.
        """
        place = self._directory.resolve()
        if self._settings.checkpoint is None or place in _LOCKED:
            return
        lock = contextlib.ExitStack()
        try:
            lock.enter_context(locked(place))
        except ArgumentError as error:
            argument = f"checkpoint={str(self._directory)!r}"
            text = str(error).replace(f"directory={str(place)!r}", argument)
            raise SettingsError(
                f"{text} Or give each server app a folder of its own."
            ) from error
        except OSError:
            # Saving the audit will raise the error again.
            return
        _LOCKED[place] = lock

    def holds(self, arrays: object) -> bool:
        """Whether there is a saved audit that continues with these arrays, if they are a model.

        Raises:
            SettingsError: if there is one with other arguments.
        """
        self._look()
        if not isinstance(self._content, SavedAudit):
            return False
        if isinstance(arrays, ArrayRecord):
            return self.goes_on_after(self._content, arrays) is not None
        self.check(self._content.audit)
        return False

    def take(self, index: int) -> SavedAudit | None:
        """Take the saved audit, which is returned only once; ``None`` without one.

        Args:
            index: the number of rounds of the run so far. If a strategy is hooked without
                `start`, the folder is first read here, before any round.
        """
        if self._content is _Folder.UNREAD and index == 0:
            self._look()
        if not isinstance(self._content, SavedAudit):
            return None
        saved = self._content
        self._content = _Folder.FOREIGN
        return saved

    def own(self) -> None:
        """Note that the run continues the audit that was taken, and so owns the folder."""
        self._content = _Folder.OURS

    def goes_on_after(
        self, saved: SavedAudit, arrays: ArrayRecord
    ) -> int | None:
        """The number of rounds after which the audit continues; ``None`` for another run.

        The initial model is that of a new run, unless no round was completed before.

        Raises:
            SettingsError: if the audit would continue, but with other arguments than before.
        """
        try:
            model = digest(saved.whole.flatten(arrays))
        except ValueError:
            return None
        models = saved.audit.models
        rounds = [t for t, earlier in models.items() if earlier == model]
        if not rounds:
            return None
        rounds_done = max(rounds)
        if rounds_done == 0 and saved.audit.index > 0:
            return None
        try:
            self.check(saved.audit)
        except SettingsError:
            if rounds_done > 0:
                raise
            # Without any round, a new audit loses nothing.
            return None
        return rounds_done

    def check(self, saved: AuditState) -> None:
        """Raise a `SettingsError` for the first argument whose value differs from before."""
        settings = self._settings
        instead = "start again as before, or with another checkpoint folder"
        if settings.seed not in (None, saved.seed):
            raise SettingsError(
                f"Expected another seed to be that of the audit in the checkpoint; {instead}."
            )
        arguments = fingerprint(settings, self._wrapped)
        before = saved.arguments | {"rounds": saved.rounds}
        if settings.rounds is not None:
            arguments["rounds"] = settings.rounds
        for name, value in arguments.items():
            if value != before.get(name):
                raise SettingsError(
                    f"Expected {name}={value!r} to be {before.get(name)!r}, as in the audit in the"
                    f" checkpoint; {instead}."
                )

    def _look(self) -> None:
        """Lock and read the folder."""
        self._lock()
        self._content = _Folder.FOREIGN
        path = self._path("audit")
        try:
            if self._settings.checkpoint is None or not path.exists():
                return
            (values,), scores = read_archive(
                path, _WHAT, schema=SCHEMA, texts=("audit",)
            )
            audit = _JSON.validate_python(values)
            blocks = [
                read_archive(self._path(name), _WHAT, schema=SCHEMA)[1]
                for name in audit.blocks
            ]
            for name in audit.kept_rows:
                parts = [block[name] for block in blocks if name in block]
                scores[name] = np.concatenate([*parts, scores[name]])
            start_path = self._path(f"start-{audit.models[0]}")
            (model,), arrays = read_archive(
                start_path, _WHAT, schema=SCHEMA, texts=("model",)
            )
            start = ArrayRecord(
                {
                    name: Array(arrays[f"{i}"])
                    for i, name in enumerate(model["names"])
                }
            )
            if audit.layout is None or audit.whole is None:
                raise refusal(path, _WHAT, "it has no layout")
            if digest(audit.whole.flatten(start)) != audit.models[0]:
                reason = "it is not the initial model of audit.npz"
                raise refusal(start_path, _WHAT, reason)
            self._content = SavedAudit(
                audit, audit.layout, audit.whole, scores, start
            )
        except UNREADABLE as error:
            self._failed(
                "the saved audit cannot be read, and a new one begins", error
            )

    def save(
        self, state: AuditState, start: ArrayRecord, arrays: NamedArrays
    ) -> None:
        """Write the audit, and when it is first saved, the initial model.

        Args:
            state: the state of the audit; new files of scores are added to it.
            start: the initial model.
            arrays: the scores.
        """
        self._lock()
        state.arguments = state.arguments or fingerprint(
            self._settings, self._wrapped
        )
        path = self._path("audit")
        if self._content is not _Folder.OURS:
            self._set_aside(path)
            model = {
                f"{i}": read_only(array)
                for i, array in enumerate(start.values())
            }
            names = {"model": {"names": list(start)}}
            start_path = self._path(f"start-{state.models[0]}")
            write_archive(
                start_path, model, names, schema=SCHEMA, compress=False
            )
        arrays = self._without_blocks(state, arrays)
        arrays["audit"] = np.frombuffer(_JSON.dump_json(state), np.uint8)
        write_archive(path, arrays, {}, schema=SCHEMA, compress=False)
        self._content = _Folder.OURS

    def _without_blocks(
        self, state: AuditState, arrays: NamedArrays
    ) -> NamedArrays:
        """All arrays without the rows that are in blocks; a full block is written."""
        growing = {name: arrays[name] for name in _GROWING if name in arrays}
        new_rows = {
            name: rows[state.kept_rows.get(name, 0) :]
            for name, rows in growing.items()
        }
        if state.settled and len(new_rows["presence"]) >= _BLOCK:
            block = f"rounds-{state.index}-{secrets.token_hex(4)}"
            path = self._path(block)
            write_archive(path, new_rows, {}, schema=SCHEMA, compress=False)
            state.blocks = [*state.blocks, block]
            state.kept_rows = {
                name: len(rows) for name, rows in growing.items()
            }
            new_rows = {name: rows[:0] for name, rows in growing.items()}
        return arrays | new_rows

    def _set_aside(self, path: Path) -> None:
        """Rename the audit of another run to the first free name."""
        if path.exists():
            paths = (
                self._path(f"audit-{number}") for number in itertools.count(1)
            )
            free = next(name for name in paths if not name.exists())
            path.rename(free)
            logger.warning("Audit: %s is now %s", path, free)

    def _path(self, name: str) -> Path:
        return inside(self._directory, self._directory / f"{name}.npz")
