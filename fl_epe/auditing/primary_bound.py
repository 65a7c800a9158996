"""Many lower bounds of one run: which theorem each rests on, and all at once, corrected.

Examples:
    >>> theorem("lifted", coins=False).startswith("lifted DP")
    True
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

from fl_epe.auditing.bounds.by_name import BOUNDS, COIN_METHODS, NEED_GAUSSIAN
from fl_epe.auditing.bounds.primary import primary_method
from fl_epe.auditing.score_summary import BoundRow, all_bounds
from fl_epe.auditing.scores import UNKNOWN_ROUNDS, Scores
from fl_epe.checks import raise_invalid

ONE_RUN = (
    "one-run auditing: fair coins included the canaries, so that their labels are independent "
    "given all scores (Steinke, Nasr and Jagielski 2023)"
)
LIFTED = (
    "lifted DP: the canaries are random, and the run counts as one trial (Pillutla et al. 2023, "
    "arXiv 2305.18447)"
)
NO_THEOREM = (
    "no theorem for one run: an estimate of a bound, which holds if the scores are independent"
)


@dataclasses.dataclass(frozen=True)
class PrimaryBound:
    """Which lower bound of a run is the primary one, as it is chosen before the run.

    A run has many lower bounds, and the largest of several is not a bound. So one is named in
    advance, the others are exploratory: "weighted" is that method for an adversary who sees every
    round's model, "final:weighted" for one who sees the final model, and "auto" is the method that
    `primary_method` picks from the number of canaries and δ alone.

    Examples:
        >>> PrimaryBound.parse("final:lifted")
        PrimaryBound(adversary='final', method='lifted')
        >>> PrimaryBound.parse("auto")
        PrimaryBound(adversary='all', method='auto')

    Attributes:
        adversary: the adversary sees the final model, or every round's.
        method: a valid one of `BOUNDS`, or "auto" for the one that suits the design.
    """

    adversary: Literal["final", "all"]
    method: str

    @classmethod
    def parse(cls, text: str) -> PrimaryBound:
        """From 'METHOD', 'final:METHOD' or 'all:METHOD'; a METHOD alone is for every round.

        Raises:
            ArgumentError: a `ValueError`, for anything else.
        """
        adversary, colon, method = text.partition(":")
        if not colon:
            adversary, method = "all", text
        methods = ("auto", *(name for name, bound in BOUNDS.items() if bound.valid))
        if method not in methods or adversary not in ("final", "all"):
            wanted = f"to be METHOD, 'final:METHOD' or 'all:METHOD', METHOD one of {methods}"
            raise_invalid("verdict", text, wanted)
        return cls("final" if adversary == "final" else "all", method)

    def check_inclusion(self, inclusion: str) -> None:
        """Refuse a method that needs fair coins, unless coins decide who takes part.

        Raises:
            ArgumentError: a `ValueError`, that names both settings.
        """
        if self.method in COIN_METHODS and inclusion != "coin":
            raise_invalid("verdict", self.method, f"to go with inclusion='coin', not {inclusion!r}")


def theorem(method: str, *, coins: bool) -> str:
    """The theorem that a lower bound of one run rests on, in words.

    Args:
        method: a key of `BOUNDS`.
        coins: whether each canary was included by an independent fair coin.
    """
    if method == "lifted":
        return LIFTED
    return ONE_RUN if coins and method in COIN_METHODS else NO_THEOREM


def applicable_methods(scores: Scores, *, coins: bool) -> tuple[str, ...]:
    """The valid methods of `BOUNDS` that these scores allow; none without anything to compare."""
    if not scores.boundable:
        return ()
    guesses = coins and scores.unobserved is not None
    left_out = NEED_GAUSSIAN if scores.statistic == UNKNOWN_ROUNDS else ()
    return tuple(
        name
        for name, bound in BOUNDS.items()
        if bound.valid and (guesses or not bound.needs_coins) and name not in left_out
    )


def method_by_design(scores: Scores, delta: float, confidence: float) -> str | None:
    """`primary_method` for these scores, of which it sees the number and the null alone."""
    if not scores.boundable:
        return None
    count = None if scores.dim is not None else len(scores.both()[1])
    return primary_method(len(scores.observed), count, delta, confidence=confidence)


@dataclasses.dataclass(frozen=True)
class SimultaneousBounds:
    """Valid lower bounds that hold all at once, at the stated confidence.

    Attributes:
        confidence: that all of them hold, if the assumptions of all do.
        each: the confidence of each on its own: 1 − (1 − confidence) / number (Bonferroni).
        rows: the bounds by adversary.
    """

    confidence: float
    each: float
    rows: dict[str, tuple[BoundRow, ...]]

    @property
    def largest(self) -> float:
        """The largest of them: a bound too, as all hold at once."""
        return max((row.epsilon for rows in self.rows.values() for row in rows), default=0.0)


def simultaneous_bounds(
    scores: Mapping[str, Scores], delta: float, *, confidence: float = 0.95, coins: bool = False
) -> SimultaneousBounds:
    """All valid lower bounds of a run for all adversaries, corrected for their number.

    By Bonferroni's inequality, as the bounds come from the same scores and depend on each other in
    ways that nothing sharper is known for. If an assumption does not hold, such as Gaussian noise
    for "gdp" and "mean", the bounds without it still hold together.

    Args:
        scores: of the canaries, by adversary.
        delta: target δ in (0, 1).
        confidence: that all bounds hold.
        coins: whether the canaries were included by independent fair coins.
    """
    number = sum(len(applicable_methods(found, coins=coins)) for found in scores.values())
    each = 1 - (1 - confidence) / max(number, 1)
    rows = {
        name: tuple(row for row in all_bounds(found, delta, each, coins) if row.valid)
        for name, found in scores.items()
    }
    return SimultaneousBounds(confidence, each, rows)
