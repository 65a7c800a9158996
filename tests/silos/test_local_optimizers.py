"""Optimizers of a silo: what each uploads is measured right, or not measured with the reason."""

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager
from silo_federation import (
    DELTA,
    LEARNING_RATE,
    Silo,
    by_adversary,
    holds_limit,
)

from fl_epe.auditing import FederationFacts
from fl_epe.canaries import CanarySet
from fl_epe.seeding import generator
from fl_epe.silos import audit_records, final_answer
from fl_epe.silos.audit import _COINS
from fl_epe.silos.memory import SiloMemory

pytestmark = [
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore:Optimal order is the largest alpha"),
]

FEATURES, RECORDS, BATCH = 20, 600, 60


class OfVector(DPOptimizer):  # type: ignore[misc]
    """Opacus's optimizer of a model that is one vector, for `Silo`."""

    @property
    def theta(self):
        """The model, ``(dim,)``."""
        return self.params[0].detach().numpy()


def of_vector(model, noise, *, z=0.6, batch=100, **options):
    inner = torch.optim.SGD(
        [torch.nn.Parameter(torch.tensor(model))], lr=LEARNING_RATE, **options
    )
    return OfVector(
        inner,
        noise_multiplier=z,
        max_grad_norm=1.0,
        expected_batch_size=batch,
        generator=torch.Generator().manual_seed(noise % 2**60),
    )


def take_steps(optimizer, sizes):
    """Steps of records without gradients."""
    for size in sizes:
        optimizer.params[0].grad_sample = torch.zeros(
            size, *optimizer.params[0].shape
        )
        optimizer.step()
        optimizer.zero_grad()


SGD = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "weight-decay": {"weight_decay": 0.3},
    "momentum,weight-decay": {"momentum": 0.9, "weight_decay": 0.3},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "dampening": {"momentum": 0.9, "dampening": 0.4, "weight_decay": 0.3},
}


@pytest.mark.parametrize("name", SGD)
def test_an_upload_is_what_single_impulses_make_of_it(monkeypatch, name):
    dim, steps, batch, count, rate = 400, 13, 10, 15, 0.2
    uploads = []
    monkeypatch.setattr(
        SiloMemory, "note_upload", lambda _, upload: uploads.append(upload)
    )
    start = np.random.default_rng(1).standard_normal(dim).astype(np.float32)
    optimizer = of_vector(start, 0, z=0.0, batch=batch, **SGD[name])
    options = {
        "num_canaries": count,
        "unobserved": 5,
        "seed": 3,
        "sample_rate": rate,
    }
    with audit_records({}, optimizer, delta=DELTA, **options):
        take_steps(optimizer, [batch] * steps)
    (upload,) = uploads

    def moved_by(step):
        """How far an upload's canary moves a model that was at 0."""
        parameter = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        alone = torch.optim.SGD([parameter], lr=LEARNING_RATE, **SGD[name])
        for index in range(steps):
            parameter.grad = torch.full(
                (1,), -1.0 / batch if index == step else 0.0
            ).double()
            alone.step()
        return parameter.item()

    moved = np.array([moved_by(step) for step in range(steps)])
    rng = generator(3, _COINS, 0, 1)
    drawn = np.array([rng.binomial(1, rate, count) for _ in range(steps)])
    assert drawn.sum() > 20
    assert upload.unit * upload.weights == pytest.approx(moved)
    assert upload.unit * upload.times == pytest.approx(moved @ drawn)
    vectors = CanarySet(dim, count + 5, 3).vectors(range(count))
    canaries = upload.unit * upload.times @ vectors
    assert upload.hidden == pytest.approx(
        canaries, abs=2e-5 * np.linalg.norm(canaries)
    )
    assert upload.variance == 0.0


@pytest.mark.slow
def test_epsilon_contains_the_linear_limit():
    how = {"momentum": 0.9, "weight_decay": 0.01}
    silo = Silo(
        steps=8,
        rounds=5,
        optimizer=lambda model, noise, _: of_vector(model, noise, **how),
        train=take_steps,
    )
    for line in silo.answer().lines:
        assert line.reason == ""
        assert holds_limit(line)


def test_steps_that_end_on_the_other_side():
    how = {"momentum": 0.9, "weight_decay": 0.3}
    silo = Silo(
        rounds=2,
        optimizer=lambda model, noise, _: of_vector(model, noise, **how),
        train=take_steps,
    )
    assert_reason(
        silo.answer(),
        "some steps move the model the other way by the end of a round",
    )


def network():
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 12), torch.nn.Linear(12, 3)
    )


class OneSilo:
    """A federation of one silo that trains with Opacus; what it does is given as functions."""

    def __init__(self, **options):
        self.options = {"num_canaries": 40, "seed": 1} | options
        self.where = {}
        torch.manual_seed(0)
        rng = torch.Generator().manual_seed(5)
        inputs = torch.randn(RECORDS, FEATURES, generator=rng)
        self.data = torch.utils.data.TensorDataset(
            inputs, torch.arange(RECORDS) % 3
        )
        self.mode, self.batch, self.physical = {}, BATCH, None
        self.model, self.engine, self.kept = network(), PrivacyEngine(), None

    def inner(self, model):
        """The optimizer of a round."""
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def sent(self, model, start):
        """What is sent of a trained model."""
        return {
            name: array.detach().float().numpy()
            for name, array in model.named_parameters()
        }

    def round(self, index):
        torch.manual_seed(index)
        start, model = copy.deepcopy(self.model), copy.deepcopy(self.model)
        loader = torch.utils.data.DataLoader(self.data, batch_size=self.batch)
        more = (
            {"criterion": torch.nn.CrossEntropyLoss()}
            if "grad_sample_mode" in self.mode
            else {}
        )
        options = {
            "noise_multiplier": 1.0,
            "max_grad_norm": 1.0,
            **self.mode,
            **more,
        }
        private, optimizer, *rest = self.engine.make_private(
            module=model,
            optimizer=self.inner(model),
            data_loader=loader,
            **options,
        )
        loader, criterion = (
            rest[-1],
            rest[0] if more else torch.nn.functional.cross_entropy,
        )
        with audit_records(
            self.where, optimizer, delta=DELTA, **self.options
        ) as audit:
            if self.physical is None:
                self.steps(private, optimizer, loader, criterion)
            else:
                with BatchMemoryManager(
                    data_loader=loader,
                    max_physical_batch_size=self.physical,
                    optimizer=optimizer,
                ) as parts:
                    self.steps(private, optimizer, parts, criterion)
        self.altered(model)
        audit.sent(self.sent(model, start))
        self.model.load_state_dict(model.state_dict())
        self.audit = audit

    def steps(self, private, optimizer, loader, criterion):
        """The steps of a round."""
        kind = next(private.parameters()).dtype
        for inputs, labels in loader:
            optimizer.zero_grad()
            criterion(private(inputs.to(kind)), labels).backward()
            optimizer.step()

    def altered(self, model):
        """What is done to a trained model before it is sent."""

    def answer(self, rounds=3):
        for index in range(rounds):
            self.round(index)
        facts = FederationFacts(rounds, tuple(range(1, rounds + 1)), 1)
        last = [p for p in self.model.parameters() if p.requires_grad]
        return final_answer(self.where, last, facts)


def assert_measured(answer):
    lines = by_adversary(answer)
    assert answer.faults == ()
    for name in ("server", "outsider", "public"):
        assert lines[name].reason == ""
        assert lines[name].low < lines[name].high
        assert (lines[name].proved or 0) < lines[name].theory
    assert lines["partner"].reason == "there is no other silo"


def assert_reason(answer, reason):
    assert answer.faults == ()
    for line in answer.lines:
        assert reason in line.reason
        assert (line.epsilon, line.proved, line.linear_limit) == (
            None,
            None,
            None,
        )


@pytest.mark.slow
def test_one_silo_alone_has_no_partner():
    assert_measured(OneSilo().answer())


def test_adam_is_no_sum_of_gradients():
    silo = OneSilo()
    silo.inner = lambda model: torch.optim.Adam(model.parameters())  # type: ignore[method-assign]
    assert_reason(
        silo.answer(), "Adam moves the model, so that an upload is no sum"
    )


def test_groups_of_parameters_that_move_differently():
    silo = OneSilo()
    silo.inner = lambda model: torch.optim.SGD(  # type: ignore[method-assign]
        [
            {"params": layer.parameters(), "lr": 0.1 * i}
            for i, layer in enumerate(model, 1)
        ]
    )
    assert_reason(
        silo.answer(),
        "SGD moves tensors differently, so that an upload is no sum",
    )


def test_momentum_of_an_earlier_round():
    class Kept(Silo):
        made = None

        def local(self, model, noise, index):
            if self.made is None:
                self.made = of_vector(model, noise, momentum=0.5)
            self.made.params[0].data = torch.tensor(model)
            return super().local(model, noise, index).copy()

    silo = Kept(rounds=3, dim=300, train=take_steps)
    silo.optimizer = lambda *_: silo.made
    assert_reason(
        silo.answer(),
        "momentum is carried over from an earlier round, in 2 of 3 rounds",
    )


@pytest.mark.slow
def test_an_optimizer_that_is_kept():
    class Kept(Silo):
        made = None

        def local(self, model, noise, index):
            if self.made is None:
                self.made = of_vector(model, noise)
            self.made.params[0].data = torch.tensor(model)
            return super().local(model, noise, index).copy()

    silo = Kept(dim=300, train=take_steps)
    silo.optimizer = lambda *_: silo.made
    assert {line.reason for line in silo.answer().lines} == {""}


def test_layers_that_stay_in_the_silo():
    silo = OneSilo()
    whole = silo.sent
    silo.sent = lambda *given: {  # type: ignore[method-assign]
        name: array for name, array in whole(*given).items() if name[0] == "0"
    }
    assert_reason(
        silo.answer(), "2 of 4 trained tensors are not in what the silo sends"
    )


def test_models_sent_as_differences():
    silo = OneSilo()
    silo.sent = lambda model, start: {  # type: ignore[method-assign]
        name: (one - other).detach().numpy()
        for (name, one), other in zip(
            model.named_parameters(), start.parameters(), strict=True
        )
    }
    assert_measured(silo.answer())


@pytest.mark.parametrize(
    "in_place", [False, True], ids=["to-a-copy", "in-place"]
)
def test_noise_after_training(in_place):
    def add_noise(model):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.1 * torch.randn(p.shape))

    silo = OneSilo()
    if in_place:
        silo.altered = add_noise  # type: ignore[method-assign]
    else:
        whole = silo.sent

        def sent(*arguments):
            arrays = whole(*arguments)
            return {name: array + 1 for name, array in arrays.items()}

        silo.sent = sent  # type: ignore[method-assign]
    assert_reason(silo.answer(), "local DP")


def test_a_learning_rate_of_zero():
    silo = OneSilo()
    silo.inner = lambda model: torch.optim.SGD(model.parameters(), lr=0.0)  # type: ignore[method-assign]
    assert_reason(silo.answer(), "the learning rate was 0, in 3 of 3 rounds")


@pytest.mark.slow
def test_a_learning_rate_that_is_zero_at_first():
    def train(optimizer, sizes):
        for step, size in enumerate(sizes):
            optimizer.learning_rate = LEARNING_RATE if step > 9 else 1e-300
            optimizer.learning_rate *= step > 9
            optimizer.step(np.zeros((size, silo.dim), np.float32))

    silo = Silo(dim=300, train=train)
    for line in silo.answer().lines:
        assert line.reason == ""
        assert holds_limit(line)


@pytest.mark.slow
def test_batches_that_are_empty():
    silo = OneSilo(num_canaries=40)
    silo.batch = 2
    seen: list[Any] = []
    whole = silo.steps

    def steps(private, optimizer, loader, criterion):
        batches = list(loader)[:40]
        seen.extend(len(labels) for _, labels in batches)
        whole(private, optimizer, batches, criterion)

    silo.steps = steps  # type: ignore[method-assign]
    assert_measured(silo.answer())
    assert 0 in seen


@pytest.mark.slow
def test_batches_in_parts():
    silo = OneSilo()
    silo.physical = 16
    answer = silo.answer()
    assert_measured(answer)
    assert by_adversary(answer)["server"].theory == pytest.approx(
        by_adversary(OneSilo().answer())["server"].theory
    )


@pytest.mark.slow
def test_batches_that_are_shuffled():
    silo = OneSilo()
    silo.mode = {"poisson_sampling": False}
    answer = silo.answer()
    assert answer.faults == (
        "batch sizes are not those of Poisson sampling at the rate of the accounting",
    )


@pytest.mark.slow
def test_ghost_clipping():
    silo = OneSilo()
    silo.mode = {"grad_sample_mode": "ghost"}
    answer = silo.answer()
    assert_measured(answer)
    assert any(
        "ghost clipping keeps no gradients" in note for note in answer.notes
    )


def test_clipping_by_layer():
    silo = OneSilo()
    silo.mode = {"clipping": "per_layer", "max_grad_norm": [1.0] * 4}
    for index in range(2):
        silo.round(index)
    assert_reason(silo.audit.answer(), "Expected one clip norm for all layers")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [torch.float64, torch.bfloat16], ids=["float64", "bfloat16"]
)
def test_other_kinds_of_numbers(kind):
    silo = OneSilo()
    silo.model = silo.model.to(kind)
    silo.sent = lambda model, _: {  # type: ignore[method-assign]
        name: array.detach()
        .to(torch.float64 if kind is torch.float64 else torch.float32)
        .numpy()
        for name, array in model.named_parameters()
    }
    answer = silo.answer()
    if (
        kind is torch.bfloat16
    ):  # whose noise has a coarse grid, which is seen or not
        assert all(
            "noise is not as claimed (grid)" in fault for fault in answer.faults
        )
        answer = dataclasses.replace(answer, faults=())
    assert_measured(answer)


@pytest.mark.slow
def test_a_tensor_that_is_frozen():
    silo = OneSilo()
    silo.model[0].bias.requires_grad = False
    assert_measured(silo.answer())
