import math

import numpy as np
import pytest
import torch

from fl_epe.dp_sgd.clipping import BatchSeen, clipping

N, SIZES = 40, (300, 60, 10)


@pytest.fixture
def gradients():
    rng = np.random.default_rng(1)
    lengths = rng.lognormal(-3, 1, N)[:, None]
    return [
        torch.from_numpy(
            rng.normal(size=(N, size)) * lengths * rng.uniform(0.5, 2, (N, 1))
        )
        for size in SIZES
    ]


def norms_of(tensors):
    return torch.stack([part.norm(dim=1) for part in tensors]).norm(dim=0)


def summed(gradients, *factors):
    """Each tensor's sum with its factors, shape ``(n,)``; or with those of all tensors."""
    factors = factors * len(gradients) if len(factors) == 1 else factors
    return [
        scale @ part for scale, part in zip(factors, gradients, strict=True)
    ]


@pytest.mark.parametrize("limit", [0.5, 1.0, 1.7, 1e9])
def test_gradients_that_are_cut_to_a_length(gradients, limit):
    norms = norms_of(gradients)
    found = clipping(
        gradients, summed(gradients, torch.clamp(limit / norms, max=1)), 1.0
    )
    assert found.largest == pytest.approx(min(limit, float(norms.max())))


RULES = {
    "smooth": lambda norms, _: 1 / (norms + 0.3),
    "norm-of-a-part": lambda _, part: torch.clamp(1 / part, max=1),
    "weighted-after": lambda norms, _: (
        torch.linspace(0, 2, N) * torch.clamp(1 / norms, max=1)
    ),
}


@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
@pytest.mark.parametrize("rule", RULES)
def test_gradients_with_a_factor_each(gradients, rule, kind):
    gradients = [part.to(kind) for part in gradients]
    norms = norms_of(gradients)
    factors = RULES[rule](norms, norms_of(gradients[2:])).to(kind)
    found = clipping(gradients, summed(gradients, factors), 1.0)
    assert not found.unseen
    assert found.largest == pytest.approx(
        float((factors * norms).max()), rel=1e-3
    )
    assert math.isnan(found.common_factor)


@pytest.mark.parametrize("limit", [1.0, 3**-0.5])
def test_tensors_that_are_cut_by_themselves(gradients, limit):
    factors = [
        torch.clamp(limit / part.norm(dim=1), max=1) for part in gradients
    ]
    found = clipping(gradients, summed(gradients, *factors), 1.0)
    assert bool(found.unseen) == (
        limit < 1
    )  # of another limit the small tensors do not tell
    assert found.largest == pytest.approx(limit if found.unseen else 3**0.5)


def test_one_factor_for_all(gradients):
    found = clipping(
        gradients, summed(gradients, torch.full((N,), 0.3).double()), 1.0
    )
    assert found.common_factor == pytest.approx(0.3)
    untouched = clipping(
        gradients, summed(gradients, torch.ones(N).double()), 100.0
    )
    assert untouched.common_factor == 1


def test_sums_that_say_nothing(gradients):
    others = [torch.ones(size).double() for size in SIZES]
    assert clipping(gradients, others, 1.0).unseen
    few = [gradients[2][:, :2]]  # entries: any sum has some factors
    assert clipping(few, [torch.ones(2).double()], 1.0).unseen


def test_of_two_equal_gradients_nobody_knows_which_was_cut(gradients):
    twice = [torch.cat([part[:1], part]) for part in gradients]
    factors = torch.linspace(9, 3, N + 1).double() / norms_of(twice)
    found = clipping(twice, summed(twice, factors), 1.0)
    assert found.unseen
    assert found.largest == pytest.approx(float((factors * norms_of(twice))[2]))


def test_no_examples_at_all():
    assert repr(clipping([torch.zeros(0, 12)], [torch.zeros(12)], 1.0)) == repr(
        BatchSeen(0)
    )
    assert clipping([torch.zeros(0, 12)], [torch.ones(12)], 1.0).unseen
