"""The digits task."""

import numpy as np
import pytest
import torch

from fl_epe.tasks.images import Digits


def test_digits_clients_share_four_fifths_of_the_images_and_each_has_some():
    task = Digits()
    sizes = [len(task.client(i)) for i in range(task.num_clients)]
    assert sum(sizes) + len(task.held_out()) == 1797
    assert len(task.held_out()) == pytest.approx(1797 / 5, abs=10)
    assert min(sizes) >= 4
    assert max(sizes) >= 3 * min(sizes)


def test_digits_pixels_are_between_zero_and_one():
    data = Digits().client(3)
    assert data.inputs.shape[1:] == (1, 28, 28)
    assert data.inputs.min() == 0
    assert 0.8 < data.inputs.max() <= 1


def test_no_held_out_digit_is_with_a_client():
    task = Digits()
    clients = [task.client(i) for i in range(task.num_clients)]
    seen = {
        image.numpy().tobytes() for data in clients for image in data.inputs
    }
    assert len(seen) > 1400  # nearly no two images are equal
    assert not any(
        image.numpy().tobytes() in seen for image in task.held_out().inputs
    )


def test_another_data_seed_is_another_split_of_the_same_digits():
    one, other = Digits(data_seed=0), Digits(data_seed=1)
    np.testing.assert_array_equal(
        one.client(0).targets, Digits(data_seed=0).client(0).targets
    )
    assert not torch.equal(one.held_out().targets, other.held_out().targets)
    assert len(one.held_out()) == len(other.held_out())


def test_more_clients_than_the_digits_allow_says_how_many():
    with pytest.raises(ValueError, match="num_clients=400 <= 359"):
        Digits(num_clients=400).client(0)
