"""CANIFE: gradients against autograd, crafting, scores, limits and composition."""

import dataclasses

import numpy as np
import pytest
import torch

from fl_epe.accounting import gaussian_epsilon
from fl_epe.auditing import Adversary, Scores, ladder_fit, seen_by
from simulations.others import canife
from simulations.others.audited_sgd import Plan, audited_run
from simulations.others.canife_attack import (
    Attack,
    audit_rounds,
    fitted_epsilon,
    largest,
    lower_limit,
    whole_run,
)
from simulations.others.crafted_sample import craft_sample
from simulations.others.images import Images
from simulations.others.two_layer import TwoLayer

NETWORK = TwoLayer(inputs=9, hidden=6, classes=3)
DELTA = 1e-5


def _examples(count, seed=0):
    rng = np.random.default_rng(seed)
    return rng.random((count, NETWORK.inputs)), rng.integers(
        NETWORK.classes, size=count
    )


def _images(count):
    (inputs, labels), (test_inputs, test_labels) = (
        _examples(count),
        _examples(80, 1),
    )
    return Images("noise", inputs, labels, test_inputs, test_labels)


def _by_autograd(model, inputs, labels):
    """Gradient of each example, one after another."""
    rows = []
    for pixels, label in zip(inputs, labels, strict=True):
        flat = torch.tensor(model, requires_grad=True)
        first, bias, second, last = torch.split(flat, [54, 6, 18, 3])
        hidden = torch.relu(first.reshape(6, 9) @ torch.tensor(pixels) + bias)
        logits = second.reshape(3, 6) @ hidden + last
        loss = torch.nn.functional.cross_entropy(
            logits[None], torch.tensor([int(label)])
        )
        rows.append(torch.autograd.grad(loss, flat)[0].numpy())
    return np.array(rows)


def test_gradients_are_those_of_autograd():
    model = NETWORK.initial(1) + 0.1
    (inputs, labels), (others, theirs) = _examples(7), _examples(4, 2)
    found, further = (
        NETWORK.gradients(model, inputs, labels),
        NETWORK.gradients(model, others, theirs),
    )
    naive, more = (
        _by_autograd(model, inputs, labels),
        _by_autograd(model, others, theirs),
    )
    np.testing.assert_allclose(
        found.norms, np.linalg.norm(naive, axis=1), rtol=1e-12
    )
    np.testing.assert_allclose(
        found.products(further), naive @ more.T, atol=1e-14
    )
    weights = np.linspace(-1, 2, 7)
    np.testing.assert_allclose(found.sum(weights), weights @ naive, atol=1e-14)
    clipped = found.scales(0.3) * found.norms
    np.testing.assert_allclose(
        clipped, np.minimum(found.norms, 0.3), rtol=1e-12
    )


def test_coordinates_of_pixels_are_moved_by_those_pixels_alone():
    inputs, labels = _examples(5)
    inputs[:, [2, 7]] = 0.0
    total = NETWORK.gradients(NETWORK.initial(1), inputs, labels).sum(
        np.ones(5)
    )
    still = NETWORK.hidden_inputs([2, 7])
    assert len(still) == 2 * NETWORK.hidden
    assert not total[still].any()
    first = NETWORK.layers(np.arange(NETWORK.dim, dtype=float))[0]
    assert set(first[:, [2, 7]].ravel()) == set(still)


def test_a_crafted_gradient_is_orthogonal_and_long():
    network = dataclasses.replace(NETWORK, hidden=60)
    model = network.initial(1)
    pool = network.gradients(model, *_examples(3))
    crafted = craft_sample(network, model, pool, 1.0, steps=600, seed=1)
    products = crafted.alignment(pool, 1.0)
    assert np.mean(products**2) == pytest.approx(crafted.after, rel=1e-6)
    assert crafted.after < crafted.before / 10
    assert crafted.gradient.norms[0] > 0.9
    with pytest.raises(ValueError, match="steps=0"):
        craft_sample(network, model, pool, 1.0, steps=0, seed=1)


def test_scores_are_one_apart_in_units_of_the_noise():
    plan = Plan(batch=8, noise_multiplier=0.5, delta=DELTA)
    attack = Attack(pool=40, steps=100, scores=1000, every=5)
    (audit,) = audit_rounds(
        NETWORK, _images(40), {3: NETWORK.initial(1)}, plan, attack, 1
    )
    assert (audit.step, audit.lasts) == (3, 2)
    distance = audit.scores.observed.mean() - audit.scores.unobserved.mean()
    canary_norm = min(float(audit.canary.gradient.norms[0]), 1.0)
    deviation = audit.scores.unobserved.std()
    assert distance == pytest.approx(
        canary_norm, abs=4 * deviation * np.sqrt(2 / 500)
    )
    assert deviation > 0.5 * (
        1 - 4 / np.sqrt(2 * 500)
    )  # noise, and the other examples
    assert audit.fitted < 1.15 * gaussian_epsilon(0.5, DELTA)


def test_the_lower_limit_ends_where_no_guess_is_wrong():
    upper = 1 - 0.025 ** (1 / 50)
    assert largest(100, DELTA) == pytest.approx(
        np.log((1 - DELTA - upper) / upper)
    )
    mixed = Scores(np.array([1.0, 2.0, -5.0]), np.array([0.0, -1.0, 5.0]))
    assert lower_limit(mixed, DELTA) == 0.0
    assert (
        fitted_epsilon(
            Scores(np.array([0.0, 1.0]), np.array([3.0, 4.0])), DELTA
        )
        == 0.0
    )


def test_fitted_scores_give_the_epsilon_of_their_noise():
    grid = 0.5 * np.array([-1.0, 1.0])  # of standard deviation 0.5 · √2
    epsilon = fitted_epsilon(Scores(1 + grid, grid), DELTA)
    assert epsilon == pytest.approx(gaussian_epsilon(np.sqrt(0.5), DELTA))


def test_composing_what_few_scores_say_stays_small():
    largest_epsilon = largest(100, DELTA)
    for by in ("rdp", "pld"):
        assert (
            whole_run([largest_epsilon] * 5, [100] * 5, 128 / 60_000, DELTA, by)
            < 0.5
        )
    true = gaussian_epsilon(0.2, DELTA)
    assert whole_run([true] * 5, [100] * 5, 128 / 60_000, DELTA, "pld") > 30
    assert whole_run([0.0], [100], 0.1, DELTA, "rdp") == 0.0


def test_random_directions_in_a_run_have_their_expected_scores():
    network = dataclasses.replace(NETWORK, hidden=2000)  # many dimensions
    plan = Plan(batch=10, noise_multiplier=0.3, canaries=60, delta=DELTA)
    run = audited_run(network, _images(100), plan, 1, keep=(0, 4))
    assert sorted(run.models) == [0, 4]
    assert run.record.presence.sum(axis=0).tolist() == [1] * 60
    for sees in ("final", "all"):
        fit = ladder_fit(seen_by(run.record, Adversary(sees)))
        assert fit.low < 1.0 < fit.high
    again = audited_run(network, _images(100), plan, 1)
    assert np.array_equal(again.final, run.final)


@pytest.mark.slow
def test_the_quick_audit_has_the_order_of_the_paper():
    """Section 5.4: CANIFE's ε below a lower bound by random directions."""
    lines: list[str] = []
    rows = canife.main(seeds=1, quick=True, say=lines.append)
    value = {name: found[0] for name, found in rows.items()}
    published = value["CANIFE: lower limits, Rényi composition (as published)"]
    assert published <= value["CANIFE: the most it can say with so many scores"]
    assert (
        published
        < value["  lower bound, Clopper–Pearson: every round, matched filter"]
    )
    assert value["CANIFE: fitted Gaussians, mean ε of a round"] > 10 * published
    assert "34.5" in lines[1]
    assert all(any(name in line for line in lines) for name in rows)
