"""Lower bounds on ε that hold at a stated confidence, by name.

`epsilon_lower_bound` computes the bound of one method; `BOUNDS` has each method's function, its
assumption and whether it is valid. A valid bound exceeds the true ε with probability at most
1 − confidence if its assumption holds. Choose the method before the scores are seen: the largest of
several bounds is not a bound. How the methods work: docs/notes/lower-bounds.md.

The method "gdp" assumes that the mechanism's trade-off curve is Gaussian, but not that the scores
are. It rules out μ-GDP for some μ, and the bound is the ε of that curve at δ.

Examples:
    >>> observed, unobserved = [5.0 + i / 100 for i in range(100)], range(-50, 50)
    >>> epsilon_lower_bound(observed, unobserved, 1e-5) > 0
    True
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import ArrayLike

from fl_epe.auditing.bounds import thresholds
from fl_epe.auditing.bounds.error_rates import Sample
from fl_epe.auditing.bounds.guessing import one_run
from fl_epe.auditing.bounds.lifted import lifted
from fl_epe.auditing.bounds.weighted import weighted
from fl_epe.auditing.scoring import (
    UNKNOWN_ROUNDS,
    Scores,
    check_cosines,
    in_moderate_units,
)
from fl_epe.checks import (
    all_equal,
    check_probability,
    check_scores,
    raise_invalid,
)

_INDEPENDENT = (
    "that the scores of one run are independent is assumed, not proven"
)

# Up to this many canaries, "simultaneous" is sharper than "weighted" with an exact null.
_FEW_FOR_WEIGHTS = 16

# "weighted" is weaker than another method if the number of canaries times δ, which is the
# expected number of leaked labels, is above this limit.
_MAX_LEAKS_EXACT_NULL = 1.0
_MAX_LEAKS_TWO_GROUPS = 0.1

# Standard errors of the scores' unit that are added to the width of the exact null.
_STANDARD_ERRORS = 3


@dataclasses.dataclass(frozen=True)
class Bound:
    """One method of ``epsilon_lower_bound``.

    Attributes:
        compute: the function from checked scores to ε.
        assumption: the assumption of the method besides independent scores.
        theorem: why the assumption holds for the canaries of one run, or that it is not proven.
        valid: whether the bound keeps its confidence if the assumption holds.
        gaussian: whether the method assumes Gaussian noise, which has no finite ε at δ = 0.
        needs_coins: whether each canary must have been included by an independent fair coin.
    """

    compute: Callable[[Sample], float]
    assumption: str = "independent scores, of any distribution"
    theorem: str = _INDEPENDENT
    valid: bool = True
    gaussian: bool = False
    needs_coins: bool = False

    def __call__(
        self,
        observed: ArrayLike,
        unobserved: ArrayLike | None,
        delta: float,
        *,
        dim: int | None = None,
        confidence: float = 0.95,
    ) -> float:
        """The bound; arguments, result and errors are those of `epsilon_lower_bound`."""
        check_probability("confidence", confidence)
        self.check_delta(delta)
        scores = check_scores("observed", observed, ranks=True)
        null_scores = None
        if unobserved is not None:
            null_scores = check_scores("unobserved", unobserved, ranks=True)
            scores, null_scores = in_moderate_units(scores, null_scores)
            is_tied = all_equal(np.concatenate([scores, null_scores]))
        elif dim is None:
            raise_invalid(
                "unobserved",
                None,
                "to be scores, or dim=None to be a number of dimensions",
            )
        else:
            if dim < 2:
                raise_invalid("dim", dim, ">= 2")
            check_cosines("observed", scores)
            is_tied = not scores.any()  # all cosines are 0
        if is_tied:
            return 0.0
        return self.compute(
            Sample(
                observed=scores,
                unobserved=null_scores,
                dim=dim or 0,
                delta=delta,
                alpha=1 - confidence,
            )
        )

    def check_delta(self, delta: float) -> None:
        """Raise for a δ outside [0, 1), or a δ at which the method bounds nothing."""
        if delta != 0:
            check_probability("delta", delta)
        elif self.gaussian:
            raise_invalid(
                "delta", delta, "> 0: Gaussian noise has no finite ε at δ = 0"
            )


BOUNDS: Mapping[str, Bound] = {
    "jeffreys": Bound(
        thresholds.jeffreys,
        assumption="a threshold chosen in advance",
        valid=False,
    ),
    "clopper-pearson": Bound(thresholds.clopper_pearson),
    "simultaneous": Bound(thresholds.simultaneous),
    "weighted": Bound(weighted),
    "gdp": Bound(
        thresholds.gdp, assumption="Gaussian mechanism (GDP)", gaussian=True
    ),
    "lifted": Bound(
        lifted,
        assumption="random canaries; the scores may depend on each other in any way",
        theorem="lifted DP: the canaries are random, and the run counts as one trial "
        "(Pillutla et al. 2023, arXiv 2305.18447)",
    ),
    "one-run": Bound(
        one_run,
        assumption="canaries included by fair coins; 2·m·δ small",
        theorem="one-run auditing: fair coins included the canaries, so that their labels are "
        "independent given all scores (Steinke, Nasr and Jagielski 2023)",
        needs_coins=True,
    ),
}
"""Every lower bound: its function, its assumption, and whether it keeps its confidence."""


def bound_named(method: str | Bound) -> Bound:
    """The bound itself, or the entry of `BOUNDS` with this name.

    Raises:
        ArgumentError: for a name that is not in `BOUNDS`; it lists all names.
    """
    if isinstance(method, Bound):
        return method
    if method not in BOUNDS:
        raise_invalid("method", method, f"to be one of {', '.join(BOUNDS)}")
    return BOUNDS[method]


def epsilon_lower_bound(
    observed: ArrayLike,
    unobserved: ArrayLike | None,
    delta: float,
    *,
    dim: int | None = None,
    confidence: float = 0.95,
    method: str = "clopper-pearson",
) -> float:
    """A lower bound on ε from the scores of canaries, by a method named in `BOUNDS`.

    The default holds for scores of any distribution; "weighted" is often sharper. "jeffreys", the
    paper's method, is not valid: at ε = 0 it is positive in 23% of runs, and in 74% with the exact
    null (``benchmarks/bounds_peers.py``). It gives a warning.

    Args:
        observed: scores of the observed canaries, larger for "took part", shape (k,).
        unobserved: scores of unobserved canaries, shape (u,). Scores of both groups may then be
            infinite, as only their order counts. ``None`` if ``dim`` is given: the scores are
            then cosines in ``dim`` dimensions, whose null is known exactly.
        delta: the δ of the ε that is bounded, in [0, 1); above 0 for methods that assume
            Gaussian noise.
        dim: dimension of the canaries; not used if ``unobserved`` is given.
        confidence: the one-sided confidence.
        method: a key of `BOUNDS`, chosen before the scores are seen.

    Returns:
        The bound in nats, at least 0; infinite if the scores rule out every finite ε. If the scores
        of both groups are all equal, or all cosines are 0, the bound is 0.

    Raises:
        ValueError: for an argument out of range, scores that are NaN, fewer than two of them,
            cosines outside [−1, 1], or a method that needs other scores.
    """
    bound = bound_named(method)
    if not bound.valid:
        warnings.warn(
            f"method={method!r} is not a bound: it exceeds the true ε more often than its "
            "confidence says. Use it only to compare with published numbers, and leave out method "
            "for a bound.",
            UserWarning,
            stacklevel=2,
        )
    return bound(observed, unobserved, delta, dim=dim, confidence=confidence)


def lower_bound(
    scores: Scores,
    delta: float,
    *,
    confidence: float = 0.95,
    method: str | Bound = "clopper-pearson",
) -> float:
    """`epsilon_lower_bound` of `Scores`, without its warning; ``method`` may also be a `Bound`.

    If the scores are cosines with one vector, their exact null replaces the unobserved scores,
    except for a method that needs both groups.

    Raises:
        ValueError: as `epsilon_lower_bound`.
    """
    bound = bound_named(method)
    if scores.dim is None or bound.needs_coins:
        if scores.unobserved is None and scores.dim is not None:
            raise_invalid(
                "unobserved", None, "to be scores, which this method needs"
            )
        return bound(
            scores.observed, scores.unobserved, delta, confidence=confidence
        )
    # The scores' unit is an estimate, so the null may be wider by some of its standard errors.
    width_margin = 1 + _STANDARD_ERRORS * scores.unit_error
    cosines = scores.cosines / width_margin
    return bound(cosines, None, delta, dim=scores.dim, confidence=confidence)


def all_bounds(
    scores: Scores, delta: float, confidence: float, *, coins: bool
) -> dict[str, float]:
    """Every lower bound that applies, each at this one-sided confidence, by its method.

    The result is empty if the scores have neither unobserved scores nor an exact null.

    Args:
        scores: the scores.
        delta: target δ in (0, 1).
        confidence: the one-sided confidence.
        coins: whether the canaries were included by independent fair coins.
    """
    if not scores.boundable:
        return {}
    has_coins = coins and scores.unobserved is not None
    may_be_gaussian = scores.statistic != UNKNOWN_ROUNDS
    return {
        method: lower_bound(scores, delta, confidence=confidence, method=method)
        for method, bound in BOUNDS.items()
        if (has_coins or not bound.needs_coins)
        and (may_be_gaussian or not bound.gaussian)
    }


def ceiling(
    scores: Scores, delta: float, confidence: float, method: str
) -> float:
    """The largest lower bound that this many scores can give: that of a perfect attack.

    Args:
        scores: the scores, of which only their numbers and their null are used.
        delta: target δ in [0, 1).
        confidence: the one-sided confidence.
        method: a key of `BOUNDS`.
    """
    unobserved = 0 if scores.unobserved is None else scores.unobserved.size
    return _ceiling(
        scores.observed.size, unobserved, scores.dim, delta, confidence, method
    )


# The bound of a perfect attack may take a second. Many runs have the same number of canaries.
@functools.lru_cache(maxsize=256)
def _ceiling(
    observed: int,
    unobserved: int,
    dim: int | None,
    delta: float,
    confidence: float,
    method: str,
) -> float:
    """`ceiling`, by the numbers of scores and the dimension of an exact null."""
    null = np.zeros(unobserved) if unobserved else None
    perfect = Scores(np.ones(observed), null)
    if dim is not None:
        perfect = Scores.from_cosines(np.ones(observed), dim, null)
    return lower_bound(perfect, delta, confidence=confidence, method=method)


def method_by_design(
    scores: Scores, delta: float, confidence: float
) -> str | None:
    """The primary bound of a report: the sharpest bound for scores of any distribution.

    It is chosen by the design alone, so that it keeps its confidence. A comparison with the
    best method of each design: docs/notes/lower-bounds.md.

    Args:
        scores: the scores, of which only their numbers and their null are used.
        delta: target δ in (0, 1).
        confidence: the one-sided confidence.

    Returns:
        A key of `BOUNDS`, or ``None`` if the bound would be 0 even if every unobserved score were
        below every observed one.
    """
    if not scores.boundable:
        return None
    observed = len(scores.observed)
    if scores.dim is not None:
        has_many_leaks = observed * delta > _MAX_LEAKS_EXACT_NULL
        if observed <= _FEW_FOR_WEIGHTS or has_many_leaks:
            return "simultaneous"
        return "weighted"
    unobserved = len(scores.both()[1])
    smaller = min(observed, unobserved)
    # "weighted" is weak unless the smaller group has at least two thirds of the larger one's size.
    is_balanced = 3 * smaller >= 2 * max(observed, unobserved)
    method = "clopper-pearson"
    if is_balanced and smaller * delta <= _MAX_LEAKS_TWO_GROUPS:
        method = "weighted"
    if ceiling(scores, delta, confidence, method):
        return method
    return None
