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
        self._null = NullTally(observed, others) if others else None
        self._observed = observed
        self._present: list[Cohort] = []
        self._facts: list[StepFacts] = []
        self._absent: list[int] = []
        self._last: tuple[Cohort, Vector] | None = None

    @property
    def count(self) -> int:
        """Steps so far."""
        return len(self._facts)

    def gradient(self, cohort: Cohort, clip_norm: float) -> NDArray[np.float32]:
        """The sum of the gradients of these canaries, each of length ``clip_norm``."""
        if self._last is None or not np.array_equal(self._last[0], cohort):
            ones = np.ones((1, len(cohort)))
            self._last = cohort, self.canaries.combine(ones, numbers=cohort.tolist())[0]
        return np.asarray(np.float32(-clip_norm) * self._last[1])

    def add(self, unknown: Vector, cohort: Cohort, facts: StepFacts, n: float) -> bool:
        """Note a step.

        Args:
            unknown: the part of the noisy sum that the adversary does not know, without canaries.
            cohort: the canaries in the step.
            facts: of the step.
            n: by which the sum is divided.

        Returns:
            Whether the step could be scored; one that is not finite counts as lost.
        """
        mean = np.asarray(unknown, np.float32) / np.float32(-n)
        length = norm(mean)
        finite = math.isfinite(length)
        absent = 0 if finite else len(cohort)
        if not finite:
            mean, cohort = np.zeros_like(mean), cohort[:0]
        dots = self._scorer.add("mean", mean)
        self._present.append(cohort)
        self._facts.append(facts)
        self._absent.append(absent)
        if dots is not None and self._null is not None and 0 < length < math.inf:
            self._follow_null(self._null, dots[len(self.canaries) :], length, facts.clip_norm / n)
        return finite

    def _follow_null(
        self, null: NullTally, dots: NDArray[np.float64], length: float, contribution: float
    ) -> None:
        """Note what canaries that took no part score."""
        scale = math.sqrt(self.canaries.dim) / length
        null.add_delta(dots, length, self.canaries.dim)
        null.add_round(scale * dots, self._present[-1].tolist(), scale * contribution)

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
        record = record_from_scorer(
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
        return _with_own(record, np.array([f.clip_norm for f in self._facts]) / steps.batch_size)

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
            canary_participations=sampling.participations
            if rate is None
            else sum(min(1.0, facts.batches * rate) for facts in self._facts),
            server=server,
            clip_norms=np.array([facts.clip_norm for facts in self._facts], np.float64),
        )


def _with_own(record: AuditRecord, added: NDArray[np.float64]) -> AuditRecord:
    """The record of what holds no canary, with each canary's own part in the steps that it joined.

    All other canaries are known, so that nothing of them is left: `Norms.sums` is 0.

    Args:
        record: of the parts that the adversary does not know.
        added: norm of a canary in each step's mean, ``(T,)``.
    """
    norms = record.norms.means
    dots, own = record.observed.means * norms[:, None], record.presence * added[:, None]
    lengths = np.sqrt(norms[:, None] ** 2 + 2 * own * dots + own**2)
    means = np.divide(dots + own, lengths, out=np.zeros_like(dots), where=lengths > 0)
    here = (norms > 0) | record.presence.any(axis=1)
    alone = np.where(here, np.hypot(norms, added), 0.0)
    scale = np.divide(record.norms.deltas, norms, out=np.zeros_like(norms), where=norms > 0)
    return dataclasses.replace(
        record,
        observed=dataclasses.replace(record.observed, means=means, deltas=means, sums=None),
        unobserved=dataclasses.replace(record.unobserved, sums=None),
        norms=dataclasses.replace(
            record.norms, means=alone, deltas=scale * alone, sums=np.zeros(record.rounds)
        ),
    )


def _constant(values: list[float]) -> float | None:
    """The value that all have in common; ``None`` if they differ, or there is none."""
    return values[0] if values and all(value == values[0] for value in values) else None
