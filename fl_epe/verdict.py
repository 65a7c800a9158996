"""The bound that a report names as its verdict, as it is chosen before a run.

A run has many lower bounds, and the largest of several is not a bound. So one is named in advance:
"weighted" is that method for an adversary who sees every round's model, "final:weighted" for one
who sees the final model, and "auto" is the method that `headline_method` picks from the number of
canaries and δ alone.

Examples:
    >>> VerdictRule.parse("final:lifted")
    VerdictRule(threat='final', method='lifted')
    >>> VerdictRule.parse("auto")
    VerdictRule(threat='all', method='auto')
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from fl_epe.checks import expected

VERDICT_METHODS = (
    "clopper-pearson",
    "simultaneous",
    "weighted",
    "gdp",
    "mean",
    "lifted",
    "one-run",
    "one-run-fdp",
    "order-statistic",
)
"""The valid lower bounds, of which a verdict may name one."""

COIN_VERDICTS = ("one-run", "one-run-fdp", "order-statistic")
"""Those for which each canary must be included by a fair coin of its own."""


@dataclasses.dataclass(frozen=True)
class VerdictRule:
    """Which lower bound is the verdict of a run.

    Attributes:
        threat: the adversary sees the final model, or every round's.
        method: one of `VERDICT_METHODS`, or "auto" for the one that suits the design.
    """

    threat: Literal["final", "all"]
    method: str

    @classmethod
    def parse(cls, text: str) -> VerdictRule:
        """From 'METHOD', 'final:METHOD' or 'all:METHOD'; a METHOD alone is for every round.

        Raises:
            ArgumentError: a `ValueError`, for anything else.
        """
        threat, colon, method = text.partition(":")
        if not colon:
            threat, method = "all", text
        methods = ("auto", *VERDICT_METHODS)
        if method not in methods or threat not in ("final", "all"):
            wanted = f"to be METHOD, 'final:METHOD' or 'all:METHOD', METHOD one of {methods}"
            expected("verdict", text, wanted)
        return cls("final" if threat == "final" else "all", method)

    def check_inclusion(self, inclusion: str) -> None:
        """Refuse a method that needs fair coins, unless coins decide who takes part.

        Raises:
            ArgumentError: a `ValueError`, that names both settings.
        """
        if self.method in COIN_VERDICTS and inclusion != "coin":
            expected("verdict", self.method, f"to go with inclusion='coin', not {inclusion!r}")
