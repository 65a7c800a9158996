"""An audited DP-FedAvg run in one process and without Flower, for `gpu.py`.

`AuditedRun` does what `DPFedAvg` and its workers do together, with the same random streams; a test
compares the two records. Its checkpoints are a few files below 16 MiB at the paper's size, so that
they can be carried from machine to machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from gpu_scoring import dot
from numpy.typing import NDArray

from fl_epe import schedules
from fl_epe.accounting import gaussian_epsilon
from fl_epe.auditing import (
    AuditRecord,
    CanaryCosines,
    Mechanism,
    Norms,
    ServerStep,
    epsilon_from_record,
)
from fl_epe.auditing.scoring.leave_one_out import measure_others
from fl_epe.canaries import CanarySet
from fl_epe.config import RunConfig
from fl_epe.mechanism import ClippedSum, ServerSGD, gaussian_noise, norm
from fl_epe.models import Lstm
from fl_epe.seeding import Seeds, generator
from fl_epe.tasks import ByExample, ClientData, LossSum, Task
from fl_epe.tasks.stored import SyntheticStackOverflow
from fl_epe.training import CohortTrainer, Execution, LocalTraining

_CANARY_FACTOR = 1e3  # far above the clip norm, as a worker plays it
_SERIES = ("clip_norm", "mean_norm", "delta_norm", "loss", "clients", "seconds")


@dataclasses.dataclass(frozen=True)
class SmallWords(SyntheticStackOverflow):
    """Synthetic StackOverflow with a small LSTM, for tests."""

    name: ClassVar[str] = "small-words"

    def model(self) -> torch.nn.Module:
        """A fresh LSTM of 171,756 parameters."""
        return Lstm(embedding=8, hidden=16)


@dataclasses.dataclass(frozen=True)
class Prepared(Task):
    """Another task, whose clients are made ahead so that only training is timed.

    Attributes:
        task: the other one.
        kept: the clients that were made, by number.
    """

    name: ClassVar[str] = "prepared"
    task: Task
    kept: dict[int, ClientData] = dataclasses.field(
        default_factory=dict, compare=False
    )

    def prepare(self, clients: Sequence[int]) -> None:
        """Make these clients, and forget the others."""
        self.kept.clear()
        self.kept.update(
            {client: self.task.client(client) for client in clients}
        )

    @property
    def num_clients(self) -> int:
        """See `Task.num_clients`."""
        return self.task.num_clients

    def model(self) -> torch.nn.Module:
        """See `Task.model`."""
        return self.task.model()

    def client(self, client_id: int) -> ClientData:
        """See `Task.client`."""
        return self.kept[client_id]

    def held_out(self) -> ClientData:
        """See `Task.held_out`."""
        return self.task.held_out()

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> LossSum:
        """See `Task.loss`."""
        return self.task.loss(outputs, targets)

    def batch_loss(
        self, model: Callable[..., torch.Tensor], batch: ClientData
    ) -> LossSum:
        """See `Task.batch_loss`."""
        return self.task.batch_loss(model, batch)

    def by_example(
        self, outputs: torch.Tensor, targets: torch.Tensor
    ) -> ByExample | None:
        """See `Task.by_example`."""
        return self.task.by_example(outputs, targets)


@dataclasses.dataclass(frozen=True)
class RunPlan:
    """All that decides the result of a run.

    Attributes:
        task: whose clients are trained.
        config: how; the server's optimizer is SGD.
        seeds: the random streams.
        execution: the device, how many clients it trains at once, and how exactly.
    """

    task: Task
    config: RunConfig
    seeds: Seeds
    execution: Execution

    def facts(self) -> dict[str, Any]:
        """All of it as JSON values."""
        parts: dict[str, Any] = {
            "task": {"name": self.task.name, **dataclasses.asdict(self.task)},
            "config": dataclasses.asdict(self.config),
            "seeds": dataclasses.asdict(self.seeds),
            "execution": dataclasses.asdict(self.execution),
        }
        return dict(json.loads(json.dumps(parts)))


class AuditedRun:
    """A run that can stop after any round and go on from its checkpoint.

    Args:
        plan: what to do.
    """

    def __init__(self, plan: RunPlan) -> None:
        config, seeds = plan.config, plan.seeds
        optimizer = config.optimizer()
        if not isinstance(optimizer, ServerSGD):
            raise ValueError(
                f"Expected server_optimizer={config.server_optimizer!r} to be 'sgd'."
            )
        self.plan, self._optimizer, self._rule = (
            plan,
            optimizer,
            config.clip_rule(),
        )
        self._device = plan.execution.torch_device()
        self._task = Prepared(plan.task)
        self._trainer = CohortTrainer(self._task, plan.execution)
        rng = generator(seeds.participation, 0)
        self._cohorts = list(
            config.client_schedule().cohorts(config.clients, rng)
        )
        rng = generator(seeds.participation, 1)
        planned = schedules.presence(
            config.canary_schedule(), config.num_canaries or 0, rng
        )
        self._presence = planned
        self._start = self.theta = plan.task.initial(seeds.initial)
        count = (config.num_canaries or 0) + (config.unobserved or 0)
        self.canaries = CanarySet(len(self.theta), count, seeds.canary)
        self._velocity = np.zeros_like(self.theta)
        self._clip_norm = self._rule.init()
        self._dots: list[NDArray[np.float32]] = []
        self.series: dict[str, list[float]] = {name: [] for name in _SERIES}
        self.faults: list[str] = []

    @property
    def chunk(self) -> int:
        """How many clients are trained at once."""
        return self._trainer.chunk

    @property
    def rounds_done(self) -> int:
        """Rounds played so far."""
        return len(self._dots)

    def play(self) -> dict[str, float]:
        """Play a round; returns the seconds of its parts."""
        seconds: dict[str, float] = {}
        part = functools.partial(_timed, seconds, self._device)
        config, seeds, t = self.plan.config, self.plan.seeds, self.rounds_done
        clients, clip_norm = self._cohorts[t].tolist(), self._clip_norm
        local = LocalTraining(
            config.local_learning_rate,
            config.local_epochs,
            config.local_batch_size,
        )
        total = ClippedSum(len(self.theta), clip_norm)
        with part("data"):
            self._task.prepare(clients)
        with part("training"):
            counts = self._trainer.train(
                self.theta,
                clients,
                local,
                total,
                seed=seeds.local,
                round_number=t + 1,
            )
        with part("canaries"):
            for canary in np.flatnonzero(self._presence[t]).tolist():
                total.add(
                    self.canaries.vector(canary)
                    * np.float32(_CANARY_FACTOR * clip_norm)
                )
        with part("noise"):
            std = config.sum_noise_multiplier() * clip_norm
            noise = gaussian_noise(
                generator(seeds.noise, t, 0), len(self.theta), std
            )
            mean = (total.total() + noise) / config.cohort_size
        with part("server"):
            moved = self._move(mean)
        with part("scoring"):
            self._dots.append(self._score(mean).astype(np.float32))
        rng = generator(seeds.noise, t, 1)
        voted = counts.clients + self._presence[t].sum() * config.canaries_vote
        self._clip_norm = self._rule.update(
            clip_norm, counts.unclipped, voted, rng
        )
        self.faults += [fault.text for fault in counts.faults]
        loss = counts.loss_sum / max(1, counts.examples)
        row = (
            clip_norm,
            norm(mean),
            moved,
            loss,
            counts.clients,
            sum(seconds.values()),
        )
        for name, value in zip(_SERIES, row, strict=True):
            self.series[name].append(float(value))
        return seconds

    def _move(self, mean: NDArray[np.float64]) -> float:
        """The server's step; returns how far the model moved."""
        # Momentum does not depend on the number of the round.
        state, step = self._optimizer.update(
            {"velocity": self._velocity}, mean, 0
        )
        before = self.theta
        self.theta = (before + step).astype(np.float32)
        self._velocity = state["velocity"].astype(np.float32)
        return norm(self.theta - before)

    def _score(self, vector: NDArray[np.floating]) -> NDArray[np.float64]:
        """Inner products of all canaries with a vector, on the device."""
        if self._device.type == "cpu":
            return self.canaries.dot(vector)
        return dot(
            self.canaries,
            torch.tensor(vector, dtype=torch.float32, device=self._device),
        )

    def record(self) -> AuditRecord:
        """The record of the rounds so far; canaries whose turn did not come are unobserved."""
        config, rounds = self.plan.config, self.rounds_done
        seen = self._presence[:rounds].any(axis=0)
        observed = np.flatnonzero(seen)
        unobserved = np.setdiff1d(np.arange(self.canaries.count), observed)
        norms = Norms(
            means=np.array(self.series["mean_norm"]),
            model_updates=np.array(self.series["delta_norm"]),
            final=norm(self.theta),
            displacement=norm(self.theta - self._start),
        )
        means = np.array(self._dots, np.float64) / norms.means[:, None]
        final = self._score(self.theta) / norms.final
        moved = self._score(self.theta - self._start) / norms.displacement
        sides = [
            CanaryCosines(
                means=means[:, ids],
                final=final[ids],
                displacement=moved[ids],
                ids=ids,
            )
            for ids in (observed, unobserved)
        ]
        record = AuditRecord(
            dim=len(self.theta),
            delta=config.target_delta,
            observed=sides[0],
            unobserved=sides[1],
            presence=self._presence[:rounds, seen],
            norms=norms,
            mechanism=self._mechanism(),
            metrics={"train_loss": np.array(self.series["loss"])},
        )
        return measure_others(record, self.canaries)

    def _mechanism(self) -> Mechanism:
        config = self.plan.config
        return Mechanism(
            cohort_size=config.cohort_size,
            noise_multiplier=config.noise_multiplier,
            sum_noise_multiplier=config.sum_noise_multiplier(),
            participation=config.canary_schedule()
            .law(config.clients)
            .in_record(),
            canary_participations=float(config.canary_participations or 0.0),
            server=ServerStep(
                "sgd",
                np.full(self.rounds_done, self._optimizer.learning_rate),
                self._optimizer.momentum,
            ),
            clip_norms=np.array(self.series["clip_norm"]),
        )

    def save(self, place: Path) -> None:
        """Write a checkpoint below ``place``; the one before goes when this one is whole."""
        before = checkpoints(place)
        folder = place / f"after-{self.rounds_done:05d}"
        if folder in before:
            return
        unfinished = folder.with_suffix(".part")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        for name, values in self._arrays().items():
            np.save(unfinished / f"{name}.npy", values)
        state = {
            "plan": self.plan.facts(),
            "clip_norm": self._clip_norm,
            "series": self.series,
            "faults": self.faults,
        }
        (unfinished / "state.json").write_text(json.dumps(state))
        unfinished.rename(folder)
        for old in before:
            shutil.rmtree(old)

    def _arrays(self) -> dict[str, NDArray[np.float32]]:
        dots = np.array(self._dots, np.float32).reshape(-1, self.canaries.count)
        return {"theta": self.theta, "velocity": self._velocity, "dots": dots}

    def resume(self, place: Path) -> bool:
        """Go on from the last checkpoint below ``place``; returns whether there was one.

        Raises:
            ValueError: if it is of a run with other settings.
        """
        found = checkpoints(place)
        if not found:
            return False
        state = json.loads((found[-1] / "state.json").read_text())
        facts = self.plan.facts()
        if changed := [
            name for name in facts if facts[name] != state["plan"][name]
        ]:
            raise ValueError(
                f"Expected {found[-1]} to be of this run, but it has another {', '.join(changed)}: "
                "use the settings that it was started with, or another --output."
            )
        self.theta = np.load(found[-1] / "theta.npy")
        self._velocity = np.load(found[-1] / "velocity.npy")
        self._dots = list(np.load(found[-1] / "dots.npy"))
        self._clip_norm = state["clip_norm"]
        self.series, self.faults = state["series"], state["faults"]
        return True


def checkpoints(place: Path) -> list[Path]:
    """The whole checkpoints below ``place``, the newest last."""
    return sorted(place.glob("after-[0-9]*[0-9]"))


def found_epsilon(record: AuditRecord) -> dict[str, Any]:
    """ε of a record for both adversaries, with 95% intervals, and the theorem's."""
    mechanism = record.mechanism
    out: dict[str, Any] = {
        "rounds": record.rounds,
        "canaries": record.num_canaries,
        "delta": record.delta,
        "analytical": gaussian_epsilon(
            float(mechanism.noise_multiplier or 0), record.delta
        ),
    }
    if record.num_canaries >= 2:
        final, every = (
            epsilon_from_record(record, statistic="displacement"),
            epsilon_from_record(record, statistic="matched-filter"),
        )
        out["final"], out["all"] = (
            {"epsilon": found.epsilon, "low": found.low, "high": found.high}
            for found in (final, every)
        )
    return out


@contextlib.contextmanager
def _timed(
    seconds: dict[str, float], device: torch.device, name: str
) -> Iterator[None]:
    began = time.perf_counter()
    yield
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds[name] = time.perf_counter() - began
