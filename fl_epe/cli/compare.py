"""``fl-epe compare``: its options, and what it prints."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fl_epe.checks import check_count
from fl_epe.cli.console import (
    EXIT_STATUS,
    STATUS_NOT_MEASURED,
    ProgressLine,
    output_directory,
    print_lines,
    print_report_path,
    print_stopped,
    terminal,
)
from fl_epe.cli.options import add_command, add_options, given
from fl_epe.cli.sizes import check_limit, check_memory
from fl_epe.cli.stopping import exit_status, locked
from fl_epe.compare import CLIENTS, ROUNDS, Plan, read_plan, with_log
from fl_epe.config import RunConfig
from fl_epe.files import remove_parts
from fl_epe.old_names import with_new_names
from fl_epe.tasks import look_in_current_folder

if TYPE_CHECKING:
    from fl_epe.compare import Row

_EXAMPLES = """examples:
  fl-epe compare
  fl-epe compare --schedules epochs poisson capped:of=poisson,per_run=4 --noise-multipliers 0.1
  fl-epe compare --task digits --participations 1 2 --replicates 3 --output runs/digits-schedules
  fl-epe compare --schedules poisson trace:path=log.csv --noise-multipliers 0.5
  fl-epe compare --like runs/digits-20260101-120000 --rounds 60
  fl-epe compare --config plan.toml --workers 8

A TOML file holds the same names: schedules = ["epochs", "poisson"], noise-multipliers = [0.1, 0.2],
task = "digits", and tables [settings] and [task-options]. Options given here win.
"""


_WORKER = 200 << 20  # a Python process with NumPy and SciPy
_SPELLINGS = {
    "noise_multiplier": "--noise-multipliers",
    "canary_participations": "--participations",
    "participation": "--schedules",
    "settings": "--set",
    "task_options": "--task-option",
    "num_clients": "--task-option num-clients",
    "max_examples": "--task-option max-examples",
    "data_dir": "--task-option data-dir",
}


@dataclasses.dataclass(frozen=True)
class _Compare:
    """How a plan is carried out.

    Attributes:
        config: a plan as a TOML file.
        output: directory to write to, and to go on from (default: runs/compare-DATE-TIME).
        workers: processes; no influence on the result.
        nodes: with --task, threads of each training run; no influence on the result.
    """

    config: Path | None = None
    output: Path | None = None
    workers: int = os.cpu_count() or 1
    nodes: int = 1

    def __post_init__(self) -> None:
        check_count("workers", self.workers)
        check_count("nodes", self.nodes)


def add_compare(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``compare`` to the subcommands."""
    compare = add_command(
        commands,
        "compare",
        _compare,
        summary="compare participation schedules, in the limit or by training",
        description="Measure a grid of participation schedules, noise multipliers and numbers of "
        "participations: without --task in the high-dimensional limit, which needs no training. "
        "Writes a table, compare.html, compare.csv, compare.json and pictures. Run the same "
        "command with the same --output again to go on after a stop, or with a larger grid. "
        + EXIT_STATUS,
        examples=_EXAMPLES,
        spell=_spelled,
    )
    add_options(compare, _Compare)
    plan = compare.add_argument_group("the plan: a grid, and what all its measurements share")
    add_options(plan, Plan)
    for option, name, text in (
        ("--set", "settings", "another setting of 'fl-epe run', such as local-epochs=1"),
        ("--task-option", "task_options", "an option of the task, such as num_clients=60"),
    ):
        text = f"with --task: {text}; may be repeated"
        plan.add_argument(option, dest=name, action="append", metavar="NAME=VALUE", help=text)


def _compare(arguments: argparse.Namespace) -> int:
    from fl_epe.compare import Machine, carry_out, rows_of, write_comparison

    options = _Compare(**given(arguments, _Compare))
    plan = _plan(arguments, options.config)
    if plan.task is not None and ":" in plan.task:
        look_in_current_folder()
    _check_size(plan, options)
    output = output_directory(options.output, "compare")
    console = terminal()
    try:
        with locked(output), ProgressLine(console, time_left=True) as line:
            remove_parts(output)
            results = carry_out(
                plan,
                output,
                workers=options.workers,
                machine=Machine(options.nodes),
                on_cell=lambda done, total: line.show("measured", done, total),
            )
    except KeyboardInterrupt as stop:
        print_stopped(
            console, f"The same command with --output {shlex.quote(str(output))} goes on."
        )
        return exit_status(stop)
    rows = rows_of(plan, results)
    if all(row.skipped is not None for row in rows):
        raise ValueError(
            f"None of the {len(rows)} combinations is possible. The first: {rows[0].skipped}"
        )
    write_comparison(plan, rows, output)
    _show(plan, rows, console)
    print_report_path(console, output / "compare.html")
    return STATUS_NOT_MEASURED if any(row.failed is not None for row in rows) else 0


def _show(plan: Plan, rows: list[Row], console: Console) -> None:
    from fl_epe.compare import failed_of, finding_of, notes_of, table_of

    console.print()
    if failed := failed_of(rows):
        console.print(failed, style="bold red", markup=False, highlight=False)
    if found := finding_of(plan, rows):
        print_lines(console, [found])
        console.print()
    console.print(table_of(plan, rows))
    print_lines(console, (f"• {note}" for note in notes_of(plan, rows)))


def _plan(arguments: argparse.Namespace, config: Path | None) -> Plan:
    """The plan of a file, if there is one, with what the command line says instead."""
    read = {} if config is None else read_plan(config)
    values = {name.replace("-", "_"): value for name, value in read.items()}
    typed = given(arguments, Plan)
    for name in ("settings", "task_options"):
        if name in typed:
            typed[name] = {**values.get(name, {}), **pairs(typed[name])}
    if ":" in str(named := values.get("task")) and typed.get("task") != named:
        raise ValueError(
            f"Expected task={named!r:.400} to be named again: the plan names this module, and "
            "importing it runs its code."
        )
    asked = with_new_names(values) | typed
    Plan.from_dict(asked)  # is refused before any log is read
    return Plan.from_dict(with_log(asked))


def _spelled(name: str) -> str | None:
    """The option for a setting of the training runs, or for an option of their task."""
    if name in _SPELLINGS:
        return _SPELLINGS[name]
    own = {field.name for field in dataclasses.fields(Plan)}
    if name not in own and name in {field.name for field in dataclasses.fields(RunConfig)}:
        return f"--set {name.replace('_', '-')}"
    return None


def _check_size(plan: Plan, options: _Compare) -> None:
    """Refuse what this machine cannot hold, and what would never end."""
    if options.workers != _Compare.workers:
        check_memory(options.workers * _WORKER, "the worker processes", workers=options.workers)
    cells = plan.replicates * math.prod(
        map(len, (plan.schedules, plan.noise_multipliers, plan.participations))
    )
    check_memory(cells * 1000, "the list of measurements", replicates=plan.replicates)
    if plan.task is not None:
        check_memory(options.nodes << 20, "the threads of each run", nodes=options.nodes)
        return
    check_limit(plan.rounds or ROUNDS, plan.clients or CLIENTS, cells)


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
