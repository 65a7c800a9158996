"""``fl-epe export``: a copy of a record without its seeds, to share."""

from __future__ import annotations

import argparse
from pathlib import Path

from fl_epe.auditing import AuditRecord
from fl_epe.cli.console import terminal
from fl_epe.cli.options import add_command
from fl_epe.compare import RECORD


def add_export(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``export`` to the subcommands."""
    export = add_command(
        commands,
        "export",
        _export,
        summary="write a copy of a record without its seeds, to share",
        description=f"Write a copy of {RECORD} without its seeds, which others may read: whoever "
        "has the canary seed can take the canaries out of the model. Every estimate and every "
        "report of the copy is the same. It still says which clients took part when, as far as "
        "the record knows.",
    )
    export.add_argument(
        "source", type=Path, metavar="SOURCE", help=f"folder of a run, or its {RECORD}"
    )
    export.add_argument(
        "destination",
        type=Path,
        metavar="DEST",
        help=f"file to write, or a folder in which it becomes {RECORD}",
    )


def _export(arguments: argparse.Namespace) -> int:
    source, target = (
        path / RECORD if path.is_dir() else path
        for path in (arguments.source, arguments.destination)
    )
    if target.exists():
        raise ValueError(f"Expected DEST={str(target)!r} not to exist: name another file.")
    AuditRecord.load(source).without_seeds().save(target, private=False)
    terminal().print(f"{target}: a copy of {source} without seeds", soft_wrap=True, highlight=False)
    return 0
