"""The parts of an `AuditRecord`, each a small frozen dataclass.

Shapes: T rounds; k canaries of one side, observed or unobserved.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_epe.canaries import CanaryKind

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, eq=False)
class CanaryCosines:
    """Cosines of one side's canaries with every vector that an adversary sees, in [-1, 1].

    Attributes:
        means: ``(T, k)`` with the released mean of each round, the server's momentum undone.
        final: ``(k,)`` with the final model θ_T.
        displacement: ``(k,)`` with θ_T − θ_0.
        deltas: ``(T, k)`` with the model deltas θ_t − θ_{t−1}, where they do not follow from the
            means (an optimizer that is not linear).
        residuals: ``(T, k)`` with the released mean less the real clients' part, where that is
            known.
        sums: ``(T, k)`` with the sum of the directions of the round's canaries; 0 for observed
            canaries in rounds without them, and in rounds of which ``Norms.sums`` is 0.
        part: ``(k,)`` with the canaries' expected part of θ_T − θ_0, all canaries together.
        ids: ``(k,)`` numbers of the canaries in their `CanarySet`.
    """

    means: Floats
    final: Floats
    displacement: Floats
    deltas: Floats | None = None
    residuals: Floats | None = None
    sums: Floats | None = None
    part: Floats | None = None
    ids: NDArray[np.int64] | None = None

    @property
    def count(self) -> int:
        """Number of canaries k."""
        return int(self.means.shape[1])


@dataclasses.dataclass(frozen=True, eq=False)
class Norms:
    """Norms of the vectors that `CanaryCosines` are taken with.

    Attributes:
        means: ``(T,)`` of the released means.
        deltas: ``(T,)`` of the model deltas.
        final: of the final model.
        displacement: of θ_T − θ_0.
        residuals: ``(T,)`` of the released means less the real clients' part.
        sums: ``(T,)`` of the sum of the directions of each round's canaries; 0 where the other
            canaries are too small a part of the mean to hide one, and ``residuals`` unknown.
        part: of the canaries' expected part of θ_T − θ_0; 0 where it is too small to hide one.
    """

    means: Floats
    deltas: Floats
    final: float
    displacement: float
    residuals: Floats | None = None
    sums: Floats | None = None
    part: float | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Mechanism:
    """How updates become a model: who takes part how often, clipping, noise, the server's step.

    Attributes:
        cohort_size: expected cohort size n, the denominator of the mean.
        noise_multiplier: z of the run, ``None`` if unknown.
        sum_noise_multiplier: z of the clients' sum alone, ``None`` if unknown.
        participation: kind of schedule: "epochs", "poisson", "deployment" (whenever a strategy
            asks the client), or a name from elsewhere.
        canary_participations: expected participations of an observed canary.
        server: the optimizer by name and constants, e.g. ``{"name": "sgd", "momentum": 0.9}``;
            where its step size changes, ``learning_rates`` has that of every round.
        clip_norms: ``(T,)``; NaN where nothing was clipped.
        contributions: ``(T,)`` norm of what one canary that takes part adds to the released mean;
            ``clip_norms / cohort_size`` by default, NaN where it is not known.
        inclusion: "fixed", or "coin" if each canary took part by an independent fair coin.
        canary_weights: ``(T, k)`` how many times the round's contribution each observed canary
            added, where they differ; their squares are 1 on average over those of a round.
    """

    cohort_size: float
    noise_multiplier: float | None
    sum_noise_multiplier: float | None
    participation: str
    canary_participations: float
    server: dict[str, Any]
    clip_norms: Floats
    contributions: Floats | None = None
    inclusion: str = "fixed"
    canary_weights: Floats | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class ClientLog:
    """Which real clients took part when, as far as it is known.

    Attributes:
        ids: clients of all rounds, one round after another.
        offsets: ``(T + 1,)``; the clients of round t are ``ids[offsets[t]:offsets[t + 1]]``.
        absent: ``(T,)`` how many clients' and canaries' updates were lost.
    """

    ids: NDArray[np.int64] | None = None
    offsets: NDArray[np.int64] | None = None
    absent: NDArray[np.int64] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Provenance:
    """Where a record comes from.

    Attributes:
        config: settings of the run, as JSON values.
        seeds: seeds by name; the noise seed only if the user chose it.
        canary_kind: how the canaries were made, see `CanarySet`; "sphere" in records that do not
            say.
        versions: versions of the packages that decide a result, see `installed_versions`.
        faults: the first messages about lost updates.
        fault_counts: how often each kind of fault happened, see `fl_epe.faults.FaultKind`; empty
            in records of before they were counted.
        run: when and how the run was made, where a command made it: ``started`` and ``ended``
            (UTC, as in "2026-01-31T23:59:59Z") and ``commands``, what was typed, without seeds.
    """

    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    seeds: dict[str, int | None] = dataclasses.field(default_factory=dict)
    canary_kind: CanaryKind = "sphere"
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    faults: tuple[str, ...] = ()
    fault_counts: dict[str, int] = dataclasses.field(default_factory=dict)
    run: dict[str, Any] = dataclasses.field(default_factory=dict)


def installed_versions() -> dict[str, str]:
    """Versions of the packages that decide a run's result, as far as they are installed."""
    names = ("fl-epe", "flwr", "torch", "numpy", "scipy", "dp-accounting")
    found = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # torch is optional
            found[name] = importlib.metadata.version(name)
    return found
