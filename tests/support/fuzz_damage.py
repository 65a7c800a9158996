"""Ways to damage a file: of any bytes, and of what the bytes mean."""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import io
import json
import random
import re
import struct
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
from fuzz_seeds import sqlite_bytes
from pyarrow import parquet

Damage = Callable[[bytes, random.Random], bytes]

ODD_NUMBERS = (
    0, -1, 1, 2, 1e308, -1e308, 1e-320, float("nan"), float("inf"), 2**31, 2**63, 2**64, 10**400,
)  # fmt: skip
ODD_VALUES: tuple[Any, ...] = (
    *ODD_NUMBERS,
    None,
    True,
    "",
    "x",
    "ε\ud800",
    "[red]",
    "=1+1",
    [],
    [1],
    {},
    {"a": 1},
)
ODD_CELLS = (
    b"", b" ", b"nan", b"inf", b"-inf", b"1e400", b"x", b"1_0", b"9" * 400, b"a" * 200_000, b"\0",
    b"\xff\xfe", b'"', b'"a', b",", b"\r", b"\n", b"=1+1", b"-0", b"1e-400", b"0x10", b"true",
    "١٢".encode(), b"\xef\xbb\xbf", b"1,2", b"null", b"[red]", b"{", b"-9223372036854775809",
)  # fmt: skip


def raw(content: bytes, random: random.Random) -> bytes:
    """Flipped bits, another length, holes and stretches twice, numbers of a header."""
    data = bytearray(content)
    how = random.randrange(9)
    at, to = sorted(random.randrange(len(data) + 1) for _ in "ab")
    to = min(to, at + 2 ** random.randrange(12))
    if how <= 2:
        for _ in range(2 ** random.randrange(4)):
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    elif how == 3:
        del data[random.randrange(len(data)) :]
    elif how == 4:
        data[at:to] = bytes(to - at)
    elif how == 5:
        data[at:at] = (
            random.randbytes(to - at) if random.random() < 0.5 else data[at:to]
        )
    elif how == 6:
        del data[at:to]
    elif how == 7:
        edge = random.choice([0, max(0, len(data) - 64)])
        data[min(edge + random.randrange(64), len(data) - 1)] = (
            random.randrange(256)
        )
    else:
        kind, value = random.choice(
            [
                ("<I", 2**32 - 1),
                ("<I", 2**31),
                ("<Q", 2**60),
                ("<H", 2**16 - 1),
                ("<Q", 2**63),
            ]
        )
        packed = struct.pack(kind, value)
        at = random.randrange(max(1, len(data) - len(packed)))
        data[at : at + len(packed)] = packed
    return bytes(data)


def _members(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _zipped(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def archive(content: bytes, random: random.Random) -> bytes:
    """Members changed, lost, renamed, swapped or added in an archive whose CRCs are right."""
    members = _members(content)
    name, other = random.choice(list(members)), random.choice(list(members))
    how = random.randrange(6)
    if how <= 1:
        members[name] = raw(members[name], random)
    elif how == 2:
        del members[name]
    elif how == 3:
        members[random.choice(["x.npy", "x", "../x.npy", other])] = members.pop(
            name
        )
    elif how == 4:
        members[name], members[other] = members[other], members[name]
    else:
        members[name] = _npy(
            _odd_array(np.load(io.BytesIO(members[name])), random)
        )
    return _zipped(members)


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=array.dtype == object)
    return file.getvalue()


def _odd_array(array: np.ndarray, random: random.Random) -> np.ndarray:
    """Another type, shape or value."""
    how = random.randrange(10)
    if how == 0:
        return array.astype(
            random.choice(
                ["f4", "i4", "u1", "U3", "c16", "b1", "S2", ">f8", "O"]
            )
        )
    if how == 1:
        return array[..., None]
    if how == 2:
        return array.reshape(-1)[: random.randrange(3)]
    if how == 3 and array.ndim:
        return array[: len(array) // 2]
    if how == 4 and array.ndim:
        return np.concatenate([array, array])
    if how == 5:
        return np.array(random.choice([0, 1, -1, 1e300, np.nan, "x"]))
    if how == 6:
        return np.zeros(
            random.choice([(0,), (0, 0), (1, 1), (1000, 1000)]), array.dtype
        )
    changed = np.array(array)
    if changed.dtype.kind in "fiub" and changed.size:
        odd = random.choice(
            [0, -1, 1, 2, 1e300, np.nan, np.inf, -np.inf, 2**40]
        )
        where = slice(None) if how == 7 else random.randrange(changed.size)
        with np.errstate(all="ignore"):
            changed.reshape(-1)[where] = np.array(odd).astype(changed.dtype)
    return changed


def signed(content: bytes, random: random.Random) -> bytes:
    """A field changed and all checksums made again: only a check of values can refuse it."""
    members = _members(content)
    names = [name for name in members if name != "checksums.npy"]
    texts = [
        name
        for name in names
        if name.removesuffix(".npy") in ("meta", "seeds", "job")
    ]
    name = random.choice(texts if random.random() < 0.6 else names)
    if name in texts:
        values = json.loads(np.load(io.BytesIO(members[name])).tobytes())
        _change_a_leaf(values, random)
        members[name] = _npy(
            np.frombuffer(json.dumps(values).encode(), np.uint8)
        )
    else:
        members[name] = _npy(
            _odd_array(np.load(io.BytesIO(members[name])), random)
        )
    digests = {
        n.removesuffix(".npy"): hashlib.sha256(members[n]).hexdigest()
        for n in names
    }
    listed = {"schema": 1, "sha256": digests}
    members["checksums.npy"] = _npy(
        np.frombuffer(json.dumps(listed).encode(), np.uint8)
    )
    return _zipped(members)


def _change_a_leaf(values: Any, random: random.Random) -> None:
    while True:
        keys = (
            list(values)
            if isinstance(values, dict)
            else list(range(len(values)))
        )
        if not keys:
            return
        key = random.choice(keys)
        if (
            isinstance(values[key], dict | list)
            and values[key]
            and random.random() < 0.8
        ):
            values = values[key]
            continue
        if random.random() < 0.15:
            del values[key]
        else:
            values[key] = random.choice(ODD_VALUES)
        return


def cells(content: bytes, random: random.Random) -> bytes:
    """A cell, a row or the header of a CSV file changed."""
    lines = content.splitlines(keepends=True)
    row = random.randrange(len(lines)) if random.random() < 0.8 else 0
    parts = lines[row].rstrip(b"\r\n").split(b",")
    how = random.randrange(6)
    if how <= 2:
        parts[random.randrange(len(parts))] = random.choice(ODD_CELLS)
    elif how == 3:
        parts.insert(
            random.randrange(len(parts) + 1),
            random.choice([*ODD_CELLS, *parts]),
        )
    elif how == 4:
        parts.pop()
    else:
        lines[row] += lines[random.randrange(len(lines))]
        return b"".join(lines)
    lines[row] = b",".join(parts) + b"\n"
    text = b"".join(lines)
    return (
        text.decode("latin-1").encode("utf-16")
        if random.random() < 0.02
        else text
    )


def tabbed_cells(content: bytes, random: random.Random) -> bytes:
    """`cells` of a TSV file."""
    return cells(content.replace(b"\t", b","), random).replace(b",", b"\t")


def much(content: bytes, random: random.Random) -> bytes:
    """Some bytes of a text many times, which gzip makes small."""
    lines = content.splitlines(keepends=True)
    part = random.choice(
        [
            lines[-1],
            lines[-1].strip(),
            b"\n",
            b"a",
            b"0",
            b'"',
            b"[",
            b"\0",
            b",",
        ]
    )
    return content + part * (
        random.choice([1 << 16, 1 << 23, 1 << 26]) // max(1, len(part))
    )


def packed(damage: Damage) -> Damage:
    """The damage to what is in a file that is packed with gzip."""

    @functools.wraps(damage)
    def repacked(content: bytes, random: random.Random) -> bytes:
        return gzip.compress(damage(gzip.decompress(content), random), 1)

    return repacked


def json_values(content: bytes, random: random.Random) -> bytes:
    """A value of a JSON text changed; of lines, in one of them."""
    lines = content.splitlines() if content.count(b"\n") else [content]
    at = random.randrange(len(lines))
    if random.random() < 0.1 or not lines[at].strip():
        lines[at] = random.choice(
            [b"[" * 100_000, b'{"a": 1, "a": 2}', b"[]", b"1", *ODD_CELLS]
        )
    else:
        values = json.loads(lines[at])
        _change_a_leaf(values, random)
        lines[at] = json.dumps(values).encode()
    return b"\n".join(lines)


ODD_TOML = (
    "0", "-1", "1e400", "nan", "inf", '"x"', "[]", "[1]", '["epochs:seed=1"]', "true", "{}",
    "9" * 400, "9" * 5000, '["trace:path=/dev/zero"]', '["poisson:x"]', "[[[]]]", "[" * 5000, '""',
    "10000000000", '["fixed-size:{}"]', "1979-05-27", '[0.1, "x"]', "[0]",
    '["capped:of=capped,per_run=-1"]',
)  # fmt: skip


def toml(content: bytes, random: random.Random) -> bytes:
    """A value of a TOML text changed, or a name."""
    lines = content.decode().splitlines()
    at = random.randrange(len(lines))
    name, equals, _ = lines[at].partition(" = ")
    if random.random() < 0.9:
        lines[at] = name + equals + random.choice(ODD_TOML)
    else:
        lines[at] = random.choice(
            ["[settings]", "x = 1", "[task-options]", 'task = "digits"', name]
        )
    return "\n".join(lines).encode()


def table(content: bytes, random: random.Random) -> bytes:
    """A Parquet file with other columns, types, nulls or names."""
    columns = parquet.read_table(io.BytesIO(content)).to_pydict()
    name = random.choice(list(columns))
    values = columns[name]
    how = random.randrange(5)
    if how <= 1:
        values[random.randrange(len(values))] = None
    elif how == 2:
        columns[name] = [
            random.choice([value, None, value]) for value in values
        ]
    elif how == 3:
        odd: Any = random.choice(
            [
                float("nan"),
                float("inf"),
                "x",
                2**62,
                -1,
                b"\xff",
                [1],
                True,
                "y" * 999,
            ]
        )
        columns[name] = [odd if random.random() < 0.5 else None for _ in values]
    names = [
        random.choice([n, n, n, "x", name.upper() + " "]) if how == 4 else n
        for n in columns
    ]
    made = pa.Table.from_arrays(
        [pa.array(column) for column in columns.values()], names
    )
    if random.random() < 0.1:
        made = made.slice(0, 0)
    elif (
        random.random() < 0.1
    ):  # of a row that stands there many times, a file stays small
        made = made.take([0] * random.choice([100_000, 1_000_000, 10_000_000]))
    file = io.BytesIO()
    parquet.write_table(made, file, write_page_checksum=random.random() < 0.5)
    return file.getvalue()


_ENDLESS = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"
)
_VIEWS = tuple(
    f"ALTER TABLE {table} RENAME TO kept; CREATE VIEW {table} AS {rows}"
    for table, rows in (
        (
            "examples",
            "SELECT a.* FROM kept a, kept b, kept c, kept d, kept e, kept f",
        ),
        (
            "examples",
            "SELECT client_id, split_name, zeroblob(900000000) AS x FROM kept",
        ),
        (
            "examples",
            "SELECT client_id, split_name, hex(zeroblob(90000000)) AS serialized_example_proto "
            "FROM kept a, kept b",
        ),
        (
            "client_metadata",
            f"{_ENDLESS} 'c' AS client_id, 'train' AS split_name, i AS x FROM n",
        ),
        (
            "client_metadata",
            f"{_ENDLESS} 'train' || i AS split_name, 1 AS num_examples FROM n",
        ),
        (
            "client_metadata",
            "SELECT a.* FROM kept a, kept b, kept c, kept d, kept e, kept f, kept g",
        ),
    )
)
ODD_SQL = (
    "UPDATE examples SET serialized_example_proto = {} WHERE rowid = {}",
    "UPDATE examples SET client_id = {} WHERE rowid = {}",
    "UPDATE examples SET split_name = {} WHERE rowid = {}",
    "UPDATE client_metadata SET num_examples = {} WHERE rowid = {}",
    "UPDATE client_metadata SET split_name = {} WHERE rowid = {}",
    "DELETE FROM client_metadata",
    "DELETE FROM examples",
    "DROP TABLE examples",
    "ALTER TABLE examples RENAME COLUMN client_id TO x",
    "DROP TABLE examples; CREATE VIEW examples AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL "
    "SELECT i + 1 FROM n) SELECT i AS rowid, 'a' AS client_id, 'train' AS split_name, x'' AS "
    "serialized_example_proto FROM n",
    *_VIEWS,
    "ALTER TABLE examples ADD COLUMN more AS (hex(zeroblob(90000000)))",
    "PRAGMA writable_schema = ON; UPDATE sqlite_master SET rootpage = 2",
    "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = 'CREATE TABLE examples(x)'",
)
ODD_SQL_VALUES = (
    "''", "'x'", "-1", "0", "1e308", "9223372036854775807", "x'ff00'", "CAST(x'ff' AS TEXT)",
    "zeroblob(1000000)", "zeroblob(9000000)", "randomblob(50)", "'test'", "'digits_only'",
)  # fmt: skip


def sqlite(content: bytes, random: random.Random) -> bytes:
    """A data base with other values, or without a table."""
    order = random.choice(ODD_SQL)
    order = order.replace("{}", random.choice(ODD_SQL_VALUES), 1).format(
        random.randrange(9)
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.sqlite")
        path.write_bytes(content)
        return sqlite_bytes(
            path, lambda database: database.executescript(order)
        )


def hdf5(content: bytes, random: random.Random) -> bytes:
    """An HDF5 file with other data sets, or groups in their place."""
    file = io.BytesIO(content)
    with h5py.File(file, "r+") as data:
        clients = list(data["examples"])
        place = f"examples/{random.choice(clients)}"
        name = random.choice(["", "/pixels", "/label"])
        how = random.randrange(15)
        if how >= 9:
            _link(data, place + name, random)
            return _flushed(data, file)
        if how <= 1:
            del data[place + name]
        if how == 1:
            data.create_group(place + name)
        elif how == 2:
            del data["examples"]
        elif how >= 3:
            shape: Any = random.choice(
                [(), (0,), (4,), (4, 28, 28), (4, 2), (2**40, 28, 28), (3,)]
            )
            kind = random.choice(
                ["f4", "i8", "S3", "c16", "b1", h5py.string_dtype(), "f2", "u1"]
            )
            with contextlib.suppress(KeyError):
                del data[f"{place}/pixels"]
            with contextlib.suppress(TypeError, ValueError):
                data.create_dataset(
                    f"{place}/pixels",
                    shape,
                    kind,
                    chunks=(how > 5 and shape != ()) or None,
                )
    return file.getvalue()


_OUTSIDE = (
    "/etc/passwd",
    "/dev/zero",
    "../seeds/sources/a.h5",
    "a.h5",
    "missing.h5",
)


def _link(data: h5py.File, place: str, random: random.Random) -> None:
    """A link, or values in another file, in place of a member."""
    del data[place]
    path = random.choice(_OUTSIDE)
    where = random.choice(
        ["/examples", "/", place, "/examples/f0/pixels", "/x"]
    )
    how = random.randrange(6)
    if how == 0:
        data[place] = h5py.SoftLink(where)
    elif how == 1:
        data[place] = h5py.ExternalLink(path, where)
    elif how == 2:
        data[place] = data[
            "/examples" if where == "/examples" else "/"
        ]  # a hard link, in circles
    elif how == 3:
        size = random.choice([4, 1 << 20, 1 << 33])
        data.create_dataset(place, (size,), "u1", external=[(path, 0, size)])
    elif how == 4:
        layout = h5py.VirtualLayout((1 << random.choice([4, 40]),), "f4")
        layout[:4] = h5py.VirtualSource(path, where, (4,))
        data.create_virtual_dataset(place, layout)
    else:
        shape = (1 << random.choice([10, 20, 31]), 28, 28)
        data.create_dataset(
            place,
            shape,
            "f4",
            chunks=(4, 28, 28),
            compression="gzip",
            fillvalue=1,
        )


def _flushed(data: h5py.File, file: io.BytesIO) -> bytes:
    data.flush()
    return file.getvalue()


BY_ENDING: dict[str, tuple[Damage, ...]] = {
    ".npz": (archive,),
    ".csv": (cells, cells),
    ".tsv": (tabbed_cells, tabbed_cells),
    ".jsonl": (json_values, json_values),
    ".json": (json_values,),
    ".toml": (toml, toml),
    ".parquet": (table,),
    ".sqlite": (sqlite,),
    ".h5": (hdf5,),
}


def damages(path: str, checked: bool) -> tuple[Damage, ...]:
    """What can be done to a file of this name: of any bytes as often as of what they mean."""
    if path.endswith(".gz"):
        inside = damages(path.removesuffix(".gz"), checked)
        return (raw, *map(packed, (*inside, much)))
    more = BY_ENDING.get(re.sub(r"^.*(\.\w+)$", r"\1", path), ())
    return (*[raw] * max(1, len(more)), *more, *((signed,) if checked else ()))
