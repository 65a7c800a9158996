"""What a participation adds to a canary's expected scores, in the limit of a large model.

Derivation: docs/notes/limit.md.

Examples:
    >>> final, every_round = limit_weights(rounds=4, noise_multiplier=0.5)
    >>> final.tolist(), every_round.tolist()
    ([1.0, 1.0, 1.0, 1.0], [4.0, 4.0, 4.0, 4.0])
"""

from __future__ import annotations

import dataclasses
import math
from typing import TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_epe.auditing import AuditRecord, leave_one_out
from fl_epe.checks import raise_invalid
from fl_epe.mechanism import ServerSGD, sgd_weights

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

        One canary counts as part of them; the others are projected out (`leave_one_out`).

        Raises:
            ValueError: if the run's noise or clip norms are unknown or 0, or its server was not
                SGD.
        """
        mechanism = record.mechanism
        z = mechanism.sum_noise_multiplier
        if z is None or not record.signal_known():
            raise_invalid("sum_noise_multiplier", z, "and clip_norms of the record to be known")
        norms = leave_one_out(record).norms
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


@dataclasses.dataclass(frozen=True, eq=False)
class Signal:
    """What a participation adds to a canary's scores, and the residual: noise and real updates.

    Attributes:
        norms: clip norms C_t, shape ``(T,)``.
        rates: the server's learning rates, ``(T,)``.
        unit: what a participation adds to each round's mean, C_t/n, ``(T,)``.
        residual: deviation of each round's mean along a canary, in units of C_t/n, ``(T,)``.
        steps: what a participation in each round adds to θ_T − θ_0, ``(T,)``.
        final_residual: standard deviation of θ_T − θ_0 along a canary, over the norm of ``steps``.
    """

    norms: Floats
    rates: Floats
    unit: Floats
    residual: Floats
    steps: Floats
    final_residual: float

    @classmethod
    def of(
        cls,
        rounds: int,
        noise_multiplier: float,
        clip_norms: ArrayLike = 1.0,
        server: ServerSGD | None = None,
        decay: ArrayLike = 1.0,
        real: RealUpdates | None = None,
        cohort_size: float = 1.0,
    ) -> Signal:
        """From the arguments of `limit_record`, which are checked here."""
        server = server or ServerSGD()
        real = real or RealUpdates(np.zeros(rounds), 0.0)
        norms = _per_round("clip_norms", clip_norms, rounds)
        rates = server.learning_rate * _per_round("decay", decay, rounds)
        variance = _residual_variance(noise_multiplier, real, rounds)
        unit = norms / cohort_size
        steps = sgd_weights(rates, server.momentum) * unit
        final_residual = float(np.sqrt(noise_multiplier**2 + real.final))
        return cls(norms, rates, unit, np.sqrt(variance), steps, final_residual)

    @property
    def moved(self) -> float:
        """Standard deviation of θ_T − θ_0 along a canary."""
        return float(np.linalg.norm(self.steps) * self.final_residual)


def limit_weights(
    rounds: int, noise_multiplier: float, **setting: Unpack[LimitSetting]
) -> tuple[Floats, Floats]:
    """What one participation in each round adds to expected scores.

    Args:
        rounds: number of rounds T.
        noise_multiplier: z ≥ 0 of the clients' sum; > 0 unless there are real updates.
        setting: see `LimitSetting`.

    Returns:
        Two arrays of shape ``(T,)``. Over a canary's rounds the first adds up to the expected
        displacement ("final"), the second to the square of the expected matched filter ("all").

    Raises:
        ValueError: if there is neither noise nor real updates, or if an argument is out of range.
    """
    signal = Signal.of(rounds, noise_multiplier, **setting)
    return signal.steps / signal.moved, signal.residual**-2


def _per_round(name: str, values: ArrayLike, rounds: int) -> Floats:
    given = np.asarray(values, np.float64)
    if given.shape not in ((), (rounds,)):
        raise_invalid(name, given, f"of shape () or (rounds={rounds},)")
    if not np.all((given > 0) & np.isfinite(given)):
        raise_invalid(name, given, "> 0 and finite")
    return np.array(np.broadcast_to(given, rounds))


def _residual_variance(noise_multiplier: float, real: RealUpdates, rounds: int) -> Floats:
    """Variance z² + r_t of the residual in each round, ``(T,)``."""
    if not 0 <= noise_multiplier < np.inf:
        raise_invalid("noise_multiplier", noise_multiplier, ">= 0 and finite")
    if np.shape(real.every_round) != (rounds,):
        raise_invalid("real.every_round", real.every_round, f"of shape (rounds={rounds},)")
    variance = noise_multiplier**2 + real.every_round
    if not np.all(variance > 0) or not noise_multiplier**2 + real.final > 0:
        raise_invalid("noise_multiplier", noise_multiplier, "> 0, or real updates in every round")
    return np.asarray(variance)
