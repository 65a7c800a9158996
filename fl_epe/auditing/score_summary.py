"""Everything that bare scores say: all estimates and all bounds that apply.

Examples:
    >>> summary = summarize_scores(bare_scores([0.01, 0.02, 0.03], None, dim=10_000), 1e-5)
    >>> [estimate.method for estimate in summary.estimates]
    ['cosines, known variance', 'cosines, fitted variance']
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_epe.auditing.assumptions import GaussianFit, gaussian_test
from fl_epe.auditing.bounds import all_bounds, bound_rows
from fl_epe.auditing.epsilon_estimate import EpsilonEstimate
from fl_epe.auditing.estimators import epsilon_of
from fl_epe.auditing.measured import LEAST_CANARIES, NotMeasured
from fl_epe.auditing.scores import Scores, check_sign
from fl_epe.checks import check_scores, finite, raise_invalid

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class ScoreSummary:
    """All estimates and bounds that bare scores allow.

    Attributes:
        delta: target δ.
        confidence: of the intervals (two-sided) and of the bounds (one-sided).
        dim: dimension of the cosines; ``None`` if the scores are not cosines.
        observed, unobserved: number of scores in each group.
        estimates: every estimate that applies.
        bounds: every lower bound that applies, by its method.
        gaussian: test of normality for each group with enough scores.
        overlap: ``m²·k/d`` for a mean score m, the share of k observed canaries in the energy of
            what was released, if they share it; ``None`` if the scores are not cosines.
        verdict: the method that was named in advance; ``None`` if it does not apply.
        ceiling: the largest bound that so many scores can give with that method.
        refused: why there is no estimate with known variance, where the scores refute it.
    """

    delta: float
    confidence: float
    dim: int | None
    observed: int
    unobserved: int
    estimates: tuple[EpsilonEstimate, ...]
    bounds: dict[str, float]
    gaussian: dict[str, GaussianFit]
    verdict: str | None = None
    ceiling: float | None = None
    overlap: float | None = None
    refused: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; infinite values are ``None``."""
        return {
            "delta": self.delta,
            "confidence": self.confidence,
            "dim": self.dim,
            "observed": self.observed,
            "unobserved": self.unobserved,
            "estimates": [
                dataclasses.asdict(found)
                | {name: finite(getattr(found, name)) for name in ("epsilon", "low", "high")}
                for found in self.estimates
            ],
            "bounds": bound_rows(self.bounds, self.verdict),
            "verdict": self.verdict,
            "ceiling": finite(self.ceiling),
            "ceiling_unbounded": self.ceiling == math.inf,
            "gaussian": [
                {"scores": name, "statistic": test.statistic, "p_value": test.p_value}
                for name, test in self.gaussian.items()
            ],
            "overlap": self.overlap,
            "refused": self.refused,
        }


def bare_scores(observed: ArrayLike, unobserved: ArrayLike | None, dim: int | None) -> Scores:
    """`Scores` from what a file holds; for `summarize_scores`.

    Args:
        observed: scores of observed canaries, larger for "took part", shape ``(k,)``.
        unobserved: scores of unobserved canaries, shape ``(u,)``, or ``None`` if ``dim`` is given.
        dim: if given, the scores are cosines in that many dimensions, whose null is known exactly.

    Raises:
        ValueError: for bad scores, or neither ``unobserved`` nor ``dim``.
        NotMeasured: a `ValueError`, for fewer than two scores of a side.
    """
    if unobserved is None and dim is None:
        raise_invalid("unobserved", None, "or dim to be given")
    for name, side in (("took part", observed), ("did not", unobserved)):
        if side is not None and np.ndim(side) == 1 and np.size(side) < LEAST_CANARIES:
            counted = "no score" if np.size(side) == 0 else "only 1 score"
            raise NotMeasured(
                f"there is {counted} of a canary that {name}; an ε needs at least {LEAST_CANARIES}"
            )
    others = None if unobserved is None else check_scores("unobserved", unobserved)
    bare = Scores(check_scores("observed", observed), others)
    return bare if dim is None else Scores.from_cosines(bare.observed, dim, others)


def summarize_scores(
    scores: Scores, delta: float, *, confidence: float = 0.95, coins: bool = False
) -> ScoreSummary:
    """All estimates and bounds that apply to bare scores.

    Args:
        scores: from `bare_scores`.
        delta: target δ in (0, 1).
        confidence: of the intervals (two-sided) and of the bounds (one-sided).
        coins: whether the canaries were included by independent fair coins.

    Raises:
        NotMeasured: a `ValueError`, for observed scores that are far below unobserved ones.
    """
    bare = scores
    shared = None
    if scores.dim is not None:
        shared = max(float(scores.observed.mean()), 0.0) ** 2 * len(scores.observed) / scores.dim
        scale = np.sqrt(scores.dim)
        others = None if scores.unobserved is None else scores.unobserved / scale
        bare = Scores(scores.observed / scale, others)
    check_sign(scores)
    refused = None
    estimates: list[EpsilonEstimate] = []
    if scores.dim is not None:
        try:
            estimates.append(epsilon_of(scores, delta, "known", confidence, refuse=True))
        except NotMeasured as error:
            refused = str(error)
        estimates.append(epsilon_of(scores, delta, "fitted", confidence))
    if bare.unobserved is not None:
        estimates.append(epsilon_of(bare, delta, confidence=confidence))
    return ScoreSummary(
        delta=delta,
        confidence=confidence,
        dim=scores.dim,
        observed=len(scores.observed),
        unobserved=0 if scores.unobserved is None else len(scores.unobserved),
        estimates=tuple(estimates),
        refused=refused,
        bounds=all_bounds(scores, delta, confidence, coins=coins),
        gaussian=_gaussian_tests(bare),
        overlap=shared,
    )


def _gaussian_tests(scores: Scores) -> dict[str, GaussianFit]:
    groups = {"observed": scores.observed, "unobserved": scores.unobserved}
    tests = {name: gaussian_test(group) for name, group in groups.items() if group is not None}
    return {name: test for name, test in tests.items() if test is not None}
