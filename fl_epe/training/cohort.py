"""Local training of a round's clients, one after another or many at once, into one clipped sum."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence

import numpy as np
import torch

from fl_epe.faults import Fault, FaultKind
from fl_epe.mechanism import ClippedSum
from fl_epe.seeding import generator
from fl_epe.tasks import ClientData, Task, one_thread
from fl_epe.training.execution import Execution
from fl_epe.training.local import ClientUpdate, LocalTraining, Trainer, check_model
from fl_epe.training.vectorized import Member, Together

__all__ = ["CohortTrainer", "Counts"]

logger = logging.getLogger(__name__)


@dataclasses.dataclass
class Counts:
    """What is counted beside the sum of the clipped updates.

    Attributes:
        clients: number of clients whose update is in the sum.
        unclipped: number of these whose norm was at most the clip norm.
        examples: number of predictions that they made while they trained.
        loss_sum: sum of the losses of these predictions.
        correct: how many of these predictions were right, or the sum of another metric.
        faults: one for each client whose update was lost.
    """

    clients: int = 0
    unclipped: int = 0
    examples: int = 0
    loss_sum: float = 0.0
    correct: float = 0
    faults: list[Fault] = dataclasses.field(default_factory=list)

    def note(self, client: int, unclipped: bool | None, trained: ClientUpdate | Member) -> None:
        """Count a client, for whom `ClippedSum.add` answered ``unclipped``."""
        if unclipped is None:
            text = f"client {client}: its update was not finite"
            self.faults.append(Fault(FaultKind.CLIENT_NOT_FINITE, text))
            return
        self.clients += 1
        self.unclipped += unclipped
        self.examples += trained.examples
        self.loss_sum += trained.loss_sum
        self.correct += trained.correct

    def lose(self, client: int, error: Exception) -> None:
        """Note a client that could not be trained."""
        text = f"client {client}: {type(error).__name__}: {error}"
        self.faults.append(Fault(FaultKind.CLIENT_FAILED, text))


@dataclasses.dataclass(frozen=True)
class _Order:
    """The arguments of `CohortTrainer.train`, and what has been counted so far."""

    theta: np.ndarray
    local: LocalTraining
    total: ClippedSum
    seed: int
    round_number: int
    counts: Counts = dataclasses.field(default_factory=Counts)

    def member(self, client: int, data: ClientData) -> Member:
        """A client that is about to train."""
        random = generator(self.seed, self.round_number, client)
        return Member(client, data, self.local, random)


class CohortTrainer:
    """Trains clients of a task, clips their updates and adds them up.

    `Execution` says how: one client after another in the same memory (`Trainer`), or a chunk of
    clients of about the same size at once (`vectorized.py`). Both give the same updates but for
    rounding. If torch cannot vectorise the model, or a GPU's memory does not hold a chunk, its
    clients are trained one after another and later chunks are smaller.

    A trainer serves one thread at a time.

    Args:
        task: the task whose clients are trained.
        execution: where and how they train; from the environment variables by default.
    """

    def __init__(self, task: Task, execution: Execution | None = None) -> None:
        self._execution = execution or Execution.from_environment()
        self._task = task
        self._trainer = Trainer(task, self._execution)
        own_calls = type(task).batch_loss is not Task.batch_loss
        alone = self._trainer.alone or own_calls
        self._chunk = 1 if alone else self._execution.clients_at_once()
        self._together = Together(task, self._execution) if self._chunk > 1 else None

    def train(
        self,
        theta: np.ndarray,
        clients: Sequence[int],
        local: LocalTraining,
        total: ClippedSum,
        *,
        seed: int,
        round_number: int,
    ) -> Counts:
        """Train ``clients`` from the global model ``theta`` and add their updates to ``total``.

        A client whose data or training fails, or whose update is not finite, is left out and
        noted as a fault.

        Args:
            theta: float32 of shape (dim,), not changed.
            clients: their ids.
            local: how to train.
            total: takes the clipped updates.
            seed: of the local randomness (batch order, dropout).
            round_number: draws other randomness in every round.

        Raises:
            ValueError: for a ``theta`` of another shape or type.
        """
        check_model(theta, self._task.dim)
        order = _Order(theta, local, total, seed, round_number)
        if self._together is None:
            for client in clients:
                self._train_one(order, client)
            return order.counts
        left = self._load(order, clients)
        while left:
            now, left = left[: self._chunk], left[self._chunk :]
            if len(now) == 1 or not self._train_chunk(order, now, self._together):
                for client, _ in now:
                    self._train_one(order, client)
        return order.counts

    def _train_one(self, order: _Order, client: int) -> None:
        try:
            update = self._trainer.train(
                order.theta, client, order.local, seed=order.seed, round_number=order.round_number
            )
        except Exception as error:  # noqa: BLE001 (anything a task may do: others train on)
            order.counts.lose(client, error)
            return
        order.counts.note(client, order.total.add(update.delta), update)

    def _load(self, order: _Order, clients: Sequence[int]) -> list[tuple[int, ClientData]]:
        """The clients with their data, large ones first."""
        loaded = []
        for client in clients:
            try:
                loaded.append((client, self._task.client(client)))
            except Exception as error:  # noqa: BLE001 (as above)
                order.counts.lose(client, error)
        return sorted(loaded, key=lambda pair: len(pair[1]), reverse=True)

    def _train_chunk(
        self, order: _Order, chunk: list[tuple[int, ClientData]], together: Together
    ) -> bool:
        """Train a chunk at once; returns whether that was possible."""
        members = [order.member(client, data) for client, data in chunk]
        try:
            with one_thread():
                deltas = together.train(order.theta, members, order.local.learning_rate)
                answers = add_rows(order.total, deltas)
        except Exception as error:  # noqa: BLE001 (one by one it is found whose fault that is)
            self._shrink(error)
            return False
        for member, answer in zip(members, answers, strict=True):
            order.counts.note(member.client, answer, member)
        return True

    def _shrink(self, error: Exception) -> None:
        """After a chunk failed: half of it if memory ended, else one client at a time."""
        memory = isinstance(error, torch.cuda.OutOfMemoryError)
        reason = str(error).partition("\n")[0]
        logger.warning("Training %d clients at once failed: %s", self._chunk, reason)
        self._chunk = max(1, self._chunk // 2) if memory else 1


def add_rows(total: ClippedSum, updates: torch.Tensor) -> list[bool | None]:
    """`ClippedSum.add` for each row of ``updates``, float32 of shape (clients, dim).

    Updates on a GPU are clipped there, in float64 as well; their squares add up in another order.

    Returns:
        For each row what `ClippedSum.add` returns.
    """
    if updates.is_cpu:
        return [total.add(row) for row in updates.numpy()]
    return _add_on_device(total, updates)


def _add_on_device(total: ClippedSum, updates: torch.Tensor) -> list[bool | None]:
    squares = torch.stack([row.double().square().sum() for row in updates])
    lengths = squares.sqrt().cpu().numpy()
    multiples = torch.zeros(updates.shape[1], dtype=torch.float64, device=updates.device)
    for row, length in zip(updates, lengths, strict=True):
        if np.isfinite(length):
            multiples += (row.double() * float(total.scale(length))).trunc_()
    total.add_multiples(multiples.cpu().numpy())
    return [bool(n <= total.clip_norm) if np.isfinite(n) else None for n in lengths]
