"""Fashion-MNIST from its published files."""

import gzip
import pathlib

import numpy as np
import pytest
from fashion_files import idx_bytes, write_fashion

from fl_epe.tasks.images import FashionMnist, read_idx


def test_fashion_mnist_reads_packed_and_plain_files(tmp_path: pathlib.Path):
    write_fashion(tmp_path)
    task = FashionMnist(data_dir=str(tmp_path), num_clients=8)
    clients = [task.client(i) for i in range(8)]
    assert sum(map(len, clients)) == 200
    assert min(map(len, clients)) >= 16
    assert len(task.held_out()) == 30
    raw = (tmp_path / "t10k-images-idx3-ubyte").read_bytes()[16:]
    pixels = np.frombuffer(raw, np.uint8).reshape(30, 1, 28, 28)
    np.testing.assert_allclose(task.held_out().inputs, pixels / 255, atol=1e-7)


def test_a_missing_file_says_where_to_get_it(tmp_path: pathlib.Path):
    with pytest.raises(FileNotFoundError) as caught:
        FashionMnist(data_dir=str(tmp_path)).client(0)
    message = str(caught.value)
    for part in (
        "dataset-fashion-mnist",
        "t10k-labels-idx1-ubyte",
        "--data-dir",
        str(tmp_path),
    ):
        assert part in message


def test_a_relative_data_dir_means_the_folder_where_the_task_was_made(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    assert FashionMnist(data_dir="data").data_dir == str(tmp_path / "data")


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        pytest.param(
            "train-images-idx3-ubyte.gz",
            idx_bytes(np.zeros((200, 28, 27))),
            "images of \\(200, 28, 27\\)",
            id="images",
        ),
        pytest.param(
            "train-labels-idx1-ubyte.gz",
            idx_bytes(np.zeros(199)),
            "labels of \\(199,\\)",
            id="too-few-labels",
        ),
        pytest.param(
            "t10k-labels-idx1-ubyte",
            idx_bytes(np.full(30, 10)),
            "< 10, found 10",
            id="label-too-large",
        ),
    ],
)
def test_files_that_do_not_fit_are_named(
    tmp_path: pathlib.Path, name: str, raw: bytes, message: str
):
    write_fashion(tmp_path)
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(ValueError, match=message):
        FashionMnist(data_dir=str(tmp_path), num_clients=8).client(0)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 4)])
def test_idx_arrays_come_back(
    tmp_path: pathlib.Path, pack, shape: tuple[int, ...]
):
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    (tmp_path / "a").write_bytes(pack(idx_bytes(array)))
    np.testing.assert_array_equal(read_idx(tmp_path / "a"), array)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\0\0", id="no-header"),
        pytest.param(b"PNG!" + bytes(40), id="another-format"),
        pytest.param(
            b"\0\0\x0d\x01" + bytes(40), id="float32"
        ),  # float32, not bytes
        pytest.param(
            b"\0\0\x08\x03\0\0\0\x02", id="axes-cut-off"
        ),  # the lengths of the axes are cut off
        pytest.param(idx_bytes(np.zeros((2, 3)))[:-1], id="byte-missing"),
        pytest.param(idx_bytes(np.zeros((2, 3))) + b"x", id="byte-too-many"),
        pytest.param(
            gzip.compress(idx_bytes(np.zeros((2, 3))), mtime=0)[:-9],
            id="gzip-cut-off",
        ),
        pytest.param(b"\x1f\x8b garbage", id="gzip-broken"),
    ],
)
def test_a_broken_idx_file_is_named(tmp_path: pathlib.Path, raw: bytes):
    path = tmp_path / "broken-idx"
    path.write_bytes(raw)
    with pytest.raises(ValueError, match="broken-idx"):
        read_idx(path)
