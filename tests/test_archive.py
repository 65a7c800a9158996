"""The one reader of archives: what is sound comes back, all else is refused in one line."""

import io
import json
import os
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fl_epe.archive import (
    UnreadableFileError,
    check_size,
    read_archive,
    read_npy,
    write_archive,
)
from fl_epe.files import whole_file

ARRAYS = {
    "x": np.linspace(0, 1, 7),
    "y": np.arange(6).reshape(2, 3),
    "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "other_endian": np.arange(3, dtype=">i4"),
    "one": np.array(2.5),
    "none": np.empty((0, 4)),
    "words": np.array(["a", "bcd"]),
    "no_words": np.array([], str),
    "yes": np.array([True, False]),
}


@pytest.fixture
def path(tmp_path):
    write_archive(
        tmp_path / "a.npz", ARRAYS, {"about": {"seed": 2**127}}, schema=1
    )
    return tmp_path / "a.npz"


def _members(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _rewrite(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def _npy(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def test_what_was_written_is_read_and_may_be_written_to(path):
    (about,), found = read_archive(path, "things", schema=1, texts=("about",))
    assert about == {"seed": 2**127}
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert np.array_equal(found[name], array)
        assert found[name].shape == array.shape
        assert found[name].dtype == array.dtype.newbyteorder("=")
        found[name][...] = found[name]
    with np.load(path) as plain:
        assert np.array_equal(plain["x"], ARRAYS["x"])


def test_archives_of_numpy_have_no_checksums(tmp_path):
    np.savez(tmp_path / "a.npz", **ARRAYS)
    assert read_archive(tmp_path / "a.npz", "things")[1]["one"] == 2.5
    with pytest.raises(UnreadableFileError, match="it has no checksums"):
        read_archive(tmp_path / "a.npz", "things", schema=1)


@pytest.mark.parametrize("schema", [None, "1", 2, [1]])
def test_another_schema_is_refused(schema, tmp_path):
    write_archive(tmp_path / "a.npz", ARRAYS, {}, schema=schema)
    with pytest.raises(
        UnreadableFileError,
        match=r"schema=.*, but this version of fl_epe reads 1",
    ):
        read_archive(tmp_path / "a.npz", "things", schema=1)


def test_a_text_must_be_one(tmp_path):
    write_archive(tmp_path / "a.npz", ARRAYS, {"list": [1]}, schema=1)
    for name, message in (
        ("list", "'list' is a list"),
        ("x", "'x' is no JSON"),
        ("z", "no 'z'"),
    ):
        with pytest.raises(UnreadableFileError, match=message):
            read_archive(tmp_path / "a.npz", "things", texts=(name,))


def _without(members):
    del members["y.npy"]


def _with_another(members):
    members["z.npy"] = members["y.npy"]


def _swapped(members):
    members["x.npy"], members["one.npy"] = members["one.npy"], members["x.npy"]


def _other_value(members):
    members["y.npy"] = _npy(np.arange(1, 7).reshape(2, 3))


def _other_text(members):
    members["about.npy"] = _npy(np.frombuffer(b'{"seed": 1}', np.uint8))


def _other_sum(members):
    listed = json.loads(np.load(io.BytesIO(members["checksums.npy"])).tobytes())
    listed["sha256"]["y"] = listed["sha256"]["x"]
    members["checksums.npy"] = _npy(
        np.frombuffer(json.dumps(listed).encode(), np.uint8)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without, "'y' is missing, but has a checksum"),
        (_with_another, "'z' was added: it has no checksum"),
        (_swapped, "'one' is not as it was written: its checksum differs"),
        (_other_value, "'y' is not as it was written: its checksum differs"),
        (_other_text, "'about' is not as it was written: its checksum differs"),
        (_other_sum, "'y' is not as it was written: its checksum differs"),
    ],
    ids=["lost", "added", "swapped", "value", "text", "sum"],
)
def test_a_change_that_zip_does_not_see_is_refused(change, message, path):
    members = _members(path)
    change(members)
    _rewrite(path, members)
    with pytest.raises(UnreadableFileError) as refusal:
        read_archive(path, "things")
    assert f"Expected path={str(path)!r} to be things: {message}" in str(
        refusal.value
    )


HEADER = "{{'descr': {}, 'fortran_order': False, 'shape': {}, }}"


def _raw_npy(descr, shape, data=b""):
    header = HEADER.format(descr, shape).encode()
    return (
        b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_npy(np.array([{}], object)), "is no array .Object arrays"),
        (_npy(np.array([1j])), "holds complex128, neither numbers nor texts"),
        (_npy(np.zeros(2, "f4,i4")), "neither numbers nor texts"),
        (_raw_npy("'<f8'", "(1152921504606846976,)"), "is no array"),
        (_raw_npy("'<f8'", "(1099511627776,)"), "is no array"),
        (_raw_npy("'<f8'", "(-1,)"), "is no array"),
        (_raw_npy("'<f8'", "(-1, -1)", bytes(8)), "is no array"),
        (_raw_npy("'<U0'", "(1000000000000,)"), "neither numbers nor texts"),
        (_raw_npy("(" * 4000, "(1,)", bytes(8)), "is no array"),
        (b"\x93NUMPY\x09\x00" + bytes(80), "is no array"),
        (b"", "is no array"),
    ],
    ids=[
        "objects", "complex", "fields", "too-many", "claims-8-TiB", "negative", "both-negative",
        "texts-of-nothing", "nested", "version", "empty",
    ],
)  # fmt: skip
def test_arrays_that_are_none(content, message, tmp_path):
    (tmp_path / "a.npy").write_bytes(content)
    _rewrite(tmp_path / "a.npz", {"a.npy": content})
    for read, name in ((read_npy, "a.npy"), (read_archive, "a.npz")):
        with pytest.raises(UnreadableFileError, match=message) as refusal:
            read(tmp_path / name, "numbers")
        assert name in str(refusal.value)
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("packing", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_member_whose_claim_python_would_not_keep_to_is_not_unpacked(
    tmp_path, packing
):
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", packing) as archive:
        archive.writestr("a.npy", b"0" * 1000)
    with pytest.raises(
        UnreadableFileError,
        match="'a' is packed in a way that NumPy does not use",
    ):
        read_archive(path, "scores")


@pytest.mark.slow
def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "bomb.npz"
    _rewrite(path, {"zeros.npy": _npy(np.zeros(40 << 20, np.uint8))})
    monkeypatch.setenv("FL_EPE_READ_LIMIT", "30")
    tracemalloc.start()
    with pytest.raises(
        UnreadableFileError,
        match=r"limit of 30\. If you .*FL_EPE_READ_LIMIT=41",
    ):
        read_archive(path, "numbers")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    monkeypatch.setenv("FL_EPE_READ_LIMIT", "41")
    assert len(read_archive(path, "numbers")[1]["zeros"]) == 40 << 20


def test_a_member_cannot_claim_more_than_it_can_hold(path):
    content = bytearray(path.read_bytes())
    at = content.index(b"PK\x01\x02")
    content[at + 24 : at + 28] = (2**31).to_bytes(
        4, "little"
    )  # its unpacked size
    path.write_bytes(content)
    with pytest.raises(
        UnreadableFileError, match="takes 2,049 MiB unpacked, more than"
    ):
        read_archive(path, "things")


@pytest.mark.parametrize("value", ["many", "-1"])
def test_a_limit_that_is_none(value, monkeypatch):
    monkeypatch.setenv("FL_EPE_READ_LIMIT", value)
    with pytest.raises(
        ValueError, match=f"FL_EPE_READ_LIMIT='{value}' to be a number of MiB"
    ):
        check_size(1, 1)


@pytest.mark.parametrize(
    ("size", "limit"), [(1, 256 << 20), (1 << 30, 32 << 30)]
)
def test_large_files_may_unpack_to_more(size, limit):
    check_size(limit, size)
    with pytest.raises(ValueError, match="more than the limit"):
        check_size(limit + 1, size)


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def fail():
        with whole_file(path, private=True) as file:
            file.write(b"new")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_before_is_kept(tmp_path):
    path, previous = tmp_path / "a.npz", tmp_path / "a-previous.npz"
    for number in range(4):
        write_archive(
            path, {"x": np.array(number)}, {}, schema=1, previous=previous
        )
        found = [
            int(read_archive(p, "a")[1]["x"])
            for p in (path, previous)
            if p.exists()
        ]
        assert found == [number, number - 1][: number + 1]
    path.write_bytes(b"damaged")
    assert int(read_archive(previous, "a")[1]["x"]) == 2
    assert {file.name for file in tmp_path.iterdir()} == {
        path.name,
        previous.name,
    }


def test_at_every_moment_a_whole_file_stands(tmp_path, monkeypatch):
    path, previous = tmp_path / "a.npz", tmp_path / "a-previous.npz"
    for number in range(2):
        write_archive(
            path, {"x": np.array(number)}, {}, schema=1, previous=previous
        )
    seen = []

    def watched(self, target):
        os.replace(self, target)
        seen.append(
            [
                int(read_archive(p, "a")[1]["x"])
                for p in (path, previous)
                if p.exists()
            ]
        )

    monkeypatch.setattr(Path, "replace", watched)
    write_archive(path, {"x": np.array(2)}, {}, schema=1, previous=previous)
    assert seen == [[1], [2, 1]]


def test_folders_are_no_archives(tmp_path):
    with pytest.raises(UnreadableFileError, match="to be a file"):
        read_archive(tmp_path, "things")
