"""A model's arrays as one vector and back, for layouts that nobody picked by hand."""

import numpy as np
from flwr.app import Array, ArrayRecord
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fl_epe.flower.layout import Layout

FLOATS = ("float16", "float32", "float64")
OTHERS = ("bool", "int8", "int32", "int64", "uint8")
shapes = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


@st.composite
def models(draw):
    """Named arrays of any shape; floating-point, integer and boolean ones mixed."""
    names = draw(
        st.lists(
            st.text("abc.", min_size=1), min_size=1, max_size=5, unique=True
        )
    )
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    values = {
        name: np.asarray(100 * rng.standard_normal(draw(shapes))).astype(
            draw(st.sampled_from(FLOATS + OTHERS))
        )
        for name in names
    }
    moved = [
        value
        for value in values.values()
        if value.dtype.kind == "f" and value.ndim
    ]
    assume(sum(value.size for value in moved) >= 2)
    return values


def _record(values):
    return ArrayRecord({name: Array(value) for name, value in values.items()})


@given(models())
def test_flat_and_back_is_the_same_model(values):
    model = _record(values)
    layout = Layout.of(model)
    flat = layout.flatten(model)
    assert flat.shape == (layout.dim,)
    back = layout.form(model, model)(flat)
    assert list(back) == list(values)
    for name, value in values.items():
        again = back[name].numpy()
        assert again.dtype == value.dtype
        assert again.shape == value.shape
        assert again.tobytes() == value.tobytes()


@given(models())
def test_exactly_the_floating_point_arrays_with_an_axis_are_moved(values):
    model = _record(values)
    layout = Layout.of(model)
    moved_model = layout.form(model, model)(layout.flatten(model) + 1)
    for name, value in values.items():
        moved = value.dtype.kind == "f" and value.ndim > 0
        assert (name in layout.left_out) is not moved
        expected = (
            (value + value.dtype.type(1)).astype(value.dtype)
            if moved
            else value
        )
        assert np.allclose(
            moved_model[name].numpy(), expected, rtol=2e-3
        )  # a step of float16


@given(models(), st.randoms(use_true_random=False))
def test_the_order_of_names_in_a_reply_does_not_matter(values, random):
    model = _record(values)
    layout = Layout.of(model)
    mixed = _record(dict(random.sample(list(values.items()), len(values))))
    assert np.array_equal(layout.flatten(mixed), layout.flatten(model))
    assert list(layout.form(mixed, model)(layout.flatten(model))) == list(mixed)
