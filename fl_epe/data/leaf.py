"""LEAF's JSON files: examples by client, as its preprocessing writes them.

A file is one object with ``users``, a list of ids, ``num_samples``, and ``user_data``, which
maps each id to its examples: lists ``x`` and ``y`` of the same length.
"""

import re
from pathlib import Path
from typing import Any

from fl_epe.archive import json_object
from fl_epe.table_file import open_table, shown

LEAF = re.compile(
    rb'\s*\{\s*"(user_data"|(users|num_samples|hierarchies)"\s*:\s*\[)'
)
"""The pattern of the beginning of a LEAF file."""


def read_leaf(path: Path) -> dict[str, dict[str, list[Any]]]:
    """Read a LEAF file.

    Returns:
        For each client, its columns "x" and "y" of the same length, which may be 0.

    Raises:
        ValueError: if ``path`` is not a LEAF file, or if a client is duplicate.
    """
    with open_table(path) as file:
        content = json_object(file.read(), "it")
    examples: dict[str, dict[str, list[Any]]] = content.get("user_data", {})
    for client, columns in examples.items():
        if not {"x", "y"} <= columns.keys() or len(columns["x"]) != len(
            columns["y"]
        ):
            raise ValueError(
                f"client {shown(client)} has no 'x' and 'y' of one length"
            )
    return examples
