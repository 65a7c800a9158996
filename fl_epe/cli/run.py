"""``fl-epe run`` and ``fl-epe resume``: train a task with canaries, and report on it."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fl_epe.canaries import SCORE_MEMORY
from fl_epe.checks import ArgumentError, check_count, check_positive
from fl_epe.cli.console import EXIT_STATUS, ProgressLine, output_directory, print_stopped, terminal
from fl_epe.cli.errors import FAILED, on_one_line, say
from fl_epe.cli.options import a_path, add_command, add_options, given, whole_number
from fl_epe.cli.report import exit_status_of, print_and_write
from fl_epe.cli.run_log import RunLog, command_line, now, run_facts
from fl_epe.cli.sizes import check_training
from fl_epe.cli.stopping import Stopped, exit_status, locked, signals_ask
from fl_epe.cli.task_options import add_task_options, asked_task, blaming
from fl_epe.compare import CHECKPOINT, RECORD
from fl_epe.config import RunConfig
from fl_epe.files import remove_parts
from fl_epe.interval import Interval
from fl_epe.seeding import Seeds
from fl_epe.tasks import look_in_current_folder, task_names

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.console import Console

    from fl_epe.auditing import AuditRecord
    from fl_epe.flower import Job, Progress
    from fl_epe.simulation import RunStoppedError
    from fl_epe.tasks import Task

MODEL = "model.pt"
"""File of the final model in a run's folder."""

_DEFAULTS = {
    field.name: field.default
    for field in dataclasses.fields(RunConfig)
    if field.default is not dataclasses.MISSING
}
_WHAT = (
    f"what to train: {', '.join(task_names())}, or your own as module:name, e.g. "
    "mypackage.tasks:MyTask; its options are in: fl-epe run TASK --help"
)
_EXAMPLES = """examples:
  fl-epe run digits
  fl-epe run digits --noise-multiplier 0.5 --seed 1 --output runs/half
  fl-epe run digits --stop-when "epsilon-all-low > 8"
  fl-epe run digits --participation poisson --backend ray --workers 2
  fl-epe run fashion-mnist --data-dir /usr/share/datasets/fashion-mnist
  fl-epe run mypackage.tasks:MyTask --rounds 50
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


def add_run(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], words: Sequence[str] = ()
) -> None:
    """Add ``run`` to the subcommands, with the options of the task that ``words`` name."""
    run = add_command(
        commands,
        "run",
        _run,
        summary="train a task with DP-FedAvg and audit it",
        description="Train a task with DP-FedAvg, canary clients among the real ones, and write "
        "what the model gives away: a table, record.npz, report.json, report.html and pictures. "
        + EXIT_STATUS,
        examples=_EXAMPLES,
    )
    run.add_argument("task", metavar="TASK", help=_WHAT)
    add_options(run, _Run)
    _add_machine_options(run)
    run.add_argument(
        "--score-memory",
        type=_positive_mebibytes,
        default=str(SCORE_MEMORY >> 20),
        metavar="MIB",
        help="memory for rounds that wait to be scored together, with --canary-kind sphere: every "
        "canary is made anew for each such block, so raise it for large models and many rounds; "
        f"'fl-epe resume' keeps it (default: {SCORE_MEMORY >> 20})",
    )
    settings = run.add_argument_group("training and audit (a task may have defaults of its own)")
    add_options(settings, RunConfig, leave_out=("clients",))
    add_task_options(run, words)


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
    resume.add_argument(
        "--task",
        metavar="TASK",
        help="the task of the run, needed if it is a module:name of your own: importing a module "
        "runs its code, so that no checkpoint may choose it",
    )
    _add_machine_options(resume)


def _add_machine_options(parser: argparse.ArgumentParser) -> None:
    add_options(parser, _Machine)
    parser.add_argument(
        "--save-model",
        action="store_true",
        help=f"write the final model to {MODEL}, which your model's load_state_dict takes",
    )


def _positive_mebibytes(text: str) -> int:
    if (number := whole_number(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of MiB >= 1")
    return number << 20


def _run(arguments: argparse.Namespace) -> int:
    from fl_epe.flower import Job

    task, machine = asked_task(arguments), _machine(arguments)
    with blaming(task.reference):
        settings = {"clients": task.num_clients, **task.defaults, **given(arguments, RunConfig)}
        machine |= {"score_memory": (memory := arguments.score_memory)}
        check_training({**_DEFAULTS, **settings}, task.dim, machine)
        config = RunConfig.from_dict(settings)
        options = _Run(**given(arguments, _Run))
        job = Job(task, config, Seeds.derive(options.seed), options.evaluate_every, memory)
        notes = task.notes()
    output = output_directory(options.output, arguments.task.replace(":", "-"))
    with locked(output):
        _check_free(output)
        for note in notes:
            print(f"Note: {on_one_line(note)}", file=sys.stderr)
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
            f"Go on with it: {command_line(['resume', str(output)])}"
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
                f"finished. See: {command_line(['report', str(directory)])}"
            )
        if ":" in (arguments.task or ""):  # a module of one's own
            look_in_current_folder()
        job = load_job(directory / CHECKPOINT, arguments.task)
        machine |= {"score_memory": job.score_memory}
        check_training(job.config.to_dict(), job.task.dim, machine)
        return _carry_out(job, directory, arguments)


def _machine(arguments: argparse.Namespace) -> dict[str, Any]:
    return dataclasses.asdict(_Machine(**given(arguments, _Machine)))


def _carry_out(job: Job, output: Path, arguments: argparse.Namespace) -> int:
    from fl_epe.flower import simulate
    from fl_epe.simulation import RunStoppedError, StopRequest, remove_checkpoint

    console, stop = terminal(), StopRequest()
    log, started = RunLog(output, _warn), now()
    command = command_line(arguments.words)
    log.note("started", command=command, task=job.task.name, rounds=job.config.rounds)
    remove_parts(output)
    again = ["resume", str(output), "--task", job.task.reference]
    how_to_go_on = f"Go on with: {command_line(again if ':' in again[-1] else again[:2])}"
    try:
        with (
            blaming(job.task.reference, RunStoppedError),
            ProgressLine(console) as line,
            signals_ask(stop) as signals,
        ):
            record = simulate(
                job,
                checkpoint=output / CHECKPOINT,
                stop=stop,
                on_round=lambda done: _tell(line, log, done),
                on_model=functools.partial(_keep_model, job.task, output, arguments.save_model),
                **_machine(arguments),
            )
    except RunStoppedError as stopped:
        status = exit_status(Stopped(signals[0]) if signals else KeyboardInterrupt())
        log.note("stopped", round=stopped.rounds_done, kept=stopped.kept, exit_status=status)
        print_stopped(console, how_to_go_on, _where(stopped))
        return status
    except KeyboardInterrupt as interrupt:
        log.note("stopped", round=None, kept=None, exit_status=exit_status(interrupt))
        print_stopped(console, how_to_go_on)
        return exit_status(interrupt)
    except Exception as error:
        log.note("failed", error=type(error).__name__, text=str(error))
        raise
    log.note("finished", rounds=record.rounds)
    record = record.with_values(run=run_facts(output, command, started))
    try:
        record.save(output / RECORD)
    except OSError as error:
        log.note("failed", error=type(error).__name__, text=str(error))
        return _unsaved(console, record, error, output, how_to_go_on)
    remove_checkpoint(output / CHECKPOINT)
    return _report(console, record, output, log)


def _report(console: Console, record: AuditRecord, output: Path, log: RunLog) -> int:
    try:
        summary = print_and_write(console, record, output)
        log.report(summary, output / "report.html")
        return exit_status_of(summary)
    except OSError as error:
        log.note("failed", error=type(error).__name__, text=str(error))
        _show(console, record)
        text = f"The report could not be written ({error}), and is above. {output / RECORD} is"
        again = command_line(["report", str(output)])
        say(f"{text} whole: free some space, then {again} makes it again.")
        return FAILED


def _warn(text: str) -> None:
    say(text, prefix="fl-epe: warning: ")


def _tell(line: ProgressLine, log: RunLog, done: Progress) -> None:
    line.show("round", done.round, done.rounds, _text(done))
    log.progress(done)


def _keep_model(task: Task, output: Path, asked: bool, theta: NDArray[np.float32]) -> None:
    """Write the final model if that was asked for; not being able to never ends the run."""
    if not asked:
        return
    try:
        task.save_model(theta, output / MODEL)
    except OSError as error:
        _warn(f"{output / MODEL} could not be written: {error}")


def _where(stopped: RunStoppedError) -> str:
    after = f" after round {stopped.rounds_done} of {stopped.rounds}"
    return after if stopped.kept else f"{after}, which could not be kept"


def _unsaved(
    console: Console, record: AuditRecord, error: OSError, output: Path, how_to_go_on: str
) -> int:
    """Show what the disk has no room for, and say what is left."""
    _show(console, record)
    say(
        f"{output / RECORD} could not be written ({error}): the record and the files of the report "
        f"are lost, but for what is above. The checkpoint is left: free some space. {how_to_go_on}"
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
    return f"{loss}{_metric(progress)}{clip}canaries {progress.canaries_seen}  {left}"


def _metric(progress: Progress) -> str:
    if progress.metric == "accuracy":
        return f"acc {progress.accuracy:.1%}  "
    if not progress.metric:
        return f"held out {progress.eval_loss:.4g}  "
    return f"{progress.metric} {progress.accuracy:.4g}  "
