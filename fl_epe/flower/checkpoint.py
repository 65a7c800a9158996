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
from fl_epe.checks import ArgumentError, NamedArrays, rename_arguments
from fl_epe.files import inside, locked
from fl_epe.flower.fault_log import logger
from fl_epe.flower.layout import Layout
from fl_epe.flower.settings import CanaryAuditSettings, SettingsError
from fl_epe.flower.state import AuditState
from fl_epe.flower.wrapped import Wrapped
from fl_epe.messages import read_only

SCHEMA = 1
"""The version of the files; files with another version are not read."""

_FILE_KIND = "an audit saved by CanaryAudit"
# The number of rounds in a file of scores, which is written once. It bounds the rows that are
# written again in each round.
_ROUNDS_PER_FILE = 100
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
_MAY_CHANGE = {
    "seed",
    "rounds",
    "identity",
    "checkpoint",
    "log_to",
    "enabled",
    "canary_seed",
    "unit",
}
_STATE_TYPE = pydantic.TypeAdapter(AuditState)


class SavedAudit(NamedTuple):
    """An audit in a checkpoint.

    Attributes:
        audit: the state of the audit after some rounds.
        layout: the layout of the model.
        full_layout: the layout of the model with all arrays, see `AuditState`.
        scores: the arrays of `RunAuditor.state`.
        start: the initial model.
    """

    audit: AuditState
    layout: Layout
    full_layout: Layout
    scores: NamedArrays
    start: ArrayRecord


# The locks of the folders that this process uses, by folder. All its audits share them, as it
# may save several audits in the same folder, one after the other.
_LOCKS: dict[Path, contextlib.ExitStack] = {}


def fixed_arguments(
    settings: CanaryAuditSettings, wrapped: Wrapped
) -> dict[str, Any]:
    """The arguments that must not change when an audit continues, by name, as values for JSON."""
    names = {field.name for field in dataclasses.fields(settings)} - _MAY_CHANGE
    values = {name: getattr(settings, name) for name in sorted(names)}
    if not isinstance(settings.clients, float | int | None):
        values["clients"] = sorted(map(int, settings.clients))
    _, sum_noise_multiplier = wrapped.noise_multipliers()
    values |= {
        "strategy": wrapped.description,
        "strategy's server optimizer": str(wrapped.server()),
        "strategy's noise multiplier": sum_noise_multiplier,
    }
    if settings.client_noise is not None:
        values["client_noise"] = dataclasses.asdict(settings.client_noise)
    # Arguments may be numbers of NumPy, and tuples, which are lists in JSON.
    text = json.dumps(values, default=lambda number: number.item())
    return dict(json.loads(text))


class Checkpoint:
    """The folder in which an audit is saved, if its settings name one.

    The audit of another run in the folder is never overwritten: unless this run continues it,
    it is renamed before this run's audit is saved. Two processes cannot save audits in the same
    folder.

    Args:
        settings: the settings of the audit.
        wrapped: the strategy.
        report_failure: a function that gets a text that says what failed, and the error.
    """

    def __init__(
        self,
        settings: CanaryAuditSettings,
        wrapped: Wrapped,
        report_failure: Callable[[str, Exception], object],
    ) -> None:
        self._settings = settings
        self._wrapped = wrapped
        self._report_failure = report_failure
        self._directory = Path(settings.checkpoint or "")
        self._is_read = False
        # The audit in the folder, until it is decided whether this run continues it.
        self._saved: SavedAudit | None = None
        # Whether the audit in the folder is that of this run.
        self._is_ours = False

    def close(self) -> None:
        """Unlock the folder for other processes."""
        lock = _LOCKS.pop(self._directory.resolve(), None)
        if lock is not None:
            lock.close()

    def _lock(self) -> None:
        """Lock the folder, if there is one and it can be written to.

        Raises:
            SettingsError: if another process has locked it; the text names both.
        """
        place = self._directory.resolve()
        if self._settings.checkpoint is None or place in _LOCKS:
            return
        lock = contextlib.ExitStack()
        try:
            with rename_arguments(directory="checkpoint"):
                lock.enter_context(locked(self._directory))
        except ArgumentError as error:
            raise SettingsError(
                f"{error} Or give each server app a folder of its own."
            ) from error
        except OSError:
            # Saving the audit will raise this error again, which is then a fault.
            return
        _LOCKS[place] = lock

    def can_continue(self, arrays: ArrayRecord | None) -> bool:
        """Read the folder: does it have an audit that continues from the model ``arrays``?

        Without a model, only the arguments are checked, and the result is ``False``.

        Raises:
            SettingsError: if there is one with other arguments.
        """
        self._read()
        if self._saved is None:
            return False
        if arrays is not None:
            return self.rounds_before(self._saved, arrays) is not None
        self.check(self._saved.audit)
        return False

    def pop_saved(self, index: int) -> SavedAudit | None:
        """The saved audit, which is returned only once; ``None`` without one.

        Args:
            index: the number of rounds of the run so far. If a strategy is hooked without
                ``start``, the folder is first read here, before any round.
        """
        if not self._is_read and index == 0:
            self._read()
        saved = self._saved
        self._saved = None
        return saved

    def note_continued(self) -> None:
        """Note that the run continues the saved audit, so that it may be overwritten."""
        self._is_ours = True

    def rounds_before(
        self, saved: SavedAudit, arrays: ArrayRecord
    ) -> int | None:
        """The number of rounds of a saved audit before a model; ``None`` if it has no such model.

        With the initial model, a new run begins, unless the saved audit has no complete round.

        Raises:
            SettingsError: if the audit would continue, but with other arguments than before.
        """
        try:
            model = digest(saved.full_layout.flatten(arrays))
        except ValueError:
            return None
        models = saved.audit.models
        rounds = [
            t for t, saved_model in models.items() if saved_model == model
        ]
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
            # A new audit loses nothing, as the saved one has no round.
            return None
        return rounds_done

    def check(self, saved: AuditState) -> None:
        """Raise a `SettingsError` for the first argument whose value differs from that saved."""
        settings = self._settings
        remedy = (
            "use the same arguments as before, or another checkpoint folder"
        )
        if settings.seed not in (None, saved.seed):
            raise SettingsError(
                f"Expected seed=… to be the seed of the audit in the checkpoint; {remedy}."
            )
        arguments = fixed_arguments(settings, self._wrapped)
        saved_arguments = saved.arguments | {"rounds": saved.rounds}
        if settings.rounds is not None:
            arguments["rounds"] = settings.rounds
        for name, value in arguments.items():
            saved_value = saved_arguments.get(name)
            if value != saved_value:
                raise SettingsError(
                    f"Expected {name}={value!r} to be {saved_value!r}, as in the audit in the"
                    f" checkpoint; {remedy}."
                )

    def _read(self) -> None:
        """Lock and read the folder."""
        self._lock()
        self._is_read = True
        self._saved = None
        self._is_ours = False
        path = self._path("audit")
        try:
            if self._settings.checkpoint is None or not path.exists():
                return
            (values,), scores = read_archive(
                path, _FILE_KIND, schema=SCHEMA, texts=("audit",)
            )
            audit = _STATE_TYPE.validate_python(values)
            blocks = [
                read_archive(self._path(name), _FILE_KIND, schema=SCHEMA)[1]
                for name in audit.blocks
            ]
            for name in audit.kept_rows:
                rows = [block[name] for block in blocks if name in block]
                scores[name] = np.concatenate([*rows, scores[name]])
            start_path = self._path(f"start-{audit.models[0]}")
            (model,), arrays = read_archive(
                start_path, _FILE_KIND, schema=SCHEMA, texts=("model",)
            )
            start = ArrayRecord(
                {
                    name: Array(arrays[f"{i}"])
                    for i, name in enumerate(model["names"])
                }
            )
            if audit.layout is None or audit.whole is None:
                raise refusal(path, _FILE_KIND, "it has no layout")
            if digest(audit.whole.flatten(start)) != audit.models[0]:
                reason = "it is not the initial model of audit.npz"
                raise refusal(start_path, _FILE_KIND, reason)
            self._saved = SavedAudit(
                audit, audit.layout, audit.whole, scores, start
            )
        except UNREADABLE as error:
            self._report_failure(
                "the saved audit cannot be read, and a new one begins", error
            )

    def save(
        self, state: AuditState, start: ArrayRecord, arrays: NamedArrays
    ) -> None:
        """Write the audit, and the first time also the initial model.

        Args:
            state: the state of the audit; new files of scores are added to it.
            start: the initial model.
            arrays: the scores.
        """
        self._lock()
        state.arguments = state.arguments or fixed_arguments(
            self._settings, self._wrapped
        )
        path = self._path("audit")
        if not self._is_ours:
            self._set_aside(path)
            # An array's name may be no name of a file.
            model = {
                f"{i}": read_only(array)
                for i, array in enumerate(start.values())
            }
            names = {"model": {"names": list(start)}}
            start_path = self._path(f"start-{state.models[0]}")
            write_archive(
                start_path, model, names, schema=SCHEMA, compress=False
            )
        arrays = self._move_full_block(state, arrays)
        arrays["audit"] = np.frombuffer(_STATE_TYPE.dump_json(state), np.uint8)
        write_archive(path, arrays, {}, schema=SCHEMA, compress=False)
        self._is_ours = True

    def _move_full_block(
        self, state: AuditState, arrays: NamedArrays
    ) -> NamedArrays:
        """Write the rows of the last rounds to a separate file, if there are enough of them.

        ``state`` stores the name of the file, and the number of rows in all such files.

        Returns:
            The arrays without the rows in such files.
        """
        growing = {name: arrays[name] for name in _GROWING if name in arrays}
        new_rows = {
            name: rows[state.kept_rows.get(name, 0) :]
            for name, rows in growing.items()
        }
        if state.settled and len(new_rows["presence"]) >= _ROUNDS_PER_FILE:
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
            free_path = next(path for path in paths if not path.exists())
            path.rename(free_path)
            logger.warning("Audit: %s is now %s", path, free_path)

    def _path(self, name: str) -> Path:
        return inside(self._directory, self._directory / f"{name}.npz")
