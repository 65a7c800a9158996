"""Run an audited training to its end on any grid: evaluate, checkpoint, resume."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray

from fl_epe.archive import UnreadableFileError, refusal
from fl_epe.auditing import AuditRecord, EpsilonEstimate
from fl_epe.canaries import SCORE_MEMORY
from fl_epe.checks import ArgumentError, check_count, check_positive, expected
from fl_epe.config import RunConfig
from fl_epe.faults import FaultKind
from fl_epe.interval import Interval
from fl_epe.message_records import pack, read_only
from fl_epe.seeding import Seeds
from fl_epe.simulation.checkpoint import (
    WHAT,
    Shape,
    check_state,
    from_newest,
    has_checkpoint,
    read_job,
    read_state,
    write_checkpoint,
)
from fl_epe.simulation.flower_internals import quiet_flower, simulate_with_ray
from fl_epe.simulation.in_process_grid import InProcessGrid
from fl_epe.simulation.stopping import AskedError, RunStoppedError, StopRequest, WatchedGrid
from fl_epe.simulation.strategy import DPFedAvg
from fl_epe.simulation.worker import worker_app
from fl_epe.tasks import Task, load_task

logger = logging.getLogger(__name__)

ROUND_TIMEOUT = 3600.0
"""Seconds to wait for the answers of a round, as in Flower."""

_MOST_ROUNDS = 10**6  # of a checkpoint: a schedule of more takes minutes to draw
_EVALUATED = ("eval_round", "eval_loss", "eval_accuracy")


@dataclasses.dataclass(frozen=True)
class Job:
    """A task, how to train it, and with which random streams: all that decides the result.

    Attributes:
        task: whose clients are trained.
        config: how they are trained.
        seeds: the random streams.
        evaluate_every: rounds between evaluations on held-out data; the last is always evaluated.
        score_memory: bytes for rounds that wait to be scored together, if ``canary_kind`` is
            "sphere"; all canaries are made anew for each such block, and blocks decide last bits.
    """

    task: Task
    config: RunConfig
    seeds: Seeds
    evaluate_every: int = 5
    score_memory: int = SCORE_MEMORY

    def __post_init__(self) -> None:
        if self.config.clients != self.task.num_clients:
            raise ValueError(
                f"Expected clients={self.config.clients} to be those of the task, "
                f"{self.task.num_clients}."
            )
        if not isinstance(self.task.num_clients, int | np.integer):
            raise ValueError(
                f"Expected num_clients={self.task.num_clients!r} of the task to be a whole number."
            )
        if self.evaluate_every < 1:
            raise ArgumentError(
                "Expected {evaluate_every} >= 1.", evaluate_every=self.evaluate_every
            )

    def to_json(self) -> str:
        """The job as text. It holds the canary seed: keep it secret until training has ended."""
        return json.dumps(
            {
                "task": self.task.reference,
                "options": self.task.options(),
                "config": self.config.to_dict(),
                "seeds": self.seeds.to_dict(),
                "evaluate_every": self.evaluate_every,
                "score_memory": self.score_memory,
            }
        )

    def differences(self, text: str) -> list[str]:
        """Names of what a job in JSON has with other values than this one."""
        theirs, ours = json.loads(text), json.loads(self.to_json())
        with contextlib.suppress(AttributeError, TypeError, ValueError):  # else it differs anyway
            config = RunConfig.from_dict(theirs["config"]).to_dict()  # that of an older version
            theirs["config"] = json.loads(json.dumps(config))
        found = []
        for name, value in ours.items():
            other = theirs.get(name)
            if isinstance(value, dict) and isinstance(other, dict):
                keys = (key for key in value.keys() | other if value.get(key) != other.get(key))
                found += [f"{name}.{key}" for key in sorted(keys)]
            elif value != other:
                found.append(name)
        return found

    @classmethod
    def from_json(cls, text: str) -> Job:
        """The inverse of `to_json`."""
        values = json.loads(text)
        task, options = values["task"], values["options"]
        config, seeds, every = values["config"], values["seeds"], values["evaluate_every"]
        check_count("score_memory", values["score_memory"])
        for name in ("config", "seeds"):
            if not isinstance(values[name], dict):
                expected(name, values[name], "to be a table")
        rounds = config.get("rounds", 1)
        if not isinstance(rounds, int | float) or rounds > _MOST_ROUNDS:
            raise ValueError(f"Expected config.rounds={rounds!r:.40} <= {_MOST_ROUNDS}.")
        if type(every) is not int or type(task) is not str or type(options) is not dict:
            raise ValueError(f"Expected evaluate_every={every!r:.40} to be a whole number.")
        return cls(
            task=load_task(task, **options),
            config=RunConfig.from_dict({"canary_kind": "sphere", **config}),  # before 0.2
            seeds=Seeds(**seeds),
            evaluate_every=every,
            score_memory=values["score_memory"],
        )


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where a run stands after a round.

    Attributes:
        round: rounds done.
        rounds: rounds in all.
        loss: mean training loss of the round's clients.
        accuracy: the last accuracy on held-out data, or the task's other metric; NaN without one.
        clip_norm: clip norm of the round.
        canaries_seen: observed canaries that have taken part at least once.
        seconds_left: expected time until the last round is done.
        epsilon: ε of every round so far, its interval for all rounds at once, and what the rule
            for an early stop says, in words; empty where nothing is known yet.
        metric: what ``accuracy`` is, see `fl_epe.tasks.Task.metric`.
        estimate: that ε with its interval; ``None`` where nothing is known yet.
        evaluated: how many rounds were done at the last evaluation.
        eval_loss: loss of the last evaluation, on held-out data.
        kept: rounds in the newest checkpoint.
        faults: the first messages about what went wrong.
        fault_counts: how often each kind of fault happened.
    """

    round: int
    rounds: int
    loss: float
    accuracy: float
    clip_norm: float
    canaries_seen: int
    seconds_left: float
    epsilon: str = ""
    metric: str = "accuracy"
    estimate: EpsilonEstimate | None = None
    evaluated: int = 0
    eval_loss: float = math.nan
    kept: int = 0
    faults: Sequence[str] = ()
    fault_counts: Mapping[str, int] = dataclasses.field(default_factory=dict)


class _EnoughError(Exception):
    """The run may stop, with this model."""

    def __init__(self, arrays: ArrayRecord) -> None:
        super().__init__()
        self.arrays = arrays


class RunOptions(TypedDict, total=False):
    """What `run_on_grid` takes besides the job; none of it changes the result.

    Attributes:
        checkpoint: where to keep the state of an unfinished run, from before the first round on,
            and the state before that beside it. If the file exists, the run goes on from there, or
            from the one before if it is broken. Both hold the canary seed and are readable by their
            owner alone. A disk that is full is a fault, and the run goes on.
        checkpoint_every: how often: a number of rounds (10 by default), or a time such as "5min".
            Whatever it is, there is one after the last round, before the scoring, and one when
            the run ends while it waits for clients: by a `StopRequest`, a signal or an error.
        stop: asks the run to stop.
        round_timeout: seconds to wait for the answers of a round, 3600 by default; who has not
            answered by then counts as absent.
        on_round: called after every round.
        on_model: called with the final model, float32 of shape (dim,), after the last round.
    """

    checkpoint: Path | None
    checkpoint_every: int | str
    stop: StopRequest | None
    round_timeout: float
    on_round: Callable[[Progress], None] | None
    on_model: Callable[[NDArray[np.float32]], None] | None


class _Session:
    """One pass through `DPFedAvg.start`, with evaluation and checkpoints between rounds."""

    def __init__(self, job: Job, options: RunOptions) -> None:
        self.job = job
        self._checkpoint = options.get("checkpoint")
        self._every = Interval.parse(options.get("checkpoint_every", 10))
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
        metrics, enough = None, done < rounds and self.strategy.may_stop()
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
            return False  # in the midst of a round
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
            series=self.strategy.scored_series(),
            optimizer=config.optimizer().init(dim),
            evaluated=_EVALUATED,
            history=tuple(self.strategy.log.history),
            watched=config.stop_when is not None or self.strategy.canary_set(dim).fast,
        )

    def _progress(self, done: int, rounds: int) -> Progress:
        elapsed = time.monotonic() - self._began
        history, found = self.strategy.log.history, self.strategy.watched()
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
        if self.strategy.may_stop():
            return f"{text}, stopping: {rule}"
        more = self.strategy.more_canaries()
        if math.isinf(more):
            return f"{text}, no number of canaries would decide"
        return f"{text}, {math.ceil(more)} more canaries would decide"

    def finish(self, arrays: ArrayRecord) -> AuditRecord:
        """Score what is left and make the record."""
        if self._on_model is not None:
            self._on_model(arrays["theta"].numpy())
        series = {name: np.array(values, float) for name, values in self._series.items()}
        record = self.strategy.record(arrays, series)
        done, stopped = self.strategy.rounds_done, dict[str, Any]()
        if self.job.config.stop_when is not None and done < self.job.config.rounds:
            found = self.strategy.watched()
            assert found is not None  # noqa: S101 - it is why the run stopped
            stopped = {"stopped": {"after": done, **dataclasses.asdict(found)}}
        task = {
            "task": self.job.task.reference,
            **self.job.task.options(),
            "metric": self.job.task.metric,
            "chance_accuracy": self.job.task.chance_accuracy(),
            "chance_loss": self.job.task.chance_loss(),
        }
        return record.with_values(config={**task, **record.provenance.config, **stopped})


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


def load_job(path: Path, task: str | None = None) -> Job:
    """The job of an unfinished run, without reading its state.

    Where the newest checkpoint is broken, that of the one before it.

    Args:
        path: of the newest checkpoint.
        task: the reference of its task, which must be given if that is "module:name": importing a
            module runs its code, and no file may choose which.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if the file is not a checkpoint, is damaged, or has a newer schema; if its task
            is another one than ``task``.
    """
    # `run_on_grid` warns
    return from_newest(path, lambda place: _job_in(place, task), go_on=False)


def _job_in(path: Path, task: str | None) -> Job:
    text = read_job(path)
    found = str(json.loads(text).get("task", ""))
    if task is None and ":" in found:
        raise ValueError(
            f"Expected task={found!r:.400} to be named again: the checkpoint in {path.parent} "
            "names this module, and importing it runs its code."
        )
    if task not in (None, found):
        raise ValueError(
            f"Expected task={task!r} to be {found!r:.400}, the task of the checkpoint in "
            f"{path.parent}."
        )
    try:
        return Job.from_json(text)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"'job' has no {error}" if isinstance(error, KeyError) else f"'job': {error}"
        raise refusal(path, WHAT, reason) from error
