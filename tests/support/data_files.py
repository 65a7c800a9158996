"""Small files of the same schemas as the published data sets, and real contents for them."""

import argparse
import collections
import csv
import io
import json
import lzma
import pathlib
import re
import sqlite3
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from PIL import Image
from pyarrow import parquet
from sklearn.datasets import load_digits

Rows = list[tuple[str, str, Any]]
"""Split, client, features by name (or the serialized message of them)."""


def _example_class() -> Any:
    """`tf.train.Example` as Google's protobuf library makes it from the schema."""
    file = descriptor_pb2.FileDescriptorProto(
        name="example.proto", package="tf", syntax="proto3"
    )
    kinds = {
        "BytesList": "TYPE_BYTES",
        "FloatList": "TYPE_FLOAT",
        "Int64List": "TYPE_INT64",
    }
    field = descriptor_pb2.FieldDescriptorProto

    def message(
        parent: Any, name: str, *fields: tuple[str, str, str, str | None]
    ) -> Any:
        made = parent.add(name=name)
        for number, (field_name, label, kind, type_name) in enumerate(
            fields, 1
        ):
            made.field.add(
                name=field_name,
                number=number,
                label=getattr(field, f"LABEL_{label}"),
                type=getattr(field, kind),
                type_name=type_name,
            )
        return made

    for name, kind in kinds.items():
        message(file.message_type, name, ("value", "REPEATED", kind, None))
    lists = [(n.lower(), "OPTIONAL", "TYPE_MESSAGE", f".tf.{n}") for n in kinds]
    message(file.message_type, "Feature", *lists)
    entry = ".tf.Features.FeatureEntry"
    features = message(
        file.message_type,
        "Features",
        ("feature", "REPEATED", "TYPE_MESSAGE", entry),
    )
    pair = message(
        features.nested_type,
        "FeatureEntry",
        ("key", "OPTIONAL", "TYPE_STRING", None),
        ("value", "OPTIONAL", "TYPE_MESSAGE", ".tf.Feature"),
    )
    pair.options.map_entry = True
    message(
        file.message_type,
        "Example",
        ("features", "OPTIONAL", "TYPE_MESSAGE", ".tf.Features"),
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName("tf.Example")
    )


Example = _example_class()


def example(**features: Any) -> bytes:
    """A serialized `tf.train.Example`."""
    message = Example()
    for name, value in features.items():
        feature = message.features.feature[name]
        values = np.ravel(value).tolist()
        if isinstance(values[0], str | bytes):
            texts = [v.encode() if isinstance(v, str) else v for v in values]
            feature.byteslist.value.extend(texts)
        elif isinstance(values[0], float):
            feature.floatlist.value.extend(values)
        else:
            feature.int64list.value.extend(values)
    return bytes(message.SerializeToString())


def write_sqlite(path: pathlib.Path, rows: Rows) -> None:
    """As TensorFlow Federated writes it; packed if the name ends with .lzma."""
    plain = path.with_suffix("") if path.suffix == ".lzma" else path
    database = sqlite3.connect(plain)
    database.execute(
        "CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT NULL,"
        " serialized_example_proto BLOB NOT NULL)"
    )
    database.execute(
        "CREATE TABLE client_metadata (client_id TEXT NOT NULL, split_name TEXT NOT NULL,"
        " num_examples INTEGER NOT NULL)"
    )
    messages = [
        (
            split,
            client,
            features if isinstance(features, bytes) else example(**features),
        )
        for split, client, features in rows
    ]
    database.executemany("INSERT INTO examples VALUES (?, ?, ?)", messages)
    counts = collections.Counter((client, split) for split, client, _ in rows)
    values = [
        (client, split, count) for (client, split), count in counts.items()
    ]
    database.executemany("INSERT INTO client_metadata VALUES (?, ?, ?)", values)
    database.commit()
    database.close()
    if plain != path:
        path.write_bytes(
            lzma.compress(plain.read_bytes(), format=lzma.FORMAT_ALONE)
        )
        plain.unlink()


def write_hdf5(path: pathlib.Path, rows: Rows) -> None:
    """``examples/<client>/<feature>``, one file for one split."""
    clients = collections.defaultdict(list)
    for _, client, features in rows:
        clients[client].append(features)
    with h5py.File(path, "w") as file:
        for client, examples in clients.items():
            for name, first in examples[0].items():
                values = [features[name] for features in examples]
                kind = h5py.string_dtype() if isinstance(first, str) else None
                data = values if kind else np.array(values)
                file.create_dataset(
                    f"examples/{client}/{name}", data=data, dtype=kind
                )


def write_parquet(path: pathlib.Path, rows: Rows, client: str) -> None:
    """One file for one split."""
    parquet.write_table(
        pa.Table.from_pylist(_records(rows, client)), path, row_group_size=7
    )


def _records(rows: Rows, client: str) -> list[dict[str, Any]]:
    return [
        {client: name}
        | {
            key: v.tolist() if isinstance(v, np.ndarray) else v
            for key, v in features.items()
        }
        for _, name, features in rows
    ]


def png(image: np.ndarray) -> bytes:
    """The image as a PNG file."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def handwriting(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Real digits, uint8 of shape (count, 28, 28), 0 for paper; and their labels."""
    bunch = load_digits()
    small = (bunch.images[:count] * 15).astype(np.uint8)
    return np.pad(
        small.repeat(3, 1).repeat(3, 2), ((0, 0), (2, 2), (2, 2))
    ), bunch.target[:count]


def posts() -> dict[str, list[str]]:
    """What some modules of Python say about themselves, as users' posts."""
    modules = {
        "argparse": argparse,
        "csv": csv,
        "json": json,
        "lzma": lzma,
        "pathlib": pathlib,
    }
    found = {}
    for user, module in modules.items():
        members = [getattr(module, name) for name in sorted(module.__all__)]
        texts = [member.__doc__ or "" for member in [module, *members]]
        sentences = re.split(r"[.\n]\s*\n|\.\s", " . ".join(texts).lower())
        found[user] = [
            " ".join(re.findall(r"[\w'-]+|[^\w\s]", text)) for text in sentences
        ]
    return found


def write_source(kind: str, folder: pathlib.Path) -> str:
    """A small source of real contents of one kind, with a test split where there is one."""
    folder.mkdir()
    if kind == "emnist":
        ink, labels = handwriting(120)
        rows = [
            (
                "train",
                f"f{i % 7:04}_14",
                {"pixels": 1 - image / np.float32(255), "label": label},
            )
            for i, (image, label) in enumerate(zip(ink, labels, strict=True))
        ]
        write_hdf5(folder / "fed_emnist_train.h5", rows[:100])
        write_hdf5(folder / "fed_emnist_test.h5", rows[100:])
    else:
        users = posts()
        rows = [
            ("", user, {"tokens": text})
            for user in users
            for text in users[user][:20]
        ]
        write_parquet(folder / "train.parquet", rows, "user_id")
        counts = collections.Counter(
            " ".join(f["tokens"] for _, _, f in rows).split()
        )
        lines = [f"{word} {count}\n" for word, count in counts.most_common()]
        (folder / "stackoverflow.word_count").write_text(
            "".join(lines), encoding="utf-8"
        )
    return str(folder)
