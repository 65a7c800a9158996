"""``fl-epe run`` and ``fl-epe resume``: train a task with canaries, and report on it."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fl_epe.archive import place_of
from fl_epe.checks import (
    ArgumentError,
    Floats32,
    check_count,
    check_positive,
    raise_invalid,
)
from fl_epe.cli import console
from fl_epe.cli.guards import SIGNALLED, exit_status, stop_on_signals
from fl_epe.cli.options import Group, Parser, Typed
from fl_epe.cli.report import print_and_write
from fl_epe.cli.run_log import RunLog, command_line, now, run_facts
from fl_epe.config import RunConfig
from fl_epe.files import CHECKPOINT, RECORD, locked, on_one_line, remove_parts
from fl_epe.loggers import LoggerName, Loggers, check_loggers
from fl_epe.seeding import Seeds
from fl_epe.tasks import find_task, is_reference, look_in_current_folder

if TYPE_CHECKING:
    from fl_epe.auditing import AuditRecord
    from fl_epe.reporting import Summary
    from fl_epe.simulation import Job, Progress

# A metric of `Progress.epsilons` that exists only after the last round.
_FINAL = "epsilon-final"

# All options of built-in tasks, which are known without importing the tasks.
_BUILT_IN_OPTIONS = (
    "--num-clients",
    "--alpha",
    "--data-seed",
    "--max-examples",
    "--data-dir",
)
_MODEL = "model.pt"  # file of the final model in a run's folder


def task_settings(parser: Parser, words: Sequence[str]) -> type:
    """The dataclass of the options of the typed task; an empty one if no task was typed.

    Args:
        parser: the parser of the command, with all its other options.
        words: the typed words.

    Raises:
        ImportError: if the task's module cannot be imported.
        ValueError: if there is no such task, or if an option of the task has the name of an option
            of the command.
    """
    reference = _reference(parser, words)
    if reference is None:
        return dataclasses.make_dataclass("NoOptions", [])
    command_options = parser._option_string_actions
    if ":" in reference:
        # The module of the user's own task may be in the current folder.
        look_in_current_folder()
    elif _is_misspelt(words, [*command_options, *_BUILT_IN_OPTIONS]):
        # The parser will report an error. It needs the names of the options only, and importing
        # the task would take seconds, as it loads PyTorch.
        names = [
            (option[2:].replace("-", "_"), str) for option in _BUILT_IN_OPTIONS
        ]
        return dataclasses.make_dataclass("BuiltIn", names)
    settings = find_task(reference).settings
    for field in dataclasses.fields(settings):
        option = "--" + field.name.replace("_", "-")
        if option in command_options:
            raise ValueError(
                f"Expected the option {field.name!r} of task {reference!r} to have another name: "
                f"fl-epe run has an option {option} of its own."
            )
        if field.name == "num_clients":
            # Errors about `RunConfig.clients` name the option that sets it.
            parser.names["clients"] = option
    return settings


def _reference(parser: Parser, words: Sequence[str]) -> str | None:
    """The first word that may be a task and is neither an option nor an option's value."""
    is_value = False
    for word in words:
        if not is_value and not word.startswith("-") and is_reference(word):
            return word
        action = parser._option_string_actions.get(word)
        takes_one_value = action is not None and action.nargs is None
        is_value = takes_one_value and not is_value
    return None


def _is_misspelt(words: Sequence[str], options: Sequence[str]) -> bool:
    """Whether a typed option is not among the options."""
    typed = {word.partition("=")[0] for word in words if word.startswith("--")}
    return not typed.issubset([*options, "--"])


@contextlib.contextmanager
def task_errors(reference: str, *expected: Any) -> Iterator[None]:
    """In this context, an unexpected error in a user's task names the task and its line of code.

    Args:
        reference: the reference of the task.
        expected: classes of errors that do not come from a task.

    Raises:
        ValueError: for an error other than the expected ones, `MemoryError`, `ValueError`,
            `OSError` and `ImportError`, whose messages need no explanation.
    """
    try:
        yield
    except (ValueError, OSError, ImportError, MemoryError, *expected):
        raise
    except (Exception, SystemExit) as error:
        if ":" not in reference:
            raise  # a built-in task
        raise ValueError(
            f"The task {reference!r} failed with {type(error).__name__}: {error}{place_of(error)}"
        ) from error


class _Outputs:
    """Where the progress of a run is shown and logged.

    Args:
        job: the job of the run.
        folder: the folder of the run.
        log_to: the names of further loggers.
        resumed: whether the run continues one that another process has logged.

    Attributes:
        line: the progress line of the terminal.
        log: the file run.log.
    """

    def __init__(
        self,
        job: Job,
        folder: Path,
        log_to: Sequence[LoggerName],
        *,
        resumed: bool,
    ) -> None:
        self.line = console.ProgressLine()
        self.log = RunLog(folder, _warn)
        self._loggers = Loggers(log_to, folder, _warn)
        self._job = job
        self._folder = folder
        self._resumed = resumed

    def on_round(self, progress: Progress) -> None:
        """Show and log the progress after a round, or before the first one."""
        self.line.show(
            "round",
            progress.round,
            progress.rounds,
            _progress_text(progress),
            last=_FINAL in progress.epsilons,
        )
        self.log.progress(progress)
        self._loggers.log(
            progress.round, progress.metrics(), resumed=self._resumed
        )

    def on_model(self, theta: Floats32) -> None:
        """Write the final model. An error of the file does not end the run."""
        path = self._folder / _MODEL
        try:
            self._job.task.save_model(theta, path)
        except OSError as error:
            _warn(f"{path} could not be written: {error}")

    def end_early(
        self, status: Literal["stopped", "failed"], **values: Any
    ) -> None:
        """Log that the run ended before its last round."""
        self.log.note(status, **values)
        self._loggers.close({"status": status})

    def end(self, summary: Summary) -> None:
        """Log the result of the run."""
        self.log.note(
            "report",
            status=summary.status,
            exit_status=summary.exit_status,
            page=str(self._folder / "report.html"),
        )
        self._loggers.close(summary.metrics(), self._folder)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Machine:
    """How a run uses the machine, which has no influence on the result.

    Attributes:
        backend: where the clients train: in threads of this process, or in Flower's Ray
            simulation.
        workers: number of nodes among which the clients are partitioned; no influence on the
            result.
        checkpoint_every: number of rounds between two checkpoints, from which 'fl-epe resume'
            continues. A checkpoint is also written before the first round, after the last one, and
            when a run is stopped.
        round_timeout: seconds to wait for the replies of a round; a client that has not replied by
            then counts as absent.
        save_model: write the final model to model.pt, a file for load_state_dict of your model.
        details: print everything that report.html says in words, not only the answer and the
            warnings.
        log_to: where to log each round and the answer, besides run.log; can be given repeatedly.
    """

    backend: Literal["in-process", "ray"] = "in-process"
    workers: int = min(os.cpu_count() or 1, 8)
    checkpoint_every: int = 10
    round_timeout: float = 3600.0
    save_model: bool = False
    details: bool = False
    log_to: tuple[LoggerName, ...] = ()

    def __post_init__(self) -> None:
        check_count("workers", self.workers)
        check_count("checkpoint_every", self.checkpoint_every)
        check_positive("round_timeout", self.round_timeout)
        check_loggers(self.log_to)

    def _carry_out(
        self,
        job: Job,
        output: Path,
        words: Sequence[str],
        *,
        resumed: bool = False,
    ) -> int:
        """Train in a locked folder, save the record, and report on it."""
        from fl_epe import flower, simulation

        started = now()
        command = command_line(words)
        resume = self._resume_command(job, output)
        outputs = _Outputs(job, output, self.log_to, resumed=resumed)
        outputs.log.note(
            "started",
            command=command,
            task=job.task.name,
            rounds=job.config.rounds,
        )
        remove_parts(output)
        stop = simulation.StopRequest()
        try:
            with (
                task_errors(job.task.reference, simulation.RunStoppedError),
                outputs.line,
                stop_on_signals(stop) as signals,
            ):
                record = flower.simulate(
                    job,
                    checkpoint=output / CHECKPOINT,
                    stop=stop,
                    on_round=outputs.on_round,
                    on_model=outputs.on_model if self.save_model else None,
                    backend=self.backend,
                    workers=self.workers,
                    checkpoint_every=self.checkpoint_every,
                    round_timeout=self.round_timeout,
                )
        except simulation.RunStoppedError as end:
            status = SIGNALLED + (signals[0] if signals else signal.SIGINT)
            outputs.end_early(
                "stopped",
                round=end.rounds_done,
                kept=end.is_saved,
                exit_status=status,
            )
            lost = "" if end.is_saved else ", which could not be saved"
            _print_resume(
                f" after round {end.rounds_done} of {end.rounds}{lost}", resume
            )
            return status
        except BaseException as error:
            outputs.end_early(
                "failed", error=type(error).__name__, text=str(error)
            )
            can_resume = simulation.has_checkpoint(output / CHECKPOINT)
            if not isinstance(error, KeyboardInterrupt) or not can_resume:
                raise
            _print_resume("", resume)
            return exit_status(error)
        outputs.log.note("finished", rounds=record.rounds)
        record = record.with_values(**run_facts(output, command, started))
        return self._report(record, output, resume, outputs)

    def _report(
        self, record: AuditRecord, output: Path, resume: str, outputs: _Outputs
    ) -> int:
        """Save the record of a finished run, and report on it."""
        from fl_epe.simulation import remove_checkpoint

        # What the user has to run if the next step fails.
        next_command = resume
        try:
            record.save(output / RECORD)
            next_command = command_line(["report", str(output)])
            remove_checkpoint(output / CHECKPOINT)
            summary = print_and_write(record, output, details=self.details)
        except OSError as error:
            outputs.log.note(
                "failed", error=type(error).__name__, text=str(error)
            )
            text = f"The run is finished, but {error}. {console.remedy(error)}".rstrip()
            console.print_alarm(f"{text} Then continue with: {next_command}")
            return console.FAILED
        outputs.end(summary)
        return summary.exit_status

    def _resume_command(self, job: Job, output: Path) -> str:
        """The command that resumes this run, with the options that a checkpoint does not set."""
        from fl_epe.simulation import files_named

        words = ["resume", str(output)]
        if ":" in job.task.reference:
            words += ["--task", job.task.reference]
        for name in self.log_to:
            words += ["--log-to", name]
        for path in files_named(job.to_dict(), output):
            words += ["--reads", path]
        return command_line(words)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run(_Machine):
    """Train a task with DP-FedAvg, with canary clients among the real ones, and audit it.

    Prints the empirical ε of a client; writes record.npz, report.json, report.html and a figure.
    Exits with 3 if the answer's status is not "ok": unreliable, faulty, diverged or not measured.

    Examples:
        fl-epe run digits
        fl-epe run digits --noise-multiplier 0.5 --seed 1 --output runs/half
        fl-epe run digits --stop-when "epsilon-all-low > 8"
        fl-epe run digits --participation poisson --backend ray --workers 2
        fl-epe run fashion-mnist --data-dir /usr/share/datasets/fashion-mnist
        fl-epe run mypackage.tasks:MyTask --rounds 50
        fl-epe run synthetic-stackoverflow --num-clients 2000 --rounds 100 --clients-per-round 20

    Attributes:
        task: what to train: digits, emnist, fashion-mnist, stackoverflow, synthetic-emnist,
            synthetic-stackoverflow, or a task of your own as module:name, e.g.
            mypackage.tasks:MyTask. 'fl-epe run TASK --help' lists the options of the task.
        output: folder to write to (default: runs/TASK-DATE-TIME).
        seed: seed of all randomness, so that the run can be repeated exactly (default: the
            operating system's entropy). Whoever can guess the seed knows the canaries and the
            noise.
        evaluate_every: number of rounds between two evaluations on held-out data.
        settings: training and audit (a task may have other defaults).
        task_options: options of the task.
    """

    task: Annotated[str, "TASK"]
    output: Path | None = None
    seed: int | None = None
    evaluate_every: int = 5
    settings: Annotated[Typed, Group(RunConfig, without=("clients",))] = (
        dataclasses.field(default_factory=dict)
    )
    task_options: Annotated[Typed, Group(task_settings)] = dataclasses.field(
        default_factory=dict
    )

    def __call__(self, words: Sequence[str]) -> int:
        """Train and report."""
        from fl_epe.simulation import Job, has_checkpoint

        with (
            console.waiting("Reading the data of the task"),
            task_errors(self.task),
        ):
            task = find_task(self.task).task(**self.task_options)
            settings = {
                "clients": task.num_clients,
                **task.defaults,
                **self.settings,
            }
            config = RunConfig(**settings)
            job = Job(
                task, config, Seeds.derive(self.seed), self.evaluate_every
            )
            notes = task.notes()
        output = console.output_directory(
            self.output, self.task.replace(":", "-")
        )
        with locked(output):
            if (output / RECORD).exists():
                raise_invalid(
                    "output", output, "to be free: it holds a finished run"
                )
            if has_checkpoint(output / CHECKPOINT):
                resume = command_line(["resume", str(output)])
                text = f"Expected {{output}} to be free: it holds an unfinished run. See: {resume}"
                raise ArgumentError(text, output=output)
            for note in notes:
                print(f"Note: {on_one_line(note)}", file=sys.stderr)
            console.print_lines(config.canary_plan())
            return self._carry_out(job, output, words)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resume(_Machine):
    """Continue a run that was stopped or killed, from its last checkpoint.

    With a seed, the result is the same as without the interruption. A checkpoint of somebody else
    must not run code or read files of its choice: a task of your own, and files outside RUN_DIR,
    have to be named again.

    Attributes:
        run_dir: folder of the run.
        task: the task of the run, needed if it is a task of your own (module:name).
        reads: a file or folder outside RUN_DIR that the run reads, such as its --data-dir; can be
            given repeatedly.
    """

    run_dir: Annotated[Path, "RUN_DIR"]
    task: str | None = None
    reads: tuple[Path, ...] = ()

    def __call__(self, words: Sequence[str]) -> int:
        """Continue and report."""
        from fl_epe.simulation import load_job

        if not self.run_dir.is_dir():
            # This raises the error for a missing checkpoint. `locked` would create the folder.
            load_job(self.run_dir / CHECKPOINT)
        with locked(self.run_dir):
            if (self.run_dir / RECORD).exists():
                report = command_line(["report", str(self.run_dir)])
                text = f"Expected {{run_dir}} to hold an unfinished run. See: {report}"
                raise ArgumentError(text, run_dir=self.run_dir)
            if self.task is not None and ":" in self.task:
                look_in_current_folder()
            job = load_job(self.run_dir / CHECKPOINT, self.task, self.reads)
            return self._carry_out(job, self.run_dir, words, resumed=True)


def _warn(text: str) -> None:
    """Print a warning on standard error."""
    console.print_alarm(text, prefix="fl-epe: warning: ")


def _print_resume(stage: str, resume: str) -> None:
    """Print that the run stopped at this stage, and the command that resumes it."""
    console.print_unwrapped("", f"Stopped{stage}. Continue with: {resume}")


def _progress_text(progress: Progress) -> str:
    """The text of the progress line after a round."""
    from fl_epe.reporting import number

    if not progress.round:
        return "starting"
    if progress.metric == "accuracy":
        held_out = f"acc {progress.accuracy:.1%}"
    elif progress.metric:
        held_out = f"held out {progress.metric} {progress.accuracy:.4g}"
    else:
        held_out = f"held out {progress.eval_loss:.4g}"
    names = (_FINAL, "epsilon-all", "epsilon-all-low", "epsilon-all-high")
    final, every_round, low, high = (
        progress.epsilons.get(name, math.nan) for name in names
    )
    time_left = f"{progress.seconds_left:.0f} s left"
    if math.isnan(every_round):
        result = f"clip {progress.clip_norm:.3g}  {time_left}"
    elif math.isnan(final):
        interval = f"({number(low)} – {number(high)})"
        result = f"ε so far {number(every_round)} {interval}  {time_left}"
    else:
        result = (
            f"ε final model {number(final)}, every round {number(every_round)}"
        )
    return f"loss {progress.loss:.4g}  {held_out}  {result}"
