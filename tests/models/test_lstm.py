"""The LSTM against torch's own."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fl_epe.data.examples import PAD
from fl_epe.models import Lstm, bind_parameters
from fl_epe.seeding import generator
from fl_epe.tasks import ClientData, load_task
from fl_epe.tasks.losses import cross_entropy

VOCABULARY, EMBEDDING, HIDDEN, LENGTH = 40, 6, 10, 7
TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-13}


def _model(dtype: torch.dtype = torch.float64) -> tuple[Lstm, torch.Tensor]:
    """A small one with larger weights than at the start, and its flat parameters."""
    model = Lstm(VOCABULARY, EMBEDDING, HIDDEN).to(dtype).train()
    size = sum(parameter.numel() for parameter in model.parameters())
    flat = torch.from_numpy(generator(1).uniform(-0.7, 0.7, size)).to(dtype)
    bind_parameters(model, flat)
    return model, flat


def _words(n: int = 5, seed: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of sentences that end in padding."""
    random = generator(seed)
    words = random.integers(1, VOCABULARY, (n, LENGTH + 1))
    words[np.arange(LENGTH + 1) >= random.integers(2, LENGTH, n)[:, None]] = 0
    return torch.from_numpy(words[:, :-1].copy()), torch.from_numpy(
        words[:, 1:].copy()
    )


def _torchs_logits(model: Lstm, tokens: torch.Tensor) -> torch.Tensor:
    """The same with `torch.nn.LSTM`, whose second bias is frozen at zero."""
    layer = nn.LSTM(
        EMBEDDING, HIDDEN, batch_first=True, dtype=model.embedding.weight.dtype
    )
    own = {
        "weight_ih_l0": model.lstm.weight_ih,
        "weight_hh_l0": model.lstm.weight_hh,
        "bias_ih_l0": model.lstm.bias,
        "bias_hh_l0": torch.zeros_like(model.lstm.bias),
    }
    inputs = functional.embedding(tokens, model.embedding.weight)
    states, _ = torch.func.functional_call(layer, own, (inputs,))
    return model.dense2(model.dense1(states))


def _torchs_gradient(
    model: Lstm, tokens: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = _torchs_logits(model, tokens)
    picked = functional.log_softmax(logits, 2).gather(2, targets[..., None])[
        ..., 0
    ]
    loss = -(picked * (targets != 0)).sum()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return loss.detach(), torch.cat([part.flatten() for part in gradients])


def test_it_has_exactly_as_many_parameters_as_in_the_literature():
    sizes = [
        sum(p.numel() for p in part.parameters()) for part in Lstm().children()
    ]
    assert sizes == [960_384, 2_055_560, 64_416, 970_388]
    assert sum(sizes) == 4_050_748


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("unrolled", [False, True])
def test_logits_and_gradients_are_those_of_torchs_lstm(
    dtype: torch.dtype, unrolled: bool
):
    model, _ = _model(dtype)
    model.lstm.unrolled = unrolled
    tokens, targets = _words()
    logits = model(tokens)
    assert logits.shape == (5, LENGTH, VOCABULARY)
    torch.testing.assert_close(
        logits, _torchs_logits(model, tokens), rtol=0, atol=TOLERANCE[dtype]
    )
    loss, expected = _torchs_gradient(model, tokens, targets)
    result = cross_entropy(logits, targets, PAD)
    gradients = torch.autograd.grad(result.loss, list(model.parameters()))
    mine = torch.cat([part.flatten() for part in gradients])
    torch.testing.assert_close(
        mine, expected, rtol=0, atol=20 * TOLERANCE[dtype]
    )
    assert result.loss.item() == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.parametrize("unrolled", [False, True])
def test_its_gradient_is_that_of_finite_differences(unrolled: bool):
    model, _ = _model()
    model.lstm.unrolled = unrolled
    tokens, targets = _words()
    random, step = generator(6), 1e-5
    for part in model.parameters():
        (gradient,) = torch.autograd.grad(
            cross_entropy(model(tokens), targets, PAD).loss, [part]
        )
        direction = torch.from_numpy(random.standard_normal(part.shape))
        start, ends = part.detach().clone(), []
        for sign in (1, -1):
            with torch.no_grad():
                part.copy_(start + sign * step * direction)
                ends.append(cross_entropy(model(tokens), targets, PAD).loss)
                part.copy_(start)
        slope = (ends[0] - ends[1]) / (2 * step)
        assert slope.item() == pytest.approx(
            (gradient * direction).sum().item(), rel=1e-5
        )


def test_padding_counts_neither_in_the_loss_nor_in_the_accuracy():
    logits = torch.zeros(1, 3, 4, requires_grad=True)
    with torch.no_grad():
        logits[0, 0, 2] = 5.0
    result = cross_entropy(logits, torch.tensor([[2, 1, 0]]), PAD)
    assert result.examples == 2
    assert (
        result.correct == 1
    )  # the second position is a tie, which the first word wins
    assert result.loss.item() == pytest.approx(
        np.log(3 + np.exp(5.0)) - 5 + np.log(4)
    )
    (gradient,) = torch.autograd.grad(result.loss, logits)
    assert not gradient[0, 2].any()


def test_leaving_the_padding_out_changes_neither_loss_nor_gradient():
    model, _ = _model()
    task, (tokens, targets) = load_task("synthetic-stackoverflow"), _words()
    targets[1] = 0  # a sentence without words
    results = [
        task.batch_loss(model, ClientData(tokens, targets)),
        task.loss(model(tokens), targets),
    ]
    gradients = [
        torch.autograd.grad(r.loss, list(model.parameters())) for r in results
    ]
    for mine, plain in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, plain, rtol=0, atol=1e-12)
    assert results[0].loss.item() == pytest.approx(
        results[1].loss.item(), rel=1e-12
    )
    assert [r.examples for r in results] == [int((targets != 0).sum())] * 2
    assert results[0].correct == results[1].correct


def test_sentences_of_nothing_but_padding_move_nothing():
    model, _ = _model()
    nothing = torch.zeros(2, LENGTH, dtype=torch.int64)
    result = cross_entropy(model(nothing), nothing, PAD)
    assert (result.loss.item(), result.correct, result.examples) == (0.0, 0, 0)
    for gradient in torch.autograd.grad(result.loss, list(model.parameters())):
        assert not gradient.any()


def test_it_starts_as_keras_does():
    model = Lstm(400, 20, 30)
    parts = list(model.initial_values(generator(5)))
    bind_parameters(
        model,
        torch.from_numpy(np.concatenate([part.ravel() for part in parts])),
    )
    again = list(model.initial_values(generator(5)))
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    assert all(part.dtype == np.float32 for part in parts)
    # |U(−a, a)| has mean a/2 and standard deviation a/√12.
    for weight, limit in (
        (model.embedding.weight, 0.05),
        (model.lstm.weight_ih, np.sqrt(6 / (20 + 4 * 30))),
        (model.dense1.weight, np.sqrt(6 / 50)),
        (model.dense2.weight, np.sqrt(6 / 420)),
    ):
        sizes = weight.detach().abs()
        assert float(sizes.max()) <= limit
        standard_error = limit / np.sqrt(12 * weight.numel())
        assert abs(float(sizes.mean()) - limit / 2) < 5 * standard_error
    recurrent = model.lstm.weight_hh.detach()
    torch.testing.assert_close(
        recurrent.t() @ recurrent, torch.eye(30), rtol=0, atol=1e-5
    )
    assert model.lstm.bias.tolist() == [0.0] * 30 + [1.0] * 30 + [0.0] * 60
    assert not model.dense1.bias.any()
    assert not model.dense2.bias.any()
