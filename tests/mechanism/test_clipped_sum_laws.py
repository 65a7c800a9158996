"""Laws of clipping and of the exact sum, on vectors that nobody picked by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from naive_clip import clip

from fl_epe.mechanism import ClippedSum, norm

DIMS = st.integers(1, 40)
clip_norms = st.floats(1e-6, 1e6)
dtypes = st.sampled_from([np.float16, np.float32, np.float64])


def entries(dtype):
    largest = 6e4 if dtype is np.float16 else 1e8
    return st.floats(-largest, largest, width=np.dtype(dtype).itemsize * 8)


@st.composite
def updates(draw, count=1):
    """Vectors of one length, of any floating-point type."""
    dim = draw(DIMS)
    types = [draw(dtypes) for _ in range(count)]
    return [
        draw(arrays.arrays(dtype, dim, elements=entries(dtype)))
        for dtype in types
    ]


many = st.integers(1, 8).flatmap(updates)


@given(updates(), clip_norms)
def test_a_clipped_update_is_never_longer_than_the_clip_norm(update, clip_norm):
    clipped, _ = clip(update[0], clip_norm)
    assert norm(clipped) <= clip_norm


@given(updates(), clip_norms)
def test_an_update_is_called_unclipped_if_and_only_if_it_is_short_enough(
    update, clip_norm
):
    assert clip(update[0], clip_norm)[1] == (norm(update[0]) <= clip_norm)


@given(updates(), clip_norms)
def test_what_is_short_enough_stays_up_to_the_grid(update, clip_norm):
    clipped, unclipped = clip(update[0], clip_norm)
    if unclipped:
        grid = 2.0**-31 * clip_norm  # twice the step at most
        assert np.all(np.abs(clipped - update[0]) <= grid)
        assert np.all(np.abs(clipped) <= np.abs(update[0]))


@given(updates(), clip_norms)
def test_clipping_keeps_the_direction(update, clip_norm):
    clipped, _ = clip(update[0], clip_norm)
    given_ = update[0].astype(np.float64)
    assert np.all(clipped * given_ >= 0)
    expected = given_ * min(1.0, clip_norm / max(norm(given_), 1e-300))
    assert np.all(np.abs(clipped - expected) <= 2.0**-30 * clip_norm)


@given(many, clip_norms)
def test_the_sum_is_that_of_the_clipped_updates_to_the_last_bit(
    several, clip_norm
):
    total = ClippedSum(len(several[0]), clip_norm)
    unclipped_flags = [total.add(update) for update in several]
    clipped = [clip(update, clip_norm) for update in several]
    assert unclipped_flags == [unclipped for _, unclipped in clipped]
    assert np.array_equal(
        total.total(), np.sum([vector for vector, _ in clipped], axis=0)
    )


@given(many, clip_norms, st.randoms(use_true_random=False))
def test_the_sum_does_not_depend_on_the_order(several, clip_norm, random):
    shuffled = random.sample(several, len(several))
    sums = []
    for order in (several, shuffled):
        total = ClippedSum(len(order[0]), clip_norm)
        for update in order:
            total.add(update)
        sums.append(total.total())
    assert np.array_equal(*sums)


@given(many, clip_norms, st.data())
def test_the_sum_does_not_depend_on_who_adds_up_what(several, clip_norm, data):
    """Shared out among up to three workers, as the server adds their sums."""
    dim = len(several[0])
    workers = [ClippedSum(dim, clip_norm) for _ in range(3)]
    single = ClippedSum(dim, clip_norm)
    for update in several:
        single.add(update)
        data.draw(st.sampled_from(workers)).add(update)
    assert np.array_equal(
        sum(worker.total() for worker in workers), single.total()
    )


@given(
    updates(count=2),
    clip_norms,
    st.sampled_from([np.nan, np.inf, -np.inf]),
    st.data(),
)
def test_a_broken_update_leaves_the_sum_as_it_is(pair, clip_norm, broken, data):
    sound, wrong = pair
    wrong[data.draw(st.integers(0, len(wrong) - 1))] = broken
    total = ClippedSum(len(sound), clip_norm)
    total.add(sound)
    before = total.total().copy()
    assert total.add(wrong) is None
    assert clip(wrong, clip_norm) == (None, False)
    assert np.array_equal(total.total(), before)


@given(updates(), st.sampled_from([0.0, -1.0, np.nan, np.inf]))
def test_no_other_clip_norm_is_accepted(update, clip_norm):
    with pytest.raises(ValueError, match="Expected clip_norm="):
        clip(update[0], clip_norm)
