"""Numbers and estimates as JSON holds them."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from fl_epe.auditing import EpsilonEstimate
from fl_epe.checks import finite
from fl_epe.wording import number

JSON = dict[str, Any]


def as_json(value: Any) -> Any:
    """A value, also of a dataclass, as JSON; ``None`` for a number that is infinite or NaN.

    Of an estimate δ and confidence are left out, as they stand once in a report.
    """
    if isinstance(value, EpsilonEstimate):
        shown = ("epsilon", "low", "high", "method")
        return {name: as_json(getattr(value, name)) for name in shown}
    if dataclasses.is_dataclass(value):
        return {
            each.name: as_json(getattr(value, each.name))
            for each in dataclasses.fields(value)
        }
    if isinstance(value, dict):
        return {name: as_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    return finite(value) if isinstance(value, float) else value


def finite_numbers(numbers: Mapping[str, float | None]) -> JSON:
    """Numbers as JSON; ``unbounded`` names those of them that are infinite."""
    return {name: finite(value) for name, value in numbers.items()} | {
        "unbounded": [name for name, value in numbers.items() if value == math.inf]
    }


def interval(found: EpsilonEstimate) -> str:
    """The ends of an estimate's interval."""
    return f"{number(found.low)} – {number(found.high)}"
