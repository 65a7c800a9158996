"""Everything that can be said about bare scores: all estimates and all bounds that apply."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_epe.auditing.bounds.by_name import BOUNDS, COIN_METHODS, lower_bound
from fl_epe.auditing.epsilon_estimate import EpsilonEstimate
from fl_epe.auditing.estimators import epsilon_of
from fl_epe.auditing.normality import GaussianFit, anderson_darling
from fl_epe.auditing.scores import Scores
from fl_epe.checks import check_scores

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class BoundRow:
    """A lower bound by one method, and what stands behind it.

    Attributes:
        method: its key in `fl_epe.auditing.bounds.by_name.BOUNDS`.
        epsilon: the bound; infinite where every finite ε is ruled out.
        valid: whether it keeps its confidence where the assumption holds.
        assumption: what it leans on besides independent scores.
        description: the method in one line.
    """

    method: str
    epsilon: float
    valid: bool
    assumption: str
    description: str

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; an infinite ε is ``None``."""
        return {**dataclasses.asdict(self), "epsilon": finite(self.epsilon)}


@dataclasses.dataclass(frozen=True)
class Assessment:
    """All estimates and bounds that bare scores allow.

    Attributes:
        delta: target δ.
        confidence: of the intervals (two-sided) and of the bounds (one-sided).
        dim: dimension of the cosines, ``None`` if the scores are none.
        observed, unobserved: how many scores; 0 unobserved ones if there are none.
        estimates: every estimate that applies.
        bounds: every lower bound that applies.
        gaussian: test of normality by group of scores, where there are enough.
    """

    delta: float
    confidence: float
    dim: int | None
    observed: int
    unobserved: int
    estimates: tuple[EpsilonEstimate, ...]
    bounds: tuple[BoundRow, ...]
    gaussian: dict[str, GaussianFit]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; infinite values are ``None``."""
        return {
            "delta": self.delta,
            "confidence": self.confidence,
            "dim": self.dim,
            "observed": self.observed,
            "unobserved": self.unobserved,
            "estimates": [
                {
                    **dataclasses.asdict(found),
                    "epsilon": finite(found.epsilon),
                    "low": finite(found.low),
                    "high": finite(found.high),
                }
                for found in self.estimates
            ],
            "bounds": [row.to_dict() for row in self.bounds],
            "gaussian": [
                {"scores": name, "statistic": test.statistic, "p_value": test.p_value}
                for name, test in self.gaussian.items()
            ],
        }


def assess_scores(
    observed: Floats,
    unobserved: Floats | None,
    delta: float,
    *,
    dim: int | None = None,
    confidence: float = 0.95,
    coins: bool = False,
) -> Assessment:
    """All applicable estimates and bounds.

    Args:
        observed: shape ``(k,)``, larger says "took part".
        unobserved: shape ``(u,)``, or ``None`` if ``dim`` is given.
        delta: target δ.
        dim: the scores are cosines in that many dimensions, so that their null is exact.
        confidence: of the intervals (two-sided) and of the bounds (one-sided).
        coins: which canaries took part was decided by independent fair coins.

    Raises:
        ValueError: for bad scores, or neither ``unobserved`` nor ``dim``.
    """
    if unobserved is None and dim is None:
        raise ValueError("Expected unobserved scores or dim, got neither.")
    members = check_scores("observed", observed)
    others = None if unobserved is None else check_scores("unobserved", unobserved)
    bare = Scores(members, others)
    scores = bare if dim is None else Scores.from_cosines(members, dim, others)
    estimates = []
    if scores.dim is not None:
        estimates += [
            epsilon_of(scores, delta, variance, confidence) for variance in ("known", "fitted")
        ]
    if others is not None:
        estimates.append(epsilon_of(bare, delta, confidence=confidence))
    tests = {"observed": gaussian_test(members)}
    if others is not None:
        tests["unobserved"] = gaussian_test(others)
    return Assessment(
        delta=delta,
        confidence=confidence,
        dim=dim,
        observed=len(members),
        unobserved=0 if others is None else len(others),
        estimates=tuple(estimates),
        bounds=all_bounds(scores, delta, confidence, coins),
        gaussian={name: test for name, test in tests.items() if test is not None},
    )


def all_bounds(
    scores: Scores, delta: float, confidence: float, coins: bool
) -> tuple[BoundRow, ...]:
    """Every lower bound that applies; none without unobserved scores and without an exact null.

    Args:
        scores: of the canaries.
        delta: target δ.
        confidence: one-sided, of each bound alone.
        coins: which canaries took part was decided by independent fair coins.
    """
    if not scores.boundable:
        return ()
    guesses = coins and scores.unobserved is not None
    return tuple(
        BoundRow(
            method,
            lower_bound(
                scores,
                0.0 if method == "katz-log" else delta,
                confidence=confidence,
                method=method,
            ),
            bound.valid,
            bound.assumption,
            bound.description,
        )
        for method, bound in BOUNDS.items()
        if guesses or method not in COIN_METHODS
    )


def gaussian_test(scores: Floats) -> GaussianFit | None:
    """Anderson–Darling, as in the paper's appendix B; ``None`` for scores that cannot be tested."""
    return None if len(scores) < 8 or np.ptp(scores) == 0 else anderson_darling(scores)


def finite(value: float | None) -> float | None:
    """``None`` for what JSON has no number for."""
    return value if value is not None and math.isfinite(value) else None
