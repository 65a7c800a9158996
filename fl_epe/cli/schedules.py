"""``fl-epe schedules``: every kind of schedule with its options and an example."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fl_epe.cli.console import print_json, print_whole, terminal
from fl_epe.schedules import SCHEDULES, schedule_options

_EXAMPLES = {
    "min-separation": "min-separation:separation=5",
    "device-classes": 'device-classes:{"rates": [8, 1], "shares": [0.1, 0.9]}',
    "check-in": "check-in:window=10",
    "time-of-day": "time-of-day:rounds_per_day=24,hours=8",
    "trace": "trace:path=log.csv",
    "trace-sample": "trace-sample:path=log.csv",
    "drop-out": "drop-out:of=epochs,rate=0.2",
    "capped": "capped:of=poisson,per_run=8",
}
_TYPES = {int: "whole number", float: "number", str: "text", Path: "file"}
_MEANINGS = {
    "separation": "least distance between two participations of a client, in rounds",
    "rates": "how often each class takes part, relative to the others",
    "shares": "of each class among the clients; they add up to 1",
    "window": "length of a window, in rounds",
    "rounds_per_day": "length of a day, in rounds",
    "hours": "how long a client is available on each day",
    "zones": "number of time zones",
    "path": "log with the columns round and client_id",
    "empty_rounds": "keep or drop the rounds without any client",
    "of": "the other schedule",
    "rate": "probability of dropping out",
    "per_run": "most participations of a client in the run",
    "per_window": "most participations of a client in any window",
}


@dataclasses.dataclass(frozen=True)
class Schedules:
    """Every kind of schedule for --participation and --schedules.

    Each with its options and an example. Options are written kind:name=value,name=value, or as a
    JSON object: kind:{...}.

    Attributes:
        json: print JSON instead of text.
    """

    json: bool = False

    def __call__(self, words: Sequence[str]) -> int:
        """Print them."""
        kinds = [_description(kind) for kind in SCHEDULES]
        if self.json:
            print_json({"schedules": kinds})
            return 0
        console = terminal()
        for kind in kinds:
            console.print(kind["name"], style="bold")
            print_whole(console, f"  {kind['about']}")
            for option in kind["options"]:
                default = "needed" if option["needed"] else f"default: {option['default_text']}"
                text = f"{option['name']}: {option['type']}, {default}; {option['about']}"
                print_whole(console, f"    {text}")
            print_whole(console, f"  example: {kind['example']}")
        return 0


def _description(kind: str) -> dict[str, Any]:
    """A kind of schedule as JSON values."""
    about = inspect.getdoc(SCHEDULES[kind]) or ""
    return {
        "name": kind,
        "about": " ".join(about.partition("\n\n")[0].split()),
        "options": [_option(kind, option) for option in schedule_options(kind).values()],
        "example": _EXAMPLES.get(kind, kind),
    }


def _option(kind: str, option: inspect.Parameter) -> dict[str, Any]:
    needed = option.default is option.empty
    return {
        "name": option.name,
        "type": _type(option.annotation),
        "needed": needed,
        "default": None if needed else option.default,
        "default_text": _default(kind, option),
        "about": _MEANINGS[option.name],
    }


def _default(kind: str, option: inspect.Parameter) -> str:
    if option.default not in (None, option.empty):
        return str(option.default)
    if option.name == "empty_rounds":
        return "kept, if they are fewer than half"
    return "the longest that allows these participations" if kind == "check-in" else "no such cap"


def _type(kind: Any) -> str:
    if kind == Sequence[float]:
        return "list of numbers"
    parts = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if any(typing.get_origin(part) is Mapping for part in parts):
        return "kind, or JSON object with a kind and its options"
    return _TYPES[parts[0]]
