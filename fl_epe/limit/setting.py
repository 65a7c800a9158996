"""The setting of the limit: clip norms, server and real updates, also those of a finished run."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_epe.auditing import AuditRecord, seen_by
from fl_epe.checks import raise_invalid

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


class LimitSetting(TypedDict, total=False):
    """What a run's scores depend on beside schedule and noise, as keyword arguments.

    Attributes:
        clip_norms: the clip norm, or one for each round, shape ``(T,)``; 1 by default.
        learning_rates: the server's, or one for each round, shape ``(T,)``; 1 by default. A common
            factor changes no score.
        momentum: of the server's SGD, in [0, 1); 0 by default.
        real: the real clients' updates; by default the noise outweighs them.
    """

    clip_norms: ArrayLike
    learning_rates: ArrayLike
    momentum: float
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


def limit_like(
    run: AuditRecord | None, momentum: float | None = None, default: float = 0.0
) -> dict[str, Any]:
    """The `LimitSetting` of a run: its clip norms, server and real updates.

    Args:
        run: a finished run, or ``None``.
        momentum: of the server, if it is not the run's.
        default: the momentum if there is neither.

    Raises:
        ValueError: as `RealUpdates.of`.
    """
    setting: dict[str, Any] = {"momentum": default}
    if run is not None:
        server = run.mechanism.server
        setting = {
            "clip_norms": run.mechanism.clip_norms,
            "real": RealUpdates.of(run),
            "learning_rates": server.learning_rates,
            "momentum": server.momentum,
        }
    return setting if momentum is None else setting | {"momentum": momentum}


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
