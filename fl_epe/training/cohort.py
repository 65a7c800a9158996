"""Local training of a round's clients, one by one or in chunks, with a sum of their updates."""

import dataclasses
import functools
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
from fl_epe.training.vectorized import ChunkTrainer, Member, padded_size

logger = logging.getLogger(__name__)

LoadedClients = list[tuple[int, ClientData]]
"""The ids of clients, with their data."""

# Largest distance of an update that is computed in a chunk from the same update of a single client,
# over its norm; an input at the kink of a ReLU leads to a distance of a thousandth.
_MAX_RELATIVE_DISTANCE = 0.02


@dataclasses.dataclass
class Counts:
    """Counts that belong to a sum of clipped updates.

    Attributes:
        clients: number of clients whose update is in the sum.
        unclipped: number of clients whose update had at most the clip norm.
        examples: number of predictions that these clients made while they trained.
        loss_sum: sum of the losses of these predictions.
        correct: number of correct predictions, or the sum of the task's metric.
        faults: a fault for each client whose update was lost.
    """

    clients: int = 0
    unclipped: int = 0
    examples: int = 0
    loss_sum: float = 0.0
    correct: float = 0
    faults: list[Fault] = dataclasses.field(default_factory=list)

    def add_failed(self, client: int, error: Exception) -> None:
        """Record a client that could not be trained."""
        text = f"client {client}: {error_text(error)}"
        self.faults.append(Fault(FaultKind.CLIENT_FAILED, text))

    def add(
        self, client: int, is_unclipped: bool | None, sums: list[float]
    ) -> None:
        """Count a client.

        Args:
            client: the id of the client.
            is_unclipped: whether its update had at most the clip norm; ``None`` if the update
                was not finite.
            sums: the sums of loss, metric and number of predictions.
        """
        if is_unclipped is None:
            text = f"client {client}: its update was not finite"
            self.faults.append(Fault(FaultKind.CLIENT_NOT_FINITE, text))
            return
        loss, correct, examples = sums
        self.clients += 1
        self.unclipped += is_unclipped
        self.loss_sum += loss
        self.correct += correct
        self.examples += int(examples)


class _Round:
    """The state of a round: the global model, the sum of the updates, and the counts.

    Updates on the CPU are added to the `ClippedSum` directly. Updates on a GPU are clipped and
    added up there, in float64 as on the CPU, but squares are added in another order. The host
    does not wait for the GPU before `finish`, and prepares the next clients' data meanwhile;
    the sum is the only model-sized vector that is copied to the host.
    """

    def __init__(
        self,
        theta: torch.Tensor,
        local: LocalTraining,
        total: ClippedSum,
        seed: int,
        round_number: int,
    ) -> None:
        self.theta = theta
        self.local = local
        self.counts = Counts()
        self._total = total
        self._seed = seed
        self._round_number = round_number
        # The sum on a GPU, as multiples of the grid of `ClippedSum`; `None` on the CPU.
        self._multiples: torch.Tensor | None = None
        # The clients whose updates are in the sum on a GPU; the norms of their updates, their
        # losses, metrics and numbers of predictions, shape (clients, 4).
        self._clients: list[int] = []
        self._measured: list[torch.Tensor] = []
        if not theta.is_cpu:
            zeros = torch.zeros(
                (2, len(theta)), dtype=torch.float64, device=theta.device
            )
            self._multiples, self._scratch = zeros

    def random(self, client: int) -> np.random.Generator:
        return generator(self._seed, self._round_number, client)

    def member(self, client: int, data: ClientData) -> Member:
        return Member(data, self.local, self.random(client))

    def norms(self, updates: torch.Tensor) -> torch.Tensor | None:
        """The norms of updates on a GPU, shape (clients, 1), which may run out of memory.

        On the CPU it is ``None``, as `ClippedSum.add` computes the norm.
        """
        if self._multiples is None:
            return None
        norms: torch.Tensor = torch.linalg.vector_norm(
            updates, dim=1, keepdim=True, dtype=torch.float64
        )
        return norms

    def add(
        self,
        clients: Sequence[int],
        updates: torch.Tensor,
        norms: torch.Tensor | None,
        sums: torch.Tensor,
    ) -> None:
        """Clip the updates of clients and add them up, and add up their counts.

        On a GPU, ``updates`` is changed in place, and the counts are added in `finish`.

        Args:
            clients: the ids of the clients.
            updates: an update for each client, shape (clients, dim).
            norms: the result of `norms` for these updates.
            sums: `LossSum.sums` of each client, shape (clients, 3).
        """
        if norms is None or self._multiples is None:
            rows = zip(clients, updates, sums.tolist(), strict=True)
            for client, update, client_sums in rows:
                is_unclipped = self._total.add(update.numpy())
                self.counts.add(client, is_unclipped, client_sums)
            return
        self._clients += clients
        self._measured.append(torch.cat([norms, sums], 1))
        is_lost = ~norms.isfinite()
        scales = self._total.scale(norms.masked_fill(is_lost, 0.0), torch.where)
        updates.masked_fill_(is_lost, 0.0)
        for update, scale in zip(updates, scales, strict=True):
            self._multiples += self._scratch.copy_(update).mul_(scale).trunc_()

    def finish(self) -> None:
        """Copy the sum and the counts from the GPU, if there is one."""
        if self._multiples is None or not self._measured:
            return
        self._total.add_multiples(self._multiples.cpu().numpy())
        rows = torch.cat(self._measured).tolist()
        for client, row in zip(self._clients, rows, strict=True):
            norm, *client_sums = row
            is_unclipped = None
            if math.isfinite(norm):
                is_unclipped = norm <= self._total.clip_norm
            self.counts.add(client, is_unclipped, client_sums)


def _writable(array: np.ndarray) -> np.ndarray:
    """The same memory, marked as writable, as torch warns of arrays that are not.

    It is no copy, so nothing may write to it.
    """
    interface = dict(array.__array_interface__)
    address, _ = interface["data"]
    interface["data"] = (address, False)
    return np.asarray(
        types.SimpleNamespace(__array_interface__=interface, owner=array)
    )


class CohortTrainer:
    """Trains clients of a task, clips their updates and adds them up.

    Depending on `Execution`, it trains one client after another in the same memory (`Trainer`),
    or a chunk of clients of about the same size at once (`vectorized.py`). Both compute the
    same updates up to rounding. A chunk that fails is halved until only the client that causes
    the error is lost. If torch cannot vectorise the model, clients are trained one after
    another; if a GPU has not enough memory for a chunk, later chunks are half as large.

    A trainer is not thread-safe.

    Args:
        task: the task whose clients are trained.
        execution: the device and the precision; from the environment variables by default.

    Attributes:
        chunk: number of clients that are trained at once.
    """

    def __init__(self, task: Task, execution: Execution | None = None) -> None:
        self._task = task
        self._execution = execution or Execution.from_environment()
        self._trainer = Trainer(task, self._execution)
        self.chunk = self._execution.clients_at_once(
            task.dim, self._trainer.has_convolutions
        )
        # Has ``True`` if a client with padding was checked, and ``False`` if one without.
        self._checked_padding = set[bool]()
        self._chunk_succeeded = False
        obstacle = self._obstacle()
        if self.chunk > 1 and obstacle:
            self._train_one_by_one(obstacle)

    @functools.cached_property
    def _chunk_trainer(self) -> ChunkTrainer:
        return ChunkTrainer(self._task, self._execution)

    def _obstacle(self) -> str:
        """The reason why clients cannot be trained at once; "" if they can."""
        if self._trainer.has_batch_norm:
            return "BatchNorm takes whole batches"
        # Chunks use `Task.by_example`, which must fit the `batch_loss` of single clients. So a
        # class that overrides only `batch_loss` needs a subclass with its `by_example`.
        for base in type(self._task).__mro__:
            # `Task`, the last of these classes, defines both methods.
            if "by_example" in vars(base):
                break
            if "batch_loss" in vars(base):
                name = type(self._task).__name__
                return f"{name} overrides batch_loss and not by_example"
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
        recorded as a fault.

        Args:
            theta: the global model, float32 of shape (dim,), which is not changed.
            clients: the ids of the clients.
            local: the settings of the training.
            total: the sum to which the clipped updates are added.
            seed: seed of the local randomness (batch order, dropout).
            round_number: number of the round, so that the randomness of each round differs.

        Raises:
            ValueError: for a ``theta`` of another shape or type.
        """
        if theta.shape != (self._task.dim,) or theta.dtype != np.float32:
            actual = f"{theta.dtype}{theta.shape}"
            expected = f"to be float32 of shape {(self._task.dim,)}"
            raise_invalid("theta", actual, expected)
        start = torch.as_tensor(
            _writable(theta), device=self._execution.torch_device()
        )
        work = _Round(start, local, total, seed, round_number)
        self._execution.apply()
        if self.chunk == 1:
            for client in clients:
                self._train_one(work, client)
        else:
            loaded = self._load(work, clients)
            if len(self._checked_padding) < 2:
                self._check_chunks(work, loaded)
            for chunk in self._chunks(loaded, local.batch_size):
                self._train_chunk(work, chunk)
        work.finish()
        self._trainer.free_memory()
        return work.counts

    def _train_one(
        self, work: _Round, client: int, data: ClientData | None = None
    ) -> bool:
        """Train a single client; ``False`` if it failed, which is recorded as a fault."""
        try:
            if data is None:
                data = self._task.client(client)
            update, sums = self._trainer.train(
                work.theta, data, work.local, work.random(client)
            )
            norms = work.norms(update[None])
        except Exception as error:  # noqa: BLE001 (anything a task may do: the others train on)
            work.counts.add_failed(client, error)
            return False
        work.add([client], update[None], norms, sums[None])
        return True

    def _load(self, work: _Round, clients: Sequence[int]) -> LoadedClients:
        """The clients with their data, large ones first."""
        loaded = []
        for client in clients:
            try:
                loaded.append((client, self._task.client(client)))
            except Exception as error:  # noqa: BLE001 (as above)
                work.counts.add_failed(client, error)
        return sorted(loaded, key=lambda pair: len(pair[1]), reverse=True)

    def _chunks(
        self, loaded: LoadedClients, batch_size: int
    ) -> Iterator[LoadedClients]:
        """Chunks of at most ``chunk`` clients whose batches are padded to the same size.

        ``chunk`` may become smaller while the chunks are trained.
        """
        while loaded:
            sizes = [
                padded_size(len(data), batch_size)
                for _, data in loaded[: self.chunk]
            ]
            # Clients are sorted by size, so those of the first size come first.
            count = sizes.count(sizes[0])
            yield loaded[:count]
            loaded = loaded[count:]

    def _train_chunk(self, work: _Round, chunk: LoadedClients) -> None:
        """Train a chunk at once, or one client after another if ``chunk`` is 1."""
        if self.chunk == 1:
            for client, data in chunk:
                self._train_one(work, client, data)
            return
        try:
            members = [work.member(client, data) for client, data in chunk]
            randoms = [member.random for member in members]
            # It is made at its first use, which sets the seeds of torch's generators.
            trainer = self._chunk_trainer
            with one_thread(), self._trainer.own_randomness(*randoms):
                updates, sums = trainer.train(
                    work.theta, members, work.local.learning_rate
                )
            norms = work.norms(updates)
        except Exception as error:  # noqa: BLE001 (smaller chunks show which client causes it)
            self._train_smaller_chunks(work, chunk, error)
        else:
            self._chunk_succeeded = True
            clients = [client for client, _ in chunk]
            work.add(clients, updates, norms, sums)

    def _train_smaller_chunks(
        self, work: _Round, chunk: LoadedClients, error: Exception
    ) -> None:
        """Train the halves of a chunk that failed; the client of a chunk of one by itself."""
        half = math.ceil(len(chunk) / 2)
        if half < len(chunk):
            if isinstance(error, torch.cuda.OutOfMemoryError):
                self.chunk = min(self.chunk, half)
            self._train_chunk(work, chunk[:half])
            self._train_chunk(work, chunk[half:])
            return
        client, data = chunk[0]
        is_trained = self._train_one(work, client, data)
        # A client that can be trained by itself is not the cause of the error.
        if is_trained and not self._chunk_succeeded:
            self._train_one_by_one(str(error).partition("\n")[0])

    def _train_one_by_one(self, reason: str) -> None:
        """Train no chunks from now on; log the reason if the user set their size."""
        if self._execution.chunk is not None:
            logger.warning(
                "Training one client at a time, not %d: %s", self.chunk, reason
            )
        self.chunk = 1

    def _check_chunks(self, work: _Round, loaded: LoadedClients) -> None:
        """Check that a client's update is the same in a chunk, unless the user set ``chunk``.

        It differs if the examples of a batch depend on each other or, on a CPU, if the model
        draws random numbers. A client with a batch that needs padding is checked separately.

        In any case one client is trained by itself before the first chunk, which shows whether
        the model draws random numbers (`Trainer.draws`).
        """
        # Small clients, which come last, train fastest.
        for client, data in reversed(loaded):
            rows = padded_size(len(data), work.local.batch_size)
            is_padded = len(data) % rows > 0
            is_checked = is_padded in self._checked_padding
            if not len(data) or is_checked or self.chunk == 1:
                continue
            try:
                update, _ = self._trainer.train(
                    work.theta, data, work.local, work.random(client)
                )
                norm = float(update.norm())
            except Exception:  # noqa: BLE001, S112 (the client's fault, recorded when it trains)
                continue
            if not math.isfinite(norm):
                continue
            self._checked_padding.add(is_padded)
            if self._execution.chunk is None:
                member = work.member(client, data)
                if not self._is_same_in_chunk(work, member, update):
                    self.chunk = 1

    def _is_same_in_chunk(
        self, work: _Round, member: Member, update: torch.Tensor
    ) -> bool:
        """Whether training in a chunk gives the ``update`` of training one by one."""
        if self._trainer.draws:
            # A chunk draws other random numbers. Only on a CPU must an update not depend on that.
            return not update.is_cpu
        try:
            rows, _ = self._chunk_trainer.train(
                work.theta, [member], work.local.learning_rate
            )
        except Exception:  # noqa: BLE001 (torch cannot vectorise the model)
            return False
        distance = float((rows[0] - update).norm())
        return distance <= _MAX_RELATIVE_DISTANCE * float(update.norm())
