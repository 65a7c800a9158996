"""The setting of the limit: clip norms, server and real updates, also those of a finished run."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_epe.auditing import AuditRecord, seen_by
from fl_epe.checks import raise_invalid
from fl_epe.mechanism import ServerSGD

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, eq=False)
class RealUpdates:
    """What the real clients' updates add to the variance of what is released.

    Per coordinate, in units of (clip norm / cohort size)², like z² for the noise.

    Attributes:
        every_round: in the released mean of each round, ≥ 0, shape ``(T,)``.
        final: in θ_T − θ_0, ≥ 0; far larger than in one round if updates agree with each other.
    """

    every_round: Floats
    final: float

    @classmethod
    def of(cls, record: AuditRecord) -> RealUpdates:
        """The real updates of a run, from the norms of its means and of its displacement.

        One canary counts as part of them; the others are projected out (`View.alone`).

        Raises:
            ValueError: if the run's noise or clip norms are unknown or 0, or its server was not
                SGD.
        """
        mechanism = record.mechanism
        z = mechanism.sum_noise_multiplier
        if z is None or not record.signal_known():
            raise_invalid("sum_noise_multiplier", z, "and clip_norms of the record to be known")
        norms = seen_by(record).alone.norms
        unit = mechanism.clip_norms / mechanism.cohort_size
        weighted = float(np.sum((record.round_weights() * unit) ** 2))
        if not (np.all(unit > 0) and 0 < weighted < math.inf):
            least = np.min(mechanism.clip_norms, initial=math.inf)
            raise_invalid("clip_norms", least, "and the server steps of the record > 0 and known")
        every_round = (norms.means / unit) ** 2 / record.dim - z**2
        final = norms.displacement**2 / weighted / record.dim - z**2
        return cls(np.maximum(every_round, 0.0), max(final, 0.0))


class ServerSetting(TypedDict, total=False):
    """The clip norms and the server optimizer of a run, as keyword arguments.

    Attributes:
        clip_norms: the clip norm, or one for each round, shape ``(T,)``; 1 by default.
        server: learning rate and momentum; plain SGD by default.
        decay: factor of the server's learning rate in each round, shape ``(T,)``; 1 by default.
    """

    clip_norms: ArrayLike
    server: ServerSGD | None
    decay: ArrayLike


class LimitSetting(ServerSetting, total=False):
    """A `ServerSetting` and the real clients' updates, as keyword arguments.

    Attributes:
        real: the real updates; by default the noise outweighs them.
    """

    real: RealUpdates | None


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
