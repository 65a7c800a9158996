"""Local training of a round's clients, one after another or many at once, into one clipped sum."""

import dataclasses
import itertools
import logging
import math
import types
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from fl_epe.archive import error_text
from fl_epe.auditing import Fault, FaultKind
from fl_epe.checks import raise_invalid
from fl_epe.mechanism import ClippedSum
from fl_epe.models import one_thread
from fl_epe.seeding import generator
from fl_epe.tasks import ClientData, Task
from fl_epe.training.local import Execution, LocalTraining, Trainer
from fl_epe.training.vectorized import Member, Together, padded_size

logger = logging.getLogger(__name__)

Loaded = list[tuple[int, ClientData]]
"""Clients with their data."""

_SAME = 0.02  # of the norm of an update; a ReLU at its kink makes a thousandth


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

    def lose(self, client: int, error: Exception) -> None:
        """Note a client that could not be trained."""
        self.faults.append(
            Fault(FaultKind.CLIENT_FAILED, f"client {client}: {error_text(error)}")
        )


class _Round:
    """What clients of a round train with, the sum of their updates, and what has been counted.

    Updates on a device are clipped and added up there, in float64 as well; their squares add up in
    another order. The host does not wait for it before `finish`, so that it prepares the next
    clients' data meanwhile; of model-sized vectors only the sum comes back. Updates on the CPU go
    to the `ClippedSum` itself.
    """

    def __init__(
        self,
        theta: torch.Tensor,
        local: LocalTraining,
        total: ClippedSum,
        seed: int,
        round_number: int,
    ) -> None:
        self.theta, self.local, self.counts = theta, local, Counts()
        self._total, self._seed = total, (seed, round_number)
        self._multiples: torch.Tensor | None = None
        self._clients, self._measured = list[int](), list[torch.Tensor]()
        if not theta.is_cpu:
            self._multiples, self._scratch = torch.zeros(
                (2, len(theta)), dtype=torch.float64, device=theta.device
            )

    def random(self, client: int) -> np.random.Generator:
        return generator(*self._seed, client)

    def member(self, client: int, data: ClientData) -> Member:
        return Member(data, self.local, self.random(client))

    def lengths(self, updates: torch.Tensor) -> torch.Tensor:
        """The rows' norms on a device, shape (clients, 1). It may have no memory left for them."""
        if self._multiples is None:  # `ClippedSum.add` takes the norm itself
            return updates[:, :0]
        lengths: torch.Tensor = torch.linalg.vector_norm(
            updates, dim=1, keepdim=True, dtype=torch.float64
        )
        return lengths

    def add(
        self,
        clients: Sequence[int],
        updates: torch.Tensor,
        lengths: torch.Tensor,
        parts: torch.Tensor,
    ) -> None:
        """Clip the rows of ``updates``, add them up, and count their rows of ``parts``.

        On a device ``updates`` is changed, and the counts follow in `finish`.
        """
        if self._multiples is None:
            added = [self._total.add(update.numpy()) for update in updates]
            self._count(clients, added, parts.tolist())
            return
        self._clients += clients
        self._measured.append(torch.cat([lengths, parts], 1))
        lost = ~lengths.isfinite()
        scales = self._total.scale(lengths.masked_fill(lost, 0.0), torch.where)
        for update, scale in zip(updates.masked_fill_(lost, 0.0), scales, strict=True):
            self._multiples += self._scratch.copy_(update).mul_(scale).trunc_()

    def _count(
        self,
        clients: Sequence[int],
        added: Sequence[bool | None],
        parts: list[list[float]],
    ) -> None:
        """Count clients; ``added`` is what `ClippedSum.add` says of their updates."""
        counts = self.counts
        for client, unclipped, own in zip(clients, added, parts, strict=True):
            if unclipped is None:
                counts.faults.append(
                    Fault(
                        FaultKind.CLIENT_NOT_FINITE,
                        f"client {client}: its update was not finite",
                    )
                )
                continue
            counts.clients += 1
            counts.unclipped += unclipped
            counts.loss_sum += own[0]
            counts.correct += own[1]
            counts.examples += int(own[2])

    def finish(self) -> None:
        """Bring the sum and the counts from the device."""
        if self._multiples is None or not self._measured:
            return
        self._total.add_multiples(self._multiples.cpu().numpy())
        rows, most = torch.cat(self._measured).tolist(), self._total.clip_norm
        added = [row[0] <= most if math.isfinite(row[0]) else None for row in rows]
        self._count(self._clients, added, [row[1:] for row in rows])


def _writable(array: np.ndarray) -> np.ndarray:
    """The same memory for torch, which would warn of an array that cannot be written.

    Nothing writes to it.
    """
    described = dict(array.__array_interface__)
    described["data"] = described["data"][0], False
    return np.asarray(types.SimpleNamespace(__array_interface__=described, owner=array))


class CohortTrainer:
    """Trains clients of a task, clips their updates and adds them up.

    `Execution` says how: one client after another in the same memory (`Trainer`), or a chunk of
    clients of about the same size at once (`vectorized.py`). Both give the same updates but for
    rounding. A chunk that fails is halved until the client is found whose fault it is. If torch
    cannot vectorise the model, its clients are trained one after another; if a GPU's memory does
    not hold a chunk, later ones are half as large.

    A trainer serves one thread at a time.

    Args:
        task: the task whose clients are trained.
        execution: where and how they train; from the environment variables by default.

    Attributes:
        chunk: how many clients are trained at once.
    """

    def __init__(self, task: Task, execution: Execution | None = None) -> None:
        self._task, self._execution = task, execution or Execution.from_environment()
        self._trainer = Trainer(task, self._execution)
        self.chunk = self._execution.clients_at_once(task.dim, self._trainer.convolves)
        self._proved, self._worked = set[bool](), False
        if self.chunk > 1 and (reason := self._alone()):
            self._one_at_a_time(reason)
        self._together = Together(task, self._execution) if self.chunk > 1 else None

    def _alone(self) -> str:
        """Why clients cannot be trained at once; "" if they can."""
        if self._trainer.alone:
            return "BatchNorm takes whole batches"
        kind = type(self._task)
        own, by_example = (
            next(place for place, base in enumerate(kind.__mro__) if name in vars(base))
            for name in ("batch_loss", "by_example")
        )
        if own < by_example:  # both are in `Task` at the latest
            return f"{kind.__name__} overrides batch_loss and not by_example"
        return ""

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
        if theta.shape != (self._task.dim,) or theta.dtype != np.float32:
            found = f"{theta.dtype}{theta.shape}"
            raise_invalid("theta", found, f"to be float32 of shape {(self._task.dim,)}")
        start = torch.as_tensor(_writable(theta), device=self._execution.torch_device())
        work = _Round(start, local, total, seed, round_number)
        self._execution.apply()
        if self.chunk == 1:
            for client in clients:
                self._train_one(work, client)
        else:
            loaded = self._load(work, clients)
            if len(self._proved) < 2:
                self._prove(work, loaded)
            for chunk in self._chunks(loaded, local.batch_size):
                self._train_chunk(work, chunk)
        work.finish()
        self._trainer.rest()
        return work.counts

    def _train_one(
        self, work: _Round, client: int, data: ClientData | None = None
    ) -> bool:
        try:
            data = self._task.client(client) if data is None else data
            update, sums = self._trainer.train(
                work.theta, data, work.local, work.random(client)
            )
            lengths = work.lengths(update[None])
        except Exception as error:  # noqa: BLE001 (anything a task may do: others train on)
            work.counts.lose(client, error)
            return False
        work.add([client], update[None], lengths, sums[None])
        return True

    def _load(self, work: _Round, clients: Sequence[int]) -> Loaded:
        """The clients with their data, large ones first."""
        loaded = []
        for client in clients:
            try:
                loaded.append((client, self._task.client(client)))
            except Exception as error:  # noqa: BLE001 (as above)
                work.counts.lose(client, error)
        return sorted(loaded, key=lambda pair: len(pair[1]), reverse=True)

    def _chunks(self, loaded: Loaded, batch_size: int) -> Iterator[Loaded]:
        """Clients whose batches are padded alike, as many at once as there is room for now."""
        while loaded:
            rows = padded_size(len(loaded[0][1]), batch_size)
            fit = (
                padded_size(len(data), batch_size) == rows
                for _, data in loaded[: self.chunk]
            )
            size = sum(itertools.takewhile(bool, fit))
            yield loaded[:size]
            loaded = loaded[size:]

    def _train_chunk(self, work: _Round, chunk: Loaded) -> None:
        """Train a chunk at once; if that fails, its halves, down to one client alone."""
        if self._together is None or self.chunk == 1:
            for client, data in chunk:
                self._train_one(work, client, data)
            return
        try:
            members = [work.member(client, data) for client, data in chunk]
            with (
                one_thread(),
                self._trainer.own_randomness(*(m.random for m in members)),
            ):
                updates, sums = self._together.train(
                    work.theta, members, work.local.learning_rate
                )
            lengths = work.lengths(updates)
        except Exception as error:  # noqa: BLE001 (one by one it is found whose fault that is)
            half = -(-len(chunk) // 2)
            if half < len(chunk):
                if isinstance(error, torch.cuda.OutOfMemoryError):
                    self.chunk = min(self.chunk, half)
                self._train_chunk(work, chunk[:half])
                self._train_chunk(work, chunk[half:])
            elif (
                self._train_one(work, *chunk[0]) and not self._worked
            ):  # not the client's fault
                self._one_at_a_time(str(error).partition("\n")[0])
        else:
            self._worked = True
            work.add([client for client, _ in chunk], updates, lengths, sums)

    def _one_at_a_time(self, reason: str) -> None:
        if self._execution.chunk is not None:  # somebody asked for it
            logger.warning(
                "Training one client at a time, not %d: %s", self.chunk, reason
            )
        self.chunk = 1

    def _prove(self, work: _Round, loaded: Loaded) -> None:
        """Before clients train at once by default: one of them learns the same in both ways.

        It would not if examples of a batch saw each other, or, on a CPU, if the model drew random
        numbers of its own. A client with a batch that has to be padded is tried for itself.
        """
        for client, data in reversed(loaded):
            padded = len(data) % padded_size(len(data), work.local.batch_size) > 0
            if not len(data) or padded in self._proved or self.chunk == 1:
                continue
            try:
                alone, _ = self._trainer.train(
                    work.theta, data, work.local, work.random(client)
                )
                length = float(alone.norm())
            except Exception:  # noqa: BLE001, S112 (its own fault, noted when it trains)
                continue
            if not math.isfinite(length):
                continue
            self._proved.add(padded)
            if self._execution.chunk is None and not self._same(
                work, client, data, alone
            ):
                self.chunk = 1

    def _same(
        self, work: _Round, client: int, data: ClientData, alone: torch.Tensor
    ) -> bool:
        assert self._together is not None  # noqa: S101
        if (
            self._trainer.draws
        ):  # other numbers at once: only a CPU promises the same bits
            return not alone.is_cpu
        members = [work.member(client, data)]
        try:
            rows, _ = self._together.train(
                work.theta, members, work.local.learning_rate
            )
        except Exception:  # noqa: BLE001 (torch cannot vectorise the model)
            return False
        return float((rows[0] - alone).norm()) <= _SAME * float(alone.norm())
