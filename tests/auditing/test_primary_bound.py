"""The primary bound is chosen from the design, before any score is seen."""

import numpy as np
import pytest

from fl_epe.accounting import epsilon_two_gaussians
from fl_epe.auditing import Scores
from fl_epe.auditing.bounds import BOUNDS, method_by_design

DIM = 10**6
DESIGNS = [
    (4, None, 1e-5),
    (16, None, 1e-2),
    (64, None, 1e-3),
    (9, 9, 1e-3),
    (64, 16, 1e-3),
]


def primary_method(observed, unobserved, delta):
    if unobserved is None:
        return method_by_design(Scores(np.ones(observed), dim=DIM), delta, 0.95)
    return method_by_design(
        Scores(np.ones(observed), np.zeros(unobserved)), delta, 0.95
    )


def bound(method, count, others, delta, mu, rng):
    observed = rng.normal(mu, 1, count)
    if others is None:
        return BOUNDS[method](observed / np.sqrt(DIM), None, delta, dim=DIM)
    return BOUNDS[method](observed, rng.normal(0, 1, others), delta)


@pytest.mark.parametrize(("count", "others", "delta"), DESIGNS)
def test_it_is_valid_and_free_of_distributions(count, others, delta):
    chosen = BOUNDS[primary_method(count, others, delta) or "none"]
    assert chosen.valid
    assert chosen.assumption == BOUNDS["simultaneous"].assumption


@pytest.mark.slow
@pytest.mark.parametrize(("count", "others", "delta"), DESIGNS)
def test_it_exceeds_the_truth_no_more_often_than_it_says(count, others, delta):
    rng, method, runs = (
        np.random.default_rng(2),
        primary_method(count, others, delta),
        40,
    )
    truth = epsilon_two_gaussians(0, 1, 1.0, 1, delta)
    above = sum(
        bound(method, count, others, delta, 1.0, rng) > truth
        for _ in range(runs)
    )
    assert above <= 6  # 5% of 40 is 2; more than 6 in 0.3% of seeds


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "others", "delta", "mu"),
    [
        (4, None, 1e-5, 8.0),
        (64, None, 1e-4, 4.0),
        (1000, None, 1e-2, 8.0),
        (32, 32, 1e-4, 4.0),
        (64, 64, 1e-2, 4.0),
        (64, 16, 1e-3, 8.0),
    ],
)
def test_it_is_near_the_best_of_all(count, others, delta, mu):
    """Mean bounds over the same eight draws; the best method's is at most a tenth larger."""
    means = {
        method: np.mean(
            [
                bound(
                    method,
                    count,
                    others,
                    delta,
                    mu,
                    np.random.default_rng(seed),
                )
                for seed in range(8)
            ]
        )
        for method in ("clopper-pearson", "simultaneous", "weighted")
    }
    chosen = means[primary_method(count, others, delta) or "none"]
    assert chosen >= 0.9 * max(means.values())


def test_too_few_canaries_have_no_bound():
    assert primary_method(3, 3, 1e-5) is None
    assert primary_method(4, 4, 1e-5) == "weighted"
    assert primary_method(2, 50, 1e-5) is None
    assert primary_method(21, 7, 1e-5) == "clopper-pearson"
    for method, few in (("weighted", 3), ("clopper-pearson", 6)):
        flawless = [
            BOUNDS[method]([9.0] * k, [0.0] * k, 1e-5) for k in (few, few + 1)
        ]
        assert flawless[0] == 0 < flawless[1]
    assert primary_method(2, None, 1e-5) == "simultaneous"
