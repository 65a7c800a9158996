"""``fl-epe data convert``: turn a published data set into files that are grouped by client."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from fl_epe import data
from fl_epe.cli.console import ProgressLine, print_whole


@dataclasses.dataclass(frozen=True)
class Convert:
    """Convert a published data set once, into files that are mapped into memory.

    Read a data set in the files it is published in, group it by client in bounded memory, and
    write a folder that 'fl-epe run TASK --data-dir' maps into memory.

    Of StackOverflow, SOURCE is a folder with stackoverflow.sqlite.lzma (or .sqlite, .h5, or Parquet
    with user_id and tokens) and stackoverflow.word_count. Then: fl-epe run stackoverflow --data-dir
    data/stackoverflow

    Examples:
        fl-epe data convert stackoverflow DOWNLOADS data/stackoverflow
        fl-epe data convert emnist flwrlabs/femnist data/emnist
        fl-epe data convert emnist fed_emnist_train.h5 data/emnist

    Attributes:
        task: stackoverflow or emnist.
        source: file, folder, or id of a hub's data set.
        target: folder to write.
        vocabulary: file with the words of stackoverflow in lines 'word count' (default:
            stackoverflow.word_count beside the source).
    """

    task: Annotated[Literal["stackoverflow", "emnist"], "TASK"]
    source: Annotated[str, "SOURCE"]
    target: Annotated[Path, "TARGET"]
    vocabulary: Path | None = None

    def __call__(self, words: Sequence[str]) -> int:
        """Convert it."""
        with ProgressLine() as line:
            store = data.convert(
                self.task,
                self.source,
                self.target,
                vocabulary=self.vocabulary,
                on_progress=line.show,
            )
        found = f"{len(store):,} clients, {store.about['examples']:,} examples"
        print_whole(f"{self.target}: {found}, {store.about['held_out']:,} held out")
        return 0
