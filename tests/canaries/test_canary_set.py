"""Canary directions from a seed."""

import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from fl_epe import CanarySet


def test_same_bits_in_another_process():
    code = "from fl_epe import CanarySet; print(CanarySet(70_001, 5, 3).vector(4).tobytes().hex())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == CanarySet(70_001, 5, 3).vector(4).tobytes().hex()


@pytest.mark.parametrize("dim", [1, 2, 7, 100_000])
def test_unit_norm_and_type(dim):
    vector = CanarySet(dim, 3, 0).vector(2)
    assert vector.dtype == np.float32
    assert vector.shape == (dim,)
    # float32 rounding of each coordinate moves the norm by at most 2^-24 relative
    assert np.linalg.norm(vector.astype(float)) == pytest.approx(1, abs=2e-7)


def test_vectors_differ_by_index_and_seed_but_not_by_count():
    base = CanarySet(50, 3, 1).vector(0)
    assert not np.array_equal(base, CanarySet(50, 3, 1).vector(1))
    assert not np.array_equal(base, CanarySet(50, 3, 2).vector(0))
    assert np.array_equal(base, CanarySet(50, 9, 1).vector(0))


@pytest.mark.parametrize("dim", [1, 33, 70_001])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dot_equals_the_naive_product(dim, dtype):
    canaries = CanarySet(dim, 37, 8)
    x = np.random.default_rng(0).standard_normal((3, dim)).astype(dtype)
    naive = np.array([[canaries.vector(i).astype(float) @ row for i in range(37)] for row in x])
    # float32 products of two vectors of norms 1 and √dim
    np.testing.assert_allclose(canaries.dot(x), naive, atol=2e-6 * np.sqrt(dim))
    np.testing.assert_allclose(canaries.dot(x[1]), naive[1], atol=2e-6 * np.sqrt(dim))


def test_dot_does_not_depend_on_threads():
    x = np.random.default_rng(0).standard_normal((2, 40_000))
    canaries = CanarySet(40_000, 70, 8)
    assert np.array_equal(canaries.dot(x, threads=1), canaries.dot(x, threads=3))


@pytest.mark.parametrize("dim", [2, 3, 10, 1000])
def test_cosines_follow_the_exact_null(dim):
    cosines = CanarySet(dim, 2000, 11).dot(np.eye(1, dim)[0])
    null = stats.beta((dim - 1) / 2, (dim - 1) / 2, loc=-1, scale=2)
    assert stats.kstest(cosines, null.cdf).pvalue > 1e-3
    # a variance 1/dim has a sampling deviation of at most √(2/2000)/dim
    assert cosines.var() == pytest.approx(1 / dim, rel=4 * np.sqrt(2 / 2000))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param((0, 3, 1), "Expected dim=0 >= 1.", id="dim=0-at-least-1"),
        pytest.param((3, 0, 1), "Expected count=0 >= 1.", id="count=0-at-least-1"),
        pytest.param((3, 3, -1), "Expected seed=-1 >= 0.", id="seed=-1-at-least-0"),
    ],
)
def test_refuses_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        CanarySet(*arguments)


def test_refuses_bad_vectors_and_indices():
    canaries = CanarySet(4, 3, 0)
    with pytest.raises(ValueError, match=r"x\.shape=\(5,\) to end with dim=4"):
        canaries.dot(np.zeros(5))
    with pytest.raises(IndexError, match=r"i=3 in \[0, count=3\)"):
        canaries.vector(3)


def test_the_seed_is_not_shown():
    assert "987654" not in repr(CanarySet(4, 3, 987654))


def test_dot_with_some_of_the_canaries():
    canaries = CanarySet(70_000, 50, 3)
    x = np.random.default_rng(0).standard_normal((2, 70_000)).astype(np.float32)
    chosen = [40, 3, 3, 0]
    # float32 products of blocks of another shape: 10⁻⁶ of |x| = 265, where the null spreads by 1
    np.testing.assert_allclose(
        canaries.dot(x, numbers=chosen), canaries.dot(x)[:, chosen], atol=3e-5
    )
    assert canaries.dot(x[0], numbers=[]).shape == (0,)
    with pytest.raises(IndexError, match="i=50"):
        canaries.dot(x, numbers=[50])


@pytest.mark.parametrize("numbers", [None, [30, 2, 17]])
def test_combine_equals_the_naive_sums(numbers):
    canaries = CanarySet(1000, 37, 8)
    chosen = list(range(37)) if numbers is None else numbers
    weights = np.random.default_rng(0).standard_normal((2, len(chosen)))
    naive = weights @ np.array([canaries.vector(i).astype(float) for i in chosen])
    found = canaries.combine(weights, numbers=numbers)
    assert found.dtype == np.float32
    # Coordinates are near 37^½ / 1000^½; float32 sums of 37 numbers err by a few 2^-24 of that.
    np.testing.assert_allclose(found, naive, atol=1e-6)
    with pytest.raises(ValueError, match=r"weights.shape=\(2, 1\) to be"):
        canaries.combine(weights[:, :1], numbers=numbers)
