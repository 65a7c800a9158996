"""Texts of numbers and counts, for messages and reports.

Examples:
    >>> number(4.81605), counted(1, "round"), counted(1200, "client"), counted(4.81605, "round")
    ('4.82', '1 round', '1,200 clients', '4.82 rounds')
    >>> how_often(1), how_often(24)
    ('once', '24 times')
"""

import math

NODE_THREAD = "fl-epe-node"
"""The name of the threads that run nodes of this process."""

_MIN_WITH_EXPONENT = 1e6
_MAX_DECIMALS = 4


def number(value: float | None) -> str:
    """A number with three or more significant digits, but at most four decimals.

    ``None`` and infinity are "∞".
    """
    if value is None or math.isinf(value):
        return "∞"
    if value == 0:
        return "0"
    if value >= _MIN_WITH_EXPONENT:
        return f"{value:.2e}"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(decimals, _MAX_DECIMALS)}f}"


def signed(value: float, plus: str = "") -> str:
    """A number after "−" if it is negative, and after ``plus`` otherwise; "unknown" for NaN."""
    if math.isnan(value):
        return "unknown"
    sign = "−" if value < 0 else plus
    return f"{sign}{number(abs(value))}"


def amount(count: float) -> str:
    """A count, or a mean of counts with three digits; "unknown" for NaN."""
    if math.isnan(count):
        return "unknown"
    if count > 999:
        return f"{count:,.0f}"
    return f"{count:.3g}"


def counted(count: float, singular: str) -> str:
    """A count, or a mean of counts, with its noun in the singular or plural."""
    shown = amount(count)
    ending = "" if shown == "1" else "s"
    return f"{shown} {singular}{ending}"


def how_often(count: float) -> str:
    """A frequency in words, such as "once" or "24 times"."""
    times = counted(count, "time")
    if times == "1 time":
        return "once"
    return times


def unit_of_records(records: int) -> str:
    """The unit of privacy: a record, or a person with several."""
    if records == 1:
        return "record"
    return f"person of {records} records"


def capitalized(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]


def sentence(clause: str) -> str:
    """The clause as a sentence, with a capital letter and a full stop."""
    return f"{capitalized(clause)}."
