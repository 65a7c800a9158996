"""``fl-epe advise log``: which clients of a deployment are worst case, and what caps change."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from fl_epe.checks import ArgumentError, check_count
from fl_epe.cli.console import print_json, print_lines, terminal
from fl_epe.mechanism import ServerSGD
from fl_epe.schedules import Trace
from fl_epe.table_file import csv_cell

if TYPE_CHECKING:
    from fl_epe.limit import Exposure

_COLUMNS = ("participations", "final", "every_round", "epsilon_final", "epsilon_every_round")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Log:
    """How exposed each client of a real deployment is, and what a cap would change.

    From the log of who took part when: FILE is CSV or Parquet with the columns round and
    client_id. An estimate by the high-dimensional limit, no guarantee.

    Examples:
        fl-epe advise log participation.csv --noise-multiplier 0.5
        fl-epe advise log participation.csv --noise-multiplier 0.5 --per-window 2 --window 30

    Attributes:
        file: the log.
        noise_multiplier: z, the standard deviation of the noise on the sum over the clip norm.
        delta: target δ (default: clients^-1.1).
        momentum: momentum of the server's sgd.
        per_run: a cap: most participations of a client in the run.
        per_window: a cap: most participations of a client in any window.
        window: length of a window in rounds.
        top: clients to list.
        csv: file to write every client to.
        json: print JSON instead of tables.
    """

    NAMES: ClassVar = {"count": "--top", "path": "FILE"}

    file: Annotated[Path, "FILE"]
    noise_multiplier: float
    delta: float | None = None
    momentum: float = 0.0
    per_run: int | None = None
    per_window: int | None = None
    window: int | None = None
    top: int = 10
    csv: Path | None = None
    json: bool = False

    def __call__(self, words: Sequence[str]) -> int:
        """Print it."""
        from fl_epe.limit import caps, exposure
        from fl_epe.reporting import exposure_lines, exposure_tables

        if self.window is not None:
            check_count("window", self.window)
        trace = Trace.read(self.file)
        if self.delta is None and trace.population < 2:
            raise ArgumentError("Expected {clients} >= 2, or a delta.", clients=trace.population)
        delta = trace.population**-1.1 if self.delta is None else self.delta
        server = ServerSGD(1.0, self.momentum)
        result = exposure(
            trace,
            self.noise_multiplier,
            delta,
            per_run=self.per_run,
            per_window=self.per_window,
            window=self.window,
            server=server,
        )
        effects = caps(trace, self.noise_multiplier, delta, window=self.window, server=server)
        if self.csv is not None:
            _write_csv(self.csv, result)
        if self.json:
            print_json(_log_values(result, self.top) | {"caps": [vars(e) for e in effects]})
            return 0
        console = terminal()
        for table in exposure_tables(result, effects, self.top):
            console.print(table)
        rounds = f"{trace.rounds:,} rounds; {trace.rounds_with_clients:,} have clients"
        print_lines(console, [*exposure_lines(result), f"• The log has {rounds}."])
        return 0


def _log_values(result: Exposure, top: int) -> dict[str, Any]:
    """An exposure as JSON values, without the arrays."""
    return {
        "noise_multiplier": result.noise_multiplier,
        "delta": result.delta,
        "rounds": result.rounds,
        "clients": len(result.clients),
        "participations": int(result.participations.sum()),
        "levels": [vars(level) for level in result.levels()],
        "top": [vars(client) for client in result.top(top)],
        "cap": None if result.cap is None else vars(result.cap),
        "capped": None if result.capped is None else _log_values(result.capped, top),
    }


def _write_csv(path: Path, result: Exposure) -> None:
    """Every client, the worst case first; with a cap also what it leaves of each."""
    columns = {"client_id": result.clients}
    for prefix, found in (("", result), ("capped_", result.capped)):
        if found is not None:
            columns |= {prefix + name: getattr(found, name) for name in _COLUMNS}
    order = result.order()
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        rows = zip(*(column[order].tolist() for column in columns.values()), strict=True)
        writer.writerows([csv_cell(value) for value in row] for row in rows)
