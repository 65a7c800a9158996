"""``fl-epe schedules``: every kind of schedule with its options."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence

from fl_epe.cli.console import print_whole, terminal
from fl_epe.cli.options import description_of, texts_of
from fl_epe.schedules import SCHEDULES, schedule_maker


@dataclasses.dataclass(frozen=True)
class Schedules:
    """Every kind of schedule for --participation and --schedules.

    Options are written kind:name=value,name=value, or as a JSON object: kind:{...}.

    Examples:
        fl-epe compare --schedules epochs min-separation:separation=5 check-in:window=10
        fl-epe compare --schedules capped:of=poisson,per_run=8 drop-out:of=epochs,rate=0.2
        fl-epe compare --schedules 'device-classes:{"rates": [8, 1], "shares": [0.1, 0.9]}'
        fl-epe compare --schedules time-of-day:rounds_per_day=24,hours=8 trace:path=log.csv
    """

    def __call__(self, words: Sequence[str]) -> int:
        """Print them."""
        console = terminal()
        for kind, made in SCHEDULES.items():
            console.print(kind, style="bold")
            about, *_ = description_of(made)[0].split("\n\n")
            print_whole(console, "  " + " ".join(about.split()))
            maker = schedule_maker(kind)
            texts = texts_of(made) | texts_of(maker)
            _, _, *options = inspect.signature(maker, eval_str=True).parameters.values()
            for option in options:
                print_whole(console, f"    {option}  # {texts.get(option.name, '')}")
        print_whole(console, description_of(Schedules)[1])
        return 0
