"""What audits of substitute adjacency share: what theorems allow, and what a canary proves."""

from __future__ import annotations

import dataclasses
import functools
import math

from fl_epe.accounting import epsilon_two_gaussians, poisson_epsilon
from fl_epe.auditing import Scores
from fl_epe.auditing.bounds import lower_bound
from simulations.pradhan_2025.group_privacy import group_epsilon
from simulations.pradhan_2025.hidden_substitute import (
    HiddenSubstitute,
    hidden_substitute_lower_bound,
)
from simulations.pradhan_2025.linear_digits import Training
from simulations.shared.audit_script import Settings


@dataclasses.dataclass(frozen=True)
class Theory:
    """What theorems allow a training to leak, by adjacency."""

    training: Training
    delta: float

    @functools.cached_property
    def add_or_remove(self) -> float:
        """ε of a record that is there or not."""
        return poisson_epsilon(*self._arguments)

    @functools.cached_property
    def substitute(self) -> float:
        """ε of a record in the place of another."""
        return poisson_epsilon(*self._arguments, replace_one=True)

    @functools.cached_property
    def group(self) -> float:
        """The same by group privacy alone."""
        return group_epsilon(*self._arguments)

    @property
    def pair(self) -> HiddenSubstitute:
        """The worst case for an adversary who sees the final model."""
        training = self.training
        return HiddenSubstitute(
            training.noise_multiplier, training.sampling_rate, training.steps
        )

    @property
    def _arguments(self) -> tuple[float, float, int, float]:
        training = self.training
        return (
            training.noise_multiplier,
            training.sampling_rate,
            training.steps,
            self.delta,
        )


@dataclasses.dataclass(frozen=True)
class Proof:
    """What a canary proves.

    Attributes:
        canary: its name.
        theory: of the training.
        count: scores of each world.
        measured: ε of two fitted Gaussians, which is no bound.
        bound: lower bound on ε.
        method: of the bound.
    """

    canary: str
    theory: Theory
    count: int
    measured: float
    bound: float
    method: str

    @property
    def above_add_or_remove(self) -> bool:
        """Whether the bound is above what add-or-remove adjacency allows."""
        return self.bound > self.theory.add_or_remove

    @property
    def holds(self) -> bool:
        """Whether the bound is within what substitute adjacency allows."""
        return self.bound <= self.theory.substitute


def proof_of(
    canary: str,
    scores: Scores,
    theory: Theory,
    settings: Settings,
    *,
    is_sum: bool,
) -> Proof:
    """The bound along the mechanism's curve, or by "weighted", which assumes no law.

    Args:
        canary: its name.
        scores: of both worlds.
        theory: of the training.
        settings: δ and confidence.
        is_sum: whether a score depends on the steps through their sum, as the curve assumes.
    """
    training, delta = theory.training, settings.delta
    if is_sum:
        method = "along the curve"
        bound = hidden_substitute_lower_bound(
            scores,
            training.sampling_rate,
            training.steps,
            delta,
            confidence=settings.confidence,
        )
    else:
        method = "weighted"
        bound = lower_bound(
            scores, delta, confidence=settings.confidence, method=method
        )
    measured = epsilon_of_means(scores, delta)
    return Proof(canary, theory, scores.observed.size, measured, bound, method)


def epsilon_of_means(scores: Scores, delta: float) -> float:
    """ε of two Gaussians with the means of the worlds and one spread: the noise is the same."""
    observed, absent = scores.both()
    spread = math.sqrt((observed.var(ddof=1) + absent.var(ddof=1)) / 2)
    distance = max(float(observed.mean() - absent.mean()), 0.0)
    return float(epsilon_two_gaussians(0.0, spread, distance, spread, delta))
