"""The file of a record: a NumPy archive without pickles, which any tool can read.

Arrays are stored under the flat names of `AuditRecord.by_name`. All that is no array stands in
``meta``, a JSON text as bytes, but for the seeds, which have a part of their own: ``seeds``. Every
member has a checksum, see `fl_epe.archive`, so that a damaged record is never reported on.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fl_epe.archive import read_archive, refusal, write_archive
from fl_epe.auditing.record_checks import check_values
from fl_epe.old_names import OLD_NAMES, with_new_names

SCHEMA = 2
"""Version of the file format; a file with a newer one is refused. Since 2 it has checksums."""

WHAT = "a record written by AuditRecord.save"

_FORMAT = "fl_epe.AuditRecord"
_METRICS = "metrics."
_LONGEST = 2000
_NEEDED = {"dim", "delta", "observed", "presence"}


def write_values(path: Path, values: Mapping[str, Any], *, private: bool = True) -> None:
    """Write a record's values by name; replaces ``path`` in one step, so that it is never half.

    Args:
        path: where to; its folder is made if it is missing.
        values: as `AuditRecord.by_name` gives them.
        private: for its owner alone (mode 0600).
    """
    arrays = {f"{_METRICS}{key}": np.asarray(value) for key, value in values["metrics"].items()}
    meta: dict[str, Any] = {"format": _FORMAT, "schema": SCHEMA}
    old = {new: name for name, new in OLD_NAMES.items()}  # files keep the names of schema 1
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            arrays[name] = value
        elif name in ("metrics", "seeds") or (name == "run" and not value):
            continue
        elif value is not None or name.endswith("noise_multiplier"):
            meta[old.get(name, name)] = value
    write_archive(path, arrays, {"meta": meta, "seeds": values["seeds"]}, private=private)


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
    """What `write_values` wrote, under today's names, every value checked.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not a record, is damaged, or has a newer schema.
    """
    archive = read_archive(path, WHAT)
    meta = _short(archive.text("meta"))
    if meta.pop("format", None) != _FORMAT:
        raise refusal(path, WHAT, "'meta' does not say that it is a record")
    archive.check_schema(meta.pop("schema", None), SCHEMA)
    if archive.has_checksums:
        meta["seeds"] = archive.text("seeds")
    arrays = archive.arrays()
    if missing := _NEEDED - arrays.keys() - meta.keys():
        raise refusal(path, WHAT, f"Expected it to hold {sorted(missing)}: not a whole record")
    if twice := sorted(arrays.keys() & meta.keys()):
        raise refusal(path, WHAT, f"it holds {twice[0]!r} twice")
    metrics = {
        key.removeprefix(_METRICS): arrays.pop(key)
        for key in list(arrays)
        if key.startswith(_METRICS)
    }
    values = with_new_names({**meta, **arrays, "metrics": metrics})
    try:
        check_values(values)
    except ValueError as error:
        raise refusal(path, WHAT, error) from error
    texts = ("faults", "null_statistics")
    return values | {name: tuple(values.get(name, ())) for name in texts}
