"""The server: one row of a table of the paper, trained, audited and reported."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fl_epe.config import RunConfig
from fl_epe.reporting import summarize, write_report
from fl_epe.seeding import Seeds
from fl_epe.simulation import Job, remove_checkpoint, run_on_grid
from fl_epe.tasks import Task, load_task

Value = bool | bytes | float | int | str
_OPTION = "task-"

app = ServerApp()


def task_of(settings: Mapping[str, Value]) -> Task:
    """The task that the settings name, with its options: ``task-num-clients`` and its like."""
    options = {
        name.removeprefix(_OPTION).replace("-", "_"): value
        for name, value in settings.items()
        if name.startswith(_OPTION)
    }
    return load_task(str(settings["task"]), **options)


def job_of(settings: Mapping[str, Value]) -> Job:
    """The run that the settings describe: those of `RunConfig`, with hyphens."""
    known = {field.name for field in dataclasses.fields(RunConfig)}
    named = {name.replace("-", "_"): value for name, value in settings.items()}
    task = task_of(settings)
    given = {name: value for name, value in named.items() if name in known}
    config = RunConfig(
        **{"clients": task.num_clients, **task.defaults, **given}
    )
    return Job(task, config, Seeds.derive(int(settings["seed"])), config.rounds)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, audit, write; a server app that was killed goes on from its checkpoint."""
    output = Path(str(context.run_config["output"]))
    checkpoint = output / "checkpoint.npz"
    record = run_on_grid(
        grid, job_of(context.run_config), checkpoint=checkpoint
    )
    record.save(output / "record.npz")
    remove_checkpoint(checkpoint)
    write_report(summarize(record), output)
    print(f"report: {output / 'report.html'}")
