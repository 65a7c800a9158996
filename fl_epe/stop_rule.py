"""`StopRule`: when a run may stop early, because what it shows of ε says enough.

Examples:
    >>> StopRule.parse("epsilon-all-low > 8")
    StopRule(name='epsilon-all-low', limit=8.0)
    >>> StopRule.parse("epsilon-all > 8")
    Traceback (most recent call last):
    fl_epe.checks.ArgumentError: Expected stop_when='epsilon-all > 8' to name epsilon-all-low or \
epsilon-all-high, the ends of an interval that holds at every round at once; epsilon-all does not.
"""

from __future__ import annotations

import dataclasses
import math
import re

from fl_epe.checks import ArgumentError, expected

_SIGNS = {"epsilon-all-low": ">", "epsilon-all-high": "<"}
_RULE = re.compile(r"\s*([a-z-]+)\s*([<>]=?)\s*(\S+)\s*")


@dataclasses.dataclass(frozen=True)
class StopRule:
    """Stop as soon as ε is shown to be above a limit, or below it.

    Attributes:
        name: "epsilon-all-low" (stop when it is above the limit) or "epsilon-all-high" (when it is
            below).
        limit: ε in nats.
    """

    name: str
    limit: float

    @classmethod
    def parse(cls, text: str) -> StopRule:
        """From a text such as ``"epsilon-all-low > 8"``.

        Raises:
            ArgumentError: for another text, with what is wrong with it.
        """
        found = _RULE.fullmatch(text)
        if found is None:
            expected(
                "stop_when", text, "to be like 'epsilon-all-low > 8': a name, > or <, a number"
            )
        name, sign, number = found.groups()
        if name not in _SIGNS:
            why = "epsilon-all does not" if name == "epsilon-all" else f"{name} is not one"
            raise ArgumentError(
                "Expected {stop_when} to name epsilon-all-low or epsilon-all-high, the ends of an "
                f"interval that holds at every round at once; {why}.",
                stop_when=text,
            )
        if sign != _SIGNS[name]:
            expected("stop_when", text, f"to have {_SIGNS[name]!r} after {name}, got {sign!r}")
        try:
            limit = float(number)
        except ValueError:
            limit = math.nan
        if not 0 <= limit < math.inf:
            expected("stop_when", text, f"to end in a finite number >= 0, got {number!r}")
        return cls(name, limit)

    def met(self, low: float, high: float) -> bool:
        """Whether an interval for ε says enough."""
        return low > self.limit if self.name == "epsilon-all-low" else high < self.limit

    def __str__(self) -> str:
        return f"{self.name} {_SIGNS[self.name]} {self.limit:g}"
