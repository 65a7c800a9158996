"""Many models at once: each is what plain DP-SGD on it would be, and canaries are as crafted."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn import functional

from fl_epe.auditing import Scores
from simulations.pradhan_2025.linear_digits import (
    GradientCanary,
    LinearDigits,
    Training,
    crafted_gradient,
    crafted_input,
    logit_difference,
    mislabelled,
    natural,
)
from simulations.pradhan_2025.substitute_bounds import epsilon_of_means
from simulations.pradhan_2025.substitute_models import audit
from simulations.shared.audit_script import Settings

CALM = Training(0.0, 1.0, 3, clip_norm=0.8, learning_rate=2.0, examples=7)


@pytest.fixture(scope="module")
def problem():
    return LinearDigits(CALM, seed=1)


@pytest.fixture(scope="module")
def reference(problem):
    return problem.reference()


def clipped_gradient(weights, example):
    """By automatic differentiation."""
    weights = weights.clone().requires_grad_()
    loss = functional.cross_entropy(
        (example.features @ weights)[None], torch.tensor([example.label])
    )
    (gradient,) = torch.autograd.grad(loss, weights)
    return gradient * min(1.0, CALM.clip_norm / float(gradient.norm()))


@pytest.mark.parametrize("kind", ["none", "example", "gradient"])
def test_training_is_plain_sgd_with_clipped_gradients(problem, kind):
    extra = {
        "none": None,
        "example": problem.example(20),
        "gradient": GradientCanary(13, 0.8),
    }[kind]
    weights = torch.zeros(65, 10)
    for _ in range(CALM.steps):
        total = sum(
            clipped_gradient(weights, problem.example(i))
            for i in range(CALM.examples)
        )
        if kind == "example":
            total = total + clipped_gradient(weights, extra)
        elif kind == "gradient":
            total[1, 3] += 0.8
        weights = weights - CALM.learning_rate / CALM.examples * total
    models = problem.train(extra, 2, 5)
    for model in models:
        np.testing.assert_allclose(model, weights, atol=1e-5)


def test_noise_and_sampling_have_their_sizes():
    """On a coordinate whose pixel is blank: T·(z·C)² and a binomial number of canaries."""
    training = dataclasses.replace(
        CALM, noise_multiplier=2.0, sampling_rate=0.3, steps=10
    )
    problem = LinearDigits(training, seed=1)
    rate = training.learning_rate / (0.3 * training.examples)
    moved = (
        -problem.train(GradientCanary(0, 0.8), 400, 7)[:, 0, 0].double().numpy()
        / rate
    )
    variance = 10 * (2.0 * 0.8) ** 2 + 10 * 0.3 * 0.7 * 0.8**2
    assert moved.mean() == pytest.approx(
        10 * 0.3 * 0.8, abs=4 * np.sqrt(variance / 400)
    )
    assert moved.var() == pytest.approx(variance, rel=4 * np.sqrt(2 / 400))


def test_a_seed_repeats_and_another_does_not():
    problem = LinearDigits(
        dataclasses.replace(CALM, noise_multiplier=1.0), seed=1
    )
    first, again, different = (
        problem.train(None, 3, *seed) for seed in ((1, 2), (1, 2), (1, 3))
    )
    assert torch.equal(first, again)
    assert not torch.isclose(first, different).any()
    assert not torch.isclose(first[0], first[1]).all()


def test_canaries_are_opposed_to_their_target(problem, reference):
    target = problem.example(reference.hardest)
    wrong_label = mislabelled(reference, target)
    assert torch.equal(wrong_label.features, target.features)
    assert wrong_label.label != target.label
    crafted = crafted_input(reference, target)
    assert crafted.label == target.label
    assert crafted.features[-1] == 1
    assert reference.cosine(target, crafted) < -0.5
    auxiliary = problem.auxiliary()
    chosen = natural(reference, target, auxiliary)
    cosines = [reference.cosine(target, other) for other in auxiliary]
    assert reference.cosine(target, chosen) == min(cosines) < 0


def test_the_crafted_gradient_is_on_a_coordinate_that_does_not_move(reference):
    plus, minus = crafted_gradient(reference, 0.8)
    assert (plus.value, minus.value) == (0.8, -0.8)
    assert plus.coordinate == minus.coordinate
    assert reference.moved[plus.coordinate] == reference.moved.min() == 0


def test_logits_of_target_and_canary(problem):
    weights = torch.arange(65 * 10 * 2).reshape(2, 65, 10).float()
    target, canary = problem.example(0), problem.example(1)
    expected = [
        float(
            (target.features @ w)[target.label]
            - (canary.features @ w)[canary.label]
        )
        for w in weights
    ]
    np.testing.assert_allclose(
        logit_difference(weights, target, canary), expected, rtol=1e-5
    )


def test_the_estimate_of_two_gaussians_of_one_spread():
    grid = np.linspace(-1.5, 1.5, 101)
    spread = grid.std(ddof=1)
    epsilon = epsilon_of_means(Scores(grid + spread, grid), 1e-5)
    assert epsilon == pytest.approx(
        4.377, abs=1e-3
    )  # of N(0, 1) against N(1, 1)
    assert epsilon_of_means(Scores(grid, grid + 1), 1e-5) == 0


@pytest.mark.slow
def test_the_quick_audit_has_bounds_above_add_or_remove_and_within_substitute():
    result = audit(Settings(quick=True))
    assert result.passed
    (table,) = result.tables
    assert len(table.rows) == 2 * 5
    assert any(row[-1] for row in table.rows)
    assert "accuracy" in str(result)
