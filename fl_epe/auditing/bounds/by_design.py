"""The lower bound that is chosen by the design of a run, before any score is seen.

A run has many lower bounds, and the largest of several is not a bound.
"""

from fl_epe.auditing.bounds.methods import ceiling
from fl_epe.auditing.scores import Scores

_FEW_FOR_WEIGHTS = 16  # up to here "simultaneous" is the sharper one with an exact null
_FEW_IN_GROUPS = 12  # up to here "clopper-pearson" is the sharper one with two groups of scores
_LEAKS_EXACT, _LEAKS_IN_GROUPS = 1.0, 0.1  # canaries times δ, beyond which "weighted" is weaker


def method_by_design(scores: Scores, delta: float, confidence: float) -> str | None:
    """The primary bound of a report: of those for scores of any distribution, the sharpest.

    It is chosen from the design alone, so that it keeps its confidence. How close it comes to the
    best method for each design: docs/notes/lower-bounds.md.

    Args:
        scores: of which the numbers and the null count.
        delta: target δ in (0, 1).
        confidence: one-sided.

    Returns:
        A key of `BOUNDS`, or ``None`` if the bound would be 0 even if every unobserved score were
        below every observed one.
    """
    if not scores.boundable:
        return None
    observed = len(scores.observed)
    if scores.dim is not None:
        few = observed <= _FEW_FOR_WEIGHTS
        return "simultaneous" if few or observed * delta > _LEAKS_EXACT else "weighted"
    unobserved = len(scores.both()[1])
    if not ceiling(scores, delta, confidence, "clopper-pearson"):
        return None
    pairs = min(observed, unobserved)
    alike = 3 * pairs >= 2 * max(observed, unobserved)
    weights_win = alike and pairs > _FEW_IN_GROUPS and pairs * delta <= _LEAKS_IN_GROUPS
    return "weighted" if weights_win else "clopper-pearson"
