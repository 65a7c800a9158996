"""``fl-epe advise log``: which clients of a deployment are worst case, and what caps change."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar

from fl_epe.checks import ArgumentError
from fl_epe.cli.console import print_json, print_lines, terminal
from fl_epe.schedules import Trace


@dataclasses.dataclass(frozen=True, kw_only=True)
class Log:
    """How exposed each client of a real deployment is, and what a cap would change.

    From the log of who took part when: FILE is CSV or Parquet with the columns round and
    client_id. An estimate by the high-dimensional limit, no guarantee.

    Examples:
        fl-epe advise log participation.csv --noise-multiplier 0.5
        fl-epe advise log participation.csv --noise-multiplier 0.5 --window 30

    Attributes:
        file: the log.
        noise_multiplier: z, the standard deviation of the noise on the sum over the clip norm.
        delta: target δ (default: clients^-1.1).
        momentum: momentum of the server's sgd.
        window: cap the participations in any so many rounds (default: those in the run).
        top: clients to list.
        json: print JSON instead of tables.
    """

    NAMES: ClassVar = {"path": "FILE"}

    file: Annotated[Path, "FILE"]
    noise_multiplier: float
    delta: float | None = None
    momentum: float = 0.0
    window: int | None = None
    top: int = 10
    json: bool = False

    def __call__(self, words: Sequence[str]) -> int:
        """Print it."""
        from fl_epe.limit import exposure
        from fl_epe.reporting import exposure_lines, exposure_tables

        trace = Trace.read(self.file)
        if self.delta is None and trace.population < 2:
            raise ArgumentError("Expected {clients} >= 2, or a delta.", clients=trace.population)
        delta = trace.population**-1.1 if self.delta is None else self.delta
        found = exposure(
            trace, self.noise_multiplier, delta, window=self.window, momentum=self.momentum
        )
        if self.json:
            values = {
                "noise_multiplier": found.noise_multiplier,
                "delta": delta,
                "rounds": trace.rounds,
                "clients": trace.population,
                "participations": len(trace.client_ids),
            }
            lists = {"levels": found.levels(), "top": found.top(self.top), "caps": found.caps}
            print_json(values | {name: list(map(vars, rows)) for name, rows in lists.items()})
            return 0
        console = terminal()
        for table in exposure_tables(found, self.top):
            console.print(table)
        print_lines(console, exposure_lines(found))
        return 0
