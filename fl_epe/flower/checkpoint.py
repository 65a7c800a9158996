"""The audit of a run that may be killed: what is kept of it on disk after every round.

A folder holds ``audit.npz``, replaced in one step before the first round and after each, and
``start-….npz`` with the initial model, named by its hash and written once. Both have checksums and
are readable by their owner alone, because the first holds the canary seed. Neither holds vectors
that wait to be scored, nor another model than the initial one: the newest is known by its hash.
"""

from __future__ import annotations

import contextlib
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
from fl_epe.flower.rounds import AuditLog, AuditPlan, Choices, SettingsError, logger
from fl_epe.flower.settings import CanaryAuditSettings
from fl_epe.flower.wrapped import Wrapped

SCHEMA = 2
"""Version of the files; a newer one is not read."""

_WHAT = "an audit saved by CanaryAudit"
_FREE = {"seed", "rounds", "clients", "identity", "checkpoint", "fresh_seed"}  # may differ


def digest(theta: NDArray[np.floating]) -> str:
    """The hash by which a model, as a flat vector, is known again."""
    return hashlib.blake2b(np.ascontiguousarray(theta).data, digest_size=16).hexdigest()


def fingerprint(settings: CanaryAuditSettings, wrapped: Wrapped) -> dict[str, Any]:
    """What must be the same for an audit to go on, as JSON values by the names of arguments."""
    names = {field.name for field in dataclasses.fields(settings)} - _FREE
    values = {name: getattr(settings, name) for name in sorted(names)} | {
        "strategy": wrapped.description,
        "strategy's server optimizer": str(wrapped.server()),
        "strategy's noise multiplier": wrapped.noise_multipliers()[1],
    }
    found: dict[str, Any] = json.loads(json.dumps(values, default=lambda number: number.item()))
    return found


@dataclasses.dataclass
class SavedAudit:
    """An audit after some rounds: what it knows, and a checkpoint keeps but for the scores.

    Attributes:
        seed: of the canaries.
        rounds: of the run, over which the canaries are spread; ``None`` if not known.
        choices: of the server about its canaries.
        arguments: see `fingerprint`; empty until they are saved.
        index: how many rounds are done.
        layout: of the model; ``None`` before the first round.
        first: hash of the initial model, see `digest`.
        newest: hash of the newest model that could be read.
        log: keeps faults and answers.
        plan: what the audit does to the run; ``None`` before the first round.
        averaged: how the strategy averaged, by the rounds in which canaries took part.
        resumed: after how many rounds the audit went on, each time that it was started again.
    """

    seed: int
    rounds: int | None
    choices: Choices
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    index: int = 0
    layout: Layout | None = None
    first: str = ""
    newest: str = ""
    log: AuditLog = dataclasses.field(default_factory=AuditLog)
    plan: AuditPlan | None = None
    averaged: dict[int, str | None] = dataclasses.field(default_factory=dict)
    resumed: tuple[int, ...] = ()

    def is_newest(self, arrays: ArrayRecord) -> bool:
        """Whether this is the model after the rounds so far."""
        with contextlib.suppress(ValueError):
            return self.layout is not None and digest(self.layout.flatten(arrays)) == self.newest
        return False

    def check(self, settings: CanaryAuditSettings, wrapped: Wrapped) -> None:
        """Raise a `SettingsError` that names the first argument with another value than before."""
        instead = "start again as before, or with another checkpoint folder"
        if not settings.fresh_seed and settings.seed != self.seed:
            raise SettingsError(
                f"Expected another seed to be that of the audit in the checkpoint; {instead}."
            )
        for name, value in fingerprint(settings, wrapped).items():
            if value != (before := self.arguments.get(name)):
                raise SettingsError(
                    f"Expected {name}={value!r} to be {before!r}, as in the audit in the"
                    f" checkpoint; {instead}."
                )


_JSON = pydantic.TypeAdapter(SavedAudit)


class Checkpoint:
    """The folder in which an audit is kept. Only `save` raises.

    What another run left there is never overwritten: unless `mine` says that this run goes on with
    it, the first `save` moves it aside.

    Args:
        directory: the folder; made when the first round is saved.
        failed: told what could not be done, and why.

    Attributes:
        mine: whether the next `save` takes the place of what is in the folder.
    """

    def __init__(self, directory: Path, failed: Callable[[str, Exception], None]) -> None:
        self._directory, self._failed, self.mine = directory, failed, False

    def look(self) -> tuple[SavedAudit, Mapping[str, Any], ArrayRecord] | None:
        """The audit in the folder, its scores and its initial model.

        ``None`` if there is none; what is damaged is moved aside.
        """
        self.mine, path = False, self._path("audit")
        try:
            if not path.exists():
                return None
            (audit,), scores = read_archive(path, _WHAT, schema=SCHEMA, texts=("audit",))
            saved = _JSON.validate_python(audit)
            path = self._path(f"start-{saved.first}")
            (model,), arrays = read_archive(path, _WHAT, schema=SCHEMA, texts=("model",))
            names = enumerate(model["names"])
            start = ArrayRecord({name: Array(arrays[f"{i}"]) for i, name in names})
            if saved.layout is None or digest(saved.layout.flatten(start)) != saved.first:
                raise refusal(path, _WHAT, "it is not the initial model of audit.npz")
            return saved, scores, start
        except UNREADABLE as error:
            self._failed("the saved audit cannot be read, and a new one begins", error)
            self._set_aside()
            return None

    def save(self, audit: SavedAudit, scores: Mapping[str, Any], start: ArrayRecord) -> None:
        """Write an audit, and the first time its initial model.

        Raises:
            OSError: if something cannot be written, or moved aside before.
        """
        path = self._path("audit")
        if not self.mine:
            self._set_aside()
            if path.exists():
                raise OSError(f"{path} is of another run, and cannot be moved aside")
            arrays = {f"{i}": read_only(array) for i, array in enumerate(start.values())}
            names = {"model": {"names": list(start)}}
            beside = self._path(f"start-{audit.first}")
            write_archive(beside, arrays, names, schema=SCHEMA, compress=False)
        texts = {"audit": _JSON.dump_python(audit, mode="json")}
        write_archive(path, scores, texts, schema=SCHEMA, compress=False)
        self.mine = True

    def _set_aside(self) -> None:
        """Rename the audit in the folder, so that another run can be kept there."""
        path = self._path("audit")
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
