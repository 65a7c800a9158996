"""`simulations/studies/canary_share.py`: what canaries cost a model."""

import numpy as np
import pytest

from simulations.studies import canary_share


def test_the_gradient_is_that_of_the_loss():
    sizes, rng = (4, 3, 3, 2), np.random.default_rng(0)
    theta = rng.standard_normal(15 + 12 + 8)
    inputs, labels = rng.standard_normal((5, 4)), rng.integers(0, 2, 5)

    def loss(theta):
        scores = canary_share.activations(theta, sizes, inputs)[-1]
        chances = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        return -chances[np.arange(5), labels].mean()

    step = 1e-6 * np.eye(len(theta))
    slopes = [(loss(theta + s) - loss(theta - s)) / 2e-6 for s in step]
    np.testing.assert_allclose(
        canary_share.gradient(theta, sizes, inputs, labels), slopes, atol=1e-7
    )


@pytest.mark.slow
def test_the_quick_form_prints_a_row_for_each_share():
    lines: list[str] = []
    canary_share.main(quick=True, say=lines.append)
    assert [line.split()[2:4] for line in lines[1:]] == [
        ["1", "9%"],
        ["2", "17%"],
        ["4", "29%"],
        ["10", "50%"],
    ]
    assert all(0.85 < float(line.split()[4]) < 0.95 for line in lines[1:])
