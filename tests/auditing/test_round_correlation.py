"""`round_correlation`: the width of scores over rounds whose means agree, from sketches."""

import numpy as np
import pytest

from fl_epe import CanarySet, RoundFacts, RunAuditor
from fl_epe.auditing.round_correlation import SKETCH_PARTS, RoundCorrelation

ROUNDS, COUNT = 12, 50


def drawn(dim, shared, seed=0):
    """Means of length 1 with the cosine ``shared``, weights, and who takes part four times."""
    rng = np.random.default_rng(seed)
    both = rng.standard_normal(dim), rng.standard_normal((ROUNDS, dim))
    means = np.sqrt(shared) * both[0] + np.sqrt(1 - shared) * both[1]
    means /= np.linalg.norm(means, axis=1)[:, None]
    presence = np.array([rng.permutation(ROUNDS) < 4 for _ in range(COUNT)]).T
    return means, rng.uniform(0.5, 2, ROUNDS), presence


def measured(means, weights, presence):
    correlation = RoundCorrelation(means.shape[1], COUNT)
    for mean, weight, here in zip(means, weights, presence, strict=True):
        correlation.add(weight * correlation.sketch(mean), np.flatnonzero(here).tolist())
    return correlation.width(float(weights**2 @ presence.sum(axis=1)))


def naive(means, weights, presence):
    """Each canary's filter, as a vector: its squared length is the variance without the canary."""
    squares = sum(np.sum(((weights * here) @ means) ** 2) for here in presence.T)
    return np.sqrt(squares / (weights**2 @ presence.sum(axis=1)))


@pytest.mark.parametrize("shared", [0.1, 1.0])
def test_in_few_dimensions_it_is_exact(shared):
    given = drawn(300, shared)
    found = measured(*given)
    assert found.low == found.value == found.high == pytest.approx(naive(*given), rel=1e-9)


@pytest.mark.parametrize("shared", [0.05, 0.3, 1.0])
def test_in_many_dimensions_it_is_within_its_error(shared):
    given = drawn(20 * SKETCH_PARTS + 7, shared)
    found = measured(*given)
    assert found.low < naive(*given) < found.high < found.low + 0.25
    assert found.value == pytest.approx(naive(*given), abs=0.1)


def test_rounds_that_do_not_agree_leave_scores_as_they_are():
    widths = [measured(*drawn(2 * SKETCH_PARTS, 0.0, seed)) for seed in range(20)]
    assert all(width.value == 1 <= width.high < 1.1 for width in widths)


def test_canaries_that_take_part_once_need_no_width():
    means, weights, _ = drawn(5000, 1.0)
    once = np.eye(ROUNDS, dtype=bool)
    correlation = RoundCorrelation(5000, ROUNDS)
    for mean, weight, here in zip(means, weights, once, strict=True):
        correlation.add(weight * correlation.sketch(mean), np.flatnonzero(here).tolist())
    width = correlation.width(float(np.sum(weights**2)))
    assert (width.value, width.low) == (1, 1)
    assert width.high == pytest.approx(1, abs=1e-9)


def agreeing_run(dim=3000, count=60, shift=4.0):
    """Every round's mean is the same but for its canaries, of whom each takes part five times."""
    auditor = RunAuditor(count, 100, seed=3, delta=1e-5, planned=5 * count)
    canaries = CanarySet(dim, count, 3).vectors(range(count)).astype(float)
    rng = np.random.default_rng(1)
    hidden, theta = rng.standard_normal(dim), np.zeros(dim)
    presence = np.array([rng.permutation(ROUNDS) < 5 for _ in range(count)]).T
    auditor.begin(theta)
    for here in presence:
        theta = theta + hidden + shift * canaries[here].sum(axis=0)
        auditor.observe(theta, RoundFacts(np.flatnonzero(here).tolist(), shift))
    return auditor


def test_rounds_that_are_the_same_count_once():
    auditor = agreeing_run()
    found = auditor.epsilon_so_far()
    # Each score is 5·4/√5 less its residual, over a width of √5: that of one round.
    assert 15 < found.low < found.epsilon < found.high < 40
    assert found.method.endswith("measured width")


def test_an_auditor_goes_on_with_what_it_knows_of_correlation():
    whole = agreeing_run()
    state = whole.state()
    last = np.zeros(3000)
    again = RunAuditor(60, 100, seed=3, delta=1e-5, planned=300)
    again.restore(state, ROUNDS, start=last, last=last)
    assert again.epsilon_so_far() == whole.epsilon_so_far()
    wrong = RunAuditor(60, 100, seed=3, delta=1e-5, planned=300)
    with pytest.raises(ValueError, match=r"sketches.shape=\(12, 3\)"):
        wrong.restore({**state, "sketches": np.zeros((12, 3))}, ROUNDS, start=last, last=last)
