"""The audit of a run that may be killed: what is kept of it on disk after every round.

A folder holds ``audit.npz``, replaced in one step before the first round and after each,
``rounds-….npz`` with the scores of a hundred rounds each, and ``start-….npz`` with the initial
model, named by its hash. The last two are written once, so that what a round costs does not grow
with a run. All have checksums and are readable by their owner alone, because the first holds the
canary seed. None holds vectors that wait to be scored, nor a model other than the initial one: a
model is known again by its hash.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pydantic
from flwr.app import Array, ArrayRecord

from fl_epe.archive import (
    UNREADABLE,
    digest,
    put_under,
    read_archive,
    refusal,
    write_archive,
)
from fl_epe.auditing import FaultKind
from fl_epe.checks import ArgumentError, NamedArrays
from fl_epe.files import inside, locked
from fl_epe.flower.layout import Layout
from fl_epe.flower.settings import SettingsError
from fl_epe.flower.state import AuditState, logger
from fl_epe.messages import read_only

if TYPE_CHECKING:
    from fl_epe.flower.audited_run import AuditedRun

SCHEMA = 1
"""Version of the files; a newer one is not read."""

_WHAT = "an audit saved by CanaryAudit"
_BLOCK = 100  # rounds whose scores are written once
_GROWING = (  # arrays that get rows in each round, and keep those that they have
    *("presence", "scores", "signals", "weights", "factor", "dots.mean", "dots.delta"),
    *("noise.sketch", "noise.marks", "clients.ids", "clients.weights"),
)
# Arguments that may differ.
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
        audit: after some rounds.
        layout: of the model.
        whole: see `AuditState`.
        scores: what `RunAuditor.state` returned.
        start: the initial model.
    """

    audit: AuditState
    layout: Layout
    whole: Layout
    scores: NamedArrays
    start: ArrayRecord


# Folders that this process keeps others out of; several audits of it may be kept in one.
_LOCKED: dict[Path, contextlib.ExitStack] = {}


class Checkpoint:
    """The folder in which an audit is kept, where its settings name one.

    What another run left there is never overwritten: unless this run goes on with it, it is moved
    aside before the first one is saved. No two processes may keep theirs in one folder.

    Args:
        run: which is kept, and goes on.
    """

    def __init__(self, run: AuditedRun) -> None:
        self._run, self._directory = run, Path(run.settings.checkpoint or "")
        self._has_looked = self._mine = False
        self._saved: SavedAudit | None = (
            None  # until it is decided if the run goes on with it
        )

    def close(self) -> None:
        """Let other processes have the folder."""
        if (held := _LOCKED.pop(self._directory.resolve(), None)) is not None:
            held.close()

    def _lock(self) -> None:
        """Keep other processes out, where there is a folder and it can be written to.

        Raises:
            SettingsError: if another one is in it; the text names the folder and its number.
        """
        place = self._directory.resolve()
        if self._run.settings.checkpoint is None or place in _LOCKED:
            return
        held = contextlib.ExitStack()
        try:
            held.enter_context(locked(place))
        except ArgumentError as error:
            named = f"checkpoint={str(self._directory)!r}"
            text = str(error).replace(f"directory={str(place)!r}", named)
            raise SettingsError(
                f"{text} Or give each server app a folder of its own."
            ) from error
        except OSError:  # said when something is to be kept
            return
        _LOCKED[place] = held

    def holds(self, arrays: object) -> bool:
        """Whether there is an audit that goes on with these arrays, if they are a model.

        Raises:
            SettingsError: if there is, with other arguments.
        """
        self._look()
        if self._saved is None:
            return False
        if isinstance(arrays, ArrayRecord):
            return self.goes_on_after(self._saved, arrays) is not None
        self.check(self._saved.audit)
        return False

    def go_on(self, arrays: ArrayRecord) -> None:
        """The first time: let the run go on with the saved audit, if it is after this model."""
        run = self._run
        if not self._has_looked and run.index == 0:  # hooked without `start`
            self._look()
        saved, self._saved = self._saved, None
        if saved is None:
            return
        with run.goes_on("the saved audit cannot go on, and a new one begins"):
            done = self.goes_on_after(saved, arrays)
            if done is None:
                logger.warning(
                    "Audit: the one kept is of another run; a new one begins"
                )
                return
            run.restore(saved, done, arrays)
            self._mine = True
            logger.info(
                "Audit: goes on after round %d of %s", done, run.rounds or "some"
            )
            if done < saved.audit.index:
                logger.warning(
                    "Audit: rounds %d to %d are not in the model",
                    done + 1,
                    saved.audit.index,
                )

    def goes_on_after(self, saved: SavedAudit, arrays: ArrayRecord) -> int | None:
        """After how many rounds the audit goes on with this model; ``None`` for another run.

        The initial model is that of a new run, unless no round was done yet.

        Raises:
            SettingsError: if it goes on, with other arguments than before.
        """
        try:
            found = digest(saved.whole.flatten(arrays))
        except ValueError:
            return None
        done = max(
            (t for t, model in saved.audit.models.items() if model == found),
            default=None,
        )
        if done is None or (done == 0 and saved.audit.index > 0):
            return None
        try:
            self.check(saved.audit)
        except SettingsError:
            if done > 0:
                raise
            return None  # nothing is lost
        return done

    def check(self, saved: AuditState) -> None:
        """Raise a `SettingsError` that names the first argument with another value than before."""
        settings = self._run.settings
        instead = "start again as before, or with another checkpoint folder"
        if settings.seed not in (None, saved.seed):
            raise SettingsError(
                f"Expected another seed to be that of the audit in the checkpoint; {instead}."
            )
        given = self.fingerprint()
        before = saved.arguments | {"rounds": saved.rounds}
        if settings.rounds is not None:
            given["rounds"] = settings.rounds
        for name, value in given.items():
            if value != before.get(name):
                raise SettingsError(
                    f"Expected {name}={value!r} to be {before.get(name)!r}, as in the audit in the"
                    f" checkpoint; {instead}."
                )

    def fingerprint(self) -> dict[str, Any]:
        """What must be the same for an audit to go on, as JSON values by the names of arguments."""
        settings, wrapped = self._run.settings, self._run.wrapped
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

    def _look(self) -> None:
        self._lock()
        self._has_looked, self._mine, self._saved = True, False, None
        path = self._path("audit")
        try:
            if self._run.settings.checkpoint is None or not path.exists():
                return
            (found,), scores = read_archive(
                path, _WHAT, schema=SCHEMA, texts=("audit",)
            )
            audit = _JSON.validate_python(found)
            blocks = [
                read_archive(self._path(name), _WHAT, schema=SCHEMA)[1]
                for name in audit.blocks
            ]
            for name in audit.kept_rows:
                parts = [block[name] for block in blocks if name in block]
                scores[name] = np.concatenate([*parts, scores[name]])
            path = self._path(f"start-{audit.models[0]}")
            (model,), arrays = read_archive(
                path, _WHAT, schema=SCHEMA, texts=("model",)
            )
            start = ArrayRecord(
                {name: Array(arrays[f"{i}"]) for i, name in enumerate(model["names"])}
            )
            layout, whole = audit.layout, audit.whole
            if (
                not layout
                or not whole
                or digest(whole.flatten(start)) != audit.models[0]
            ):
                raise refusal(path, _WHAT, "it is not the initial model of audit.npz")
            self._saved = SavedAudit(audit, layout, whole, scores, start)
        except UNREADABLE as error:
            self._run.failed(
                "the saved audit cannot be read, and a new one begins", error
            )

    def save(self) -> None:
        """Write the audit, and the first time its initial model; not being able to is a fault."""
        run = self._run
        if run.start is None or run.settings.checkpoint is None:
            return
        try:
            self._lock()
            run.catch_up()
            run.arguments = run.arguments or self.fingerprint()
            path = self._path("audit")
            if not self._mine:
                self._set_aside(path)
                arrays = {
                    f"{i}": read_only(array)
                    for i, array in enumerate(run.start.values())
                }
                names = {"model": {"names": list(run.start)}}
                beside = self._path(f"start-{run.models[0]}")
                write_archive(beside, arrays, names, schema=SCHEMA, compress=False)
            arrays = self._without_blocks()
            arrays["audit"] = np.frombuffer(_JSON.dump_json(run), np.uint8)
            write_archive(path, arrays, {}, schema=SCHEMA, compress=False)
            self._mine = True
        except Exception as error:  # noqa: BLE001 - the run goes on
            kind = FaultKind.CHECKPOINT_NOT_WRITTEN
            run.failed("the audit could not be saved", error, run.index - 1, kind)

    def _without_blocks(self) -> NamedArrays:
        """All arrays, without the rows that are in blocks; writes a block if it is full."""
        run = self._run
        arrays = run.auditor.state() | run.seen.state(run.index)
        arrays |= put_under("noise.", run.noise.state())
        arrays |= put_under("nodes.", run.contributions.state())
        if run.promised is not None:
            arrays |= put_under("promised.", run.promised.state())
        growing = {name: arrays[name] for name in _GROWING if name in arrays}
        rest = {
            name: rows[run.kept_rows.get(name, 0) :] for name, rows in growing.items()
        }
        if run.settled and len(rest["presence"]) >= _BLOCK:
            name = f"rounds-{run.index}-{secrets.token_hex(4)}"
            write_archive(self._path(name), rest, {}, schema=SCHEMA, compress=False)
            run.blocks = [*run.blocks, name]
            run.kept_rows = {name: len(rows) for name, rows in growing.items()}
            rest = {name: rows[:0] for name, rows in growing.items()}
        return arrays | rest

    def _set_aside(self, path: Path) -> None:
        if path.exists():
            numbered = (self._path(f"audit-{number}") for number in itertools.count(1))
            free = next(name for name in numbered if not name.exists())
            path.rename(free)
            logger.warning("Audit: %s is now %s", path, free)

    def _path(self, name: str) -> Path:
        return inside(self._directory, self._directory / f"{name}.npz")
