"""Runs an audited training on any grid, with evaluation, checkpoints and resuming."""

import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, assert_never

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fl_epe.archive import UnreadableFileError, add_prefix
from fl_epe.auditing import (
    AuditRecord,
    Design,
    EarlyStop,
    EpsilonEstimate,
    FaultKind,
    answer_metrics,
    answers,
)
from fl_epe.checks import (
    Floats,
    Floats32,
    check_count,
    check_positive,
    checked_type,
)
from fl_epe.messages import share
from fl_epe.simulation import grids
from fl_epe.simulation.checkpoint import (
    Job,
    checkpoint_errors,
    from_newest,
    has_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from fl_epe.simulation.flower_internals import quiet_flower, simulate_with_ray
from fl_epe.simulation.progress import Progress
from fl_epe.simulation.strategy import DPFedAvg
from fl_epe.simulation.worker import worker_app

logger = logging.getLogger(__name__)

# Names of the series that evaluations add to the record.
_EVALUATION_SERIES = ("eval_round", "eval_loss", "eval_accuracy", "eval_auc")

Backend = Literal["in-process", "ray"]


class _Session:
    """One call of `DPFedAvg.start`, with evaluation and checkpoints between rounds.

    Args:
        job: the definition of the run.
        checkpoint: the file for the checkpoint, if any.
        checkpoint_every: number of rounds from one checkpoint to the next.
        stop: a request by which the run can be asked to stop.
        on_round: called after every round.
    """

    def __init__(
        self,
        job: Job,
        checkpoint: Path | None,
        checkpoint_every: int,
        stop: grids.StopRequest,
        on_round: Callable[[Progress], None] | None,
    ) -> None:
        check_count("checkpoint_every", checkpoint_every)
        self.job = job
        self.stop = stop
        self.strategy = self._new_strategy()
        self._checkpoint = checkpoint
        self._checkpoint_every = checkpoint_every
        self._on_round = on_round
        self._series: dict[str, list[float]] = {
            name: [] for name in _EVALUATION_SERIES
        }
        self._start_time = time.monotonic()
        # Number of rounds that were done before this session.
        self._rounds_before = 0
        # Number of rounds in the newest checkpoint.
        self._saved_rounds = 0
        # The record after the last round.
        self._record: AuditRecord | None = None

    def _new_strategy(self) -> DPFedAvg:
        job = self.job
        return DPFedAvg(job.config, job.seeds, client_sizes=job.task.sizes)

    def prepare(self) -> ArrayRecord:
        """Restore the newest checkpoint, or write the first one.

        Returns:
            The model from which the training starts or continues.
        """
        path = self._checkpoint
        task = self.job.task
        theta = task.initial(self.job.seeds.initial)
        if path is None:
            return share(theta=theta)
        if has_checkpoint(path):
            theta = from_newest(path, lambda file: self._restore(file, theta))
        else:
            # If data or a package is missing, this fails before a file is written.
            task.held_out()
            write_checkpoint(path, self.job.to_dict(), {})
        return share(theta=theta)

    def _restore(self, path: Path, initial: Floats32) -> Floats32:
        """Restore a checkpoint of this job.

        Returns:
            The model of the checkpoint, or ``initial`` if there is none yet.

        Raises:
            UnreadableFileError: if the checkpoint is damaged, or of another job.
        """
        job, state = read_checkpoint(path)
        differences = self.job.differences(job)
        if differences:
            raise UnreadableFileError(
                f"Expected path={str(path)!r} to be a checkpoint of this run, but it has other "
                f"values of {', '.join(differences)}. Name another file."
            )
        # A checkpoint from before the first round has no state.
        if not state:
            return initial
        # A damaged checkpoint may have been restored in part, so the strategy is a new one.
        self.strategy = self._new_strategy()
        with checkpoint_errors(path):
            self.strategy.restore(state)
            self._series = {
                name: state[f"series.{name}"].tolist()
                for name in _EVALUATION_SERIES
            }
        self._rounds_before = self._saved_rounds = self.strategy.rounds_done
        return state["theta"]

    def after_round(self, _: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Evaluate, write a checkpoint and report progress.

        Flower calls this after each round, and once before the first one. In that first call, a
        resumed run has nothing new to evaluate or to write.
        """
        t = self.strategy.rounds_done
        is_last = t == self.job.config.rounds
        ends = is_last or self.deciding_estimate() is not None
        is_new = t == 0 or t > self._rounds_before
        metrics = None
        if is_new and (ends or t % self.job.evaluate_every == 0):
            metrics = self._evaluate(t, arrays)
        is_due = t - self._saved_rounds >= self._checkpoint_every
        if is_new and (ends or is_due):
            self.save_checkpoint()
        if self._on_round is not None:
            self._on_round(self._progress(arrays if ends else None))
        if ends and not is_last:
            raise grids.EndedError
        if not is_last:
            self.stop.raise_if_asked()
        return metrics

    def deciding_estimate(self) -> EpsilonEstimate | None:
        """The estimate of ε so far if it meets the rule `RunConfig.stop_when`, else ``None``."""
        config = self.job.config
        if config.stop_when is None:
            return None
        estimate = self.strategy.auditor.epsilon_so_far()
        if estimate is None or not config.stops_at(estimate.low, estimate.high):
            return None
        return estimate

    def _evaluate(self, t: int, arrays: ArrayRecord) -> MetricRecord:
        task = self.job.task
        scores = task.evaluate(arrays["theta"].numpy())
        self._series["eval_round"].append(t)
        self._series["eval_loss"].append(scores["loss"])
        self._series["eval_accuracy"].append(scores.get(task.metric, np.nan))
        self._series["eval_auc"].append(scores.get("ROC AUC", np.nan))
        return MetricRecord(dict(scores))

    def _series_arrays(self) -> dict[str, Floats]:
        return {
            name: np.array(values, float)
            for name, values in self._series.items()
        }

    def save_checkpoint(self) -> bool:
        """Write a checkpoint, unless the rounds done are saved already.

        If it cannot be written, that is a fault, and the run goes on and tries again later.

        Returns:
            Whether the rounds done are saved.
        """
        path = self._checkpoint
        t = self.strategy.rounds_done
        if path is None:
            return False
        if t == self._saved_rounds:
            return True
        state = {
            **add_prefix(self._series_arrays(), "series."),
            **self.strategy.state(),
        }
        try:
            write_checkpoint(path, self.job.to_dict(), state)
        except OSError as error:
            text = f"the checkpoint could not be written: {error}"
            self.strategy.log.add_fault(
                FaultKind.CHECKPOINT_NOT_WRITTEN, text, t
            )
            return False
        self._saved_rounds = t
        return True

    def stop_error(self, saved: bool) -> grids.RunStoppedError:
        """The error with which the run stops; ``saved`` is the result of `save_checkpoint`."""
        rounds = self.job.config.rounds
        return grids.RunStoppedError(
            self.strategy.rounds_done, rounds, is_saved=saved
        )

    def _progress(self, final_model: ArrayRecord | None) -> Progress:
        """The progress after the rounds done, with the final result if there is a final model."""
        rounds = self.job.config.rounds
        log = self.strategy.log
        t = log.rounds_done
        loss = np.nan
        clip_norm = self.job.config.clip_norm
        if t:
            loss = log.history["train_loss"][-1]
            clip_norm = log.history["clip_norm"][-1]
        elapsed = time.monotonic() - self._start_time
        seconds_a_round = elapsed / max(1, t - self._rounds_before)
        if final_model is None:
            epsilons = self.strategy.metrics_so_far()
        else:
            epsilons = answer_metrics(answers(self._final_record(final_model)))
        return Progress(
            round=t,
            rounds=rounds,
            loss=loss,
            accuracy=self._series["eval_accuracy"][-1],
            clip_norm=clip_norm,
            canaries_seen=int(log.canaries_seen().sum()),
            seconds_left=seconds_a_round * (rounds - t),
            metric=self.job.task.metric,
            epsilons=epsilons,
            eval_loss=self._series["eval_loss"][-1],
            faults=log.faults.messages,
            fault_counts=log.faults.counts,
        )

    def _final_record(self, final_model: ArrayRecord) -> AuditRecord:
        """The record after the last round, which is computed once."""
        if self._record is None:
            series = self._series_arrays()
            self._record = self.strategy.record(final_model, series)
        return self._record

    def finish(self, final_model: ArrayRecord) -> AuditRecord:
        """The record, with the facts about the task and about the end of the run."""
        record = self._final_record(final_model)
        stopped = None
        if record.rounds < self.job.config.rounds:
            estimate = self.deciding_estimate()
            if estimate is not None:
                stopped = EarlyStop(record.rounds, estimate)
        task = self.job.task
        task_settings = {
            "task": task.reference,
            **task.options(),
            "metric": task.metric,
            "chance_accuracy": task.chance_accuracy(),
            "chance_loss": task.chance_loss(),
        }
        design = Design.of({**task_settings, **record.design.to_settings()})
        return record.with_values(
            design=design, stopped=stopped, unit=task.unit
        )


def run_on_grid(
    grid: Grid,
    job: Job,
    *,
    checkpoint: Path | None = None,
    checkpoint_every: int = 10,
    stop: grids.StopRequest | None = None,
    round_timeout: float = 3600.0,
    on_round: Callable[[Progress], None] | None = None,
    on_model: Callable[[Floats32], None] | None = None,
) -> AuditRecord:
    """Train ``job`` on the nodes of a grid that run `worker_app`, and audit it.

    The result depends only on the job.

    Args:
        grid: the grid: in process, of Ray or of a SuperLink.
        job: the definition of the run.
        checkpoint: the file for the state of an unfinished run, which is written before the
            first round and later; the previous checkpoint is in the same folder. If the file
            exists, the run goes on from there, or from the previous checkpoint if the file is
            damaged. Both have the canary seed, and only their owner can read them; the caller
            deletes them after the run. A full disk is a fault, and the run goes on.
        checkpoint_every: number of rounds from one checkpoint to the next. There is always one
            after the last round, before the scoring, and one if the run ends while it waits for
            clients: by a `StopRequest`, a signal or an error.
        stop: a request by which the run can be asked to stop.
        round_timeout: seconds to wait for the replies of a round; a client whose node has not
            replied by then counts as absent.
        on_round: called after every round.
        on_model: called with the final model, float32 of shape (dim,), after the last round.

    Raises:
        ValueError: if an argument is out of range, or no checkpoint is usable.
        RunStoppedError: if the run was asked to stop.
    """
    check_positive("round_timeout", round_timeout)
    quiet_flower()
    session = _Session(
        job, checkpoint, checkpoint_every, stop or grids.StopRequest(), on_round
    )
    _train(grid, session, round_timeout)
    model = session.strategy.model()
    if on_model is not None:
        on_model(model["theta"].numpy())
    return session.finish(model)


def _train(grid: Grid, session: _Session, timeout: float) -> None:
    """Train up to the last round, or to the one in which the rule to stop is met.

    If the run ends in another way while it waits for clients, write a checkpoint: the state is
    that after the last complete round.
    """
    stop = session.stop
    watched: Any = grids.WatchedGrid(grid, stop)
    model = session.prepare()
    strategy = session.strategy
    remaining = session.job.config.rounds - strategy.rounds_done
    stop.is_checked = True
    try:
        strategy.start(
            watched, model, remaining, timeout, evaluate_fn=session.after_round
        )
    except grids.EndedError as end:
        if session.deciding_estimate() is None:
            saved = session.save_checkpoint()
            raise session.stop_error(saved) from end
    except BaseException as error:
        if stop.waiting_thread is not None:
            saved = session.save_checkpoint()
            if stop.asked and isinstance(error, KeyboardInterrupt):
                raise session.stop_error(saved) from error
        raise
    finally:
        stop.is_checked = False
        stop.waiting_thread = None


def simulate(
    job: Job, *, backend: str = "in-process", workers: int = 2, **options: Any
) -> AuditRecord:
    """Run a job on this machine.

    Args:
        job: the definition of the run.
        backend: "in-process" (threads) or "ray" (Flower's simulation with a process for each
            worker; if the environment has ``RAY_ADDRESS``, on that cluster).
        workers: number of nodes, among which the clients are partitioned. Clipped sums are
            exact: on a CPU, the model and every score have the same bits with any number of
            workers. Only the mean training loss, a sum of rounded numbers, may differ in its
            last bits.
        options: checkpoints and progress, see `run_on_grid`.

    Raises:
        ValueError: for an unknown backend or fewer than one worker.
        RunStoppedError: if the run was asked to stop.
    """
    check_count("workers", workers)
    checked: Backend = checked_type("backend", backend, Backend)
    match checked:
        case "in-process":
            app = worker_app(job.task, everyone=True)
            with grids.InProcessGrid(app, workers) as grid:
                return run_on_grid(grid, job, **options)
        case "ray":
            return _simulate_with_ray(job, workers, options)
    assert_never(checked)


def _simulate_with_ray(
    job: Job, workers: int, options: Mapping[str, Any]
) -> AuditRecord:
    server_app = ServerApp()
    # Flower runs `main` in another thread, without a result.
    records: list[AuditRecord] = []
    stops: list[grids.RunStoppedError] = []

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            records.append(run_on_grid(grid, job, **options))
        except grids.RunStoppedError as stop:
            stops.append(stop)

    ray: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False}
    # A running cluster has its own number of CPUs.
    if "RAY_ADDRESS" not in os.environ:
        ray["num_cpus"] = workers
    # Workers may share a GPU, or have several each.
    gpus = torch.cuda.device_count() / workers
    backend = {
        "init_args": ray,
        "client_resources": {"num_cpus": 1, "num_gpus": gpus},
    }
    simulate_with_ray(
        server_app, worker_app(job.task, everyone=True), workers, backend
    )
    if stops:
        raise stops[0]
    if not records:
        raise RuntimeError(
            "The Ray simulation ended without a result; see Flower's log above."
        )
    return records[0]
