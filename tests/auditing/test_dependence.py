"""How far canaries depend on each other, measured from one run."""

import math

import numpy as np
import pytest
from scipy import stats

from fl_epe.auditing.assumptions import dependence, dependence_of
from fl_epe.limit import limit_record
from fl_epe.schedules import ShuffledEpochs

T, K, SEEDS = 40, 100, 200


def _draws(draw):
    return [dependence_of(*draw(np.random.default_rng((1, seed)))) for seed in range(SEEDS)]


def _independent(rng):
    return (rng.normal(size=(T, K)),)


def _rounds_alike(rng):
    """Independent canaries whose scores of near rounds are correlated by 0.8."""
    steps = np.abs(np.subtract.outer(range(T), range(T)))
    return (np.linalg.cholesky(0.8**steps) @ rng.normal(size=(T, K)),)


def _one_round_each(rng):
    present = np.zeros((T, 6 * K), bool)
    present[rng.integers(T, size=6 * K), range(6 * K)] = True
    return rng.normal(size=present.shape), present


@pytest.mark.parametrize("draw", [_independent, _rounds_alike, _one_round_each])
def test_independent_canaries_are_found_to_be_so(draw):
    found = _draws(draw)
    false = sum(result.p_value < 0.05 for result in found)
    assert false <= stats.binom.ppf(0.9999, SEEDS, 0.06)  # the rounds' worth is estimated
    correlations = np.array([result.correlation for result in found])
    error = np.mean([result.standard_error for result in found])
    assert abs(correlations.mean()) < 4 * error / math.sqrt(SEEDS)
    assert correlations.std() == pytest.approx(error, rel=0.25)


def test_canaries_that_share_a_part_are_found_to():
    rho = 0.04

    def shared(rng):
        return (
            math.sqrt(1 - rho) * rng.normal(size=(T, K)) + math.sqrt(rho) * rng.normal(size=(T, 1)),
        )

    found = _draws(shared)
    assert np.mean([result.p_value < 0.05 for result in found]) > 0.8
    assert np.mean([result.correlation for result in found]) == pytest.approx(rho, rel=0.15)


def test_rounds_that_are_alike_are_worth_fewer():
    same = np.tile(np.random.default_rng(0).normal(size=K), (T, 1))
    one_round = math.sqrt(2 / (K * (K - 1)))
    assert dependence_of(same).standard_error == pytest.approx(one_round, rel=0.03)
    errors = np.array([found.standard_error for found in _draws(_rounds_alike)])
    exact = T**2 / np.sum(0.64 ** np.abs(np.subtract.outer(range(T), range(T))))
    assert np.mean((one_round / errors) ** 2) == pytest.approx(exact, rel=0.1)


def test_nothing_is_said_without_two_canaries_in_a_round():
    assert dependence_of(np.ones((5, 1))) is None
    assert dependence_of(np.zeros((5, 3))) is None
    assert dependence_of(np.ones((2, 3)), np.zeros((2, 3), bool)) is None


def test_a_record_of_independent_canaries():
    record = limit_record(ShuffledEpochs(20, 2), 0.5, 1e-3, num_canaries=400, unobserved=100)
    found = dependence(record)
    assert set(found) == {"unobserved", "observed"}
    for result in found.values():
        assert result.p_value > 1e-4
        assert result.rounds == 20
