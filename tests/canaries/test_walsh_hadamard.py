"""The fast transform."""

import numpy as np
import pytest
import scipy.linalg

from fl_epe.canaries.directions import hadamard, transform


@pytest.mark.parametrize("bits", [0, 1, 2, 5, 10])
def test_is_the_product_with_sylvesters_matrix(bits):
    x = (
        np.random.default_rng(bits)
        .standard_normal(1 << bits)
        .astype(np.float32)
    )
    expected = scipy.linalg.hadamard(1 << bits) @ x.astype(float)
    # sums of 2^bits numbers of size 1 in float32
    np.testing.assert_allclose(
        transform(x), expected, atol=1e-6 * 2 ** (bits / 2) * (bits + 1)
    )


def test_matrices_are_sylvesters():
    np.testing.assert_array_equal(hadamard(8), scipy.linalg.hadamard(8))


@pytest.mark.parametrize("bits", [3, 16, 17])
def test_is_exact_for_whole_numbers(bits):
    x = (
        np.random.default_rng(bits)
        .choice([-1, 1], 1 << bits)
        .astype(np.float32)
    )
    assert np.array_equal(transform(transform(x.copy())), x * (1 << bits))


def test_the_bits_do_not_depend_on_threads():
    x = np.random.default_rng(1).standard_normal(1 << 17).astype(np.float32)
    single, threaded = (
        transform(x.copy(), threads=threads) for threads in (1, 3)
    )
    assert np.array_equal(single, threaded)
