"""`simulations/in_the_wild/pfl_banded.py`, on mechanisms with factors of our own."""

import numpy as np
import pytest
import scipy

from simulations.in_the_wild import pfl_banded

ROUNDS, SEPARATION = 64, 64


def square_root(rounds, bands):
    column = np.cumprod(np.concatenate([[1.0], 1 - 0.5 / np.arange(1, bands)]))
    return np.tril(scipy.linalg.toeplitz(np.pad(column, (0, rounds - bands))))


def matrix_mechanism(factor, dim, seed):
    """Adds the rows of ``C⁻¹Z``, one a round."""
    noise = np.linalg.solve(
        factor, np.random.default_rng(seed).standard_normal((len(factor), dim))
    )
    rows = iter(noise * pfl_banded.NOISE)
    return lambda total: total + next(rows)


def test_the_factor_that_was_meant_has_columns_of_length_one():
    lower = square_root(ROUNDS, 8)
    lower /= np.linalg.norm(lower, axis=1)[
        :, None
    ]  # rows, as of numpy.linalg.cholesky
    factor = pfl_banded.meant(lower)
    np.testing.assert_allclose(factor.T @ factor, lower @ lower.T)
    np.testing.assert_allclose(np.linalg.norm(factor, axis=0), 1)
    assert np.array_equal(factor, np.tril(factor))
    assert pfl_banded.sensitivity(factor, ROUNDS) == pytest.approx(1)
    assert pfl_banded.sensitivity(lower, ROUNDS) > 1.2


@pytest.mark.slow
def test_rows_of_length_one_are_disproved_and_columns_are_not(monkeypatch):
    monkeypatch.setattr(pfl_banded, "DIM", 4000)
    factor = square_root(ROUNDS, SEPARATION)
    right = factor / np.linalg.norm(factor, axis=0)
    wrong = np.linalg.cholesky(right.T @ right)  # as released
    size = pfl_banded.sensitivity(right, SEPARATION)
    assert size == pytest.approx(np.sqrt(ROUNDS / SEPARATION))
    claimed = pfl_banded.claim(ROUNDS, SEPARATION)
    for factor, seed in ((right, 1), (wrong, 2)):
        mechanism = matrix_mechanism(factor, pfl_banded.DIM, seed)
        mean, proved, verdict = pfl_banded.audit(
            mechanism, ROUNDS, SEPARATION, seed
        )
        theory = np.linalg.norm(factor[:, ::SEPARATION].sum(axis=1))
        assert mean == pytest.approx(
            theory, abs=4 / np.sqrt(pfl_banded.CANARIES)
        )
        assert verdict == claimed
        assert (proved > claimed) == (factor is wrong)
