"""The file of a record: a NumPy archive without pickles, which any tool can read.

Arrays are stored under the flat names of `AuditRecord.by_name`; all that is no array stands in
``meta``, a JSON text as bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_epe.checks import UNREADABLE
from fl_epe.old_names import OLD_NAMES, with_new_names

SCHEMA = 1
"""Version of the file format; a file with a newer one is refused."""

_FORMAT = "fl_epe.AuditRecord"
_METRICS = "metrics."
_NEEDED = {"dim", "delta", "observed", "presence"}


def write_values(path: Path, values: Mapping[str, Any]) -> None:
    """Write a record's values by name; replaces ``path`` in one step, so that it is never half."""
    arrays = {f"{_METRICS}{key}": np.asarray(value) for key, value in values["metrics"].items()}
    meta: dict[str, Any] = {"format": _FORMAT, "schema": SCHEMA}
    old = {new: name for name, new in OLD_NAMES.items()}  # files keep the names of schema 1
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            arrays[name] = value
        elif name != "metrics" and (value is not None or name.endswith("noise_multiplier")):
            meta[old.get(name, name)] = value
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    part.replace(path)


def read_values(path: Path) -> dict[str, Any]:
    """What `write_values` wrote, under today's names.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not a record, or one with a newer schema.
    """
    arrays, meta = _read(path)
    schema = meta.pop("schema")
    if schema > SCHEMA:
        raise ValueError(
            f"Expected schema={schema} of {path} <= {SCHEMA}: written by a newer fl_epe."
        )
    if missing := _NEEDED - arrays.keys() - meta.keys():
        raise ValueError(f"Expected {path} to hold {sorted(missing)}: not a whole record.")
    metrics = {
        key.removeprefix(_METRICS): arrays.pop(key)
        for key in list(arrays)
        if key.startswith(_METRICS)
    }
    return with_new_names({**meta, "faults": tuple(meta["faults"]), **arrays, "metrics": metrics})


def _read(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    if not path.exists():
        raise FileNotFoundError(f"Expected path={str(path)!r} to exist.")
    refusal = f"Expected path={str(path)!r} to be a record written by AuditRecord.save"
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
        meta = json.loads(bytes(arrays.pop("meta")))
    except UNREADABLE as error:
        raise ValueError(f"{refusal} ({type(error).__name__}).") from error
    if not isinstance(meta, dict) or meta.pop("format", None) != _FORMAT:
        raise ValueError(f"{refusal}.")
    return arrays, meta
