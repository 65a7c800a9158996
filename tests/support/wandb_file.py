"""What Weights & Biases wrote in a run's file: records in the blocks of a LevelDB log."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK, _HEAD, _START = (
    32768,
    7,
    7,
)  # bytes of a block, of a part's head, of the file's head
_LAST = (
    1,
    4,
)  # kinds of parts with which a record ends: whole, or its last part


def _records(path: Path) -> Iterator[Any]:
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined,unused-ignore]

    data, at, whole = path.read_bytes(), _START, b""
    while at + _HEAD <= len(data):
        if (left := _BLOCK - at % _BLOCK) < _HEAD:
            at += left
            continue
        size, kind = struct.unpack("<HB", data[at + 4 : at + _HEAD])
        whole += data[at + _HEAD : at + _HEAD + size]
        at += _HEAD + size
        if at > len(data):
            return  # it is being written
        if kind in _LAST:
            record = Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def read_wandb(
    path: Path,
) -> tuple[str, dict[int, dict[str, Any]], dict[str, Any]]:
    """The id of a run, the values of each of its steps, and its summary."""
    run, history, summary = "", dict[int, dict[str, Any]](), dict[str, Any]()
    for record in _records(path):
        if record.HasField("run"):
            run = record.run.run_id
        elif record.HasField("history"):
            items = record.history.item
            row = {
                one.key or one.nested_key[0]: json.loads(one.value_json)
                for one in items
            }
            assert row["_step"] not in history
            history[row["_step"]] = row
        elif record.HasField("summary"):
            items = record.summary.update
            summary |= {
                one.key or one.nested_key[0]: json.loads(one.value_json)
                for one in items
            }
    return run, history, summary
