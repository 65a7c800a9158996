"""What checks of noise print of correct noise names what was compared."""

import numpy as np

from fl_epe.noise import check_noise


def texts(noise):
    return {check.name: check.measured for check in check_noise(noise, std=1.0)}


def test_arrays_that_do_not_agree_at_all_are_not_one_array():
    one = np.random.default_rng(5**20).normal(size=(2, 64))
    found = texts([{"a": one[0], "b": one[1]}])["independence of arrays"]
    assert found.endswith("of a and b")
    found = texts([{"a": one[0], "b": np.zeros(64)}])["independence of arrays"]
    assert found == "no two arrays have noise"
