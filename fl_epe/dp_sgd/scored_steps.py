"""What an audit of DP-SGD keeps of each step, and the record that it makes of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_epe.auditing import (
    NULL_CANARIES,
    OTHERS,
    AuditRecord,
    Mechanism,
    RoundFacts,
    RunAuditor,
    ServerStep,
)
from fl_epe.canaries import CanaryKind
from fl_epe.dp_sgd.sampling import Sampling
from fl_epe.dp_sgd.steps import StepFacts, Steps
from fl_epe.mechanism import norm
from fl_epe.schedules import Cohort

Vector = NDArray[np.floating]


@dataclasses.dataclass(frozen=True)
class JoinedStep:
    """A step that canaries were given the chance to join."""

    cohort: Cohort
    facts: StepFacts
    clipped: list[tuple[float, float]]  # of each batch
    gradient: Vector | float  # of the canaries
    summed: Vector  # with it
    undo: Callable[[], None]


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
        delta: target δ.
    """

    def __init__(
        self, dim: int, observed: int, unobserved: int, *, seed: int, kind: CanaryKind, delta: float
    ) -> None:
        self.auditor = RunAuditor(
            observed,
            unobserved,
            seed=seed,
            delta=delta,
            kind=kind,
            server="DP-SGD",
            series=(OTHERS,),
            # So many as one rotation has: their scores come with the others.
            null_canaries=min(NULL_CANARIES, 1 << (dim - 1).bit_length()),
        )
        self._facts: list[StepFacts] = []
        self._last: tuple[Cohort, Vector] | None = None

    @property
    def count(self) -> int:
        """Steps so far."""
        return len(self._facts)

    def gradient(self, cohort: Cohort, clip_norm: float) -> NDArray[np.float32]:
        """The sum of the gradients of these canaries, each of length ``clip_norm``."""
        if self._last is None or not np.array_equal(self._last[0], cohort):
            ones = np.ones((1, len(cohort)))
            canaries = self.auditor.canaries
            self._last = cohort, canaries.combine(ones, numbers=cohort.tolist())[0]
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
        finite = math.isfinite(norm(mean))
        absent = 0 if finite else len(cohort)
        if not finite:
            mean, cohort = np.zeros_like(mean), cohort[:0]
        seen = RoundFacts(cohort.tolist(), facts.clip_norm / n, facts.clip_norm, n, absent)
        self.auditor.observe(None, seen, released={OTHERS: mean})
        self._facts.append(facts)
        return finite

    def record(
        self, final: Vector, *, sampling: Sampling, steps: Steps, linear: bool, **facts: Any
    ) -> AuditRecord:
        """What the run leaves behind so far.

        Args:
            final: the model after the last step.
            sampling: the participation schedule.
            steps: of the optimizer.
            linear: whether ``final`` is the model after exactly these steps.
            facts: more parts of the record.
        """
        mechanism = self._mechanism(sampling, steps, linear)
        # Scores the steps that wait: the final model's float32 sums then are the same, to the bit,
        # in every record of these steps.
        self.auditor.state()
        record = self.auditor.record(final=final, mechanism=mechanism, **facts)
        rates = mechanism.server.learning_rates
        scale = np.ones(self.count) if rates is None or steps.momentum else rates
        return record.with_values(**{"norms.deltas": scale * record.norms.means})

    def _mechanism(self, sampling: Sampling, steps: Steps, linear: bool) -> Mechanism:
        rates = [facts.learning_rate for facts in self._facts]
        server = ServerStep(steps.description)
        if linear and steps.momentum is not None and np.all(np.isfinite(rates)):
            server = ServerStep("sgd", np.array(rates), steps.momentum)
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


def _constant(values: list[float]) -> float | None:
    """The value that all have in common; ``None`` if they differ, or there is none."""
    return values[0] if values and all(value == values[0] for value in values) else None
