"""`tf.train.Example` messages without TensorFlow: the few parts of protobuf that they use.

TensorFlow Federated keeps the examples of its SQLite files as such messages. Their schema, from
TensorFlow's ``example.proto`` and ``feature.proto``: ``Example{1: Features}``,
``Features{1: map<string, Feature>}``, ``Feature{1: BytesList | 2: FloatList | 3: Int64List}``, each
list ``{1: repeated}``. The tests compare with messages that Google's protobuf library wrote.
"""

from __future__ import annotations

from collections.abc import Container

import numpy as np
from numpy.typing import NDArray

Feature = list[bytes] | NDArray[np.float32] | NDArray[np.int64]

_VARINT, _LENGTH = 0, 2
_FIXED = {1: 8, 5: 4}  # bytes of the other types
_MOST_VARINT_BYTES = 10


def parse_example(message: bytes, names: Container[str] | None = None) -> dict[str, Feature]:
    """The features of a serialized ``tf.train.Example`` by name.

    Args:
        message: the bytes.
        names: of the features whose values are wanted; the others come as empty lists. By default
            all are.

    Returns:
        For each name a list of byte strings, a float32 or an int64 vector, as the message has it; a
        feature without a list is an empty list of byte strings.

    Raises:
        ValueError: for anything that is no such message, with the reason.
    """
    features: dict[str, Feature] = {}
    for example in _embedded(message, 1):
        for entry in _embedded(example, 1):
            content = dict(_fields(entry))
            name = _expect_bytes(content.get(1, b"")).decode()
            wanted = names is None or name in names
            features[name] = _feature(_expect_bytes(content.get(2, b""))) if wanted else []
    return features


def _feature(message: bytes) -> Feature:
    """The list in a ``Feature``; the last one, should there be several."""
    result: Feature = []
    for number, content in _fields(message):
        if number not in (1, 2, 3):
            continue
        values = [value for field, value in _fields(_expect_bytes(content)) if field == 1]
        if number == 1:
            result = [_expect_bytes(value) for value in values]
        elif number == 2:
            result = np.frombuffer(b"".join(map(_expect_bytes, values)), "<f4")
        else:
            result = _integers(values)
    return result


def _integers(values: list[bytes | int]) -> NDArray[np.int64]:
    """Signed integers from varints, packed in byte strings or single."""
    unsigned: list[int] = []
    for value in values:
        if isinstance(value, int):
            unsigned.append(value)
            continue
        position = 0
        while position < len(value):
            number, position = _varint(value, position)
            unsigned.append(number)
    return np.array(unsigned, np.uint64).view(np.int64)


def _embedded(message: bytes, wanted: int) -> list[bytes]:
    """The embedded messages in field number ``wanted``."""
    return [_expect_bytes(content) for number, content in _fields(message) if number == wanted]


def _fields(message: bytes) -> list[tuple[int, bytes | int]]:
    """Number and content of every field: an integer for a varint, else the bytes."""
    fields: list[tuple[int, bytes | int]] = []
    position, end = 0, len(message)
    while position < end:
        key, position = _varint(message, position)
        kind = key & 7
        if kind in (_LENGTH, _VARINT):
            size, position = _varint(message, position)
            if kind == _VARINT:
                fields.append((key >> 3, size))
                continue
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise ValueError(f"wire type {kind} before byte {position}")
        if position + size > end:
            raise ValueError(f"a field of {size} bytes at byte {position} of {end}")
        fields.append((key >> 3, message[position : position + size]))
        position += size
    return fields


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """An unsigned varint of at most 64 bits, and where it ends."""
    if position < len(message) and message[position] < 0x80:  # nearly all are
        return message[position], position + 1
    result = 0
    for index, byte in enumerate(message[position : position + _MOST_VARINT_BYTES]):
        if byte < 0x80:
            result |= byte << (7 * index)
            return result & 0xFFFF_FFFF_FFFF_FFFF, position + index + 1
        result |= (byte & 0x7F) << (7 * index)
    if len(message) < position + _MOST_VARINT_BYTES:
        raise ValueError(f"an integer is cut off at byte {len(message)}")
    raise ValueError(f"an integer of more than {_MOST_VARINT_BYTES} bytes at byte {position}")


def _expect_bytes(content: bytes | int) -> bytes:
    if isinstance(content, int):
        raise ValueError(f"the integer {content} where a message should be")
    return content
