"""Arrays in Flower's records, and what a message leaves behind in memory."""

import gc
import io
import subprocess
import sys
import weakref

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from tiny import Tiny

from fl_epe.config import RunConfig
from fl_epe.flower import DPFedAvg, InProcessGrid, worker_app
from fl_epe.messages import DecodedArray, pack, read_only, records_of
from fl_epe.seeding import Seeds


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype=np.float32),
        np.arange(6).reshape(2, 3).T,
        np.arange(10.0)[::3],
        np.empty((0, 3)),
        np.array(2.5),
        np.array([True, False]),
        np.arange(3, dtype=">f8"),
        np.array(["ε", "two"]),
    ],
    ids=[
        "flat",
        "columns",
        "steps",
        "empty",
        "scalar",
        "truth",
        "other-order",
        "texts",
    ],
)
def test_an_array_has_the_bytes_that_flower_would_give_it(value):
    array, flowers = (
        pack(x=value)["x"],
        Array(np.ascontiguousarray(value).reshape(value.shape)),
    )
    assert (array.dtype, array.shape, array.stype) == (
        flowers.dtype,
        flowers.shape,
        flowers.stype,
    )
    assert array.data == flowers.data
    assert np.array_equal(read_only(array), value)
    assert read_only(array).dtype == value.dtype


def test_values_are_read_where_they_are():
    array = pack(x=np.arange(3.0))["x"]
    values = read_only(array)
    assert np.shares_memory(values, np.frombuffer(array.data, np.uint8))
    with pytest.raises(ValueError, match="read-only"):
        values[0] = 1
    decoded = DecodedArray(array)
    assert read_only(decoded) is decoded.values
    own = decoded.numpy()
    own[0] = 9
    assert decoded.values[0] == 0


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_version_of_the_format_for_numbers_is_read(version, order):
    value, stream = (
        np.array(np.arange(6.0).reshape(2, 3), order=order),
        io.BytesIO(),
    )
    np.lib.format.write_array(stream, value, version)
    array = Array("float64", (2, 3), "numpy.ndarray", stream.getvalue())
    assert np.array_equal(read_only(array), value)
    assert not read_only(array).flags.writeable


def _with_header(text):
    header = text.encode().ljust(117) + b"\n"
    return (
        b"\x93NUMPY\x01\x00"
        + len(header).to_bytes(2, "little")
        + header
        + bytes(72)
    )


_WHOLE = pack(x=np.ones(9))["x"].data


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(_WHOLE[:8], id="no-header"),
        pytest.param(_WHOLE[:-1], id="short"),
        pytest.param(_WHOLE[:6] + b"\x03\x00" + _WHOLE[8:], id="other-version"),
        pytest.param(
            _with_header("{'descr': '<f8', 'shape': (6,"), id="open-bracket"
        ),
        pytest.param(
            _with_header("{'descr': '<f8', 'shape': (9,)}"), id="key-missing"
        ),
        *(
            pytest.param(
                _with_header(
                    f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}"
                ),
                id=name,
            )
            for name, shape in [
                ("negative", "(-1,)"),
                ("negative-inside", "(-1, 2)"),
                ("huge", f"({2**62}, 8)"),
                ("long", "(10,)"),
                ("no-tuple", "9"),
            ]
        ),
        pytest.param(
            _with_header(
                "{'descr': '|O', 'fortran_order': False, 'shape': (9,)}"
            ),
            id="objects",
        ),
    ],
)
def test_damaged_bytes_are_refused(data):
    with pytest.raises(ValueError, match="Expected the bytes of an array"):
        read_only(Array("float64", (9,), "numpy.ndarray", data))


def test_a_header_with_another_byte_is_read_or_refused():
    refused = 0
    for at in range(8, 128):
        for byte in b"\x00\n'({[],:9-\\\xff":
            data = bytearray(_WHOLE)
            data[at] = byte
            try:
                read_only(Array("float64", (9,), "numpy.ndarray", bytes(data)))
            except ValueError:
                refused += 1
    assert refused > 300  # and nothing but a ValueError came


def test_what_is_no_numpy_array_is_refused():
    with pytest.raises(TypeError, match="tensor"):
        read_only(Array("float64", (1,), "some.tensor", b"12345678"))


def test_records_of_a_kind():
    arrays, numbers = pack(x=np.ones(1)), MetricRecord({"loss": 1.0})
    content = RecordDict({"a": arrays, "n": numbers})
    assert records_of(content, ArrayRecord) == {"a": arrays}
    assert records_of(content, MetricRecord) == {"n": numbers}
    assert records_of(content, ConfigRecord) == {}


def test_rounds_leave_none_of_their_messages_in_memory():
    """Not even until Python looks for circles of references, which may be many rounds later."""
    config = RunConfig(clients=20, rounds=3, clients_per_round=4)
    strategy = DPFedAvg(config, Seeds.derive(1))
    arrays: ArrayRecord | None = pack(theta=Tiny().initial(1))
    seen: list[weakref.ref[object]] = []
    gc.disable()
    try:
        with InProcessGrid(worker_app(Tiny()), 2) as grid:
            for t in range(1, 4):
                assert arrays is not None
                messages = list(
                    strategy.configure_train(t, arrays, ConfigRecord(), grid)
                )
                replies = list(grid.send_and_receive(messages, timeout=600))
                arrays, _ = strategy.aggregate_train(t, replies)
                for message in (*messages, *replies):
                    seen += [weakref.ref(message), weakref.ref(message.content)]
                del messages, replies, message
        assert len(seen) == 3 * 4 * 2
        assert [ref() for ref in seen] == [None] * len(seen)
    finally:
        gc.enable()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc")
def test_threads_of_a_grid_share_one_heap():
    code = """
import ctypes, threading
from fl_epe.simulation.grids import share_one_heap

share_one_heap()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.fdopen.restype = ctypes.c_void_p, ctypes.c_void_p
threads = [threading.Thread(target=libc.malloc, args=(100_000,)) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
out = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, out)
libc.fflush(out)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.count("<heap ") == 1, done.stdout
