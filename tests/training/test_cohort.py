"""Many clients trained together as if one after another."""

import dataclasses
import functools
import logging
from typing import ClassVar

import datasets
import numpy as np
import pytest
import torch
from alone import Alone
from gpu_run import Prepared
from tiny import Tiny
from torch import nn

from fl_epe.auditing import FaultKind
from fl_epe.mechanism import ClippedSum
from fl_epe.models import Cnn, Lstm, SeededDropout, bind_parameters
from fl_epe.seeding import generator
from fl_epe.simulation import worker
from fl_epe.simulation.messages import TrainInstruction
from fl_epe.simulation.worker import execute
from fl_epe.tasks import ClientData, LossSum, Task, from_datasets, load_task
from fl_epe.tasks.by_name import BUILT_IN
from fl_epe.tasks.losses import cross_entropy
from fl_epe.training import CohortTrainer, Execution, LocalTraining
from fl_epe.training.cohort import Counts, _Round
from fl_epe.training.vectorized import ChunkTrainer, Member

LOCAL = LocalTraining(learning_rate=0.1, epochs=2, batch_size=4)


CPU = Execution(device="cpu", chunk=1)


@dataclasses.dataclass(frozen=True)
class _Smooth(Task):
    """Clients of different sizes, two dropouts, and no kink where rounding could decide."""

    name: ClassVar[str] = "smooth"
    num_clients: int = 9

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(6, 20),
            SeededDropout(0.25),
            nn.Tanh(),
            SeededDropout(0.5),
            nn.Linear(20, 3),
        )

    def client(self, client_id: int) -> ClientData:
        self.check_client(client_id)
        random, n = generator(7, client_id), 1 + (5 * client_id) % 11
        inputs = torch.from_numpy(random.standard_normal((n, 6), np.float32))
        return ClientData(inputs, torch.from_numpy(random.integers(0, 3, n)))

    def held_out(self) -> ClientData:
        return self.client(0)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> LossSum:
        return cross_entropy(outputs, targets)


@dataclasses.dataclass(frozen=True)
class _Words(_Smooth):
    """Sentences of different lengths for a small LSTM."""

    def model(self) -> nn.Module:
        return Lstm(30, 5, 8)

    def client(self, client_id: int) -> ClientData:
        random, n = generator(8, client_id), 2 + client_id
        words = random.integers(1, 30, (n, 6))
        words[np.arange(6) >= random.integers(2, 7, n)[:, None]] = 0
        return ClientData(
            torch.from_numpy(words[:, :-1]), torch.from_numpy(words[:, 1:])
        )

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> LossSum:
        return cross_entropy(outputs, targets, 0)


class _Recurrent(nn.Module):
    """A layer that torch cannot vectorise."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(3, 4, batch_first=True)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(inputs.unflatten(1, (2, 3)))[0][:, -1]


@dataclasses.dataclass(frozen=True)
class _Opaque(_Smooth):
    def model(self) -> nn.Module:
        return _Recurrent()


def _train(
    task: Task, execution: Execution, clip_norm: float = 0.5
) -> tuple[np.ndarray, Counts]:
    total = ClippedSum(task.dim, clip_norm)
    trainer = CohortTrainer(task, execution)
    theta, clients = task.initial(3), range(task.num_clients)
    counts = trainer.train(theta, clients, LOCAL, total, seed=1, round_number=2)
    return total.total(), counts


def _assert_same(mine: Counts, other: Counts):
    assert mine.loss_sum == pytest.approx(other.loss_sum, rel=1e-5)
    assert sorted(mine.faults) == sorted(other.faults)
    assert dataclasses.replace(
        mine, loss_sum=0, faults=[]
    ) == dataclasses.replace(other, loss_sum=0, faults=[])


def test_clipping_on_a_device_differs_by_the_grid_at_most():
    rows = torch.randn(5, 2000, generator=torch.Generator().manual_seed(0))
    rows *= torch.tensor([1e-4, 1.0, 1e-3, 1.0, 9.0])[:, None]
    rows[3, 7] = torch.nan
    total, expected = ClippedSum(2000, 0.1), ClippedSum(2000, 0.1)
    there = _Round(rows[0], LOCAL, total, 1, 2)
    there._multiples, there._scratch = torch.zeros(
        (2, 2000), dtype=torch.float64
    )  # as elsewhere
    answers = [expected.add(row) for row in rows.numpy()]
    parts = torch.arange(15, dtype=torch.float64).reshape(5, 3)
    for here in (slice(0, 3), slice(3, 5)):
        part = rows[here]
        there.add(list(range(5))[here], part, there.norms(part), parts[here])
    there.finish()
    assert (answers.count(True), answers.count(None)) == (2, 1)
    assert (there.counts.clients, there.counts.unclipped) == (4, 2)
    assert [fault.text for fault in there.counts.faults] == [
        "client 3: its update was not finite"
    ]
    assert there.counts.examples == 2 + 5 + 8 + 14
    np.testing.assert_allclose(
        total.total(), expected.total(), rtol=0, atol=5 * 0.1 / 2**31
    )


@pytest.mark.parametrize(
    ("examples", "rows"), [(1, 1), (3, 4), (4, 4), (5, 8), (9, 8)]
)
def test_batches_are_padded_with_examples_of_the_same_client(
    examples: int, rows: int
):
    local = LocalTraining(epochs=2, batch_size=8)
    data = ClientData(
        torch.zeros(examples, 2), torch.zeros(examples, dtype=torch.int64)
    )
    member = Member(data, local, generator(0))
    seen = torch.zeros(examples)
    for _ in range(member.steps):
        size, places = member.draw_batch([], [])
        assert len(places) == rows
        assert set(places[size:].tolist()) <= {int(places[0])}
        seen[places[:size]] += 1
    assert seen.tolist() == [2.0] * examples
    with pytest.raises(StopIteration):
        member.draw_batch([], [])


# One after another, all at once, in chunks.


@pytest.mark.slow
@pytest.mark.parametrize(
    "task", [_Smooth(), _Words()], ids=lambda task: type(task).__name__
)
@pytest.mark.parametrize("clip_norm", [0.02, 5.0])
def test_one_at_a_time_chunks_and_all_at_once_give_the_same_updates(
    task: Task, clip_norm: float
):
    expected, counts = _train(task, CPU, clip_norm)
    assert counts.clients == 9
    assert np.abs(expected).max() > 1e-3
    for chunk in (2, 4, 100):
        total, again = _train(task, Execution("cpu", chunk=chunk), clip_norm)
        np.testing.assert_allclose(total, expected, rtol=0, atol=1e-6)
        _assert_same(again, counts)


def test_chunk_trainer_the_cnn_takes_autograds_steps():
    class Images(_Smooth):
        def model(self) -> nn.Module:
            return Cnn().double()

        def client(self, client_id: int) -> ClientData:
            random, n = generator(9, client_id), (5, 3)[client_id]
            images = torch.from_numpy(random.random((n, 1, 28, 28)))
            return ClientData(
                images, torch.from_numpy(random.integers(0, 62, n))
            )

    task, local = Images(num_clients=2), LocalTraining(0.1, 1, 4)
    theta = task.initial(0).astype(np.float64)
    members = [Member(task.client(i), local, generator(1, i)) for i in range(2)]
    deltas, _ = ChunkTrainer(task, CPU).train(
        torch.tensor(theta), members, local.learning_rate
    )
    for i, delta in enumerate(deltas):
        data, random = task.client(i), generator(1, i)
        model = task.model().train()
        flat = torch.tensor(theta)
        bind_parameters(model, flat)
        model.dropout1.random = model.dropout2.random = random
        for rows in np.split(
            random.permutation(len(data)), range(4, len(data), 4)
        ):
            loss = task.loss(
                model(data.inputs[rows]), data.targets[rows]
            ).loss / len(rows)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            flat -= 0.1 * torch.cat([part.flatten() for part in gradients])
        # Masks are float32, so that a third is not exact.
        torch.testing.assert_close(
            delta, flat - torch.tensor(theta), rtol=0, atol=1e-7
        )


def test_bf16_is_near_and_clipped_all_the_same():
    expected, _ = _train(_Smooth(), CPU, 0.02)
    for chunk in (1, 4):
        total, counts = _train(_Smooth(), Execution("cpu", chunk, "bf16"), 0.02)
        error = np.linalg.norm(total - expected) / np.linalg.norm(expected)
        assert 1e-6 < error < 0.05
        assert np.linalg.norm(total) <= 9 * 0.02
        assert counts.unclipped == 0


def test_lost_clients_are_noted_in_every_way_of_training():
    task = Tiny(clients=7, raising=(2,), poisoned=(4,))
    expected, counts = _train(task, CPU)
    assert counts.clients == 5
    assert sorted(counts.faults) == [
        (
            FaultKind.CLIENT_FAILED,
            "client 2: OSError: disk of client 2 is gone",
        ),
        (FaultKind.CLIENT_NOT_FINITE, "client 4: its update was not finite"),
    ]
    total, again = _train(task, Execution("cpu", chunk=3))
    np.testing.assert_allclose(total, expected, rtol=0, atol=1e-6)
    _assert_same(again, counts)


def test_a_model_that_cannot_be_vectorised_is_trained_one_after_another(
    caplog: pytest.LogCaptureFixture,
):
    expected, counts = _train(_Opaque(), CPU)
    with caplog.at_level(logging.WARNING):
        total, again = _train(_Opaque(), Execution("cpu", chunk=4))
    np.testing.assert_array_equal(total, expected)
    assert again.examples == counts.examples
    assert [record.message[:42] for record in caplog.records] == [
        "Training one client at a time, not 4: Batc"
    ]


def test_chunks_are_halved_when_memory_ends(monkeypatch: pytest.MonkeyPatch):
    sizes, train = [], ChunkTrainer.train

    def small(
        self: ChunkTrainer,
        theta: np.ndarray,
        members: list[Member],
        rate: float,
    ):
        sizes.append(len(members))
        if len(members) > 2:
            raise torch.cuda.OutOfMemoryError("no memory left")
        return train(self, theta, members, rate)

    monkeypatch.setattr(ChunkTrainer, "train", small)
    expected, counts = _train(_Smooth(num_clients=12), CPU)
    total, again = _train(_Smooth(num_clients=12), Execution("cpu", chunk=5))
    assert sizes[:3] == [5, 3, 2]  # later ones are small at once
    assert max(sizes[3:]) == 2
    np.testing.assert_allclose(total, expected, rtol=0, atol=1e-6)
    _assert_same(again, counts)


def test_a_worker_trains_in_chunks_too(monkeypatch: pytest.MonkeyPatch):
    task = _Smooth()
    order = TrainInstruction(
        theta=task.initial(0),
        round_number=1,
        clip_norm=0.1,
        clients=[1, 5, 7],
        canary_ids=[0, 2],
        canary_seed=5,
        num_canaries=3,
        canary_kind="rotation",
        local_seed=3,
        local_epochs=1,
        local_batch_size=4,
        local_learning_rate=0.1,
        separate=False,
    )
    monkeypatch.setenv("FL_EPE_DEVICE", "cpu")
    monkeypatch.setenv("FL_EPE_CHUNK", "1")
    alone = execute(task, order)
    apart = execute(task, dataclasses.replace(order, separate=True))
    monkeypatch.setenv("FL_EPE_CHUNK", "2")
    monkeypatch.setattr(worker, "_trainers", worker._Trainers())
    chunked = execute(task, order)
    np.testing.assert_allclose(chunked.total, alone.total, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(apart.total, alone.total)
    for sums in (alone, chunked, apart):
        assert (sums.clients, sums.canaries, sums.faults) == (3, 2, [])
        sums.check(dataclasses.replace(order, separate=sums is apart))


class _Attention(nn.Module):
    """A transformer as torch has it: dropout in modules and in functions."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        layer = nn.TransformerEncoderLayer(
            8, 2, 16, dropout=0.2, batch_first=True
        )
        self.encoder, self.output = (
            nn.TransformerEncoder(layer, 1),
            nn.Linear(8, 3),
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1])  # of no device in particular
        return self.output(
            self.encoder(self.embedding(tokens + 0 * places)).mean(1)
        )


class _Table(nn.Module):
    """A model for a table, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(5, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3)
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs)


class _Centred(_Table):
    """Whose examples see each other, so that padding changes them."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs - inputs.mean(0))


def _rows(model: type[nn.Module], clients: int = 12) -> Task:
    """Clients with 1 to 23 rows of a data set."""
    random, sizes = generator(5), 1 + np.arange(clients) * 2
    owners = np.repeat(np.arange(clients), sizes)
    shape = (len(owners), 5)
    tokens, table = (
        random.integers(0, 20, shape),
        random.standard_normal(shape, np.float32),
    )
    columns = {"x": tokens if model is _Attention else table, "owner": owners}
    rows = datasets.Dataset.from_dict(
        {**columns, "y": random.integers(0, 3, len(owners))}
    )
    return from_datasets(
        model,
        rows,
        inputs="x",
        targets="y",
        partition="by:owner",
        held_out=rows.select(range(4)),
    )


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_task_trains_in_the_chunk_that_was_asked_for(name: str):
    task = load_task(name)
    assert CohortTrainer(task, Execution("cpu", chunk=3)).chunk == 3
    assert CohortTrainer(Prepared(task), Execution("cpu", chunk=3)).chunk == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "task",
    [
        pytest.param(
            load_task("synthetic-stackoverflow", max_examples=1), id="lstm"
        ),
        pytest.param(load_task("synthetic-emnist", max_examples=2), id="cnn"),
        pytest.param(_rows(_Attention), id="transformer"),
    ],
)
def test_a_chunk_that_was_asked_for_is_still_used_after_training(
    task: Task, caplog: pytest.LogCaptureFixture
):
    trainer, total = (
        CohortTrainer(task, Execution("cpu", chunk=3)),
        ClippedSum(task.dim, 0.5),
    )
    local = LocalTraining(0.1, 1, 4)
    counts = trainer.train(
        task.initial(1), range(3), local, total, seed=1, round_number=1
    )
    assert (trainer.chunk, counts.clients, counts.faults, caplog.records) == (
        3,
        3,
        [],
        [],
    )


@pytest.mark.slow
def test_by_default_an_update_depends_on_its_client_alone():
    """To the last bit: not on who else is in the chunk, nor on its size or order."""
    task, local = _rows(_Table), LocalTraining(0.1, 2, 4)

    def updates(*clients: int) -> np.ndarray:
        total = ClippedSum(task.dim, 0.5)
        trainer = CohortTrainer(task, Execution("cpu"))
        assert trainer.chunk == 24
        trainer.train(
            task.initial(1), clients, local, total, seed=1, round_number=1
        )
        assert trainer.chunk == 24
        return total.total()

    apart = [updates(client) for client in range(12)]
    for group in (range(12), range(11, -1, -1), (3, 4), (0, 11, 6, 7, 8)):
        np.testing.assert_array_equal(
            updates(*group), sum(apart[client] for client in group)
        )


@pytest.mark.slow
@pytest.mark.parametrize("model", [_Centred, _Attention])
def test_by_default_a_model_that_a_chunk_would_change_trains_alone(
    model: type[nn.Module],
):
    task, local = _rows(model), LocalTraining(0.1, 1, 4)
    totals = []
    for execution in (Execution("cpu"), CPU):
        trainer, total = (
            CohortTrainer(task, execution),
            ClippedSum(task.dim, 0.5),
        )
        trainer.train(
            task.initial(1), range(12), local, total, seed=1, round_number=1
        )
        assert trainer.chunk == 1
        totals.append(total.total())
    np.testing.assert_array_equal(*totals)


def test_one_bad_client_is_found_and_the_others_train_at_once():
    class Mislabelled(_Smooth):
        def client(self, client_id: int) -> ClientData:
            data = super().client(client_id)
            return ClientData(data.inputs, data.targets + 3 * (client_id == 4))

    task = Mislabelled(num_clients=16)
    trainer, total = (
        CohortTrainer(task, Execution("cpu", chunk=16)),
        ClippedSum(task.dim, 0.5),
    )
    for round_number in (0, 1):
        counts = trainer.train(
            task.initial(3),
            range(16),
            LOCAL,
            total,
            seed=1,
            round_number=round_number,
        )
        assert (counts.clients, trainer.chunk) == (15, 16)
        assert [(kind, text[:8]) for kind, text in counts.faults] == [
            (FaultKind.CLIENT_FAILED, "client 4")
        ]


on_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no GPU"
)


@on_gpu
@pytest.mark.filterwarnings("ignore:RNN module weights")
@pytest.mark.parametrize("chunk", [1, 4, None])
@pytest.mark.parametrize(
    "task", [_Smooth(), _Words()], ids=lambda task: type(task).__name__
)
def test_a_gpu_gives_the_same_updates(task: Task, chunk: int | None):
    expected, counts = _train(task, CPU)
    total, again = _train(task, Execution("cuda", chunk))
    np.testing.assert_allclose(total, expected, rtol=0, atol=1e-5)
    _assert_same(again, counts)


@on_gpu
@pytest.mark.filterwarnings("ignore:.*deterministic")
def test_a_gpu_repeats_to_the_bit():
    run = functools.partial(
        _train, _Words(), Execution("cuda", deterministic=True)
    )
    np.testing.assert_array_equal(run()[0], run()[0])


@on_gpu
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_a_gpu_is_near_with_less_precision(precision: str):
    expected, _ = _train(_Smooth(), CPU, 0.02)
    total, _ = _train(_Smooth(), Execution("cuda", None, precision), 0.02)
    assert np.linalg.norm(total - expected) < 0.05 * np.linalg.norm(expected)


def test_a_trainer_computes_on_the_cpu_by_default():
    theta = _Smooth().initial(0)
    update = Alone(_Smooth()).train(theta, 1, LOCAL, seed=0, round_number=0)
    assert update.values.dtype == np.float32
