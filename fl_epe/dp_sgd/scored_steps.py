"""What an audit of DP-SGD keeps of each step, and the record that it makes of it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_epe.auditing import (
    NULL_CANARIES,
    AuditRecord,
    ClientLog,
    Mechanism,
    NullTally,
    Provenance,
    record_from_scorer,
)
from fl_epe.canaries import CanaryKind, CanaryScorer, CanarySet
from fl_epe.dp_sgd.steps import StepFacts, Steps
from fl_epe.mechanism import norm
from fl_epe.schedules import Cohort

Vector = NDArray[np.floating]

_SMALLEST_SHARE = 1e-2
"""Of a step's energy, from which on canaries are taken out of what the null is measured on."""


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Who takes part when, as the record names it.

    Attributes:
        kind: of the schedule.
        rate: probability of a canary to be in a step, for coins; else ``None``.
        participations: expected steps of a canary, for others than coins.
    """

    kind: str
    rate: float | None
    participations: float = 1.0


@dataclasses.dataclass
class _Sum:
    """The sum of the directions of some canaries, and its products with all others."""

    cohort: Cohort
    total: NDArray[np.float32]
    dots: NDArray[np.float64] | None = None


class ScoredSteps:
    """Scores the noisy gradient of every step against all canaries.

    As everywhere a released mean points where the model goes, it is less the mean gradient; a
    canary's own gradient points away from its direction.

    Args:
        dim: number of trainable parameters.
        observed: canaries that may take part.
        unobserved: canaries that are only scored.
        seed: of the canaries.
        kind: of the canaries.
    """

    def __init__(
        self, dim: int, observed: int, unobserved: int, seed: int, kind: CanaryKind
    ) -> None:
        self.canaries = CanarySet(dim, observed + unobserved, seed, kind)
        # So many as one rotation has: their scores come with the others.
        rows = min(NULL_CANARIES, 1 << (dim - 1).bit_length())
        self._scorer = CanaryScorer(self.canaries, others=max(0, rows - len(self.canaries)))
        others = self._scorer.others
        self._all = self.canaries.with_count(len(self.canaries) + others)
        self._null = NullTally(observed, others) if others else None
        self._observed = observed
        self._present: list[Cohort] = []
        self._facts: list[StepFacts] = []
        self._absent: list[int] = []
        self._last: _Sum | None = None

    @property
    def count(self) -> int:
        """Steps so far."""
        return len(self._facts)

    def gradient(self, cohort: Cohort, clip_norm: float) -> NDArray[np.float32]:
        """The sum of the gradients of these canaries, each of length ``clip_norm``."""
        return np.asarray(np.float32(-clip_norm) * self._sum_of(cohort).total)

    def _sum_of(self, cohort: Cohort) -> _Sum:
        """Their sum; the same as the last one's is not computed again."""
        if self._last is None or not np.array_equal(self._last.cohort, cohort):
            ones = np.ones((1, len(cohort)))
            total = self.canaries.combine(ones, numbers=cohort.tolist())[0]
            self._last = _Sum(cohort, total)
        return self._last

    def add(
        self, noisy: Vector, real: Vector | None, cohort: Cohort, facts: StepFacts, n: float
    ) -> bool:
        """Note a step.

        Args:
            noisy: the noisy sum.
            real: the part of it that the adversary knows, and takes out; ``None`` if there is none.
            cohort: the canaries in it.
            facts: of the step.
            n: by which the sum is divided.

        Returns:
            Whether the step could be scored; one that is not finite counts as lost.
        """
        seen = noisy if real is None else noisy - real
        mean = np.asarray(seen, np.float32) / np.float32(-n)
        finite = math.isfinite(norm(mean))
        absent = 0 if finite else len(cohort)
        if not finite:
            mean, cohort = np.zeros_like(mean), cohort[:0]
        dots = self._scorer.add("mean", mean)
        self._present.append(cohort)
        self._facts.append(facts)
        self._absent.append(absent)
        if dots is not None:
            self._follow_null(mean, dots, facts.clip_norm / n)
        return finite

    def _follow_null(self, mean: Vector, dots: NDArray[np.float64], contribution: float) -> None:
        """Note what canaries that took no part score, the canaries of the step taken out.

        The same canaries in every step would make the null wide even if they are few; changing
        ones are left in below `_SMALLEST_SHARE`.
        """
        length, first = norm(mean), len(self.canaries)
        if self._null is None or length == 0:
            return
        cohort, dim = self._present[-1], self.canaries.dim
        self._null.add_delta(dots[first:], length, dim)
        again = len(self._present) > 1 and np.array_equal(self._present[-2], cohort)
        large = len(cohort) * contribution**2 > _SMALLEST_SHARE * length**2
        if len(cohort) and (again or large):
            known = self._sum_of(cohort)
            if known.dots is None:
                known.dots = self._all.dot(known.total)
            along, square = float(mean @ known.total), float(known.total @ known.total)
            dots = dots - along / square * known.dots
            length = math.sqrt(max(length**2 - along**2 / square, 0.0))
        scale = math.sqrt(dim) / length if length > 0 else 0.0
        self._null.add_round(scale * dots[first:], cohort.tolist(), scale * contribution)

    def record(
        self,
        start: Vector,
        final: Vector,
        *,
        sampling: Sampling,
        steps: Steps,
        delta: float,
        provenance: Provenance,
        linear: bool,
    ) -> AuditRecord:
        """What the run leaves behind so far.

        Args:
            start: the model before the first step.
            final: the model after the last one.
            sampling: who takes part when.
            steps: of the optimizer.
            delta: target δ.
            provenance: settings, seeds, versions and faults.
            linear: whether ``final`` is the model after exactly these steps.
        """
        # A step in which the audit had to stand back may have been scored.
        self._scorer.go_on(self._scorer.scored(["mean"]), self.count)
        presence = np.zeros((self.count, self._observed), bool)
        for row, cohort in zip(presence, self._present, strict=True):
            row[cohort] = True
        seen = np.flatnonzero(presence.any(axis=0))
        mechanism = self._mechanism(sampling, steps, linear)
        rates = [f.learning_rate for f in self._facts]
        usable = "learning_rates" in mechanism.server and steps.momentum == 0
        scale = np.array(rates) if usable else np.ones(self.count)
        return record_from_scorer(
            self._scorer,
            seen,
            start=start,
            final=final,
            delta_norms=self._scorer.norms("mean") * scale,
            delta_series="mean",  # what a step releases is its noisy gradient
            presence=presence[:, seen],
            delta=delta,
            mechanism=mechanism,
            clients=ClientLog(absent=np.array(self._absent, np.int64)),
            metrics={},
            provenance=provenance,
            null=self._null,
        )

    def _mechanism(self, sampling: Sampling, steps: Steps, linear: bool) -> Mechanism:
        rates = [facts.learning_rate for facts in self._facts]
        server: dict[str, Any] = {"name": steps.description}
        if linear and steps.momentum is not None and np.all(np.isfinite(rates)):
            server = {"name": "sgd", "momentum": steps.momentum, "learning_rates": rates}
        rate = sampling.rate
        return Mechanism(
            cohort_size=steps.batch_size,
            noise_multiplier=_constant([f.noise_multiplier for f in self._facts]),
            sum_noise_multiplier=_constant([f.sum_noise_multiplier for f in self._facts]),
            participation=sampling.kind,
            canary_participations=sampling.participations if rate is None else rate * self.count,
            server=server,
            clip_norms=np.array([facts.clip_norm for facts in self._facts], np.float64),
        )


def _constant(values: list[float]) -> float | None:
    """The value that all have in common; ``None`` if they differ, or there is none."""
    return values[0] if values and all(value == values[0] for value in values) else None
