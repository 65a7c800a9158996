"""Examples partitioned among clients."""

import numpy as np
import pytest

from fl_epe.seeding import generator
from fl_epe.tasks.images import dirichlet_partition, stratified_split


@pytest.mark.parametrize(("clients", "minimum"), [(1, 1), (7, 5), (50, 10)])
def test_every_example_goes_to_one_client(clients: int, minimum: int):
    labels = generator(1).integers(0, 10, 500)
    parts = dirichlet_partition(
        labels, clients, alpha=0.5, minimum=minimum, random=generator(2)
    )
    assert len(parts) == clients
    np.testing.assert_array_equal(
        np.sort(np.concatenate(parts)), np.arange(500)
    )
    assert min(map(len, parts)) >= minimum


def _mean_share_of_the_commonest_label(alpha: float) -> float:
    labels = np.arange(4000) % 10
    parts = dirichlet_partition(
        labels, 40, alpha=alpha, minimum=20, random=generator(3)
    )
    return float(
        np.mean([np.bincount(labels[part]).max() / len(part) for part in parts])
    )


def test_small_alpha_gives_each_client_few_labels():
    shares = [
        _mean_share_of_the_commonest_label(alpha) for alpha in (0.1, 0.5, 100.0)
    ]
    assert shares[0] > 0.6 > shares[1] > 0.3 > shares[2] > 0.1


def test_a_stratified_split_takes_the_share_of_every_label():
    labels = np.repeat([0, 1, 2], [100, 50, 10])
    training, held_out = stratified_split(labels, 0.2, generator(0))
    assert np.bincount(labels[held_out]).tolist() == [20, 10, 2]
    np.testing.assert_array_equal(
        np.sort(np.r_[training, held_out]), np.arange(160)
    )
