"""Lower bounds on ε that hold at a stated confidence, by name.

`epsilon_lower_bound` computes one method; `BOUNDS` says what each method is, what it assumes and
whether it is valid. A valid bound exceeds the true ε with probability at most 1 − confidence if its
assumption holds. Choose the method before the scores are seen: the largest of several bounds is
not a bound. How they work: docs/notes/lower-bounds.md.

The assumption "GDP" means that the mechanism's trade-off curve is Gaussian. The scores may have any
distribution: the method rules out μ-GDP, and the ε at δ is read off the curve.

Examples:
    >>> observed, unobserved = [5.0 + i / 100 for i in range(100)], range(-50, 50)
    >>> epsilon_lower_bound(observed, unobserved, 1e-5) > 0
    True
"""

from __future__ import annotations

import dataclasses
import functools
import types
import warnings
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import ArrayLike

from fl_epe.auditing.bounds import all_thresholds, bayesian, guessing
from fl_epe.auditing.bounds.clopper_pearson import clopper_pearson
from fl_epe.auditing.bounds.error_rates import FloatArray, Sample
from fl_epe.auditing.bounds.gdp import gdp
from fl_epe.auditing.bounds.katz_log import katz_log
from fl_epe.auditing.bounds.lifted import lifted
from fl_epe.auditing.bounds.mean import mean
from fl_epe.auditing.bounds.weighted import weighted
from fl_epe.auditing.scores import Scores, in_moderate_units
from fl_epe.checks import check_probability, check_scores, raise_invalid


@dataclasses.dataclass(frozen=True)
class Bound:
    """One method of ``epsilon_lower_bound``.

    Attributes:
        compute: from checked scores to ε.
        description: the method in one line.
        valid: whether the bound keeps its confidence if the assumption holds.
        assumption: what it assumes besides independent scores.
        gaussian: whether it assumes Gaussian noise, which has no finite ε at δ = 0.
        needs_coins: whether each canary must have been included by an independent fair coin.
    """

    compute: Callable[[Sample], float]
    description: str
    valid: bool
    assumption: str
    gaussian: bool = False
    needs_coins: bool = False


class NoBoundWarning(UserWarning):
    """The method is not a valid bound: it exceeds the true ε too often."""


def epsilon_lower_bound(
    observed: ArrayLike,
    unobserved: ArrayLike | None,
    delta: float,
    *,
    dim: int | None = None,
    confidence: float = 0.95,
    method: str = "clopper-pearson",
    seed: int = 0,
) -> float:
    """A lower bound on ε from the scores of canaries, by a method named in `BOUNDS`.

    The default holds for scores of any distribution; "weighted" is often sharper. "jeffreys", the
    paper's method, is no bound: at ε = 0 it is positive in 23% of runs, and in 74% with the exact
    null (``benchmarks/bounds_peers.py``). It warns once in a process, with `NoBoundWarning`.

    Args:
        observed: scores of the observed canaries, larger for "took part", shape (k,).
        unobserved: scores of unobserved canaries, shape (u,). ``None`` if ``dim`` is given: the
            scores are then cosines in ``dim`` dimensions, whose null is known exactly.
        delta: δ of the ε that is bounded, in [0, 1); above 0 for methods that assume Gaussian
            noise, and 0 for "katz-log".
        dim: dimension of the canaries; not used if ``unobserved`` is given.
        confidence: one-sided.
        method: a key of `BOUNDS`, chosen before the scores are seen.
        seed: of random splits of the scores, chosen in advance like the method.

    Returns:
        The bound in nats, at least 0; infinite if the scores rule out every finite ε. If the scores
        of both groups are all equal, or all cosines are 0, the bound is 0.

    Raises:
        ValueError: for an argument out of range, scores that are not finite, fewer than two of
            them, cosines outside [−1, 1], or a method that needs other scores.
    """
    if method == "jeffreys":
        _warn_of_jeffreys()
    return lower_bound_by(
        method, observed, unobserved, delta, dim=dim, confidence=confidence, seed=seed
    )


@functools.cache
def _warn_of_jeffreys() -> None:
    text = (
        "method='jeffreys' is not a bound: it exceeds the true ε more often than its confidence"
        " says. Use it only to compare with published numbers, and leave out method for a bound."
    )
    warnings.warn(text, NoBoundWarning, stacklevel=3)


def lower_bound_by(
    method: str,
    observed: ArrayLike,
    unobserved: ArrayLike | None,
    delta: float,
    *,
    dim: int | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    spread: float = 1.0,
) -> float:
    """`epsilon_lower_bound` without its warning, for tables that mark what is not valid.

    ``spread`` is that of `Scores`, for scores that move together; "mean" allows for it.
    """
    bound = BOUNDS.get(method)
    if bound is None:
        raise_invalid("method", method, f"to be one of {', '.join(BOUNDS)}")
    check_probability("confidence", confidence)
    if seed < 0:
        raise_invalid("seed", seed, ">= 0")
    check_delta(delta, method)
    members = check_scores("observed", observed)
    others = None if unobserved is None else check_scores("unobserved", unobserved)
    if others is None:
        _check_cosines(members, dim)
    else:
        members, others = in_moderate_units(members, others)
    told = members.any() if others is None else np.ptp(np.concatenate([members, others]))
    if not told:
        return 0.0
    return bound.compute(
        Sample(members, others, dim, delta, 1 - confidence, seed, max(spread, 1.0))
    )


def check_delta(delta: float, method: str) -> None:
    """Refuse a δ outside [0, 1), or one at which ``method`` bounds nothing."""
    if method == "katz-log" and delta != 0:
        raise_invalid("delta", delta, "to be 0 for method='katz-log'")
    if BOUNDS[method].gaussian and delta == 0:
        wanted = f"> 0 for method={method!r}: Gaussian noise has no finite ε at δ = 0"
        raise_invalid("delta", delta, wanted)
    if delta != 0:
        check_probability("delta", delta)


def lower_bound(
    scores: Scores, delta: float, *, confidence: float = 0.95, method: str = "clopper-pearson"
) -> float:
    """`epsilon_lower_bound` of `Scores`, without its warning.

    If the scores are cosines with one vector, their exact null replaces the unobserved scores,
    except for the methods in `COIN_METHODS`, which need both groups.

    Raises:
        ValueError: as `epsilon_lower_bound`.
    """
    if scores.dim is None or method in COIN_METHODS:
        members, others, dim = scores.observed, scores.unobserved, None
    else:
        members, others, dim = scores.cosines, None, scores.dim
    if others is None and dim is None and scores.dim is not None:
        raise_invalid("unobserved", None, f"to be scores for method={method!r}")
    return lower_bound_by(
        method, members, others, delta, dim=dim, confidence=confidence, spread=scores.spread
    )


def _check_cosines(cosines: FloatArray, dim: int | None) -> None:
    if dim is None:
        raise_invalid("unobserved", None, "to be scores, or dim=None to be a number of dimensions")
    if dim < 2:
        raise_invalid("dim", dim, ">= 2")
    largest = cosines[np.argmax(np.abs(cosines))]
    if abs(largest) > 1 + 1e-6:
        raise_invalid("observed", largest, "in [-1, 1]: with dim, scores are cosines")


_FREE = "independent scores, of any distribution"
_GDP = "Gaussian mechanism (GDP)"
_GAUSSIAN = "Gaussian scores with the null's variance"
_COINS = "canaries included by fair coins; 2·m·δ small"
_RANDOM = "random canaries; the scores may depend on each other in any way"
_PRIOR = "Jeffreys prior on the error rates"

BOUNDS: Mapping[str, Bound] = types.MappingProxyType(
    {
        "jeffreys": Bound(
            all_thresholds.jeffreys,
            "best threshold of all with Jeffreys limits, as published (Andrew et al. 2024)",
            valid=False,
            assumption="a threshold chosen in advance",
        ),
        "clopper-pearson": Bound(
            clopper_pearson,
            "Clopper–Pearson limits at a held-out threshold",
            valid=True,
            assumption=_FREE,
        ),
        "simultaneous": Bound(
            all_thresholds.simultaneous,
            "best threshold of all with a confidence band for the whole ROC curve",
            valid=True,
            assumption=_FREE,
        ),
        "weighted": Bound(
            weighted,
            "weighted evidence of all canaries; the sharpest for 16 to 0.05 / δ canaries",
            valid=True,
            assumption=_FREE,
        ),
        "katz-log": Bound(
            katz_log,
            "Katz-log interval of TPR/FPR at a held-out threshold, pure DP (δ = 0)",
            valid=False,
            assumption="asymptotic: tens of true and false positives",
        ),
        "bayesian": Bound(
            bayesian.bayesian,
            "credible limit at a held-out threshold (Zanella-Béguelin et al. 2023)",
            valid=False,
            assumption=_PRIOR,
        ),
        "gdp": Bound(
            gdp,
            "Clopper–Pearson limits at a held-out threshold, read as μ-GDP (Nasr et al. 2023)",
            valid=True,
            assumption=_GDP,
            gaussian=True,
        ),
        "bayesian-gdp": Bound(
            bayesian.bayesian_gdp,
            "credible limit at a held-out threshold, read as μ-GDP",
            valid=False,
            assumption=f"{_PRIOR}; {_GDP}",
            gaussian=True,
        ),
        "mean": Bound(
            mean,
            "lower confidence limit of the standardised mean difference, read as μ-GDP",
            valid=True,
            assumption=_GAUSSIAN,
            gaussian=True,
        ),
        "lifted": Bound(
            lifted,
            "a run counted as one trial (lifted DP, Pillutla et al. 2023); see lifted_lower_bound",
            valid=True,
            assumption=_RANDOM,
        ),
        "one-run": Bound(
            guessing.one_run,
            "number of right guesses (Steinke et al. 2023)",
            valid=True,
            assumption=_COINS,
            needs_coins=True,
        ),
        "one-run-fdp": Bound(
            guessing.one_run_fdp,
            "number of right guesses, read as μ-GDP (Mahloujifar et al. 2024)",
            valid=True,
            assumption=f"canaries included by fair coins; {_GDP}",
            gaussian=True,
            needs_coins=True,
        ),
        "order-statistic": Bound(
            guessing.order_statistic,
            "errors of the most confident guesses, read as μ-GDP (Xiang et al. 2025)",
            valid=True,
            assumption=f"canaries included by fair coins; {_GDP}",
            gaussian=True,
            needs_coins=True,
        ),
    }
)
"""Every lower bound: its function, what it assumes, and whether it keeps its confidence."""

NEED_GAUSSIAN = tuple(name for name, bound in BOUNDS.items() if bound.gaussian)
"""Methods that read the scores as those of a Gaussian mechanism at known rounds."""

COIN_METHODS = tuple(name for name, bound in BOUNDS.items() if bound.needs_coins)
"""Methods that require each canary to have been included by an independent fair coin."""
