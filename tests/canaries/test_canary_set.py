"""Canary directions from a seed."""

import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from fl_epe import CanarySet
from fl_epe.canaries.directions import LEAST_SIZE, Rotation, rotation

KINDS = ["rotation", "sphere"]


@pytest.mark.slow
def test_same_bits_in_another_process():
    code = """
from fl_epe import CanarySet
for kind in ("rotation", "sphere"):
    print(CanarySet(70_001, 5, 3, kind).vector(4).tobytes().hex())
"""
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    expected_bytes = [
        CanarySet(70_001, 5, 3, kind).vector(4).tobytes().hex()
        for kind in KINDS
    ]
    assert process.stdout.split() == expected_bytes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [1, 2, 7, 100, 65_536, 100_000])
def test_unit_norm_and_type(dim, kind):
    vector = CanarySet(dim, 3, 0, kind).vector(2)
    assert vector.dtype == np.float32
    assert vector.shape == (dim,)
    # float32 rounding of each coordinate moves the norm by at most 2^-24 relative
    assert np.linalg.norm(vector.astype(float)) == pytest.approx(1, abs=2e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_differ_by_index_and_seed_but_not_by_count(kind):
    base = CanarySet(90, 3, 1, kind).vector(0)
    assert not np.array_equal(base, CanarySet(90, 3, 1, kind).vector(1))
    assert not np.array_equal(base, CanarySet(90, 3, 2, kind).vector(0))
    assert np.array_equal(base, CanarySet(90, 9, 1, kind).vector(0))


def test_the_kinds_are_different_canaries_but_in_a_few_dimensions():
    assert not np.array_equal(
        *(CanarySet(64, 3, 1, kind).vector(0) for kind in KINDS)
    )
    assert np.array_equal(
        *(CanarySet(63, 3, 1, kind).vector(0) for kind in KINDS)
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [1, 33, 70_001])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dot_equals_the_naive_product(dim, dtype, kind):
    canaries = CanarySet(dim, 37, 8, kind)
    x = np.random.default_rng(0).standard_normal((3, dim)).astype(dtype)
    naive = np.array(
        [
            [canaries.vector(i).astype(float) @ row for i in range(37)]
            for row in x
        ]
    )
    # float32 products of two vectors of norms 1 and √dim
    np.testing.assert_allclose(canaries.dot(x), naive, atol=2e-6 * np.sqrt(dim))
    np.testing.assert_allclose(
        canaries.dot(x[1]), naive[1], atol=2e-6 * np.sqrt(dim)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_dot_does_not_depend_on_threads(kind):
    x = np.random.default_rng(0).standard_normal((2, 40_000))
    canaries = CanarySet(40_000, 70, 8, kind)
    assert np.array_equal(
        canaries.dot(x, threads=1), canaries.dot(x, threads=3)
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "dim", [2, 3, 10, 1000, pytest.param(70_000, marks=pytest.mark.slow)]
)
def test_cosines_follow_the_exact_null(dim, kind):
    cosines = CanarySet(dim, 2000, 11, kind).dot(np.eye(1, dim)[0])
    null = stats.beta((dim - 1) / 2, (dim - 1) / 2, loc=-1, scale=2)
    assert stats.kstest(cosines, null.cdf).pvalue > 1e-3
    # a variance 1/dim has a sampling deviation of at most √(2/2000)/dim
    assert cosines.var() == pytest.approx(1 / dim, rel=4 * np.sqrt(2 / 2000))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(
            (0, 3, 1), "Expected dim=0 to be an integer >= 1", id="dim=0"
        ),
        pytest.param(
            (3, 0, 1), "Expected count=0 to be an integer >= 1", id="count=0"
        ),
        pytest.param(
            (3, 3, -1), "Expected seed=-1 >= 0.", id="seed=-1-at-least-0"
        ),
        pytest.param(
            (3, 3, 1, "cube"),
            "Expected kind='cube' to be one of",
            id="kind=cube",
        ),
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


@pytest.mark.parametrize("kind", KINDS)
def test_dot_with_some_of_the_canaries(kind):
    canaries = CanarySet(70_000, 50, 3, kind)
    x = np.random.default_rng(0).standard_normal((2, 70_000)).astype(np.float32)
    chosen = [40, 3, 3, 0]
    # float32 products of blocks of another shape: 10⁻⁶ of |x| = 265, where the null spreads by 1
    np.testing.assert_allclose(
        canaries.dot(x, numbers=chosen), canaries.dot(x)[:, chosen], atol=3e-5
    )
    assert canaries.dot(x[0], numbers=[]).shape == (0,)
    with pytest.raises(IndexError, match="i=50"):
        canaries.dot(x, numbers=[50])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("numbers", [None, [30, 2, 17]])
def test_combine_equals_the_naive_sums(numbers, kind):
    canaries = CanarySet(1000, 37, 8, kind)
    chosen = list(range(37)) if numbers is None else numbers
    weights = np.random.default_rng(0).standard_normal((2, len(chosen)))
    naive = weights @ np.array(
        [canaries.vector(i).astype(float) for i in chosen]
    )
    combined = canaries.combine(weights, numbers=numbers)
    assert combined.dtype == np.float32
    # Coordinates are near 37^½ / 1000^½; float32 sums of 37 numbers err by a few 2^-24 of that.
    # Rotations add up 2^16 numbers, twice: 16 times two rounding errors of 2^-24, in worst cases.
    np.testing.assert_allclose(
        combined, naive, atol=2e-6 if kind == "rotation" else 1e-6
    )
    with pytest.raises(ValueError, match=r"weights.shape=\(2, 1\) to be"):
        canaries.combine(weights[:, :1], numbers=numbers)


# Rotations.


@pytest.mark.parametrize("dim", [64, 5000, LEAST_SIZE])
def test_every_row_of_a_rotation_is_another_canary(dim):
    family = rotation(dim, 4)
    rows = family.rows(np.arange(family.size))
    assert np.array_equal(np.sort(rows), np.arange(family.size))
    assert not np.array_equal(rows[:100], np.arange(100))


def test_more_canaries_than_rows_are_independent_draws():
    canaries = CanarySet(100, LEAST_SIZE + 1, 5)
    assert not canaries.fast
    assert np.array_equal(
        canaries.vector(7), CanarySet(100, 8, 5, "sphere").vector(7)
    )
    assert CanarySet(100, LEAST_SIZE, 5).fast


def test_a_base_that_is_not_kept_makes_the_same_bits(monkeypatch):
    in_memory = Rotation(70_001, 5)
    monkeypatch.setattr("fl_epe.canaries.directions._MAX_STORED_BASE", 0)
    recomputed = Rotation(70_001, 5)
    rows = np.array([0, 1, 70_000, in_memory.size - 1])
    np.testing.assert_array_equal(
        recomputed.lengths(rows), in_memory.lengths(rows)
    )
    for row in rows:
        np.testing.assert_array_equal(
            recomputed.vector(row), in_memory.vector(row)
        )


def test_lengths_are_those_of_the_rows():
    family = rotation(70_001, 5)
    rows = np.array([0, 1, 70_000, family.size - 1])
    squares = family.lengths(rows) ** 2
    expected_squares = [
        float(
            np.sum(
                family._compute_base()[np.arange(70_001) ^ row].astype(float)
                ** 2
            )
        )
        for row in rows
    ]
    np.testing.assert_allclose(squares, expected_squares, rtol=1e-14)
    assert rotation(LEAST_SIZE, 5).lengths(np.array([1])) == LEAST_SIZE


def test_rows_of_a_whole_rotation_are_orthogonal():
    vectors = CanarySet(LEAST_SIZE, 20, 1).vectors(range(20)).astype(float)
    np.testing.assert_allclose(vectors @ vectors.T, np.eye(20), atol=1e-7)


@pytest.mark.slow
def test_cut_rows_overlap_less_than_independent_directions():
    dim = 100_000
    count = 300
    vectors = CanarySet(dim, count, 2).vectors(range(count))
    cosines = (vectors @ vectors.T)[np.triu_indices(count, 1)] * np.sqrt(dim)
    expected = np.sqrt(1 - dim / (1 << 17))
    # 44,850 pairs that are uncorrelated, if not independent
    assert cosines.std() == pytest.approx(
        expected, rel=4 / np.sqrt(2 * len(cosines))
    )
    assert abs(cosines.mean()) < 4 * expected / np.sqrt(len(cosines))


def test_sums_of_many_are_those_of_a_few():
    canaries = CanarySet(70_000, 40, 3)
    weights = np.random.default_rng(1).standard_normal((1, 40))
    halves = [
        canaries.combine(weights[:, part], numbers=part)
        for part in (range(5), range(5, 40))
    ]
    # coordinates are near √40 / √70,000 = 0.024
    np.testing.assert_allclose(
        canaries.combine(weights), sum(halves), atol=1e-6
    )


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_scores_of_very_small_and_very_large_vectors(scale):
    canaries = CanarySet(70_000, 5, 3)
    x = np.random.default_rng(0).standard_normal(70_000)
    np.testing.assert_allclose(
        canaries.dot(scale * x) / scale, canaries.dot(x), atol=3e-4
    )


def test_nan_is_not_hidden():
    x = np.ones(70_000)
    x[3] = np.nan
    assert np.isnan(CanarySet(70_000, 5, 3).dot(x)).all()
