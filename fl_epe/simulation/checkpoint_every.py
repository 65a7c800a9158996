"""`CheckpointEvery`: how often a run keeps a checkpoint, by rounds or by time.

Examples:
    >>> CheckpointEvery.parse("10")
    CheckpointEvery(rounds=10, seconds=None)
    >>> CheckpointEvery.parse("5min")
    CheckpointEvery(rounds=None, seconds=300.0)
    >>> print(CheckpointEvery.parse("1.5h"))
    90min
    >>> CheckpointEvery.parse("5 apples")
    Traceback (most recent call last):
    fl_epe.checks.ArgumentError: Expected checkpoint_every='5 apples' to be a number of rounds \
such as 10, or a time such as 30s, 5min or 2h.
"""

from __future__ import annotations

import dataclasses
import re

from fl_epe.checks import ArgumentError, check_count

_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_TIME = re.compile(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*(s|min|h)\s*")
_ROUNDS = re.compile(r"\s*(-?\d{1,18})\s*")


@dataclasses.dataclass(frozen=True)
class CheckpointEvery:
    """Every so many rounds, or at the end of the first round after so many seconds.

    Attributes:
        rounds: rounds from one checkpoint to the next; ``None`` if the time decides.
        seconds: seconds from one checkpoint to the next; ``None`` if the rounds decide.
    """

    rounds: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, text: int | str, name: str = "checkpoint_every") -> CheckpointEvery:
        """From a number of rounds (``10``, ``"10"``) or a time (``"30s"``, ``"5min"``, ``"2h"``).

        Args:
            text: what was typed.
            name: of the argument, for the error.

        Raises:
            ValueError: if it is neither, or not positive.
        """
        if isinstance(text, int) or _ROUNDS.fullmatch(text):
            rounds = int(text)
            check_count(name, rounds)
            return cls(rounds=rounds)
        found = _TIME.fullmatch(text)
        if found is None or float(found[1]) == 0:
            raise ArgumentError(
                f"Expected {{{name}}} to be a number of rounds such as 10, or a time such as 30s, "
                "5min or 2h.",
                **{name: text},
            )
        return cls(seconds=float(found[1]) * _SECONDS[found[2]])

    def due(self, rounds: int, seconds: float) -> bool:
        """Whether it is time, so many rounds and seconds after the last one."""
        if self.rounds is not None:
            return rounds >= self.rounds
        return self.seconds is not None and seconds >= self.seconds

    def __str__(self) -> str:
        """As it is typed."""
        if self.seconds is None:
            return str(self.rounds)
        if self.seconds % 60:
            return f"{self.seconds:g}s"
        return f"{self.seconds / 60:g}min"
