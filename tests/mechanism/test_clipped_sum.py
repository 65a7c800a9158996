"""The exact sum of clipped updates."""

import numpy as np
import pytest
from naive_clip import clip

from fl_epe.mechanism import ClippedSum
from fl_epe.seeding import generator


@pytest.mark.parametrize(
    "dim", [1, 7, 8, 9, 1000, 32_768, 32_769, 70_001, 300_000]
)
def test_a_clipped_sum_has_the_bits_of_clip(dim: int):
    total = ClippedSum(dim, 0.3)
    expected = np.zeros(dim)
    for i, scale in enumerate((1e-4, 1.0, 50.0)):
        update = (generator(4, i).standard_normal(dim) * scale).astype(
            np.float32
        )
        clipped, unclipped = clip(update, 0.3)
        assert total.add(update) is unclipped
        expected += clipped
    np.testing.assert_array_equal(total.total(), expected)


def test_a_clipped_sum_takes_any_floating_point_update():
    total = ClippedSum(5, 1.0)
    assert total.add(np.full(5, 0.1)) is True
    assert total.add(np.full(5, 0.25, np.float16)) is True
    np.testing.assert_allclose(total.total(), 0.35)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_clipped_sum_leaves_out_what_is_not_finite(bad: float):
    total = ClippedSum(40_000, 1.0)
    update = np.ones(40_000, np.float32)
    update[-1] = bad
    assert total.add(update) is None
    assert total.add(np.ones(40_000, np.int64)) is None
    assert not total.total().any()


def test_a_clipped_sum_refuses_other_shapes_and_norms():
    with pytest.raises(ValueError, match=r"update.shape=\(4,\) to be \(3,\)"):
        ClippedSum(3, 1.0).add(np.ones(4, np.float32))
    for norm in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match="clip_norm="):
            ClippedSum(3, norm)
