"""Dropout from a seed."""

import pytest
import torch

from fl_epe.models import SeededDropout
from fl_epe.seeding import generator


def test_dropout_drops_its_share_and_keeps_the_mean():
    layer = SeededDropout(0.25).train()
    layer.random = generator(0)
    outputs = layer(torch.ones(100, 1000))
    assert outputs.unique().tolist() == [0.0, pytest.approx(4 / 3)]
    # 10⁵ Bernoulli draws: the standard error of the share is √(¼·¾/10⁵) < 0.0014.
    assert float((outputs == 0).float().mean()) == pytest.approx(0.25, abs=5 * 0.0014)


def test_dropout_does_nothing_in_evaluation():
    inputs = torch.rand(3, 4)
    assert SeededDropout(0.5).eval()(inputs) is inputs


def test_dropout_needs_a_generator_in_training():
    with pytest.raises(RuntimeError, match=r"SeededDropout.random"):
        SeededDropout(0.5).train()(torch.ones(2))


@pytest.mark.parametrize("rate", [-0.25, 1.0, 0.3, float("nan")])
def test_dropout_rates_that_cannot_be_met_exactly_are_refused(rate: float):
    with pytest.raises(ValueError, match=f"rate={rate}"):
        SeededDropout(rate)
