"""The primary bound of a run: the one lower bound that is named before any score is seen.

A run has many lower bounds, and the largest of several is not a bound. So one is named in advance,
and the others are exploratory: "weighted" is that method for an adversary who sees every round's
model, "final:weighted" for one who sees the final model, and "auto" is the method that
`method_by_design` picks from the number of canaries and δ alone.

Examples:
    >>> PrimaryBound.parse("final:lifted")
    PrimaryBound(adversary='final', method='lifted')
    >>> PrimaryBound.parse("auto")
    PrimaryBound(adversary='all', method='auto')
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Literal

from fl_epe.auditing.bounds.methods import BOUNDS
from fl_epe.auditing.scores import Scores
from fl_epe.checks import check_probability, raise_invalid

_FEW_FOR_WEIGHTS = 16  # up to here "simultaneous" is the sharper one with an exact null
_FEW_IN_GROUPS = 12  # up to here "clopper-pearson" is the sharper one with two groups of scores
_LEAKS_EXACT, _LEAKS_IN_GROUPS = 1.0, 0.1  # canaries times δ, beyond which "weighted" is weaker
_MOST_NEEDED = 10_000  # to look for the least number of canaries


@dataclasses.dataclass(frozen=True)
class PrimaryBound:
    """Which lower bound of a run is the primary one.

    Attributes:
        adversary: the adversary sees the final model, or every round's.
        method: a valid one of `BOUNDS`, or "auto" for the one that suits the design.
    """

    adversary: Literal["final", "all"]
    method: str

    @classmethod
    def parse(cls, text: str, *, inclusion: str = "coin") -> PrimaryBound:
        """From 'METHOD', 'final:METHOD' or 'all:METHOD'; a METHOD alone is for every round.

        Args:
            text: as in the settings of a run.
            inclusion: how canaries are included; some methods need "coin".

        Raises:
            ArgumentError: a `ValueError`, for anything else.
        """
        adversary, _, method = text.rpartition(":")
        methods = ("auto", *(name for name, bound in BOUNDS.items() if bound.valid))
        if method not in methods or adversary not in ("", "final", "all"):
            wanted = f"to be METHOD, 'final:METHOD' or 'all:METHOD', METHOD one of {methods}"
            raise_invalid("verdict", text, wanted)
        if method != "auto" and BOUNDS[method].needs_coins and inclusion != "coin":
            raise_invalid("verdict", text, f"to go with inclusion='coin', not {inclusion!r}")
        return cls("final" if adversary == "final" else "all", method)


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
        below every observed one. `least_canaries` in each group are enough.
    """
    if not scores.boundable:
        return None
    observed = len(scores.observed)
    if scores.dim is not None:
        few = observed <= _FEW_FOR_WEIGHTS
        return "simultaneous" if few or observed * delta > _LEAKS_EXACT else "weighted"
    unobserved = len(scores.both()[1])
    if not _flawless(observed, unobserved, delta, confidence):
        return None
    pairs = min(observed, unobserved)
    alike = 3 * pairs >= 2 * max(observed, unobserved)
    weights_win = alike and pairs > _FEW_IN_GROUPS and pairs * delta <= _LEAKS_IN_GROUPS
    return "weighted" if weights_win else "clopper-pearson"


@functools.cache
def _flawless(observed: int, unobserved: int, delta: float, confidence: float) -> float:
    """The bound "clopper-pearson" if no score is on the wrong side of the threshold."""
    return BOUNDS["clopper-pearson"](
        [1.0] * observed, [0.0] * unobserved, delta, confidence=confidence
    )


@functools.cache
def least_canaries(delta: float, *, confidence: float = 0.95) -> int:
    """How many observed, and as many unobserved, canaries a bound above 0 needs at least.

    With fewer, "clopper-pearson" is 0 even if no score is on the wrong side of the threshold. With
    the exact null of cosines two observed canaries are enough.

    Raises:
        ValueError: if 10,000 are not enough.
    """
    check_probability("confidence", confidence)
    check_probability("delta", delta)
    enough = (n for n in range(2, _MOST_NEEDED + 1) if _flawless(n, n, delta, confidence) > 0)
    if (least := next(enough, None)) is None:
        raise_invalid("delta", delta, f"and confidence={confidence} to allow a bound")
    return least
