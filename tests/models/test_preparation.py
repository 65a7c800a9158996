"""Any torch module made ready for training, and what is said of it."""

from typing import Any

import numpy as np
import pytest
import torch
from own_data import Noisy, Tied, net, normalised
from torch import nn

from fl_epe.models import SeededDropout, model_notes, prepared, trainable
from fl_epe.models.preparation import draws_by_itself, training_notes


def _values(model: nn.Module) -> np.ndarray:
    return np.concatenate(
        [p.detach().numpy().ravel() for p in trainable(model)]
    )


def _notes(model: nn.Module, shape: tuple[int, ...] = (2, 4)) -> list[str]:
    model = prepared(lambda: model).train()
    inputs = torch.ones(shape)
    return training_notes(model, lambda: model(inputs).square().sum())


def test_initial_values_are_a_function_of_the_seed_and_leave_torchs_generator_alone():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, again, other = (_values(prepared(net, seed)) for seed in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    np.testing.assert_array_equal(first, again)
    assert np.mean(first == other) < 0.1


def _dropouts(model: nn.Module) -> tuple[int, int]:
    """How many of torch's layers, and how many seeded ones."""
    parts = list(model.modules())
    return (
        sum(type(part) is nn.Dropout for part in parts),
        sum(isinstance(part, SeededDropout) for part in parts),
    )


class _OneTwice(nn.Module):
    """The same dropout under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.second = nn.Dropout(0.25)
        self.nothing = None
        self.last = nn.Linear(4, 3)


@pytest.mark.parametrize(
    ("build", "seeded"),
    [
        pytest.param(
            lambda: nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)),
            1,
            id="sequential",
        ),
        pytest.param(
            lambda: nn.ModuleDict(
                {"a": nn.ModuleList([nn.Sequential(nn.Dropout(0.1))])}
            ),
            1,
            id="nested",
        ),
        pytest.param(
            lambda: nn.TransformerEncoderLayer(4, 2, 8, 0.1),
            3,
            id="transformer",
        ),
        pytest.param(_OneTwice, 2, id="two-names"),
    ],
)
def test_dropout_is_replaced_wherever_it_is(
    build: type[nn.Module], seeded: int
):
    assert _dropouts(prepared(build)) == (0, seeded)


def test_a_replaced_dropout_keeps_its_rate_and_its_mode():
    model: Any = prepared(
        lambda: nn.Sequential(nn.Dropout(0.25), nn.Dropout(0.5).eval())
    )
    assert [layer.p for layer in model] == [0.25, 0.5]
    assert [layer.training for layer in model] == [True, False]


def test_something_that_is_no_module_is_refused():
    with pytest.raises(
        ValueError, match=r"Expected a torch.nn.Module as model, got dict"
    ):
        prepared(dict)


def test_a_plain_model_needs_no_note():
    assert model_notes(net()) == []
    assert _notes(net()) == []


def test_batch_norm_is_said_and_its_averages_are_no_buffer_to_warn_of():
    assert any(
        note.startswith("BatchNorm: ") for note in model_notes(normalised())
    )
    assert _notes(normalised()) == []


def test_frozen_parameters_are_counted():
    assert model_notes(Tied()) == [
        "4 frozen parameters (requires_grad=False) are neither trained nor audited: they stay as "
        "they are on every client."
    ]


def test_tied_weights_are_one_part_of_the_vector():
    # weight 16 (once), second bias 4, last layer 12 + 3; the first bias is frozen.
    assert len(_values(prepared(Tied))) == 35


class _Counts(nn.Module):
    """Scales its outputs by how often it was called."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.linear(inputs) * self.calls


def test_buffers_that_change_are_named_and_are_no_randomness():
    assert _notes(_Counts()) == [
        "Buffers that change while a client trains (calls) are not shared: every client starts "
        "with their initial values."
    ]


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        pytest.param(Noisy, (2, 4), id="alpha-dropout"),
        pytest.param(
            lambda: nn.Sequential(nn.Dropout1d(0.2), nn.Linear(4, 3)),
            (2, 3, 4),
            id="few-masks",
        ),
        pytest.param(
            lambda: nn.TransformerEncoderLayer(4, 2, 8, 0.5),
            (2, 3, 4),
            id="attention",
        ),
    ],
)
def test_a_model_that_draws_by_itself_is_said(
    build: type[nn.Module], shape: tuple[int, ...]
):
    model, state = build(), torch.random.get_rng_state()
    (note,) = _notes(model, shape)
    assert "--workers 1" in note
    assert torch.equal(state, torch.random.get_rng_state())


def test_seeded_dropout_is_no_drawing_of_ones_own():
    model = prepared(
        lambda: nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
    ).train()
    assert not draws_by_itself(model, lambda: model(torch.ones(2, 4)).sum())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        pytest.param(
            lambda: nn.Linear(2, 2).double(),
            "'weight'.*float64.*float()",
            id="float64",
        ),
        pytest.param(
            lambda: nn.Linear(2, 2).half(), "'weight'.*float16", id="half"
        ),
        pytest.param(
            lambda: nn.ReLU(),
            "parameters that have requires_grad=True",
            id="none",
        ),
        pytest.param(
            lambda: nn.Linear(2, 2).requires_grad_(False),
            "requires_grad=True",
            id="all-frozen",
        ),
    ],
)
def test_parameters_that_make_no_float32_vector_are_refused(
    build: type[nn.Module], message: str
):
    with pytest.raises(ValueError, match=message):
        model_notes(prepared(build))


def test_a_frozen_parameter_may_have_another_type():
    model = nn.Sequential(
        nn.Linear(2, 2).double().requires_grad_(False), nn.Linear(2, 2)
    )
    model_notes(model)
    assert len(trainable(model)) == 2
