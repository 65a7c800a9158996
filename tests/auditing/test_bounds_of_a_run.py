"""Many bounds of one run: what each rests on, and which one counts."""

import numpy as np

from fl_epe.auditing import Scores
from fl_epe.auditing.bounds import BOUNDS, all_bounds, ceiling, method_by_design

DELTA = 1e-5


def _groups(shift, count, seed):
    rng = np.random.default_rng(seed)
    return Scores(rng.normal(shift, 1, count), rng.normal(0, 1, count))


def test_the_theorem_is_that_of_the_design():
    assert "Steinke" in BOUNDS["one-run"].theorem
    assert "2305.18447" in BOUNDS["lifted"].theorem
    assert BOUNDS["weighted"].theorem.endswith("is assumed, not proven")


def test_methods_that_apply():
    scores = _groups(1.0, 30, 0)
    assert all_bounds(scores, DELTA, 0.95, coins=True).keys() == set(BOUNDS)
    assert all_bounds(
        scores, DELTA, 0.95, coins=False
    ).keys() == BOUNDS.keys() - {"one-run"}
    assert all_bounds(Scores(np.arange(5.0)), DELTA, 0.95, coins=True) == {}
    assert method_by_design(Scores(np.arange(5.0)), DELTA, 0.95) is None


def test_the_ceiling_is_that_of_a_perfect_attack():
    scores = _groups(1.0, 50, 1)
    for method in BOUNDS.keys() - {"one-run"}:
        loud = Scores(scores.observed + 1e6, scores.unobserved)
        most = ceiling(scores, DELTA, 0.95, method)
        assert most >= ceiling(loud, DELTA, 0.95, method) * (1 - 1e-9)
    assert ceiling(scores, DELTA, 0.95, "clopper-pearson") < 3.0
