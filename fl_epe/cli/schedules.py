"""``fl-epe schedules``: every kind of schedule with its options and an example."""

from __future__ import annotations

import argparse
import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fl_epe.cli.console import print_json, terminal
from fl_epe.cli.options import add_command
from fl_epe.schedules import SCHEDULES, Option, schedule_options

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


def add_schedules(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``schedules`` to the subcommands."""
    schedules = add_command(
        commands,
        "schedules",
        _schedules,
        summary="the kinds of schedules, with their options",
        description="Every kind of schedule for --participation and --schedules, with its options "
        "and an example. Options are written kind:name=value,name=value, or as a JSON object: "
        "kind:{...}.",
    )
    schedules.add_argument("--json", action="store_true", help="print JSON instead of text")


def _schedules(arguments: argparse.Namespace) -> int:
    kinds = [_description(kind) for kind in SCHEDULES]
    if arguments.json:
        print_json({"schedules": kinds})
        return 0
    console = terminal()
    for kind in kinds:
        console.print(kind["name"], style="bold")
        console.print(f"  {kind['about']}", soft_wrap=True)
        for option in kind["options"]:
            default = "needed" if option["needed"] else f"default: {option['default_text']}"
            text = f"{option['name']}: {option['type']}, {default}; {option['about']}"
            console.print(f"    {text}", soft_wrap=True)
        console.print(f"  example: {kind['example']}", soft_wrap=True)
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


def _option(kind: str, option: Option) -> dict[str, Any]:
    return {
        "name": option.name,
        "type": _type(option.kind),
        "needed": option.needed,
        "default": option.default,
        "default_text": _default(kind, option),
        "about": _MEANINGS[option.name],
    }


def _default(kind: str, option: Option) -> str:
    if option.default is not None:
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
