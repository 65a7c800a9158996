"""What a report says about its rows, its verdict, and the dependence of the canaries."""

import dataclasses
import math
from typing import Literal

from fl_epe.reporting.numbers import JSON, as_json

Sees = Literal["final", "all"]
"""The adversaries of a report's headlines."""

SEES: dict[Sees, str] = {"final": "the final model", "all": "every round's model"}
"""What the adversary of each adversary sees, in words."""

Role = Literal["verdict", "exploratory", "not a bound"]
"""What a lower bound is worth: one is the verdict; others were not named before the run."""


@dataclasses.dataclass(frozen=True)
class Statement:
    """What one row of the table says, and for whom.

    Attributes:
        sees: what the adversary sees, in words.
        knows: what else the adversary knows.
        statistic: in words.
        adjacency: which two runs the row compares.
        unit: whose privacy: "client", or "example" if each canary stands for one.
        method: of the lower bound; ``None`` without one.
        assumption: of the lower bound, or of the estimate without one.
        theorem: that the lower bound rests on.
        role: of the lower bound.
        ceiling: the largest lower bound that so many canaries could have shown; ``None`` without
            a bound.
    """

    sees: str
    knows: str
    statistic: str
    adjacency: str
    unit: str
    method: str | None
    assumption: str
    theorem: str
    role: Role
    ceiling: float | None

    def to_dict(self) -> JSON:
        """As JSON values."""
        return {**as_json(self), "ceiling_unbounded": self.ceiling == math.inf}


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The one lower bound that was named before the run.

    Attributes:
        rule: as it was named, such as "auto" or "final:weighted".
        recorded: whether the record says so; otherwise it is the rule by design, "auto".
        adversary: "final" or "all".
        epsilon: the bound; ``None`` if the run allows none.
        statement: of its row; ``None`` if that was not measured.
        reason: why there is no bound; empty if there is one.
    """

    rule: str
    recorded: bool
    adversary: Sees
    epsilon: float | None
    statement: Statement | None
    reason: str = ""

    @property
    def method(self) -> str | None:
        """The bound's method."""
        return self.statement.method if self.statement else None

    def to_dict(self) -> JSON:
        """As JSON values."""
        return {
            "rule": self.rule,
            "fixed_before_the_run": self.recorded,
            "adversary": self.adversary,
            "epsilon": as_json(self.epsilon),
            "unbounded": self.epsilon == math.inf,
            "method": self.method,
            "reason": self.reason,
            "statement": self.statement.to_dict() if self.statement else None,
        }
