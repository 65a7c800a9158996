"""``fl-epe compare`` and ``fl-epe schedules``: compare schedules, and list all kinds of them."""

import dataclasses
import inspect
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar

from fl_epe.checks import check_count
from fl_epe.cli.console import (
    NOT_OK,
    ProgressLine,
    output_directory,
    print_unwrapped,
    terminal,
    waiting,
)
from fl_epe.cli.guards import exit_status
from fl_epe.cli.options import Group, Typed, description_of, texts_of
from fl_epe.config import RunConfig
from fl_epe.files import locked, remove_parts
from fl_epe.limit import (
    DEFAULT_SCHEDULES,
    ComparisonPlan,
    carry_out,
    print_comparison,
    with_log,
    write_comparison,
)
from fl_epe.schedules import SCHEDULES, schedule_maker
from fl_epe.tasks import look_in_current_folder

_PLAN_FIELDS = {field.name for field in dataclasses.fields(ComparisonPlan)}
_RUN_FIELDS = {field.name for field in dataclasses.fields(RunConfig)}


@dataclasses.dataclass(frozen=True)
class Compare:
    """Measure a grid of participation schedules, noise multipliers and participations.

    Without --task, ε is that of the high-dimensional limit, which needs no training; with --task,
    the task is trained for each combination. The command prints a table, and writes compare.html
    and compare.json. With --task, the same command with the same --output continues after an
    interruption; its grid may be larger then.

    Examples:
        fl-epe compare
        fl-epe compare --schedules epochs poisson capped:of=poisson,per_run=4
        fl-epe compare --task digits --participations 1 2 --replicates 3 --output runs/schedules
        fl-epe compare --target-epsilon 2 --least-distance 24
        fl-epe compare --from-log log.csv --noise-multipliers 0.5
        fl-epe compare --schedules poisson trace:path=log.csv --noise-multipliers 0.5
        fl-epe compare --like runs/digits-20260101-120000 --rounds 60

    Attributes:
        output: folder to write to, and to continue from (default: runs/compare-DATE-TIME).
        from_log: a participation log, CSV or Parquet. It is compared with the schedules, which get
            its numbers of rounds, clients and participations.
        workers: number of processes; no influence on the result.
        details: print all tables and notes, not only those of the final model.
        plan: the grid, and the settings that all its combinations share.
    """

    # Errors about a setting of a run name the option that sets it.
    NAMES: ClassVar = {
        **{
            name: f"--set {name.replace('_', '-')}"
            for name in _RUN_FIELDS - _PLAN_FIELDS
        },
        "noise_multiplier": "--noise-multipliers",
        "canary_participations": "--participations",
        "participation": "--schedules",
        "settings": "--set",
        "task_options": "--task-option",
        "num_clients": "--task-option num-clients",
        "max_examples": "--task-option max-examples",
        "data_dir": "--task-option data-dir",
    }

    output: Path | None = None
    from_log: Path | None = None
    workers: int = os.cpu_count() or 1
    details: bool = False
    plan: Annotated[Typed, Group(ComparisonPlan)] = dataclasses.field(
        default_factory=dict
    )

    def __call__(self, words: Sequence[str]) -> int:
        """Measure the grid."""
        check_count("workers", self.workers)
        settings = dict(self.plan)
        if self.from_log is not None:
            schedules = settings.get("schedules") or DEFAULT_SCHEDULES
            settings["schedules"] = (f"trace:path={self.from_log}", *schedules)
        # Refuse invalid settings before a log is read, which may take long.
        ComparisonPlan(**settings)
        with waiting("Reading the participation log"):
            plan = ComparisonPlan(**with_log(settings))
        if plan.task is not None and ":" in plan.task:
            # The module of the user's own task may be in the current folder.
            look_in_current_folder()
        output = output_directory(self.output, "compare")
        try:
            with locked(output), ProgressLine(time_left=True) as line:
                remove_parts(output)
                rows = carry_out(
                    plan,
                    output,
                    workers=self.workers,
                    on_cell=lambda completed, total: line.show(
                        "measured", completed, total
                    ),
                )
        except KeyboardInterrupt as stop:
            text = "Stopped."
            if plan.task is not None:
                folder = shlex.quote(str(output))
                text += f" The same command with --output {folder} continues."
            print_unwrapped("", text)
            return exit_status(stop)
        if all(row.skipped is not None for row in rows):
            raise ValueError(
                f"None of the {len(rows)} combinations is possible. The first one: "
                f"{rows[0].skipped}"
            )
        write_comparison(plan, rows, output)
        print_comparison(plan, rows, terminal(), details=self.details)
        print_unwrapped(f"Report: {output / 'compare.html'}")
        if any(row.failed is not None for row in rows):
            return NOT_OK
        return 0


@dataclasses.dataclass(frozen=True)
class Schedules:
    """List all kinds of schedules for --participation and --schedules, with their options.

    The options of a schedule are written kind:name=value,name=value, or as a JSON object:
    kind:{...}.

    Examples:
        fl-epe compare --schedules epochs min-separation:separation=5 trace:path=log.csv
        fl-epe compare --schedules capped:of=poisson,per_run=8 drop-out:of=epochs,rate=0.2
        fl-epe compare --schedules 'device-classes:{"rates": [8, 1], "shares": [0.1, 0.9]}'
    """

    def __call__(self, words: Sequence[str]) -> int:
        """Print the kinds and their options."""
        console = terminal()
        for kind, schedule_class in SCHEDULES.items():
            console.print(kind, style="bold")
            description, _ = description_of(schedule_class)
            first_paragraph = description.split("\n\n")[0]
            print_unwrapped("  " + " ".join(first_paragraph.split()))
            maker = schedule_maker(kind)
            texts = texts_of(schedule_class) | texts_of(maker)
            # The first two parameters, rounds and participations, are no options of a schedule.
            _, _, *options = inspect.signature(maker).parameters
            for name in options:
                print_unwrapped(f"    {name}: {texts.get(name, '')}")
        _, examples = description_of(Schedules)
        print_unwrapped(examples)
        return 0
