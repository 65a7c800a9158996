"""What every audit can be asked: how many observations, at which δ and confidence, which seed."""

from __future__ import annotations

import dataclasses
from typing import Any

from fl_epe.checks import check_probability, check_types


@dataclasses.dataclass(frozen=True)
class AuditSettings:
    """Settings of an audit.

    Attributes:
        observations: in each of the two worlds (default: the audit's own).
        delta: target δ.
        confidence: of each lower bound, one-sided.
        seed: of all random numbers.
        quick: a smaller one, to see that it works; its numbers are coarse.
    """

    observations: int | None = None
    delta: float = 1e-5
    confidence: float = 0.95
    seed: int = 1
    quick: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        check_probability("delta", self.delta)
        check_probability("confidence", self.confidence)
        if self.observations is not None and self.observations < 2:
            raise ValueError(f"Expected observations={self.observations} >= 2.")
        if self.seed < 0:
            raise ValueError(f"Expected seed={self.seed} >= 0.")

    def count(self, usual: int, quick: int) -> int:
        """Number of observations: as asked for, or the audit's ``usual`` or ``quick`` one."""
        return self.observations or (quick if self.quick else usual)

    def to_dict(self) -> dict[str, Any]:
        """By name, to repeat the audit."""
        return dataclasses.asdict(self)
