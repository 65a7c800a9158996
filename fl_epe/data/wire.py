"""`tf.train.Example` messages without TensorFlow, read by Google's ``protobuf`` package.

TensorFlow Federated keeps the examples of its SQLite files as such messages.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
from numpy.typing import NDArray

Feature = list[bytes] | NDArray[np.float32] | NDArray[np.int64]

# TensorFlow's example.proto and feature.proto: type, its fields by number from 1, each with its
# kind and, where that is a message, its type. A map is written as a list of entries.
_TYPES = {
    "BytesList": [("value", "BYTES", "")],
    "FloatList": [("value", "FLOAT", "")],
    "Int64List": [("value", "INT64", "")],
    "Feature": [
        ("bytes_list", "MESSAGE", "BytesList"),
        ("float_list", "MESSAGE", "FloatList"),
        ("int64_list", "MESSAGE", "Int64List"),
    ],
    "Entry": [("key", "STRING", ""), ("value", "MESSAGE", "Feature")],
    "Features": [("feature", "MESSAGE", "Entry")],
    "Example": [("features", "MESSAGE", "Features")],
}
_REPEATED = {"BytesList", "FloatList", "Int64List", "Features"}


def _example_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="example", package="fl_epe", syntax="proto3")
    for name, fields in _TYPES.items():
        described = file.message_type.add(name=name)
        for number, (field, kind, of) in enumerate(fields, 1):
            described.field.add(
                name=field,
                number=number,
                label="LABEL_REPEATED" if name in _REPEATED else "LABEL_OPTIONAL",
                type=f"TYPE_{kind}",
                type_name=f".fl_epe.{of}" if of else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("fl_epe.Example"))


_Example = _example_class()


def parse_example(blob: bytes, names: Container[str] | None = None) -> dict[str, Feature]:
    """The features of a serialized ``tf.train.Example`` by name.

    Args:
        blob: the bytes.
        names: of the features whose values are wanted; the others come as empty lists. By default
            all are.

    Returns:
        For each name a list of byte strings, a float32 or an int64 vector, as the message has it; a
        feature without a list is an empty list of byte strings.

    Raises:
        ValueError: if the bytes are no such message, with the reason.
    """
    try:
        example = _Example.FromString(blob)
    except message.DecodeError as error:
        raise ValueError(f"{len(blob)} bytes that protobuf cannot parse ({error})") from error
    if blob and not example.HasField("features"):
        raise ValueError(f"{len(blob)} bytes in which protobuf finds no field 'features'")
    return {
        entry.key: _values(entry.value) if names is None or entry.key in names else []
        for entry in example.features.feature
    }


def _values(feature: Any) -> Feature:
    if feature.HasField("int64_list"):
        return np.array(feature.int64_list.value[:], np.int64)
    if feature.HasField("float_list"):
        return np.array(feature.float_list.value[:], np.float32)
    return list(feature.bytes_list.value)
