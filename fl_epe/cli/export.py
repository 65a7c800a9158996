"""``fl-epe export``: a copy of a record without its seeds, to share."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from fl_epe.auditing import AuditRecord
from fl_epe.checks import raise_invalid
from fl_epe.cli.console import print_whole, terminal
from fl_epe.files import RECORD


@dataclasses.dataclass(frozen=True)
class Export:
    """Write a copy of record.npz without its seeds, which others may read.

    Whoever has the canary seed can take the canaries out of the model. Every estimate and every
    report of the copy is the same. It still says which clients took part when, as far as the
    record knows.

    Attributes:
        source: folder of a run, or its record.npz.
        destination: file to write, or a folder in which it becomes record.npz.
    """

    source: Annotated[Path, "SOURCE"]
    destination: Annotated[Path, "DEST"]

    def __call__(self, words: Sequence[str]) -> int:
        """Write the copy."""
        source, target = (
            path / RECORD if path.is_dir() else path for path in (self.source, self.destination)
        )
        if target.exists():
            raise_invalid("destination", str(target), "not to exist: name another file")
        AuditRecord.load(source).without_seeds().save(target, private=False)
        print_whole(terminal(), f"{target}: a copy of {source} without seeds")
        return 0
