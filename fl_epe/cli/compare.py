"""``fl-epe compare``: its options, and what it prints."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from rich.console import Console

_EXAMPLES = """examples:
  fl-epe compare
  fl-epe compare --schedules epochs poisson capped:of=poisson,per_run=4 --noise-multipliers 0.1
  fl-epe compare --task digits --participations 1 2 --replicates 3 --output runs/digits-schedules
  fl-epe compare --like runs/digits-20260101-120000 --rounds 60
  fl-epe compare --config plan.toml --workers 8

A TOML file holds the same names: schedules = ["epochs", "poisson"], noise-multipliers = [0.1, 0.2],
task = "digits", and tables [settings] and [task-options]. Options given here win.
"""


def add_compare(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``compare`` to the subcommands."""
    compare = commands.add_parser(
        "compare",
        help="compare participation schedules, in the limit or by training",
        description="Measure a grid of participation schedules, noise multipliers and numbers of "
        "participations: without --task in the high-dimensional limit, which needs no training. "
        "Writes a table, compare.html, compare.csv, compare.json and pictures. Stopped or "
        "grown, the same command goes on from what its --output holds.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    compare.add_argument("--config", type=Path, metavar="FILE", help="a plan as a TOML file")
    compare.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="where to write, and to go on from (default: runs/compare-DATE-TIME)",
    )
    compare.add_argument(
        "--workers",
        type=int,
        default=os.cpu_count() or 1,
        help=f"processes; no influence on the result (default: {os.cpu_count() or 1})",
    )
    compare.add_argument(
        "--nodes",
        type=int,
        default=1,
        help="with --task: threads of each training run; no influence on the result (default: 1)",
    )
    grid = compare.add_argument_group("the grid")
    grid.add_argument(
        "--schedules",
        nargs="+",
        metavar="SPEC",
        help="such as epochs, poisson, min-separation:separation=5, trace:path=log.csv "
        "(default: one of each kind that needs no file)",
    )
    grid.add_argument(
        "--noise-multipliers",
        nargs="+",
        type=float,
        metavar="Z",
        help="DP noise on the sum over the clip norm (default: 0.1 0.2 0.4)",
    )
    grid.add_argument(
        "--participations",
        nargs="+",
        type=float,
        metavar="R",
        help="how often a client is expected to take part (default: 1 4 16)",
    )
    grid.add_argument(
        "--replicates", type=int, metavar="N", help="measurements to pool for each (default: 1)"
    )
    shared = compare.add_argument_group("for all of them")
    for name, kind, text in (
        ("--rounds", int, "rounds (default: 512; with --task the task's)"),
        ("--clients", int, "clients, without --task (default: 10000)"),
        ("--num-canaries", int, "canaries that take part (default: 1000)"),
        ("--delta", float, "target δ (default: clients^-1.1)"),
        ("--server-learning-rate", float, "step size of the server (default: 1, or the task's)"),
        ("--server-momentum", float, "momentum of the server (default: 0.9)"),
        (
            "--decay",
            float,
            "factor of the server's step from round to round, without --task (default: 1)",
        ),
        ("--confidence", float, "of the intervals (default: 0.95)"),
        ("--seed", int, "of everything (default: 0)"),
    ):
        shared.add_argument(name, type=kind, help=text, metavar="N" if kind is int else "X")
    shared.add_argument(
        "--task", help="train this task for every measurement, such as digits (default: the limit)"
    )
    shared.add_argument(
        "--set",
        dest="settings",
        action="append",
        metavar="NAME=VALUE",
        help="with --task: another setting of 'fl-epe run', such as local-epochs=1",
    )
    shared.add_argument(
        "--task-option",
        dest="task_options",
        action="append",
        metavar="NAME=VALUE",
        help="with --task: an option of the task, such as num_clients=60",
    )
    shared.add_argument(
        "--like",
        metavar="RUN_DIR",
        help="in the limit: take clip norms, server and real updates over from this run",
    )
    compare.set_defaults(command=_compare)


def _compare(arguments: argparse.Namespace) -> int:
    from fl_epe.compare import (
        Machine,
        Plan,
        carry_out,
        notes_of,
        read_plan,
        rows_of,
        table_of,
        write_comparison,
    )

    values = {} if arguments.config is None else read_plan(arguments.config)
    values = {name.replace("-", "_"): value for name, value in values.items()}
    plan = Plan.from_dict({**values, **_given(arguments, values)})
    output = arguments.output or Path("runs", time.strftime("compare-%Y%m%d-%H%M%S"))
    if output.exists() and not output.is_dir():
        raise ValueError(f"Expected output={str(output)!r} to be a directory.")
    console = Console()
    try:
        with _Line(console) as line:
            results = carry_out(
                plan,
                output,
                workers=arguments.workers,
                machine=Machine(arguments.nodes),
                on_cell=line.show,
            )
    except KeyboardInterrupt:
        console.print(
            f"\nStopped. The same command with --output {output} goes on.", highlight=False
        )
        return 130
    rows = rows_of(plan, results)
    if all(row.skipped is not None for row in rows):
        raise ValueError(f"None of the {len(rows)} combinations is possible: {rows[0].skipped}")
    write_comparison(plan, rows, output)
    console.print()
    console.print(table_of(plan, rows))
    for note in notes_of(plan, rows):
        console.print(f"• {note}", style="dim", markup=False, highlight=False)
    console.print(f"Report: {output / 'compare.html'}", soft_wrap=True, highlight=False)
    return 0


def _given(arguments: argparse.Namespace, values: dict[str, Any]) -> dict[str, Any]:
    """What the command line says, tables merged with those of the file."""
    from fl_epe.compare import Plan

    out = {
        name: getattr(arguments, name)
        for name in Plan.__dataclass_fields__
        if getattr(arguments, name, None) is not None
    }
    for name in ("settings", "task_options"):
        if name in out:
            out[name] = {**values.get(name, {}), **pairs(out[name])}
    return out


def pairs(texts: list[str]) -> dict[str, Any]:
    """Values by name from texts "NAME=VALUE", with values in JSON or else as they are.

    Raises:
        ValueError: for a text of another form.
    """
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ValueError(f"Expected NAME=VALUE, got {text!r}.")
        try:
            found[name.replace("-", "_")] = json.loads(value)
        except json.JSONDecodeError:
            found[name.replace("-", "_")] = value
    return found


class _Line:
    """How many measurements are done; a line now and then where there is no terminal."""

    def __init__(self, console: Console) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._console = console
        self._bar = Progress(
            TextColumn("measured"),
            MofNCompleteColumn(),
            BarColumn(bar_width=20),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None)
        self._printed = time.monotonic()

    def __enter__(self) -> _Line:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def show(self, done: int, total: int) -> None:
        """Show how far the comparison is."""
        if self._console.is_terminal:
            self._bar.update(self._task, completed=done, total=total)
        elif time.monotonic() - self._printed > 10:
            self._printed = time.monotonic()
            print(f"measured {done}/{total}", flush=True)
