"""Audits of models of any arrays."""

import numpy as np
import pytest
from flower_audits import CANARIES, PLAIN, REPLIES, ROUNDS, plain_record, run
from flower_clients import DIM, SHAPES, drifting_app, model
from flwr.app import Array, ArrayRecord
from flwr.serverapp import strategy as flower
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
)

from fl_epe.auditing import answers
from fl_epe.flower.layout import Layout
from fl_epe.messages import pack, read_only, share


def mixed(**more):
    arrays = {
        "half": np.zeros((30, 40), np.float16),
        "single": np.zeros((30, 40), np.float32),
        "double": np.zeros((30, 40), np.float64),
        "steps": np.asarray(7),
        "counts": np.arange(5),
        "temperature": np.asarray(2.0, np.float32),
        **more,
    }
    return ArrayRecord({name: Array(value) for name, value in arrays.items()})


@pytest.mark.slow
def test_mixed_types_integer_buffers_and_scalars():
    audit, result = run(flower.FedAvg(**PLAIN), arrays=mixed())
    record = audit.record()
    assert record.dim == 3600
    assert record.findings.arrays_left_out == ("steps", "counts", "temperature")
    scores = record.observed.means[record.presence] * 60
    assert scores.mean() * np.sqrt(CANARIES) > 10
    final = {name: array.numpy() for name, array in result.arrays.items()}
    assert final["half"].dtype == np.float16
    np.testing.assert_allclose(final["counts"], np.arange(5))
    np.testing.assert_allclose(final["temperature"], 2.0)


@pytest.mark.slow
def test_counters_are_no_part_of_a_canary_s_update():
    """A mean of integers was cut off: that was an update of its own, with which κ was 0.51."""
    counters = {
        f"norm{i}.num_batches_tracked": Array(np.asarray(0)) for i in range(20)
    }
    arrays = model()
    arrays.update(counters)

    def count(answered):
        return answered | {
            name: np.asarray(answered[name] + 3).astype(int)
            for name in counters
        }

    strategy = flower.DifferentialPrivacyServerSideAdaptiveClipping(
        flower.FedAvg(**PLAIN), 0.1, REPLIES, initial_clipping_norm=0.1
    )
    audit, _ = run(strategy, drifting_app(norm=0.2, arrange=count), arrays)
    fit = answers(audit.record())[1].fit
    assert fit.low < 1 < fit.high


def test_an_array_that_nobody_can_add_up_is_named_and_the_run_goes_on():
    audit, result = run(
        flower.FedAvg(**PLAIN), arrays=mixed(odd=np.zeros(3, "complex64"))
    )
    assert len(result.train_metrics_clientapp) == ROUNDS
    assert "odd.dtype='complex64'" in audit.faults[0]


@pytest.mark.parametrize("dtype", ["complex64", "U3"])
def test_types_that_nobody_can_add_up_are_refused_by_name(dtype):
    with pytest.raises(ValueError, match=r"odd.dtype='(complex64|<U3|str96)'"):
        Layout.of(mixed(odd=np.zeros(3, dtype)))


def test_bfloat16_is_refused_by_name():
    """NumPy has no bfloat16: what travels under that name cannot be averaged."""
    arrays = model()
    arrays["brain"] = Array(
        "bfloat16", (3,), "numpy.ndarray", _saved(np.zeros(3, "V2"))
    )
    with pytest.raises(ValueError, match=r"brain.dtype='bfloat16'"):
        Layout.of(arrays)
    arrays["brain"] = Array("bfloat16", (3,), "torch.tensor", b"")
    with pytest.raises(ValueError, match=r"brain.stype='torch.tensor'"):
        Layout.of(arrays)


def _saved(value):
    import io

    buffer = io.BytesIO()
    np.save(buffer, value)
    return buffer.getvalue()


def test_nothing_to_move_is_refused():
    arrays = ArrayRecord({"steps": Array(np.arange(5))})
    with pytest.raises(ValueError, match="could move 0 entries"):
        Layout.of(arrays)


def test_arrays_can_be_left_out_by_pattern():
    shapes = {**SHAPES, "norm.running_mean": (40,)}
    audit, _ = run(
        flower.FedAvg(**PLAIN),
        arrays=model(shapes),
        leave_out=["*.running_mean"],
    )
    assert audit.record().dim == DIM
    assert audit.record().findings.arrays_left_out == ("norm.running_mean",)


@pytest.mark.parametrize(
    "arrange",
    [
        lambda arrays: dict(reversed(arrays.items())),
        pytest.param(
            lambda arrays: {
                str(i): value for i, value in enumerate(arrays.values())
            },
            marks=pytest.mark.slow,
        ),
    ],
    ids=["reordered", "renamed"],
)
def test_reordered_and_renamed_arrays(arrange):
    audit, _ = run(flower.FedAvg(**PLAIN), drifting_app(arrange=arrange))
    np.testing.assert_allclose(
        audit.record().observed.means, plain_record().observed.means, atol=1e-5
    )


def transposed(arrays):
    return {name: value.T for name, value in arrays.items()}


@pytest.mark.parametrize(
    ("arrange", "message"),
    [
        (
            lambda arrays: {"other": np.zeros((3, 3), np.float32)},
            "'layer.weight'] are missing, ['other'] are new",
        ),
        (transposed, "layer.weight.shape=(100, 40) to be (40, 100)"),
    ],
    ids=["other", "transposed"],
)
def test_replies_with_arrays_of_another_model_are_named_and_the_run_goes_on(
    arrange, message
):
    audit, result = run(
        flower.FedAvg(**PLAIN), drifting_app(arrange=arrange), rounds=2
    )
    assert len(result.train_metrics_clientapp) == 2
    assert message in " ".join(audit.faults)


def test_a_shared_array_reaches_another_process_as_any_array():
    values = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    record, plain = share(theta=values), pack(theta=values)
    assert np.shares_memory(read_only(record["theta"]), values)
    contents = {
        key: item.deflate()
        for key, item in get_all_nested_objects(record).items()
    }
    inflated = inflate_object_from_contents(record.object_id, contents)
    assert isinstance(inflated, ArrayRecord)
    assert np.array_equal(inflated["theta"].numpy(), values)
    assert record.object_id == plain.object_id
