"""Run an audited training to its end on any grid: evaluate, checkpoint, resume."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import time
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray

from fl_epe.archive import UnreadableFileError
from fl_epe.auditing import SKETCH_PARTS, AuditRecord, Design, EarlyStop, EpsilonEstimate, FaultKind
from fl_epe.checks import ArgumentError, check_positive
from fl_epe.flower import pack, read_only
from fl_epe.simulation.checkpoint import (
    Shape,
    check_state,
    from_newest,
    has_checkpoint,
    read_job,
    read_state,
    write_checkpoint,
)
from fl_epe.simulation.checkpoint_every import CheckpointEvery
from fl_epe.simulation.dp_fedavg import released_series
from fl_epe.simulation.flower_internals import quiet_flower, simulate_with_ray
from fl_epe.simulation.in_process_grid import InProcessGrid
from fl_epe.simulation.job import Job
from fl_epe.simulation.run_options import Progress, RunOptions
from fl_epe.simulation.stopping import AskedError, RunStoppedError, WatchedGrid
from fl_epe.simulation.strategy import DPFedAvg
from fl_epe.simulation.worker import worker_app

logger = logging.getLogger(__name__)

ROUND_TIMEOUT = 3600.0
"""Seconds to wait for the answers of a round, as in Flower."""

_EVALUATED = ("eval_round", "eval_loss", "eval_accuracy")


class _EnoughError(Exception):
    """The run may stop, with this model."""

    def __init__(self, arrays: ArrayRecord) -> None:
        super().__init__()
        self.arrays = arrays


class _Session:
    """One pass through `DPFedAvg.start`, with evaluation and checkpoints between rounds."""

    def __init__(self, job: Job, options: RunOptions) -> None:
        self.job = job
        self._checkpoint = options.get("checkpoint")
        self._every = CheckpointEvery.parse(options.get("checkpoint_every", 10))
        self.stop = options.get("stop")
        self.round_timeout = options.get("round_timeout", ROUND_TIMEOUT)
        check_positive("round_timeout", self.round_timeout)
        self._on_round = options.get("on_round")
        self._on_model = options.get("on_model")
        self.strategy = DPFedAvg(
            job.config, job.seeds, score_memory=job.score_memory, client_sizes=job.task.sizes
        )
        self._series: dict[str, list[float]] = {name: [] for name in _EVALUATED}
        self._began = time.monotonic()
        self._before = 0  # rounds done before this session
        self._kept = 0  # rounds in the newest checkpoint
        self._kept_at = self._began
        self._last: ArrayRecord | None = None  # the model after the rounds that are whole
        self._whole = 0  # how many that are

    def initial(self) -> ArrayRecord:
        """The initial model, or that of the checkpoint."""
        checkpoint, task = self._checkpoint, self.job.task
        begun = checkpoint is not None and has_checkpoint(checkpoint)
        if checkpoint is not None and begun:
            state = from_newest(checkpoint, self._read)
            if state:
                self.strategy.restore(state)
                self._series = {name: state[f"series.{name}"].tolist() for name in _EVALUATED}
                self._before = self._kept = self.strategy.rounds_done
                return pack(theta=state["theta"])
        theta = task.initial(self.job.seeds.initial)
        if checkpoint is not None and not begun:
            task.held_out()  # if data or a package is missing, it fails before a file is written
            write_checkpoint(checkpoint, self.job.to_json(), {})
        return pack(theta=theta)

    def _read(self, path: Path) -> dict[str, NDArray[Any]]:
        """The state in a checkpoint of this very job; empty if it is that before the first round.

        Raises:
            UnreadableFileError: if it is damaged, or of another job.
        """
        if differ := self.job.differences(read_job(path)):
            raise UnreadableFileError(
                f"Expected path={str(path)!r} to be a checkpoint of this run, but it has other "
                f"values of {', '.join(differ)}. Name another file."
            )
        state = read_state(path)
        if state:
            check_state(path, state, self._shape())
        return state

    def after_round(self, _: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Evaluate, save a checkpoint and report progress. Also called before the first round."""
        done, rounds = self.strategy.rounds_done, self.job.config.rounds
        metrics, enough = None, done < rounds and self._may_stop()
        self._last, self._whole = arrays, done
        if done > self._before or not done:
            if done % self.job.evaluate_every == 0 or done == rounds or enough:
                metrics = self._evaluate(done, arrays)
            waited = time.monotonic() - self._kept_at
            if enough or done == rounds or self._every.due(done - self._kept, waited):
                self.keep()
        if self._on_round is not None:
            self._on_round(self._progress(done, rounds))
        if enough:
            raise _EnoughError(arrays)
        if self.stop is not None and done < rounds:
            self.stop.raise_if_asked()
        return metrics

    def _may_stop(self) -> bool:
        """Whether the rule `RunConfig.stop_when` is met."""
        rule, found = self.job.config.stop_rule(), self.strategy.epsilon_so_far()
        return rule is not None and found is not None and rule.met(found.low, found.high)

    def _evaluate(self, done: int, arrays: ArrayRecord) -> MetricRecord:
        scores = self.job.task.evaluate(arrays["theta"].numpy())
        metric = scores.get(self.job.task.metric, np.nan)
        for name, value in zip(_EVALUATED, (done, scores["loss"], metric), strict=True):
            self._series[name].append(value)
        return MetricRecord(dict(scores))

    def keep(self) -> bool:
        """Write a checkpoint after the rounds done; returns whether they are kept.

        Not being able to is a fault: the run goes on, and the next time it is tried again.
        """
        path, done = self._checkpoint, self.strategy.rounds_done
        if path is None or done == self._kept:
            return path is not None
        if self._last is None or self._whole != done:
            return False  # during a round
        series = {f"series.{name}": np.array(values) for name, values in self._series.items()}
        state = {"theta": read_only(self._last["theta"]), **series, **self.strategy.state()}
        try:
            write_checkpoint(path, self.job.to_json(), state)
        except OSError as error:
            text = f"the checkpoint could not be written: {error}"
            self.strategy.log.fault(FaultKind.NOT_SAVED, text, done)
            return False
        self._kept, self._kept_at = done, time.monotonic()
        return True

    def stopped(self) -> RunStoppedError:
        """Keep the rounds done, and say that the run stopped after them."""
        kept = self.keep()
        return RunStoppedError(self.strategy.rounds_done, self.job.config.rounds, kept=kept)

    def _shape(self) -> Shape:
        config, task = self.job.config, self.job.task
        dim = len(task.initial(self.job.seeds.initial))
        return Shape(
            dim=dim,
            rounds=config.rounds,
            clients=config.clients,
            observed=len(self.strategy.log.observed_ids),
            canaries=config.num_canaries + config.unobserved,
            series=released_series(config),
            optimizer=config.optimizer().init(dim),
            evaluated=_EVALUATED,
            history=tuple(self.strategy.log.history),
            sketch=min(dim, SKETCH_PARTS),
        )

    def _progress(self, done: int, rounds: int) -> Progress:
        elapsed = time.monotonic() - self._began
        history, found = self.strategy.log.history, self.strategy.epsilon_so_far()
        return Progress(
            round=done,
            rounds=rounds,
            loss=history["loss"][-1] if done else np.nan,
            accuracy=self._series["eval_accuracy"][-1],
            clip_norm=history["clip_norm"][-1] if done else self.job.config.clip_norm,
            canaries_seen=self.strategy.log.canaries_seen(),
            seconds_left=elapsed / max(1, done - self._before) * (rounds - done),
            metric=self.job.task.metric,
            epsilon=self._epsilon_text(found),
            estimate=found,
            evaluated=int(self._series["eval_round"][-1]),
            eval_loss=self._series["eval_loss"][-1],
            kept=self._kept,
            faults=tuple(self.strategy.log.faults),
            fault_counts=dict(self.strategy.log.fault_counts),
        )

    def _epsilon_text(self, found: EpsilonEstimate | None) -> str:
        """ε so far, and how many canaries more would decide."""
        rule = self.job.config.stop_rule()
        if found is None:
            return ""
        text = f"ε {found.epsilon:.3g} ({found.low:.3g} – {found.high:.3g})"
        if rule is None:
            return text
        if self._may_stop():
            return f"{text}, stopping: {rule}"
        assert self.strategy.auditor is not None  # noqa: S101 - it found something
        more = self.strategy.auditor.more_canaries(rule.limit)
        if math.isinf(more):
            return f"{text}, no number of canaries would decide"
        return f"{text}, {math.ceil(more)} more canaries would decide"

    def finish(self, arrays: ArrayRecord) -> AuditRecord:
        """Score what is left and make the record."""
        if self._on_model is not None:
            self._on_model(arrays["theta"].numpy())
        series = {name: np.array(values, float) for name, values in self._series.items()}
        record = self.strategy.record(arrays, series)
        done, stopped = self.strategy.rounds_done, None
        if self.job.config.stop_when is not None and done < self.job.config.rounds:
            found = self.strategy.epsilon_so_far()
            assert found is not None  # noqa: S101 - it is why the run stopped
            facts = {f.name: getattr(found, f.name) for f in dataclasses.fields(EarlyStop)[1:]}
            stopped = EarlyStop(done, **facts)
        task = {
            "task": self.job.task.reference,
            **self.job.task.options(),
            "metric": self.job.task.metric,
            "chance_accuracy": self.job.task.chance_accuracy(),
            "chance_loss": self.job.task.chance_loss(),
        }
        design = Design.of({**task, **record.design.to_settings()})
        return record.with_values(design=design, stopped=stopped)


def run_on_grid(grid: Grid, job: Job, **options: Unpack[RunOptions]) -> AuditRecord:
    """Train ``job`` on the nodes of a grid that run `worker_app`, and audit it.

    Args:
        grid: in process, Ray or SuperLink.
        job: what to do.
        options: checkpoints and progress, see `RunOptions`.

    Returns:
        The record; the checkpoint file is left for the caller to delete once that is safe.

    Raises:
        TypeError: for an option that is none of `RunOptions`.
        ValueError: if an option is out of range, or no checkpoint can be used.
        RunStoppedError: if the run was asked to stop.
    """
    if unknown := sorted(options.keys() - RunOptions.__annotations__.keys()):
        raise TypeError(f"Expected the options of RunOptions, got {unknown}.")
    quiet_flower()
    session = _Session(job, options)
    return session.finish(_train(grid, session, session.initial()))


def _train(grid: Grid, session: _Session, arrays: ArrayRecord) -> ArrayRecord:
    """The final model; if the training ends early, the rounds done are kept."""
    watched = WatchedGrid(grid, session.stop, session.round_timeout)
    left = session.job.config.rounds - session.strategy.rounds_done
    listening = session.stop.listening() if session.stop else contextlib.nullcontext()
    try:
        with listening:
            result = session.strategy.start(watched, arrays, left, evaluate_fn=session.after_round)
    except _EnoughError as enough:
        return enough.arrays
    except AskedError as asked:
        raise session.stopped() from asked
    except BaseException as error:
        if watched.was_waiting:
            session.keep()
            if session.stop is not None and isinstance(error, KeyboardInterrupt):
                raise session.stopped() from error
        raise
    return result.arrays if left else arrays


def simulate(
    job: Job, *, backend: str = "in-process", workers: int = 2, **options: Unpack[RunOptions]
) -> AuditRecord:
    """Run a job on this machine; see `run_on_grid`.

    Args:
        job: what to do.
        backend: "in-process" (threads) or "ray" (Flower's simulation, one process a worker).
        workers: nodes, which share the clients out between them. Clipped sums are exact: on a CPU
            the model and every score are the same to the last bit with any number of workers. Only
            the mean training loss, a sum of rounded numbers, may differ in its last bits.
        options: checkpoints and progress, see `RunOptions`.

    Raises:
        ValueError: for an unknown backend or fewer than one worker.
        RunStoppedError: if the run was asked to stop.
    """
    if workers < 1:
        raise ArgumentError("Expected {workers} >= 1.", workers=workers)
    if backend == "in-process":
        with InProcessGrid(worker_app(job.task, everyone=True), workers) as grid:
            return run_on_grid(grid, job, **options)
    if backend == "ray":
        return _simulate_with_ray(job, workers, options)
    raise ArgumentError("Expected {backend} to be 'in-process' or 'ray'.", backend=backend)


def _simulate_with_ray(job: Job, workers: int, options: RunOptions) -> AuditRecord:
    server_app, records, stops = ServerApp(), list[AuditRecord](), list[RunStoppedError]()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            records.append(run_on_grid(grid, job, **options))
        except RunStoppedError as stop:
            stops.append(stop)

    ray = {"num_cpus": workers, "include_dashboard": False, "log_to_driver": False}
    gpus = torch.cuda.device_count() / workers  # several workers share one, or one has several
    backend = {"init_args": ray, "client_resources": {"num_cpus": 1, "num_gpus": gpus}}
    simulate_with_ray(server_app, worker_app(job.task, everyone=True), workers, backend)
    if stops:
        raise stops[0]
    if not records:
        raise RuntimeError("The Ray simulation ended without a result; see Flower's log above.")
    return records[0]
