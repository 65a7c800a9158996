"""A converted data set on disk."""

import pathlib

import numpy as np
import pytest
from text_sources import converted_posts

from fl_epe.data.conversion import ClientStore

pytestmark = pytest.mark.usefixtures("small_batches")


def test_examples_are_mapped_and_not_copied(tmp_path: pathlib.Path):
    examples = ClientStore(converted_posts(tmp_path)).client(0)
    assert not examples.flags.writeable
    assert not examples.flags.owndata


def test_a_seed_decides_the_order_and_what_is_taken(tmp_path: pathlib.Path):
    store = ClientStore(converted_posts(tmp_path))
    everything = store.shuffled(1, 0, seed=4)
    assert sorted(map(tuple, everything)) == sorted(map(tuple, store.client(1)))
    assert not np.array_equal(everything, store.client(1))
    np.testing.assert_array_equal(store.shuffled(1, 7, seed=4), everything[:7])
    assert not np.array_equal(store.shuffled(1, 7, seed=5), everything[:7])
    assert (
        len(store.shuffled(1, 10**6, seed=4)) == store.sizes(np.array([1]))[0]
    )


@pytest.mark.slow
@pytest.mark.parametrize("file", ["train.bin", "held_out.bin", "index.npz"])
@pytest.mark.parametrize("damage", ["missing", "cut", "empty"])
def test_a_damaged_data_set_is_refused(
    tmp_path: pathlib.Path, file: str, damage: str
):
    path = converted_posts(tmp_path) / file
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[: len(content) // 2 if damage == "cut" else 0])
    with pytest.raises((ValueError, OSError), match=str(path.parent)):
        ClientStore(path.parent)
