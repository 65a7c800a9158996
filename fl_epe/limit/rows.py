"""The rows of a comparison: ε with intervals, and bounds."""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy

from fl_epe.accounting import UpperBound, epsilon_two_gaussians, tightest
from fl_epe.limit.plan import ComparisonPlan


@dataclasses.dataclass(frozen=True)
class Epsilon:
    """ε of a client drawn at random for one adversary, and what theory says of the same client.

    Adjacency is zero-out everywhere: the client's updates are replaced by zero.

    Attributes:
        epsilon: of a client drawn at random whose rounds the adversary knows, or in
            ``unknown_rounds`` does not know. Of a training whose expected scores are not known, of
            the mean canary.
        low: lower end of the interval of a training or of drawn clients; else ``epsilon``.
        high: upper end of it.
        analytical: the tightest bound for this client and adversary.
        above: the estimate lies above the bound by more than chance allows, all comparisons of
            the plan taken together. Either the bound does not apply or something is wrong.
        simulated: clients were drawn, as the schedule has no law in closed form.
        worst_case: what none of all clients exceeds, at the plan's confidence; ``None`` where that
            is not known.
        unaware: of a client drawn at random whose expected score the adversary does not know.
        mean: at the mean expected score; ``None`` for unknown rounds.
    """

    epsilon: float
    low: float
    high: float
    analytical: UpperBound | None
    above: bool
    simulated: bool = False
    worst_case: float | None = None
    unaware: float | None = None
    mean: float | None = None


@dataclasses.dataclass(frozen=True)
class Row:
    """One schedule at one noise multiplier and number of participations.

    Attributes:
        schedule: its specification.
        noise_multiplier: z.
        participations: expected participations asked for.
        replicates: trainings that were pooled.
        delta: δ of every ε.
        clients: number of clients.
        mean_participations: of a client; of a training's canaries.
        most_participations: what none of the clients exceeds, at the plan's confidence; of a
            training, of any canary.
        final: for an adversary who sees the final model and knows each client's rounds.
        every_round: for an adversary who sees every round's model and knows each client's rounds.
        unknown_rounds: for an adversary who sees every round's model and does not know
            the rounds; ``None`` where there is no closed form.
        analytical_unknown_rounds: the tightest bound against that adversary.
        accuracy: mean over the replicates, on held-out data; ``None`` in the limit.
        log: rounds of the log that is replayed, and how many of them have clients.
        skipped: why the combination is impossible; ``None`` if it is not.
        not_measured: why it has no ε although it is possible; ``None`` if it has one.
        diverged: why its model has diverged; ``None`` if it has not.
    """

    schedule: str
    noise_multiplier: float
    participations: float
    replicates: int = 0
    delta: float | None = None
    clients: int | None = None
    mean_participations: float | None = None
    most_participations: int | None = None
    final: Epsilon | None = None
    every_round: Epsilon | None = None
    unknown_rounds: Epsilon | None = None
    analytical_unknown_rounds: float | None = None
    accuracy: float | None = None
    log: tuple[int, int] | None = None
    skipped: str | None = None
    not_measured: str | None = None
    diverged: str | None = None

    @property
    def failed(self) -> str | None:
        """Why the row is not what was asked for: not measured, or of a model that diverged."""
        if self.not_measured is not None:
            return f"not measured: {self.not_measured}"
        return None if self.diverged is None else f"diverged: {self.diverged}"

    @property
    def above(self) -> bool:
        """Whether any ε lies above its bound by more than chance allows."""
        return any(
            e is not None and e.above for e in (self.final, self.every_round, self.unknown_rounds)
        )


def quantiles(plan: ComparisonPlan) -> tuple[float, float]:
    """Standard errors of an interval, and of a test whether an estimate lies above its bound.

    The test is at the plan's confidence for all comparisons together (Bonferroni).
    """
    tests = 3 * len(plan.schedules) * len(plan.noise_multipliers) * len(plan.participations)
    confidence = plan.confidence
    usual, strict = scipy.special.ndtri([(1 + confidence) / 2, 1 - (1 - confidence) / tests])
    return float(usual), float(strict)


def zero_out(bounds: tuple[UpperBound, ...], *, rounds_known: bool) -> UpperBound | None:
    """The tightest bound for zero-out adjacency, as that of the estimates.

    A client who takes part by coins is absent in the same way as one whose updates are zero, and
    a client whose updates are zero is one of those that may replace another.
    """
    bound = tightest(bounds, rounds_known=rounds_known)
    return None if bound is None else dataclasses.replace(bound, adjacency="zero-out")


def is_above(least: float, bound: UpperBound | None) -> bool:
    """Whether the least likely value of an estimate lies above the bound."""
    return bound is not None and least > bound.epsilon * (1 + 1e-6)


def epsilon_at(shift: float, delta: float) -> float:
    """ε of one expected score; 0 for a negative one."""
    return float(epsilon_two_gaussians(0.0, 1.0, np.maximum(shift, 0.0), 1.0, delta))
