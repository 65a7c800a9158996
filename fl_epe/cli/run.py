"""``fl-epe run`` and ``fl-epe resume``: train a task with canaries, and report on it."""

from __future__ import annotations

import argparse
import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fl_epe.canaries import SCORE_MEMORY
from fl_epe.checks import ArgumentError, check_count, check_positive
from fl_epe.cli.console import EXIT_STATUS, ProgressLine, output_directory, print_stopped, terminal
from fl_epe.cli.errors import FAILED, say
from fl_epe.cli.options import a_path, add_command, add_options, given, whole_number
from fl_epe.cli.report import show_report
from fl_epe.cli.sizes import check_training
from fl_epe.cli.stopping import Stopped, exit_status, locked, signals_ask
from fl_epe.compare import CHECKPOINT, RECORD
from fl_epe.config import RunConfig
from fl_epe.interval import Interval
from fl_epe.seeding import Seeds
from fl_epe.tasks import task_names

if TYPE_CHECKING:
    from rich.console import Console

    from fl_epe.auditing import AuditRecord
    from fl_epe.flower import Job, Progress
    from fl_epe.simulation import RunStoppedError

_DEFAULTS = {
    field.name: field.default
    for field in dataclasses.fields(RunConfig)
    if field.default is not dataclasses.MISSING
}
_EXAMPLES = """examples:
  fl-epe run digits
  fl-epe run digits --noise-multiplier 0.5 --seed 1 --output runs/half
  fl-epe run digits --stop-when "epsilon-all-low > 8"
  fl-epe run digits --participation poisson --backend ray --workers 2
  fl-epe run fashion-mnist --data-dir /usr/share/datasets/fashion-mnist
  fl-epe run stackoverflow-twin --num-clients 2000 --rounds 100 --clients-per-round 20
"""


@dataclasses.dataclass(frozen=True)
class _Run:
    """One call of ``fl-epe run``.

    Attributes:
        output: directory to write to (default: runs/TASK-DATE-TIME).
        seed: number from which all randomness follows, so that the run can be repeated exactly
            (default: the operating system's entropy, because whoever guesses the seed knows the
            canaries and the noise).
        evaluate_every: rounds between evaluations on held-out data.
    """

    output: Path | None = None
    seed: int | None = None
    evaluate_every: int = 5

    def __post_init__(self) -> None:
        check_count("evaluate_every", self.evaluate_every)


@dataclasses.dataclass(frozen=True)
class _TaskOptions:
    """What a task may be told; each is known to some tasks only.

    Attributes:
        num_clients: clients that share the data out.
        data_dir: where the data of fashion-mnist, emnist, stackoverflow or shakespeare is: a
            folder, or for emnist and shakespeare the id of a hub's data set.
        max_examples: most examples of a client, for emnist, stackoverflow, shakespeare and twins.
    """

    num_clients: int | None = None
    data_dir: str | None = None
    max_examples: int | None = None


@dataclasses.dataclass(frozen=True)
class _Machine:
    """How a run uses the machine; no influence on the result.

    Attributes:
        backend: threads of this process, or Flower's Ray simulation.
        workers: nodes that share the clients out; no influence on the result.
        checkpoint_every: how often a checkpoint is kept, from which 'fl-epe resume' goes on: a
            number of rounds (10), or a time (30s, 5min, 2h). There is always one before the first
            round, after the last one, and when a run is stopped.
        round_timeout: seconds to wait for the answers of a round; a client that has not answered
            by then counts as absent.
    """

    backend: Literal["in-process", "ray"] = "in-process"
    workers: int = min(os.cpu_count() or 1, 8)
    checkpoint_every: str = "10"
    round_timeout: float = 3600.0

    def __post_init__(self) -> None:
        check_count("workers", self.workers)
        Interval.parse(self.checkpoint_every)
        check_positive("round_timeout", self.round_timeout)


def add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``run`` to the subcommands."""
    run = add_command(
        commands,
        "run",
        _run,
        summary="train a task with DP-FedAvg and audit it",
        description="Train a task with DP-FedAvg, canary clients among the real ones, and write "
        "what the model gives away: a table, record.npz, report.json, report.html and pictures. "
        + EXIT_STATUS,
        examples=_EXAMPLES,
        spell={"clients": "--num-clients"}.get,
    )
    run.add_argument("task", metavar="TASK", help=f"what to train: {', '.join(task_names())}")
    add_options(run, _Run)
    add_options(run, _TaskOptions)
    _add_machine_options(run)
    settings = run.add_argument_group("training and audit (a task may have defaults of its own)")
    add_options(settings, RunConfig, leave_out=("clients",))


def add_resume(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``resume`` to the subcommands."""
    resume = add_command(
        commands,
        "resume",
        _resume,
        summary="go on with a run that was stopped",
        description="Go on with a run that was stopped or killed, from its last checkpoint. "
        "With a seed, the result is the same as if it had never stopped. " + EXIT_STATUS,
    )
    resume.add_argument("run_dir", type=a_path, metavar="RUN_DIR", help="where the run was writing")
    _add_machine_options(resume)


def _add_machine_options(parser: argparse.ArgumentParser) -> None:
    add_options(parser, _Machine)
    parser.add_argument(
        "--score-memory",
        type=_positive_mebibytes,
        default=str(SCORE_MEMORY >> 20),
        metavar="MIB",
        help="memory for rounds that wait to be scored together, with --canary-kind sphere: every "
        "canary is made anew for each such block, so raise it for large models and many rounds "
        f"(default: {SCORE_MEMORY >> 20})",
    )


def _positive_mebibytes(text: str) -> int:
    if (number := whole_number(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of MiB >= 1")
    return number << 20


def _run(arguments: argparse.Namespace) -> int:
    from fl_epe.flower import Job
    from fl_epe.tasks import load_task

    task = load_task(arguments.task, **given(arguments, _TaskOptions))
    settings = {"clients": task.num_clients, **task.defaults, **given(arguments, RunConfig)}
    machine = _machine(arguments)
    check_training({**_DEFAULTS, **settings}, task.dim, machine)
    config = RunConfig.from_dict(settings)
    options = _Run(**given(arguments, _Run))
    job = Job(task, config, Seeds.derive(options.seed), options.evaluate_every)
    output = output_directory(options.output, arguments.task)
    with locked(output):
        _check_free(output)
        return _carry_out(job, output, arguments)


def _check_free(output: Path) -> None:
    if (output / RECORD).exists():
        raise ArgumentError(
            "Expected {output} to be free: it holds a finished run. Name another folder.",
            output=str(output),
        )
    from fl_epe.simulation import has_checkpoint

    if has_checkpoint(output / CHECKPOINT):
        raise ValueError(
            f"Expected output={str(output)!r} to be free: it holds an unfinished run. "
            f"Go on with it: fl-epe resume {output}"
        )


def _resume(arguments: argparse.Namespace) -> int:
    from fl_epe.simulation import load_job

    machine = _machine(arguments)
    directory = arguments.run_dir
    if not directory.is_dir():
        load_job(directory / CHECKPOINT)  # says that there is none
    with locked(directory):
        if (directory / RECORD).exists():
            raise ValueError(
                f"Expected run_dir={str(directory)!r} to hold an unfinished run: this one is "
                f"finished. See: fl-epe report {directory}"
            )
        job = load_job(directory / CHECKPOINT)
        check_training(job.config.to_dict(), job.task.dim, machine)
        return _carry_out(job, directory, arguments)


def _machine(arguments: argparse.Namespace) -> dict[str, Any]:
    asked = _Machine(**given(arguments, _Machine))
    return dataclasses.asdict(asked) | {"score_memory": arguments.score_memory}


def _carry_out(job: Job, output: Path, arguments: argparse.Namespace) -> int:
    from fl_epe.flower import simulate
    from fl_epe.simulation import RunStoppedError, StopRequest, remove_checkpoint

    console, stop = terminal(), StopRequest()
    how_to_go_on = f"Go on with: fl-epe resume {output}"
    try:
        with ProgressLine(console) as line, signals_ask(stop) as signals:
            record = simulate(
                job,
                checkpoint=output / CHECKPOINT,
                stop=stop,
                on_round=lambda done: line.show("round", done.round, done.rounds, _text(done)),
                score_memory=arguments.score_memory,
                **dataclasses.asdict(_Machine(**given(arguments, _Machine))),
            )
    except RunStoppedError as stopped:
        print_stopped(console, how_to_go_on, _where(stopped))
        return exit_status(Stopped(signals[0]) if signals else KeyboardInterrupt())
    except KeyboardInterrupt as interrupt:
        print_stopped(console, how_to_go_on)
        return exit_status(interrupt)
    try:
        record.save(output / RECORD)
    except OSError as error:
        return _unsaved(console, record, error, output)
    remove_checkpoint(output / CHECKPOINT)
    try:
        return show_report(console, record, output)
    except OSError as error:
        _show(console, record)
        text = f"The report could not be written ({error}), and is above. {output / RECORD} is"
        say(f"{text} whole: free some space, then fl-epe report {output} makes it again.")
        return FAILED


def _where(stopped: RunStoppedError) -> str:
    after = f" after round {stopped.rounds_done} of {stopped.rounds}"
    return after if stopped.kept else f"{after}, which could not be kept"


def _unsaved(console: Console, record: AuditRecord, error: OSError, output: Path) -> int:
    """Show what the disk has no room for, and say what is left."""
    _show(console, record)
    say(
        f"{output / RECORD} could not be written ({error}): the record and the files of the report "
        "are lost, but for what is above. The checkpoint is left: free some space, then "
        f"fl-epe resume {output} goes on from there and writes them."
    )
    return FAILED


def _show(console: Console, record: AuditRecord) -> None:
    from fl_epe.reporting import print_report, summarize

    print_report(console, summarize(record))


def _text(progress: Progress) -> str:
    if progress.round == progress.rounds:
        left = "scoring"
    else:
        left = f"{progress.seconds_left:.0f} s left" if progress.round else "starting"
    if progress.epsilon:
        left = f"{left}  {progress.epsilon}"
    loss = f"loss {progress.loss:.4g}  " if progress.round else ""
    clip = "" if progress.epsilon else f"clip {progress.clip_norm:.3g}  "  # a line is short
    return f"{loss}acc {progress.accuracy:.1%}  {clip}canaries {progress.canaries_seen}  {left}"
