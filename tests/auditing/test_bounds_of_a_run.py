"""Many bounds of one run: what each rests on, and which one counts."""

import math

import numpy as np
import pytest
from scipy import stats

from fl_epe.auditing import Scores, combined_p_value, gaussian_by_group
from fl_epe.auditing.bounds import (
    BOUNDS,
    PrimaryBound,
    applicable_methods,
    ceiling,
    method_by_design,
)

DELTA = 1e-5


def _groups(shift, count, seed):
    rng = np.random.default_rng(seed)
    return Scores(rng.normal(shift, 1, count), rng.normal(0, 1, count))


def test_a_rule_is_read():
    assert PrimaryBound.parse("auto") == PrimaryBound("all", "auto")
    assert PrimaryBound.parse("final:gdp") == PrimaryBound("final", "gdp")
    for text in ("jeffreys", "every:gdp", "final:", "", "largest"):
        with pytest.raises(ValueError, match="verdict="):
            PrimaryBound.parse(text)


def test_the_theorem_is_that_of_the_design():
    assert "Steinke" in BOUNDS["one-run"].theorem
    assert "2305.18447" in BOUNDS["lifted"].theorem
    assert BOUNDS["weighted"].theorem.startswith("no theorem")


def test_methods_that_apply():
    scores = _groups(1.0, 30, 0)
    assert set(applicable_methods(scores, coins=True)) == set(BOUNDS)
    assert set(applicable_methods(scores, coins=False)) == BOUNDS.keys() - {"one-run"}
    assert applicable_methods(Scores(np.arange(5.0)), coins=True) == ()
    assert method_by_design(Scores(np.arange(5.0)), DELTA, 0.95) is None


def test_the_ceiling_is_that_of_a_perfect_attack():
    scores = _groups(1.0, 50, 1)
    for method in applicable_methods(scores, coins=False):
        loud = Scores(scores.observed + 1e6, scores.unobserved)
        most = ceiling(scores, DELTA, 0.95, method)
        assert most >= ceiling(loud, DELTA, 0.95, method) * (1 - 1e-9)
    assert ceiling(scores, DELTA, 0.95, "clopper-pearson") < 3.0


def test_scores_of_canaries_with_other_participations_are_tested_apart():
    """Together they are a mixture, which the test finds not to be Gaussian."""
    rng = np.random.default_rng(5)
    counts = np.repeat([1, 16], 300)
    scores = rng.normal(2.0 * np.sqrt(counts), 1)
    together = gaussian_by_group(scores, np.zeros(600))
    assert together[0].p_value < 1e-6
    apart = gaussian_by_group(scores, counts)
    assert set(apart) == {1, 16}
    assert combined_p_value(apart.values()) > 0.01
    assert gaussian_by_group(scores[:7], counts[:7]) == {}
    assert combined_p_value([]) == 1.0


def test_a_corrected_p_value_keeps_its_level():
    found = 0
    for seed in range(300):
        rng = np.random.default_rng((6, seed))
        tests = gaussian_by_group(rng.normal(size=120), np.repeat(range(6), 20))
        found += combined_p_value(tests.values()) < 0.05
    assert found <= stats.binom.ppf(0.999, 300, 0.05)
    assert not math.isnan(found)
