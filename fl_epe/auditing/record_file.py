"""The file of a record: a NumPy archive without pickles, which any tool can read.

Arrays are stored under their names in `AuditRecord.by_name`. All that is no array is in ``meta``, a
JSON text as bytes. Every member has a checksum, see `fl_epe.archive`, so that a damaged record is
never reported on.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fl_epe.archive import read_archive, refusal, write_archive

SCHEMA = 1
"""Version of the file format; a file with another one is refused."""

WHAT = "a record written by AuditRecord.save"

_METRICS = "metrics."
_LONGEST = 2000


def write_values(path: Path, values: Mapping[str, Any], *, private: bool = True) -> None:
    """Write a record's values by name; replaces ``path`` in one step, so that it is never half.

    Args:
        path: where to; its folder is made if it is missing.
        values: as `AuditRecord.by_name` gives them.
        private: for its owner alone (mode 0600).
    """
    metrics = {f"{_METRICS}{name}": np.asarray(v) for name, v in values["metrics"].items()}
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    meta = {name: value for name, value in values.items() if name not in {*arrays, "metrics"}}
    write_archive(path, arrays | metrics, {"meta": meta}, schema=SCHEMA, private=private)


def _short(value: Any, depth: int = 8) -> Any:
    """A JSON value whose texts are cut off where they are long: anybody may have written them."""
    if isinstance(value, str):
        return value if len(value) <= _LONGEST else value[: _LONGEST - 1] + "…"
    if isinstance(value, list) and depth:
        return [_short(part, depth - 1) for part in value]
    if isinstance(value, dict) and depth:
        return {_short(name): _short(part, depth - 1) for name, part in value.items()}
    return value


def read_values(path: Path) -> dict[str, Any]:
    """What `write_values` wrote; no value is checked yet.

    Raises:
        FileNotFoundError: if there is no such file.
        UnreadableFileError: if it is not a record, is damaged, or has another schema.
    """
    (meta,), arrays = read_archive(path, WHAT, schema=SCHEMA, texts=("meta",))
    if twice := sorted(arrays.keys() & meta.keys()):
        raise refusal(path, WHAT, f"{twice[0]!r} is a duplicate")
    metrics = {
        name.removeprefix(_METRICS): arrays.pop(name)
        for name in list(arrays)
        if name.startswith(_METRICS)
    }
    return {**_short(meta), **arrays, "metrics": metrics}
