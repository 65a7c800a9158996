"""Everything that can be said about bare scores: all estimates and all bounds that apply."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_epe.auditing.bounds.by_name import BOUNDS, lower_bound_by
from fl_epe.auditing.estimators import EpsilonEstimate, epsilon_from_cosines, epsilon_from_scores
from fl_epe.auditing.normality import anderson_darling
from fl_epe.checks import check_scores

Floats = NDArray[np.float64]

COIN_METHODS = ("one-run", "one-run-fdp", "order-statistic")
"""Bounds that hold only if each canary took part by an independent fair coin."""


def assess_scores(
    observed: Floats,
    unobserved: Floats | None,
    delta: float,
    *,
    dim: int | None = None,
    confidence: float = 0.95,
    coins: bool = False,
) -> dict[str, Any]:
    """All applicable estimates and bounds.

    Args:
        observed: shape ``(k,)``, larger says "took part".
        unobserved: shape ``(u,)``, or ``None`` if ``dim`` is given.
        delta: target δ.
        dim: the scores are cosines in that many dimensions, so that their null is exact.
        confidence: of the intervals (two-sided) and of the bounds (one-sided).
        coins: which canaries took part was decided by independent fair coins.

    Returns:
        A dictionary of JSON values: ``estimates``, ``bounds`` and ``gaussian``, each a list of
        dictionaries; infinite values are ``None``.

    Raises:
        ValueError: for bad scores, or neither ``unobserved`` nor ``dim``.
    """
    if unobserved is None and dim is None:
        raise ValueError("Expected unobserved scores or dim, got neither.")
    check_scores("observed", observed)
    if unobserved is not None:
        check_scores("unobserved", unobserved)
    return {
        "delta": delta,
        "confidence": confidence,
        "dim": dim,
        "observed": len(observed),
        "unobserved": 0 if unobserved is None else len(unobserved),
        "estimates": _estimates(observed, unobserved, delta, dim, confidence),
        "bounds": all_bounds(observed, unobserved, delta, dim, confidence, coins),
        "gaussian": _gaussian(observed, unobserved),
    }


def _estimates(
    observed: Floats, unobserved: Floats | None, delta: float, dim: int | None, confidence: float
) -> list[dict[str, Any]]:
    found: list[EpsilonEstimate] = []
    if dim is not None:
        found += [
            epsilon_from_cosines(observed, dim, delta, variance=variance, confidence=confidence)
            for variance in ("known", "fitted")
        ]
    if unobserved is not None:
        found.append(epsilon_from_scores(observed, unobserved, delta, confidence=confidence))
    return [estimate_values(estimate) for estimate in found]


def estimate_values(estimate: EpsilonEstimate) -> dict[str, Any]:
    """An estimate as JSON values."""
    return {
        key: finite(value) if isinstance(value, float) else value
        for key, value in dataclasses.asdict(estimate).items()
    }


def all_bounds(
    observed: Floats,
    unobserved: Floats | None,
    delta: float,
    dim: int | None,
    confidence: float,
    coins: bool,
) -> list[dict[str, Any]]:
    """Every lower bound that applies, with its assumption; arguments as in `assess_scores`."""
    out = []
    for method, bound in BOUNDS.items():
        if method in COIN_METHODS and (unobserved is None or not coins):
            continue
        others = None if dim is not None and method not in COIN_METHODS else unobserved
        value = lower_bound_by(
            method,
            observed,
            others,
            0.0 if method == "katz-log" else delta,
            dim=dim,
            confidence=confidence,
        )
        out.append(
            {
                "method": method,
                "epsilon": finite(value),
                "valid": bound.valid,
                "assumption": bound.assumption,
                "description": bound.description,
            }
        )
    return out


def _gaussian(observed: Floats, unobserved: Floats | None) -> list[dict[str, Any]]:
    out = []
    for name, scores in (("observed", observed), ("unobserved", unobserved)):
        if scores is not None and (test := gaussian_test(scores)):
            out.append({"scores": name, **test})
    return out


def gaussian_test(scores: Floats) -> dict[str, float] | None:
    """Anderson–Darling, as in the paper's appendix B; ``None`` for scores that cannot be tested."""
    if len(scores) < 8 or np.ptp(scores) == 0:
        return None
    fit = anderson_darling(scores)
    return {"statistic": fit.statistic, "p_value": fit.p_value}


def finite(value: float | None) -> float | None:
    """``None`` for what JSON has no number for."""
    return value if value is not None and math.isfinite(value) else None
