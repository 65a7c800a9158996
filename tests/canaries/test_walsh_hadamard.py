"""The fast transform, both ways."""

import numpy as np
import pytest
import scipy.linalg

from fl_epe.canaries.walsh_hadamard import butterflies, hadamard, transform


@pytest.mark.parametrize("bits", [0, 1, 2, 5, 10])
@pytest.mark.parametrize("way", [transform, butterflies])
def test_is_the_product_with_sylvesters_matrix(way, bits):
    x = np.random.default_rng(bits).standard_normal(1 << bits).astype(np.float32)
    expected = scipy.linalg.hadamard(1 << bits) @ x.astype(float)
    # sums of 2^bits numbers of size 1 in float32
    np.testing.assert_allclose(way(x), expected, atol=1e-6 * 2 ** (bits / 2) * (bits + 1))


def test_matrices_are_sylvesters():
    np.testing.assert_array_equal(hadamard(8), scipy.linalg.hadamard(8))


@pytest.mark.parametrize("bits", [3, 16, 17])
def test_both_ways_are_exact_for_whole_numbers(bits):
    x = np.random.default_rng(bits).choice([-1, 1], 1 << bits).astype(np.float32)
    fast, slow = transform(x.copy()), butterflies(x.copy())
    assert np.array_equal(fast, slow)
    assert np.array_equal(transform(fast), x * (1 << bits))


def test_the_bits_do_not_depend_on_threads():
    x = np.random.default_rng(1).standard_normal(1 << 17).astype(np.float32)
    one, three = (transform(x.copy(), threads=threads) for threads in (1, 3))
    assert np.array_equal(one, three)


def test_tensors_have_the_bits_of_arrays():
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(1).standard_normal(1 << 10).astype(np.float32)
    assert np.array_equal(butterflies(torch.from_numpy(x.copy())).numpy(), butterflies(x.copy()))


@pytest.mark.parametrize("way", [transform, butterflies])
@pytest.mark.parametrize("length", [0, 3, 100])
def test_refuses_other_lengths(way, length):
    with pytest.raises(ValueError, match=f"length={length} to be a power of two"):
        way(np.zeros(length, np.float32))
