"""Local training of one client."""

import dataclasses
import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import numpy as np
import pytest
import torch
from alone import Alone
from torch import nn

from fl_epe.mechanism import ClippedSum
from fl_epe.models import bind_parameters
from fl_epe.seeding import generator
from fl_epe.tasks import ClientData, LossSum, Task
from fl_epe.tasks.images import Digits
from fl_epe.tasks.losses import cross_entropy
from fl_epe.training import CohortTrainer, Execution, LocalTraining

LOCAL = LocalTraining(learning_rate=0.1, epochs=2, batch_size=8)


@dataclasses.dataclass(frozen=True)
class _Line(Task):
    """Five examples, a linear model: its gradient fits in one line of numpy."""

    name: ClassVar[str] = "line"
    num_clients: int = 2

    def model(self) -> nn.Module:
        return nn.Linear(3, 4)

    def client(self, client_id: int) -> ClientData:
        self.check_client(client_id)
        random = generator(7, client_id)
        inputs = torch.from_numpy(random.standard_normal((5, 3), np.float32))
        return ClientData(inputs, torch.from_numpy(random.integers(0, 4, 5)))

    def held_out(self) -> ClientData:
        return self.client(0)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> LossSum:
        return cross_entropy(outputs, targets)


@pytest.fixture(scope="module")
def theta() -> np.ndarray:
    return Digits().initial(0)


def _delta(
    theta: np.ndarray, client_id: int, trainer: Alone | None = None
) -> bytes:
    trainer = trainer or Alone(Digits())
    return trainer.train(
        theta, client_id, LOCAL, seed=1, round_number=2
    ).values.tobytes()


def _keep(
    random: np.random.Generator, shape: torch.Size, dropped: int
) -> torch.Tensor:
    words = random.integers(0, 2**64, -(-shape.numel() // 8), np.uint64)
    return torch.from_numpy(
        words.view(np.uint8)[: shape.numel()].reshape(shape) >= dropped
    )


def _naive_update(
    theta: np.ndarray,
    data: ClientData,
    local: LocalTraining,
    random: np.random.Generator,
) -> np.ndarray:
    """The same client with torch's own layers, `torch.optim.SGD`, and no buffer shared."""
    features = nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )
    hidden = nn.Sequential(nn.Linear(9216, 128), nn.ReLU())
    output = nn.Linear(128, 62)
    parameters = [
        p for part in (features, hidden, output) for p in part.parameters()
    ]
    nn.utils.vector_to_parameters(torch.from_numpy(theta.copy()), parameters)
    optimizer = torch.optim.SGD(parameters, lr=local.learning_rate)
    for _ in range(local.epochs):
        order = random.permutation(len(data))
        for start in range(0, len(data), local.batch_size):
            rows = order[start : start + local.batch_size]
            x = features(data.inputs[rows]).flatten(1)
            x = x * _keep(random, x.shape, 64) / 0.75
            x = hidden(x)
            x = x * _keep(random, x.shape, 128) / 0.5
            optimizer.zero_grad()
            nn.functional.cross_entropy(
                output(x), data.targets[rows]
            ).backward()
            optimizer.step()
    return nn.utils.parameters_to_vector(parameters).detach().numpy() - theta


def test_the_update_is_that_of_a_plain_torch_loop(theta: np.ndarray):
    task = Digits()
    client_id = next(
        i for i in range(task.num_clients) if len(task.client(i)) > 16
    )
    update = Alone(task).train(theta, client_id, LOCAL, seed=1, round_number=2)
    naive = _naive_update(
        theta, task.client(client_id), LOCAL, generator(1, 2, client_id)
    )
    assert np.abs(naive).max() > 1e-2
    np.testing.assert_allclose(update.values, naive, rtol=0, atol=1e-6)


def test_one_step_on_a_linear_model_is_the_gradient_in_numpy():
    task = _Line()
    theta = task.initial(3)
    update = Alone(task).train(
        theta, 1, LocalTraining(0.5, 1, 5), seed=0, round_number=0
    )
    data = task.client(1)
    x, weight = data.inputs.numpy(), theta[:12].reshape(4, 3)
    logits = x @ weight.T + theta[12:]
    share = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    error = (share - np.eye(4)[data.targets.numpy()]) / 5
    expected = -0.5 * np.concatenate([(error.T @ x).ravel(), error.sum(0)])
    np.testing.assert_allclose(update.values, expected, atol=1e-6)
    assert update.loss_sum == pytest.approx(
        -np.log(share[range(5), data.targets]).sum(), rel=1e-5
    )
    assert update.correct == np.sum(logits.argmax(1) == data.targets.numpy())
    assert update.examples == 5


def test_examples_of_every_epoch_count():
    update = Alone(_Line()).train(
        _Line().initial(0), 0, LocalTraining(0.1, 3, 2), seed=0, round_number=0
    )
    assert update.examples == 15


@pytest.mark.slow
def test_threads_and_what_was_trained_before_change_no_bit(theta: np.ndarray):
    clients = [3, 1, 4, 15, 9, 2]
    trainer = Alone(Digits())
    alone = [_delta(theta, i, trainer) for i in clients]
    assert [_delta(theta, i) for i in clients[::-1]] == alone[::-1]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda i: _delta(theta, i), clients)) == alone


@pytest.mark.weekly
def test_another_process_with_other_threads_gives_the_same_bits(
    theta: np.ndarray,
):
    code = (
        "import hashlib, torch; torch.set_num_threads(2); torch.manual_seed(9)\n"
        "from fl_epe.tasks.images import Digits\n"
        "from fl_epe.seeding import generator\n"
        "from fl_epe.training import Execution, LocalTraining\n"
        "from fl_epe.training.local import Trainer\n"
        "local = LocalTraining(learning_rate=0.1, epochs=2, batch_size=8)\n"
        "task, random = Digits(), generator(1, 2, 11)\n"
        "theta, trainer = torch.tensor(task.initial(0)), Trainer(task, Execution('cpu'))\n"
        "update, _ = trainer.train(theta, task.client(11), local, random)\n"
        "print(hashlib.sha256(update.numpy().tobytes()).hexdigest())"
    )
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == hashlib.sha256(_delta(theta, 11)).hexdigest()


def test_training_leaves_the_global_model_and_torchs_state_alone(
    theta: np.ndarray,
):
    frozen = theta.copy()
    frozen.flags.writeable = False
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    _delta(frozen, 0)
    np.testing.assert_array_equal(frozen, theta)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_an_update_does_not_change_when_the_trainer_goes_on(theta: np.ndarray):
    trainer = Alone(Digits())
    update = trainer.train(theta, 0, LOCAL, seed=1, round_number=2)
    before = update.values.copy()
    trainer.train(theta, 1, LOCAL, seed=1, round_number=2)
    np.testing.assert_array_equal(update.values, before)


@pytest.mark.slow
@pytest.mark.parametrize("changed", [{"seed": 5}, {"round_number": 3}])
def test_seed_and_round_draw_other_randomness(
    theta: np.ndarray, changed: dict[str, int]
):
    trainer, usual = Alone(Digits()), {"seed": 1, "round_number": 2}
    one = trainer.train(theta, 0, LOCAL, **usual).values
    other = trainer.train(theta, 0, LOCAL, **(usual | changed)).values
    assert not np.array_equal(one, other)


def test_the_loss_falls_with_local_epochs(theta: np.ndarray):
    trainer = Alone(Digits())
    losses = []
    for epochs in (1, 4, 8):
        update = trainer.train(
            theta, 5, LocalTraining(0.05, epochs), seed=0, round_number=0
        )
        losses.append(update.loss_sum / update.examples)
    assert losses[0] > losses[1] > losses[2]
    assert losses[0] == pytest.approx(np.log(62), abs=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            {"batch_size": 0},
            "batch_size=0 to be an integer >= 1",
            id="batch_size",
        ),
        pytest.param(
            {"epochs": 0}, "epochs=0 to be an integer >= 1", id="epochs"
        ),
        pytest.param(
            {"learning_rate": 0.0},
            r"Expected learning_rate=0\.0 in \(0, inf\)",
            id="learning_rate",
        ),
        pytest.param(
            {"learning_rate": float("inf")},
            "learning_rate=inf",
            id="learning_rate=inf",
        ),
        pytest.param(
            {"learning_rate": float("nan")},
            "learning_rate=nan",
            id="learning_rate=nan",
        ),
    ],
)
def test_impossible_local_training_is_refused(
    options: dict[str, float], message: str
):
    with pytest.raises(ValueError, match=message):
        LocalTraining(**options)


@pytest.mark.parametrize(
    "bad", [np.zeros(7, np.float32), np.zeros(16), np.zeros((1, 16), "f4")]
)
def test_a_model_of_another_shape_or_type_is_refused(bad: np.ndarray):
    with pytest.raises(ValueError, match=r"to be float32 of shape"):
        CohortTrainer(_Line()).train(
            bad, [0], LOCAL, ClippedSum(16, 1), seed=0, round_number=0
        )


def test_the_cnns_gradient_is_that_of_finite_differences():
    task = Digits()
    model = task.model().double().train()
    # Biases other than zero: where the paper is blank, relu would have its kink there.
    flat = torch.from_numpy(
        task.initial(2) + generator(5).normal(0, 0.02, task.dim)
    )
    bind_parameters(model, flat)
    data = task.client(3)
    inputs, targets = data.inputs[:3].double(), data.targets[:3]

    def loss() -> torch.Tensor:
        model.dropout1.random = model.dropout2.random = generator(4)
        return task.loss(model(inputs), targets).loss

    for part in model.parameters():
        (gradient,) = torch.autograd.grad(loss(), [part])
        # Along the gradient, and so small a step that hardly a relu or a maximum switches.
        direction, step = gradient / gradient.norm(), 1e-8
        start, ends = part.detach().clone(), []
        for sign in (1, -1):
            with torch.no_grad():
                part.copy_(start + sign * step * direction)
                ends.append(loss())
                part.copy_(start)
        slope = (ends[0] - ends[1]) / (2 * step)
        assert slope.item() == pytest.approx(gradient.norm().item(), rel=1e-4)


def test_the_cnn_takes_images_that_lie_in_any_way_in_memory():
    task = Digits()
    model = task.model().train()
    bind_parameters(model, torch.from_numpy(task.initial(2)))
    images = task.client(3).inputs[:4]
    turned = images.permute(2, 3, 1, 0).contiguous().permute(3, 2, 0, 1)
    gradients = []
    for inputs in (images, turned):
        model.dropout1.random = model.dropout2.random = generator(4)
        loss = task.loss(model(inputs), torch.arange(4)).loss
        parts = torch.autograd.grad(loss, list(model.parameters()))
        gradients.append(torch.cat([part.flatten() for part in parts]))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_step_in_bf16_on_a_cpu_is_near():
    task, theta, step = Digits(), Digits().initial(0), LocalTraining(0.1, 1, 64)

    def distance(
        client: int,
    ) -> float:  # a maximum of a pool that is another one counts much
        exact, near = (
            Alone(task, execution)
            .train(theta, client, step, seed=1, round_number=2)
            .values
            for execution in (
                Execution(device="cpu"),
                Execution("cpu", precision="bf16"),
            )
        )
        return float(np.linalg.norm(near - exact) / np.linalg.norm(exact))

    assert 1e-4 < np.median([distance(client) for client in range(5)]) < 0.1
