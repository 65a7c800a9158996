"""Dropout from a seed."""

import pytest
import torch

from fl_epe.models import SeededDropout
from fl_epe.seeding import generator


@pytest.mark.parametrize("rate", [0.25, 0.1])
def test_dropout_drops_its_share_and_keeps_the_mean(rate: float):
    layer = SeededDropout(rate).train()
    layer.random = generator(0)
    outputs = layer(torch.ones(100, 1000))
    assert outputs.unique().tolist() == [0.0, pytest.approx(1 / (1 - rate))]
    error = (
        rate * (1 - rate) / 1e5
    ) ** 0.5  # of the share of 10⁵ Bernoulli draws
    assert float((outputs == 0).float().mean()) == pytest.approx(
        rate, abs=5 * error
    )


def test_dropout_does_nothing_in_evaluation():
    inputs = torch.rand(3, 4)
    assert SeededDropout(0.5).eval()(inputs) is inputs


def test_dropout_needs_a_generator_in_training():
    with pytest.raises(RuntimeError, match=r"SeededDropout.random"):
        SeededDropout(0.5).train()(torch.ones(2))


@pytest.mark.parametrize("rate", [-0.25, 1.0, float("nan")])
def test_a_dropout_rate_outside_its_range_is_refused(rate: float):
    with pytest.raises(ValueError, match=f"p={rate}"):
        SeededDropout(rate)
