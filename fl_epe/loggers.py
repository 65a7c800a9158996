"""Where a run is logged: TensorBoard, MLflow, Weights & Biases, or objects of your own.

Whoever runs a training tells `Loggers` what is known after a round, and at the end. A built-in
logger is asked for by its name, any other `RunLogger` is handed over as an object. A logger that
fails is said once, and the run goes on without it.

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
"""What the built-in loggers are called."""

_PROJECT = "fl_epe"  # experiment in MLflow, project in Weights & Biases
_PATIENCE = 60.0  # seconds that an upload may take at the end of a run
_SHORTLY = 0.05  # seconds between two looks
_FLUSH = 0.5  # seconds after which Weights & Biases writes what it was told


class RunLogger(Protocol):
    """What is told the numbers of a run while it goes on. It may raise any error."""

    def log(self, round_number: int, values: Mapping[str, float]) -> None:
        """Take what is known after a round.

        Args:
            round_number: rounds done.
            values: finite numbers, by their names in the run's metrics.
        """

    def close(self, summary: Mapping[str, float | str]) -> None:
        """Take the answer, when the report was written or the run has stopped.

        Args:
            summary: "status", and once there is a report the path "report" and the answer.
        """


class Loggers:
    """All loggers of one run, none of which can end it.

    Args:
        log_to: a name of a built-in logger, or several and objects.
        folder: of the run. What TensorBoard shows, and by which ids MLflow and Weights & Biases
            know the run, is in it.
        warn: told once of a logger that failed, in a sentence.

    Raises:
        ValueError: for a name that is not known, or an object that is no logger.
        ModuleNotFoundError: if the package of a built-in logger is not installed.
    """

    def __init__(
        self,
        log_to: str | Sequence[str | RunLogger],
        folder: Path,
        warn: Callable[[str], None],
    ) -> None:
        self._left = check_loggers(log_to)
        self._folder, self._warn = folder, warn
        self._open: dict[int, RunLogger] = {}
        self._has_begun = False

    def __bool__(self) -> bool:
        """Whether there is anybody to tell."""
        return bool(self._left)

    def log(
        self, round_number: int, values: Mapping[str, object], *, resumed: bool
    ) -> None:
        """Tell every logger what is known after a round.

        Args:
            round_number: rounds done.
            values: by name; those that are no finite numbers are left out.
            resumed: whether the run goes on with one that was logged before, by another process.
        """
        numbers = {
            name: value
            for name, value in values.items()
            if isinstance(value, int | float)
        }
        known = {
            name: float(value)
            for name, value in numbers.items()
            if math.isfinite(value)
        }
        goes_on = resumed or self._has_begun
        for one in list(self._left):
            with self._standing_back(one):
                if id(one) not in self._open:
                    self._open[id(one)] = self._opened(one, goes_on)
                self._open[id(one)].log(round_number, known)
        self._has_begun = True

    def close(
        self, summary: Mapping[str, float | str], folder: Path | None = None
    ) -> None:
        """Tell every logger that was told a round the answer, or that the run stopped.

        Args:
            summary: "status", and the answer by its names in the run's metrics.
            folder: where the report is.
        """
        if folder is not None:
            summary = {**summary, "report": str((folder / "report.html").resolve())}
        for one in list(self._left):
            if id(one) in self._open:
                with self._standing_back(one):
                    self._open.pop(id(one)).close(summary)

    def _opened(self, one: str | RunLogger, goes_on: bool) -> RunLogger:
        if not isinstance(one, str):
            return one
        make, _ = _built_in(one)
        return make(self._folder, goes_on)

    @contextlib.contextmanager
    def _standing_back(self, one: str | RunLogger) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the run goes on
            self._left.remove(one)
            name = one if isinstance(one, str) else type(one).__name__
            why = error_text(error)
            self._warn(f"logging to {name} failed ({why}); the run goes on without it.")


def check_loggers(log_to: str | Sequence[str | RunLogger]) -> list[str | RunLogger]:
    """Each logger that is asked for, once; raises the errors of `Loggers`."""
    each = [log_to] if isinstance(log_to, str) else list(log_to)
    for one in each:
        if not isinstance(one, str):
            if not all(callable(getattr(one, name, None)) for name in ("log", "close")):
                raise_invalid(
                    "log_to", one, "to have the methods log and close of a RunLogger"
                )
            continue
        _, package = _built_in(one)
        if package is not None and importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(
                f"Logging to {one} needs the package {package}, which is not installed: "
                "pip install 'fl-epe[loggers]'.",
                name=package,
            )
    return [one for i, one in enumerate(each) if one not in each[:i]]


def _built_in(name: str) -> tuple[Callable[[Path, bool], RunLogger], str | None]:
    """What makes a built-in logger, and the package that it needs; ``None`` if it needs none.

    Raises:
        ValueError: for a name that is not known.
    """
    known: LoggerName = checked_type("log_to", name, LoggerName)
    match known:
        case "tensorboard":
            return _TensorBoard, "tensorboard"
        case "mlflow":
            return _MLflow, "mlflow"
        case "wandb":
            return _WandB, "wandb"
    assert_never(known)


class _TensorBoard:
    """Event files in the folder ``tensorboard``; rounds that are told again replace the old."""

    def __init__(self, folder: Path, resumed: bool) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        path = inside(folder, folder / "tensorboard")
        while any(path.glob(f"events.out.tfevents.{int(time.time())}.*")):
            time.sleep(
                _SHORTLY
            )  # files are read by the second in their names: this one is last
        self._writer = EventFileWriter(str(path))
        self._start: Any = SessionLog(status=SessionLog.START)
        self._round = 0

    def _add(self, **what: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), step=self._round, **what))

    def log(self, round_number: int, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._round = round_number
        if (
            self._start is not None
        ):  # what is there of this round and later ones is forgotten
            self._add(session_log=self._start)
            self._start = None
        points = [Summary.Value(tag=n, simple_value=v) for n, v in values.items()]
        self._add(summary=Summary(value=points))
        self._writer.flush()

    def close(self, summary: Mapping[str, float | str]) -> None:
        from tensorboard.plugins.text.summary_v2 import text_pb

        lines = [f"| {name} | {value} |" for name, value in summary.items()]
        table = "\n".join(["| answer | |", "|---|---|", *lines])
        self._add(summary=text_pb("answer", table))
        self._writer.close()


class _SameRun:
    """By which id a run is known elsewhere, and which rounds it was told, in a file.

    Attributes:
        id: empty for a new run.
    """

    def __init__(self, path: Path, resumed: bool) -> None:
        self._path, self.id, self._round = inside(path.parent, path), "", -1
        if resumed and path.exists():
            known = json.loads(path.read_text("utf-8"))
            self.id, self._round = str(known["id"]), int(known["round"])

    def is_new(self, round_number: int) -> bool:
        """Whether a round was not told before; it then counts as told."""
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
        if not self._same.id:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
            found = self._client.get_experiment_by_name(name)
            place = (
                self._client.create_experiment(name)
                if found is None
                else found.experiment_id
            )
            self._same.id = self._client.create_run(
                place, run_name=folder.name
            ).info.run_id
        else:
            self._client.update_run(self._same.id, status="RUNNING")

    def log(self, round_number: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        if self._same.is_new(round_number):
            now = time.time_ns() // 10**6
            points = [Metric(n, v, now, round_number) for n, v in values.items()]
            self._client.log_batch(self._same.id, metrics=points)

    def close(self, summary: Mapping[str, float | str]) -> None:
        for name, value in summary.items():
            self._client.set_tag(self._same.id, name, value)
        ends = {"stopped": "KILLED", "failed": "FAILED"}
        self._client.set_terminated(
            self._same.id, ends.get(str(summary.get("status")), "FINISHED")
        )


class _WandB:
    """A run of Weights & Biases, offline unless ``WANDB_MODE`` says otherwise.

    Its names have no hyphens. What it would note of the machine and of the command, in which a seed
    may stand, is off.
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
            self._run.log(_without_hyphens(values), step=round_number, commit=True)

    def close(self, summary: Mapping[str, float | str]) -> None:
        self._run.summary.update(_without_hyphens(summary))
        self._run.finish(1 if summary.get("status") in ("stopped", "failed") else 0)


def _without_hyphens(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("-", "_"): value for name, value in values.items()}
