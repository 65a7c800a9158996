"""Loggers of a run: TensorBoard, MLflow, Weights & Biases, or objects of your own.

A run passes its numbers to `Loggers` after each round, and its result at the end. A built-in
logger is chosen by its name; any other `RunLogger` is passed as an object. If a logger fails,
there is one warning, and the run continues without that logger.

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
# Times in seconds: the longest upload to Weights & Biases at the end of a run, the interval at
# which it writes values to the disk, and the pause before the clock is read again.
_MAX_UPLOAD = 60.0
_WRITE_INTERVAL = 0.5
_PAUSE = 0.05


class RunLogger(Protocol):
    """A receiver of the numbers of a run. Its methods may raise any error."""

    def log(self, round_number: int, values: Mapping[str, float]) -> None:
        """Log the numbers after a round.

        Args:
            round_number: the number of completed rounds.
            values: finite numbers, by their names in the run's metrics.
        """

    def close(self, summary: Mapping[str, float | str]) -> None:
        """Log the result after the report was written, or the status of a run that ended early.

        Args:
            summary: the "status"; with a report also its path "report" and the result.
        """


class Loggers:
    """All loggers of one run. An error of a logger does not end the run.

    Args:
        log_to: the name of a built-in logger, or a list of names and objects.
        folder: the folder of the run, for the files of TensorBoard and the ids of the run in
            MLflow and Weights & Biases.
        warn: a function that is called with a sentence about a logger that failed.

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
        """Whether there is a logger that has not failed."""
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
        # A logger that was closed is opened again if this process continues the run.
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
        """Close every logger that got a round, with the result or the status of the run.

        Args:
            summary: the "status", and the result by its names in the run's metrics.
            folder: the folder of the report, if there is one.
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
        """In this context, an error of the logger becomes a warning, and the logger is removed."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a logger may raise any error
            self._working.remove(logger)
            name = logger if isinstance(logger, str) else type(logger).__name__
            reason = error_text(error)
            self._warn(
                f"logging to {name} failed ({reason}); the run continues without it."
            )


def check_loggers(
    log_to: str | Sequence[str | RunLogger],
) -> list[str | RunLogger]:
    """The loggers without duplicates; it raises the errors of `Loggers`."""
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
    """Event files in the folder ``tensorboard``; readers replace rounds that are logged again."""

    def __init__(self, folder: Path, resumed: bool) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        path = inside(folder, folder / "tensorboard")
        # Files are read in the order of their names, which have the time in seconds. The file of
        # this process must be the last one.
        while any(path.glob(f"events.out.tfevents.{int(time.time())}.*")):
            time.sleep(_PAUSE)
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
            # Readers then discard this round and later ones of an earlier process.
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


class _LoggedRun:
    """The id of a run in another system, and the last round that is logged there, in a file.

    Attributes:
        id: the id of the run; empty for a new run.
    """

    def __init__(self, path: Path, resumed: bool) -> None:
        self._path = inside(path.parent, path)
        self.id = ""
        self._last_round = -1
        if resumed and path.exists():
            state = json.loads(path.read_text("utf-8"))
            self.id = str(state["id"])
            self._last_round = int(state["round"])

    def note_round(self, round_number: int) -> bool:
        """Note in the file that a round is logged.

        Returns:
            Whether the round was not logged before.
        """
        if round_number <= self._last_round:
            return False
        self._last_round = round_number
        write_json(self._path, {"id": self.id, "round": round_number})
        return True


class _MLflow:
    """A run in the store of MLflow that ``MLFLOW_TRACKING_URI`` names."""

    def __init__(self, folder: Path, resumed: bool) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient

        self._client = MlflowClient()
        self._logged = _LoggedRun(folder / "mlflow.json", resumed)
        if self._logged.id:
            self._client.update_run(self._logged.id, status="RUNNING")
        else:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
            experiment = self._client.get_experiment_by_name(name)
            if experiment is None:
                experiment_id = self._client.create_experiment(name)
            else:
                experiment_id = experiment.experiment_id
            run = self._client.create_run(experiment_id, run_name=folder.name)
            self._logged.id = run.info.run_id

    def log(self, round_number: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        if self._logged.note_round(round_number):
            now = time.time_ns() // 10**6
            points = [
                Metric(name, value, now, round_number)
                for name, value in values.items()
            ]
            self._client.log_batch(self._logged.id, metrics=points)

    def close(self, summary: Mapping[str, float | str]) -> None:
        for name, value in summary.items():
            self._client.set_tag(self._logged.id, name, value)
        statuses = {"stopped": "KILLED", "failed": "FAILED"}
        status = statuses.get(str(summary.get("status")), "FINISHED")
        self._client.set_terminated(self._logged.id, status)


class _WandB:
    """A run of Weights & Biases, offline unless ``WANDB_MODE`` is set.

    In names, hyphens become underscores. The machine and the command, which may contain a seed,
    are not recorded.
    """

    def __init__(self, folder: Path, resumed: bool) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        os.environ.setdefault("WANDB_MODE", "offline")
        import wandb

        self._logged = _LoggedRun(folder / "wandb.json", resumed)
        self._logged.id = self._logged.id or secrets.token_hex(8)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            id=self._logged.id,
            name=folder.name,
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(
                console="off",
                silent=True,
                disable_code=True,
                disable_git=True,
                finish_timeout=_MAX_UPLOAD,
                x_disable_machine_info=True,
                x_disable_meta=True,
                x_disable_stats=True,
                x_transaction_log_flush_interval=_WRITE_INTERVAL,
            ),
        )

    def log(self, round_number: int, values: Mapping[str, float]) -> None:
        if self._logged.note_round(round_number):
            self._run.log(
                _without_hyphens(values), step=round_number, commit=True
            )

    def close(self, summary: Mapping[str, float | str]) -> None:
        self._run.summary.update(_without_hyphens(summary))
        ended_early = summary.get("status") in ("stopped", "failed")
        self._run.finish(1 if ended_early else 0)


def _without_hyphens(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("-", "_"): value for name, value in values.items()}
