"""Numbers and estimates as JSON values."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from fl_epe.auditing import EpsilonEstimate
from fl_epe.checks import finite
from fl_epe.wording import number

JSON = dict[str, Any]


def as_json(value: Any) -> Any:
    """A value or dataclass as JSON; ``None`` for a number that is infinite or NaN.

    The δ and confidence of an estimate are left out, as a report has them once for all
    estimates.
    """
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        if isinstance(value, EpsilonEstimate):
            names = ["epsilon", "low", "high", "method"]
        return {name: as_json(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {name: as_json(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(part) for part in value]
    if isinstance(value, float):
        return finite(value)
    return value


def finite_numbers(numbers: Mapping[str, float | None]) -> JSON:
    """Numbers as JSON; ``unbounded`` has the names of the infinite ones."""
    values: JSON = {name: finite(value) for name, value in numbers.items()}
    values["unbounded"] = [
        name for name, value in numbers.items() if value == math.inf
    ]
    return values


def interval(estimate: EpsilonEstimate) -> str:
    """The ends of an estimate's interval, as text."""
    return f"{number(estimate.low)} – {number(estimate.high)}"
