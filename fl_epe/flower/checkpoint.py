"""The audit of a run that may be killed: what is kept of it on disk after every round.

A folder holds ``audit.npz``, replaced in one step before the first round and after each, and
``start-….npz`` with the initial model, named by its hash and written once. Both have checksums and
are readable by their owner alone, because the first holds the canary seed. Neither holds vectors
that wait to be scored, nor a model other than the initial one: a model is known again by its hash.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from fl_epe.archive import UNREADABLE, read_archive, refusal, write_archive
from fl_epe.flower.arrays import Layout, read_only
from fl_epe.flower.rounds import AuditPlan, SettingsError, logger
from fl_epe.flower.settings import CanaryAuditSettings
from fl_epe.flower.wrapped import Wrapped

SCHEMA = 1
"""Version of the files; a newer one is not read."""

_WHAT = "an audit saved by CanaryAudit"
_FREE = {"seed", "rounds", "identity", "checkpoint", "fresh_seed"}  # may differ


def digest(theta: NDArray[np.floating]) -> str:
    """The hash by which a model, as a flat vector, is known again."""
    return hashlib.blake2b(np.ascontiguousarray(theta).data, digest_size=16).hexdigest()


def fingerprint(settings: CanaryAuditSettings, wrapped: Wrapped) -> dict[str, Any]:
    """What must be the same for an audit to go on, as JSON values by the names of arguments."""
    names = {field.name for field in dataclasses.fields(settings)} - _FREE
    values = {name: getattr(settings, name) for name in sorted(names)}
    values |= {
        "clients": settings.clients
        if isinstance(settings.clients, float | int | None)
        else sorted(map(int, settings.clients)),
        "strategy": wrapped.description,
        "strategy's server optimizer": str(wrapped.server()),
        "strategy's noise multiplier": wrapped.noise_multipliers()[1],
    }
    found: dict[str, Any] = json.loads(json.dumps(values, default=lambda number: number.item()))
    return found


@dataclasses.dataclass(frozen=True)
class SavedAudit:
    """An audit after some rounds.

    Attributes:
        settings: see `fingerprint`.
        seed: of the canaries.
        rounds: of the whole run, over which the canaries are spread; ``None`` if not known.
        layout: of the model.
        models: hashes of the initial model and that after each round, see `digest`; empty where
            it is not known.
        scores: what `RunAuditor.state` returned.
        log: what `AuditLog.state` returned.
        averaged: how the strategy averaged, by the round in which canaries took part.
        source: what the source of the canaries found out, see `ServerCanaries.state`.
        plan: of the audit, if it was made.
        resumed: after how many rounds the audit went on, each time that it was started again.
    """

    settings: dict[str, Any]
    seed: int
    rounds: int | None
    layout: Layout
    models: list[str]
    scores: pydantic.SkipValidation[Mapping[str, Any]]
    log: dict[str, Any]
    averaged: dict[int, str | None]
    source: dict[str, Any]
    plan: AuditPlan | None = None
    resumed: tuple[int, ...] = ()

    @property
    def index(self) -> int:
        """How many rounds are saved."""
        return len(self.models) - 1

    def round_of(self, arrays: ArrayRecord) -> int | None:
        """After how many rounds the model was this one; the last, if it stood still."""
        try:
            found = digest(self.layout.flatten(arrays))
        except ValueError:
            return None
        return max((t for t, model in enumerate(self.models) if model == found), default=None)

    def goes_on_after(
        self, arrays: ArrayRecord, settings: CanaryAuditSettings, wrapped: Wrapped
    ) -> int | None:
        """After how many rounds the audit goes on with this model; ``None`` for another run.

        The initial model is that of a new run, unless no round was done yet.

        Raises:
            SettingsError: if it goes on, with other arguments than before.
        """
        done = self.round_of(arrays)
        if done is None or (done == 0 and self.index > 0):
            return None
        try:
            self.check(settings, wrapped)
        except SettingsError:
            if done > 0:
                raise
            return None  # nothing is lost
        return done

    def check(self, settings: CanaryAuditSettings, wrapped: Wrapped) -> None:
        """Raise a `SettingsError` that names the first argument with another value than before."""
        instead = "start again as before, or with another checkpoint folder"
        if not settings.fresh_seed and settings.seed != self.seed:
            raise SettingsError(
                f"Expected another seed to be that of the audit in the checkpoint; {instead}."
            )
        for name, value in fingerprint(settings, wrapped).items():
            if value != (before := self.settings.get(name)):
                raise SettingsError(
                    f"Expected {name}={value!r} to be {before!r}, as in the audit in the"
                    f" checkpoint; {instead}."
                )

    def check_rounds(self, done: int, num_rounds: int | None, rounds: int | None = None) -> None:
        """Raise a `SettingsError` unless these are all rounds, or those that are left.

        Fewer will do where ``rounds`` says how many there are in all.
        """
        if not num_rounds or self.rounds is None:
            return
        if rounds not in (None, self.rounds):
            raise SettingsError(f"Expected rounds={rounds} to be {self.rounds} as before.")
        left = self.rounds - done
        if num_rounds not in (self.rounds, left) and (rounds is None or num_rounds > left):
            raise SettingsError(
                f"Expected num_rounds={num_rounds} to be {self.rounds} as before, or {left}, as"
                f" the audit in the checkpoint goes on after round {done}."
            )


_JSON = pydantic.TypeAdapter(SavedAudit)


class Checkpoint:
    """The folder in which an audit is kept. Only `start` and `save` raise.

    What another run left there is never overwritten: unless `adopt` says that this run goes on with
    it, the first `save` moves it aside.

    Args:
        directory: the folder; made when the first round is saved.
        failed: told what could not be done, and why.

    Attributes:
        saved: the audit that was found; ``None`` if there is none.
        settled: whether it is decided if this run goes on with it.
    """

    def __init__(self, directory: Path, failed: Callable[[str, Exception], None]) -> None:
        self.saved: SavedAudit | None = None
        self.settled = False
        self._directory, self._failed, self._mine = directory, failed, False

    def look(self) -> None:
        """Read what is in the folder into ``saved``; what is damaged is moved aside."""
        self.saved, self.settled, self._mine = None, False, False
        try:
            if not self._path("audit").exists():
                return
            path, texts = self._path("audit"), ("audit",)
            (audit,), scores = read_archive(path, _WHAT, schema=SCHEMA, texts=texts)
            self.saved = _JSON.validate_python({**audit, "scores": scores})
            self.start()
        except UNREADABLE as error:
            self._failed("the saved audit cannot be read, and a new one begins", error)
            self._set_aside()

    def start(self) -> ArrayRecord:
        """The initial model of the saved audit.

        Raises:
            ValueError: if it cannot be read, or is not that of the audit.
        """
        assert self.saved is not None  # noqa: S101 - `look` has read it
        path = self._path(f"start-{self.saved.models[0]}")
        (model,), arrays = read_archive(path, _WHAT, schema=SCHEMA, texts=("model",))
        names = enumerate(model["names"])
        start = ArrayRecord({name: Array(arrays[f"{i}"]) for i, name in names})
        if digest(self.saved.layout.flatten(start)) != self.saved.models[0]:
            raise refusal(path, _WHAT, "it is not the initial model of audit.npz")
        return start

    def adopt(self) -> None:
        """Go on with what is in the folder: the next `save` takes its place."""
        self._mine = True

    def save(self, audit: SavedAudit, start: ArrayRecord) -> None:
        """Write an audit, and the first time its initial model.

        Raises:
            OSError: if something cannot be written, or moved aside before.
        """
        path = self._path("audit")
        if not self._mine:
            self._set_aside()
            if path.exists():
                raise OSError(f"{path} is of another run, and cannot be moved aside")
            arrays = {f"{i}": read_only(array) for i, array in enumerate(start.values())}
            names = {"model": {"names": list(start)}}
            beside = self._path(f"start-{audit.models[0]}")
            write_archive(beside, arrays, names, schema=SCHEMA, compress=False)
        texts = {"audit": _JSON.dump_python(audit, mode="json", exclude={"scores"})}
        write_archive(path, audit.scores, texts, schema=SCHEMA, compress=False)
        self._mine = True

    def _set_aside(self) -> None:
        """Rename the audit in the folder, so that another run can be kept there."""
        self.saved, path = None, self._path("audit")
        try:
            if path.exists():
                numbered = (self._path(f"audit-{number}") for number in itertools.count(1))
                free = next(name for name in numbered if not name.exists())
                path.rename(free)
                logger.warning("Audit: %s is now %s", path, free)
        except OSError as error:
            self._failed("the saved audit cannot be moved aside", error)

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.npz"
