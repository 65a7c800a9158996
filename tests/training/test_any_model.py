"""Local training of models of one's own: any inputs, frozen and tied parameters, BatchNorm."""

import functools
from typing import Any

import numpy as np
import pytest
import torch
from alone import Alone
from own_data import Noisy, Tied, TwoInputs, net, normalised, rows
from torch import nn

from fl_epe.mechanism import ClippedSum
from fl_epe.models import trainable
from fl_epe.seeding import generator
from fl_epe.tasks import ClientData, LossSum, from_datasets
from fl_epe.tasks.dataset_task import DatasetTask
from fl_epe.training import CohortTrainer, Execution, LocalTraining

TWO = {"inputs": {"left": "x", "right": "first part"}}
MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (net, {}),
    "mapping-and-unused": (TwoInputs, TWO),
    "tied-and-frozen": (Tied, {}),
    "batch-norm": (normalised, {}),
}


def _task(model: Any, **more: Any) -> DatasetTask:
    arguments: dict[str, Any] = {
        "inputs": "x",
        "targets": "y",
        "partition": "by:user",
    }
    return from_datasets(model, rows(), **arguments | more)


def _taken(part: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return tensor[part]


def _by_hand(
    model: nn.Module,
    theta: np.ndarray,
    data: ClientData,
    local: LocalTraining,
    order: Any,
) -> np.ndarray:
    """Plain SGD with torch's own tools; a batch of one example is left out with BatchNorm."""
    parameters = trainable(model)
    nn.utils.vector_to_parameters(torch.from_numpy(theta.copy()), parameters)
    optimizer = torch.optim.SGD(parameters, lr=local.learning_rate)
    smallest = (
        2 if any(isinstance(m, nn.BatchNorm1d) for m in model.modules()) else 1
    )
    for _ in range(local.epochs):
        rows_now = torch.from_numpy(order.permutation(len(data)))
        for part in rows_now.split(local.batch_size):
            if len(part) < smallest:
                continue
            batch = data.map(functools.partial(_taken, part))
            named = isinstance(batch.inputs, dict)
            outputs = (
                model(**batch.inputs)["logits"]
                if named
                else model(batch.inputs)
            )
            optimizer.zero_grad()
            nn.functional.cross_entropy(outputs, batch.targets).backward()
            optimizer.step()
    return nn.utils.parameters_to_vector(parameters).detach().numpy() - theta


@pytest.mark.slow
@pytest.mark.parametrize("case", MODELS)
@pytest.mark.parametrize("batch_size", [2, 4, 16])
def test_an_update_is_that_of_plain_torch(case: str, batch_size: int):
    model, more = MODELS[case]
    task, local = _task(model, **more), LocalTraining(0.2, 2, batch_size)
    theta = task.initial(1)
    # A last batch of one example, with batches of 2 and 4.
    client = next(
        i for i in range(task.num_clients) if len(task.client(i)) == 5
    )
    data = task.client(client)
    expected = _by_hand(model(), theta, data, local, generator(7, 2, client))
    update = Alone(task).train(theta, client, local, seed=7, round_number=2)
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(update.values, expected, rtol=0, atol=1e-6)


def test_frozen_parameters_stay_as_they_are():
    model: Any = Tied()
    model.first.bias.data.fill_(3.0)
    task = _task(model)
    trainer: Any = Alone(task)
    trainer.train(
        task.initial(0), 1, LocalTraining(0.2, 2, 4), seed=0, round_number=0
    )
    assert trainer.trainer._model.first.bias.tolist() == [3.0] * 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", ["plain", "mapping-and-unused", "tied-and-frozen"]
)
def test_clients_at_once_learn_the_same_as_one_by_one(case: str):
    model, more = MODELS[case]
    task, local = _task(model, **more), LocalTraining(0.2, 2, 2)
    sums = []
    for chunk in (1, 4):
        trainer, total = _cohort(task, chunk), ClippedSum(task.dim, 0.5)
        counts = trainer.train(
            task.initial(1), range(10), local, total, seed=3, round_number=1
        )
        assert counts.faults == []
        assert (counts.clients, trainer.chunk) == (10, chunk)
        sums.append(total.total())
    assert np.abs(sums[0]).max() > 1e-3
    np.testing.assert_allclose(sums[1], sums[0], rtol=0, atol=1e-5)


def _cohort(task: Any, chunk: int) -> CohortTrainer:
    return CohortTrainer(task, Execution(device="cpu", chunk=chunk))


class _Doubled(DatasetTask):
    """Calls the model in a way of its own."""

    def batch_loss(self, model: Any, batch: ClientData) -> LossSum:
        return self.loss(2 * model(batch.inputs), batch.targets)


@pytest.mark.parametrize("kind", ["batch-norm", "own-call"])
def test_what_cannot_train_at_once_trains_one_by_one(kind: str):
    task = _task(normalised if kind == "batch-norm" else net)
    if kind == "own-call":
        task = _Doubled(task.arguments)
    assert _cohort(task, 4).chunk == 1


def test_averages_of_batch_norm_do_not_leak_from_one_client_to_the_next():
    task = _task(lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)))
    local = LocalTraining(0.2, 1, 4)
    used, fresh = Alone(task), Alone(task)
    theta = task.initial(0)
    used.train(theta, 1, local, seed=0, round_number=1)
    for trainer in (used, fresh):
        trainer.train(theta, 2, local, seed=0, round_number=1)
    for left, right in zip(
        used.trainer._model.buffers(),
        fresh.trainer._model.buffers(),
        strict=True,
    ):
        assert torch.equal(left, right)
    assert any(buffer.abs().sum() for buffer in used.trainer._model.buffers())


def test_a_client_of_one_example_learns_nothing_with_batch_norm():
    task = _task(normalised, partition="iid:54")
    update = Alone(task).train(
        task.initial(0), 0, LocalTraining(0.2, 2, 4), seed=0, round_number=1
    )
    assert (update.examples, update.loss_sum) == (0, 0)
    assert not update.values.any()


@pytest.mark.parametrize("first", [None, 5])
def test_a_model_that_draws_by_itself_repeats_whatever_was_drawn_before(
    first: int | None,
):
    task, local = _task(Noisy), LocalTraining(0.2, 2, 4)
    theta = task.initial(0)
    updates = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        trainer = Alone(task)
        if first is not None:
            trainer.train(theta, first, local, seed=0, round_number=1)
        updates.append(
            trainer.train(theta, 3, local, seed=4, round_number=1).values
        )
    np.testing.assert_array_equal(*updates)
    assert updates[0].any()
    other = Alone(task).train(theta, 3, local, seed=5, round_number=1).values
    assert not np.array_equal(updates[0], other)


class _Fails(DatasetTask):
    """Whose client 2 cannot be read."""

    def client(self, client_id: int) -> ClientData:
        if client_id == 2:
            raise KeyError("gone")
        return super().client(client_id)


@pytest.mark.parametrize("chunk", [1, 4])
def test_a_client_whose_data_fail_is_lost_alone(chunk: int):
    task = _Fails(_task(net).arguments)
    total = ClippedSum(task.dim, 0.5)
    counts = _cohort(task, chunk).train(
        task.initial(0),
        range(4),
        LocalTraining(),
        total,
        seed=0,
        round_number=1,
    )
    assert counts.clients == 3
    assert [fault.text for fault in counts.faults] == [
        "client 2: KeyError: 'gone'"
    ]
