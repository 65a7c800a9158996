"""Loggers of a run: TensorBoard, MLflow, Weights & Biases, or objects of your own.

A run passes its numbers to `Loggers` after each round, and its result at the end. A built-in
logger is chosen by its name; any other `RunLogger` is passed as an object. If a logger fails,
there is one warning, and the run continues without it.

Examples:
    >>> class Printer:
    ...     def log(self, round_number, values):
    ...         print(round_number, values["epsilon-all"])
    ...
    ...     def close(self, summary):
    ...         print(summary["status"])
    >>> loggers = Loggers([Printer()], Path("runs"), warn=print)
    >>> loggers.log(1, {"epsilon-all": 0.5}, resumed=False)
    1 0.5
    >>> loggers.close({"status": "ok"})
    ok
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, assert_never

from fl_epe.archive import error_text
from fl_epe.checks import checked_type, raise_invalid
from fl_epe.files import inside, write_json

LoggerName = Literal["tensorboard", "mlflow", "wandb"]
"""The names of the built-in loggers."""

# The name of the experiment in MLflow and of the project in Weights & Biases.
_PROJECT = "fl_epe"
# Times in seconds: the largest time of an upload at the end of a run, the time until the clock
# is read again, and the interval at which Weights & Biases writes its values.
_PATIENCE = 60.0
_SHORTLY = 0.05
_FLUSH = 0.5


class RunLogger(Protocol):
    """A receiver of the numbers of a run while it is running. It may raise any error."""

    def log(self, round_number: int, values: Mapping[str, float]) -> None:
        """Log the numbers after a round.

        Args:
            round_number: the number of completed rounds.
            values: finite numbers, by their names in the run's metrics.
        """

    def close(self, summary: Mapping[str, float | str]) -> None:
        """Log the result, after the report was written or the run has stopped.

        Args:
            summary: the "status" and, once there is a report, its path "report" and the result.
        """


class Loggers:
    """All loggers of one run, none of which can end it.

    Args:
        log_to: the name of a built-in logger, or a list of names and objects.
        folder: the folder of the run, with the files of TensorBoard and the ids of the run in
            MLflow and Weights & Biases.
        warn: a function that gets a sentence about a logger that failed.

    Raises:
        ValueError: for an unknown name, or an object that is not a logger.
        ModuleNotFoundError: if the package of a built-in logger is not installed.
    """

    def __init__(
        self,
        log_to: str | Sequence[str | RunLogger],
        folder: Path,
        warn: Callable[[str], None],
    ) -> None:
        self._working = check_loggers(log_to)
        self._folder = folder
        self._warn = warn
        self._open: dict[int, RunLogger] = {}
        self._has_begun = False

    def __bool__(self) -> bool:
        """Whether there is a logger that works."""
        return bool(self._working)

    def log(
        self, round_number: int, values: Mapping[str, object], *, resumed: bool
    ) -> None:
        """Pass the numbers after a round to every logger.

        Args:
            round_number: the number of completed rounds.
            values: the values by name, of which only finite numbers are logged.
            resumed: whether the run continues one that another process has logged.
        """
        numbers = {
            name: float(value)
            for name, value in values.items()
            if isinstance(value, int | float) and math.isfinite(value)
        }
        is_resumed = resumed or self._has_begun
        for logger in list(self._working):
            with self._surviving(logger):
                if id(logger) not in self._open:
                    opened = logger
                    if isinstance(opened, str):
                        make_logger, _ = _built_in(opened)
                        opened = make_logger(self._folder, is_resumed)
                    self._open[id(logger)] = opened
                self._open[id(logger)].log(round_number, numbers)
        self._has_begun = True

    def close(
        self, summary: Mapping[str, float | str], folder: Path | None = None
    ) -> None:
        """Pass the result, or the status of a stopped run, to every logger that got a round.

        Args:
            summary: the "status", and the result by its names in the run's metrics.
            folder: the folder of the report.
        """
        if folder is not None:
            summary = {
                **summary,
                "report": str((folder / "report.html").resolve()),
            }
        for logger in list(self._working):
            if id(logger) in self._open:
                with self._surviving(logger):
                    self._open.pop(id(logger)).close(summary)

    @contextlib.contextmanager
    def _surviving(self, logger: str | RunLogger) -> Iterator[None]:
        """If the logger raises an error in this context, the run continues without it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the run goes on
            self._working.remove(logger)
            name = logger if isinstance(logger, str) else type(logger).__name__
            reason = error_text(error)
            self._warn(
                f"logging to {name} failed ({reason}); the run goes on without it."
            )


def check_loggers(
    log_to: str | Sequence[str | RunLogger],
) -> list[str | RunLogger]:
    """The loggers without repetitions; raises the errors of `Loggers`."""
    loggers = [log_to] if isinstance(log_to, str) else list(log_to)
    for logger in loggers:
        if isinstance(logger, str):
            _, package = _built_in(logger)
            if (
                package is not None
                and importlib.util.find_spec(package) is None
            ):
                raise ModuleNotFoundError(
                    f"Logging to {logger} needs the package {package}, which is not installed: "
                    "pip install 'fl-epe[loggers]'.",
                    name=package,
                )
        elif not all(
            callable(getattr(logger, name, None)) for name in ("log", "close")
        ):
            raise_invalid(
                "log_to",
                logger,
                "to have the methods log and close of a RunLogger",
            )
    return [
        logger
        for place, logger in enumerate(loggers)
        if logger not in loggers[:place]
    ]


def _built_in(
    name: str,
) -> tuple[Callable[[Path, bool], RunLogger], str | None]:
    """The class of a built-in logger, and the package that it needs; ``None`` without one.

    Raises:
        ValueError: for an unknown name.
    """
    logger: LoggerName = checked_type("log_to", name, LoggerName)
    match logger:
        case "tensorboard":
            return _TensorBoard, "tensorboard"
        case "mlflow":
            return _MLflow, "mlflow"
        case "wandb":
            return _WandB, "wandb"
    assert_never(logger)


class _TensorBoard:
    """Event files in the folder ``tensorboard``; a repeated round replaces the old one."""

    def __init__(self, folder: Path, resumed: bool) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        path = inside(folder, folder / "tensorboard")
        # Files are read in the order of the seconds in their names, and this one must be the
        # last.
        while any(path.glob(f"events.out.tfevents.{int(time.time())}.*")):
            time.sleep(_SHORTLY)
        self._writer = EventFileWriter(str(path))
        self._start: Any = SessionLog(status=SessionLog.START)
        self._round = 0

    def _add(self, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        event = Event(wall_time=time.time(), step=self._round, **content)
        self._writer.add_event(event)

    def log(self, round_number: int, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._round = round_number
        if self._start is not None:
            # Readers then remove this round and later ones of an earlier process.
            self._add(session_log=self._start)
            self._start = None
        points = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in values.items()
        ]
        self._add(summary=Summary(value=points))
        self._writer.flush()

    def close(self, summary: Mapping[str, float | str]) -> None:
        from tensorboard.plugins.text.summary_v2 import text_pb

        lines = [f"| {name} | {value} |" for name, value in summary.items()]
        table = "\n".join(["| answer | |", "|---|---|", *lines])
        self._add(summary=text_pb("answer", table))
        self._writer.close()


class _SameRun:
    """A file with the id of a run in another system, and the last round that is logged there.

    Attributes:
        id: the id of the run; empty for a new run.
    """

    def __init__(self, path: Path, resumed: bool) -> None:
        self._path = inside(path.parent, path)
        self.id = ""
        self._round = -1
        if resumed and path.exists():
            state = json.loads(path.read_text("utf-8"))
            self.id = str(state["id"])
            self._round = int(state["round"])

    def is_new(self, round_number: int) -> bool:
        """Whether a round was not logged before; it then counts as logged."""
        if round_number <= self._round:
            return False
        self._round = round_number
        write_json(self._path, {"id": self.id, "round": self._round})
        return True


class _MLflow:
    """A run in MLflow's own store (``MLFLOW_TRACKING_URI``)."""

    def __init__(self, folder: Path, resumed: bool) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient

        self._client = MlflowClient()
        self._same = _SameRun(folder / "mlflow.json", resumed)
        if self._same.id:
            self._client.update_run(self._same.id, status="RUNNING")
        else:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
            experiment = self._client.get_experiment_by_name(name)
            if experiment is None:
                experiment_id = self._client.create_experiment(name)
            else:
                experiment_id = experiment.experiment_id
            run = self._client.create_run(experiment_id, run_name=folder.name)
            self._same.id = run.info.run_id

    def log(self, round_number: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        if self._same.is_new(round_number):
            now = time.time_ns() // 10**6
            points = [
                Metric(name, value, now, round_number)
                for name, value in values.items()
            ]
            self._client.log_batch(self._same.id, metrics=points)

    def close(self, summary: Mapping[str, float | str]) -> None:
        for name, value in summary.items():
            self._client.set_tag(self._same.id, name, value)
        ends = {"stopped": "KILLED", "failed": "FAILED"}
        end = ends.get(str(summary.get("status")), "FINISHED")
        self._client.set_terminated(self._same.id, end)


class _WandB:
    """A run of Weights & Biases, offline unless ``WANDB_MODE`` says otherwise.

    Names have underscores instead of hyphens. The records of the machine and of the command,
    which may contain a seed, are disabled.
    """

    def __init__(self, folder: Path, resumed: bool) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        os.environ.setdefault("WANDB_MODE", "offline")
        import wandb

        self._same = _SameRun(folder / "wandb.json", resumed)
        self._same.id = self._same.id or secrets.token_hex(8)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            id=self._same.id,
            name=folder.name,
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(
                console="off",
                silent=True,
                disable_code=True,
                disable_git=True,
                finish_timeout=_PATIENCE,
                x_disable_machine_info=True,
                x_disable_meta=True,
                x_disable_stats=True,
                x_transaction_log_flush_interval=_FLUSH,
            ),
        )

    def log(self, round_number: int, values: Mapping[str, float]) -> None:
        if self._same.is_new(round_number):
            self._run.log(
                _without_hyphens(values), step=round_number, commit=True
            )

    def close(self, summary: Mapping[str, float | str]) -> None:
        self._run.summary.update(_without_hyphens(summary))
        self._run.finish(
            1 if summary.get("status") in ("stopped", "failed") else 0
        )


def _without_hyphens(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("-", "_"): value for name, value in values.items()}
