"""What the limit takes over from a finished run: ``--like RUN_DIR``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from fl_epe.auditing import AuditRecord
from fl_epe.checks import raise_invalid
from fl_epe.limit.expected_scores import RealUpdates
from fl_epe.mechanism import ServerSGD

RECORD = "record.npz"
"""The file in a run's folder that says that the run is finished."""
CHECKPOINT = "checkpoint.npz"
"""The file in a run's folder while the run is under way."""


def load_run(directory: Path | str) -> AuditRecord:
    """The record of the run in ``directory``."""
    return AuditRecord.load(Path(directory) / RECORD)


def rounds_like(run: AuditRecord | None, rounds: int | None, default: int) -> int:
    """``rounds`` if they are given, else those of the run, else the default.

    Raises:
        ValueError: if the run has another number of rounds, which its clip norms belong to.
    """
    if run is None:
        return default if rounds is None else rounds
    if rounds not in (None, run.rounds):
        raise_invalid("rounds", rounds, f"to be {run.rounds}, as in the run")
    return run.rounds


def limit_like(record: AuditRecord) -> dict[str, Any]:
    """The `LimitSetting` of a run: its clip norms, server, decay and real updates.

    Raises:
        ValueError: as `RealUpdates.of`.
    """
    real = RealUpdates.of(record)
    rates = record.mechanism.server.learning_rates
    if rates is None:
        raise_invalid("server", record.mechanism.server.name, "to have known learning rates")
    server = ServerSGD(float(rates[0]), record.mechanism.server.momentum)
    return {
        "clip_norms": record.mechanism.clip_norms,
        "server": server,
        "decay": rates / server.learning_rate,
        "real": real,
    }


def server_like(
    run: AuditRecord | None, default_momentum: float, **changes: float | None
) -> dict[str, Any]:
    """Server, clip norms and real updates of the run, as `limit_record` takes them.

    Args:
        run: a finished run; without one, the server is plain SGD with step size 1.
        default_momentum: of the server if there is no run.
        changes: fields of the server that are other than that, if not ``None``.
    """
    if run is None:
        setting: dict[str, Any] = {"server": ServerSGD(1.0, default_momentum)}
    else:
        setting = limit_like(run)
    given = {name: value for name, value in changes.items() if value is not None}
    setting["server"] = dataclasses.replace(setting["server"], **given)
    return setting


def setting_like(run: AuditRecord | None, noise_multiplier: float) -> float | None:
    """``--noise-multiplier`` of a run whose sum of updates gets ``noise_multiplier``.

    ``None`` where the two are the same, because no adaptive clip norm spends a part of the noise.
    """
    mechanism = None if run is None else run.mechanism
    if not mechanism or not mechanism.noise_multiplier or not mechanism.sum_noise_multiplier:
        return None
    spent = mechanism.noise_multiplier**-2 - mechanism.sum_noise_multiplier**-2
    if spent <= 0 or noise_multiplier == 0:
        return None
    return float((noise_multiplier**-2 + spent) ** -0.5)
