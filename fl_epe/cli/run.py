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
from fl_epe.cli.guards import exit_status, signals_stop
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
    from fl_epe.simulation import Job, Progress

_FINAL = "epsilon-final"  # a metric that exists only after the last round

# Options of the built-in tasks.
_BUILT_IN_OPTIONS = (
    "--num-clients",
    "--alpha",
    "--data-seed",
    "--max-examples",
    "--data-dir",
)
_MODEL = "model.pt"  # file of the final model in a run's folder


def task_settings(parser: Parser, words: Sequence[str]) -> type:
    """The dataclass of the options of the task that was typed; an empty one without a task.

    Args:
        parser: the parser of the command, with all its other options.
        words: the typed words.

    Raises:
        ImportError: if the task's module cannot be imported.
        ValueError: if there is no such task, or it has an option of the command's name.
    """
    reference = _reference(parser, words)
    if reference is None:
        return dataclasses.make_dataclass("NoOptions", [])
    options = parser._option_string_actions
    if ":" in reference:
        look_in_current_folder()
    else:
        # The current folder is not searched, as a file in it could replace a built-in task's
        # package.
        typed = {
            word.partition("=")[0] for word in words if word.startswith("--")
        }
        if not typed.issubset([*options, *_BUILT_IN_OPTIONS, "--"]):
            # An option is misspelt. Its error does not need PyTorch, which takes seconds to load.
            names = [
                (option[2:].replace("-", "_"), str)
                for option in _BUILT_IN_OPTIONS
            ]
            return dataclasses.make_dataclass("BuiltIn", names)
    settings = find_task(reference).settings
    for field in dataclasses.fields(settings):
        option = "--" + field.name.replace("_", "-")
        if option in options:
            raise ValueError(
                f"Expected the option {field.name!r} of task {reference!r} to have another name: "
                f"fl-epe run has an option {option} of its own."
            )
        if field.name == "num_clients":
            parser.names["clients"] = option
    return settings


def _reference(parser: Parser, words: Sequence[str]) -> str | None:
    """The first word that may be a task and is neither an option nor an option's value."""
    is_value = False
    for word in words:
        if not is_value and not word.startswith("-") and is_reference(word):
            return word
        action = parser._option_string_actions.get(word)
        is_value = not is_value and action is not None and action.nargs is None
    return None


@contextlib.contextmanager
def task_errors(reference: str, *but: Any) -> Iterator[None]:
    """In this context an error of a user's task is raised as an error of that task, with its place.

    Args:
        reference: the reference of the task.
        but: errors that do not come from a task.

    Raises:
        ValueError: for an error other than `ValueError`, `OSError` and `ImportError`, whose
            messages need no explanation.
    """
    try:
        yield
    except (ValueError, OSError, ImportError, MemoryError, *but):
        raise
    except (Exception, SystemExit) as error:
        if ":" not in reference:
            raise
        raise ValueError(
            f"The task {reference!r} failed with {type(error).__name__}: {error}{place_of(error)}"
        ) from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Machine:
    """How a run uses the machine; no influence on the result.

    Attributes:
        backend: threads of this process, or Flower's Ray simulation.
        workers: nodes among which the clients are partitioned; no influence on the result.
        checkpoint_every: rounds from one checkpoint, from which 'fl-epe resume' goes on, to the
            next. There is always one before the first round, after the last one, and when a run is
            stopped.
        round_timeout: seconds to wait for the answers of a round; a client that has not answered
            by then counts as absent.
        save_model: write the final model to model.pt, which your model's load_state_dict takes.
        details: print all that report.html says in words, not only the answer and warnings.
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

        reference = job.task.reference
        started = now()
        command = command_line(words)
        resume = self._resume_command(job, output)
        stop = simulation.StopRequest()
        line = console.ProgressLine()
        log = RunLog(output, _warn)
        loggers = Loggers(self.log_to, output, _warn)
        log.note(
            "started",
            command=command,
            task=job.task.name,
            rounds=job.config.rounds,
        )
        remove_parts(output)

        def on_round(progress: Progress) -> None:
            ended = _FINAL in progress.epsilons
            text = _text(progress)
            line.show(
                "round", progress.round, progress.rounds, text, last=ended
            )
            log.progress(progress)
            loggers.log(progress.round, progress.metrics(), resumed=resumed)

        def on_model(theta: Floats32) -> None:
            try:
                job.task.save_model(theta, output / _MODEL)
            except OSError as error:
                # This error does not end the run.
                _warn(f"{output / _MODEL} could not be written: {error}")

        try:
            with (
                task_errors(reference, simulation.RunStoppedError),
                line,
                signals_stop(stop) as signals,
            ):
                record = flower.simulate(
                    job,
                    checkpoint=output / CHECKPOINT,
                    stop=stop,
                    on_round=on_round,
                    on_model=on_model if self.save_model else None,
                    backend=self.backend,
                    workers=self.workers,
                    checkpoint_every=self.checkpoint_every,
                    round_timeout=self.round_timeout,
                )
        except simulation.RunStoppedError as end:
            status = 128 + (signals[0] if signals else signal.SIGINT)
            log.note(
                "stopped",
                round=end.rounds_done,
                kept=end.kept,
                exit_status=status,
            )
            loggers.close({"status": "stopped"})
            lost = "" if end.kept else ", which could not be kept"
            where = f"after round {end.rounds_done} of {end.rounds}{lost}"
            console.print_unwrapped(
                "", f"Stopped {where}. Go on with: {resume}"
            )
            return status
        except BaseException as error:
            log.note("failed", error=type(error).__name__, text=str(error))
            loggers.close({"status": "failed"})
            is_kept = simulation.has_checkpoint(output / CHECKPOINT)
            if not (is_kept and isinstance(error, KeyboardInterrupt)):
                raise
            console.print_unwrapped("", f"Stopped. Go on with: {resume}")
            return exit_status(error)
        log.note("finished", rounds=record.rounds)
        record = record.with_values(**run_facts(output, command, started))
        return self._report(record, output, resume, log, loggers)

    def _report(
        self,
        record: AuditRecord,
        output: Path,
        resume: str,
        log: RunLog,
        loggers: Loggers,
    ) -> int:
        """Save the record of a finished run, and report on it."""
        from fl_epe.simulation import remove_checkpoint

        next_command = resume
        try:
            record.save(output / RECORD)
            next_command = command_line(["report", str(output)])
            remove_checkpoint(output / CHECKPOINT)
            summary = print_and_write(record, output, details=self.details)
        except OSError as error:
            log.note("failed", error=type(error).__name__, text=str(error))
            text = f"The run is finished, but {error}. {console.remedy(error)}".rstrip()
            console.say(f"{text} Then go on with: {next_command}")
            return console.FAILED
        status = summary.exit_status
        page = str(output / "report.html")
        log.note("report", status=summary.status, exit_status=status, page=page)
        loggers.close(summary.metrics(), output)
        return status

    def _resume_command(self, job: Job, output: Path) -> str:
        """The command that resumes this run, with all settings that a checkpoint may not choose."""
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
    """Train a task with DP-FedAvg, canary clients among the real ones, and audit it.

    Prints how exposed a client is; writes record.npz, report.json, report.html and a picture.
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
        task: what to train: digits, emnist, fashion-mnist, stackoverflow,
            synthetic-emnist, synthetic-stackoverflow, or your own as module:name, e.g.
            mypackage.tasks:MyTask; its options are in: fl-epe run TASK --help.
        output: directory to write to (default: runs/TASK-DATE-TIME).
        seed: number from which all randomness follows, so that the run can be repeated exactly
            (default: the operating system's entropy, because whoever guesses the seed knows the
            canaries and the noise).
        evaluate_every: rounds between evaluations on held-out data.
        settings: training and audit (a task may have defaults of its own).
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
        """Train, and report."""
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
                    "output", str(output), "to be free: it holds a finished run"
                )
            if has_checkpoint(output / CHECKPOINT):
                resume = command_line(["resume", str(output)])
                text = f"Expected {{output}} to be free: it holds an unfinished run. See: {resume}"
                raise ArgumentError(text, output=str(output))
            for note in notes:
                print(f"Note: {on_one_line(note)}", file=sys.stderr)
            console.print_lines(config.canary_plan())
            return self._carry_out(job, output, words)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resume(_Machine):
    """Go on with a run that was stopped or killed, from its last checkpoint.

    With a seed, the result is the same as if it had never stopped.

    Attributes:
        run_dir: where the run was writing.
        task: the task of the run, needed if it is a module:name of your own: importing a module
            runs its code, so that no checkpoint may choose it.
        reads: a file or folder outside RUN_DIR that the run reads, such as its --data-dir: no
            checkpoint may choose that either; can be given repeatedly.
    """

    run_dir: Annotated[Path, "RUN_DIR"]
    task: str | None = None
    reads: tuple[Path, ...] = ()

    def __call__(self, words: Sequence[str]) -> int:
        """Go on, and report."""
        from fl_epe.simulation import load_job

        if not self.run_dir.is_dir():
            # It raises the error for a missing checkpoint.
            load_job(self.run_dir / CHECKPOINT)
        with locked(self.run_dir):
            if (self.run_dir / RECORD).exists():
                report = command_line(["report", str(self.run_dir)])
                text = f"Expected {{run_dir}} to hold an unfinished run. See: {report}"
                raise ArgumentError(text, run_dir=str(self.run_dir))
            # Such a task is a module of the user.
            if self.task is not None and ":" in self.task:
                look_in_current_folder()
            job = load_job(self.run_dir / CHECKPOINT, self.task, self.reads)
            return self._carry_out(job, self.run_dir, words, resumed=True)


def _warn(text: str) -> None:
    """Print a warning on standard error."""
    console.say(text, prefix="fl-epe: warning: ")


def _text(progress: Progress) -> str:
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
    final, every, low, high = (
        progress.epsilons.get(name, math.nan) for name in names
    )
    time_left = f"{progress.seconds_left:.0f} s left"
    if math.isnan(every):
        result = f"clip {progress.clip_norm:.3g}  {time_left}"
    elif math.isnan(final):
        result = f"ε so far {number(every)} ({number(low)} – {number(high)})  {time_left}"
    else:
        result = f"ε final model {number(final)}, every round {number(every)}"
    return f"loss {progress.loss:.4g}  {held_out}  {result}"
