"""``fl-epe data convert``: a published data set to one that is grouped by client and mapped."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from rich.console import Console

_EXAMPLES = """examples:
  fl-epe data convert stackoverflow DOWNLOADS data/stackoverflow
  fl-epe data convert emnist flwrlabs/femnist data/emnist
  fl-epe data convert emnist fed_emnist_train.h5 data/emnist

Of StackOverflow, SOURCE is a folder with stackoverflow.sqlite.lzma (or .sqlite, .h5, Parquet or
JSON lines with user_id and tokens) and stackoverflow.word_count. Then: fl-epe run stackoverflow
--data-dir data/stackoverflow
"""


def add_data(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``data convert`` to the subcommands."""
    data = commands.add_parser(
        "data",
        help="prepare published data sets",
        description="Prepare published data sets.",
    )
    actions = data.add_subparsers(required=True, metavar="ACTION")
    convert = actions.add_parser(
        "convert",
        help="convert a data set once, into files that are mapped into memory",
        description="Read a data set in the files it is published in, group it by client in "
        "bounded memory, and write a folder that 'fl-epe run TASK --data-dir' maps into memory.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    convert.add_argument(
        "task",
        choices=("emnist", "shakespeare", "stackoverflow"),
        metavar="TASK",
        help="emnist, shakespeare or stackoverflow",
    )
    convert.add_argument("source", metavar="SOURCE", help="file, folder, or id of a hub's data set")
    convert.add_argument("target", metavar="TARGET", type=Path, help="folder to write")
    convert.add_argument(
        "--vocabulary",
        metavar="FILE",
        help="of stackoverflow: lines 'word count' (default: stackoverflow.word_count beside the "
        "source, else the words are counted)",
    )
    convert.add_argument(
        "--memory",
        type=int,
        default=64,
        metavar="MIB",
        help="for sorting, besides what the libraries take (default: 64)",
    )
    convert.set_defaults(command=_convert)


def _convert(arguments: argparse.Namespace) -> int:
    from fl_epe import data

    if arguments.memory < 1:
        raise ValueError(f"Expected memory={arguments.memory} >= 1.")
    console = Console()
    store = data.convert(
        arguments.task,
        arguments.source,
        arguments.target,
        vocabulary=arguments.vocabulary,
        memory=arguments.memory << 20,
        on_progress=_Progress().show,
    )
    console.print(
        f"{arguments.target}: {len(store):,} clients, {store.about['examples']:,} examples, "
        f"{store.about['held_out']:,} held out",
        soft_wrap=True,
        highlight=False,
    )
    return 0


class _Progress:
    """A line every ten seconds."""

    def __init__(self) -> None:
        self._printed = time.monotonic()

    def show(self, doing: str, done: int, total: int | None) -> None:
        """Say how far it is."""
        if time.monotonic() - self._printed > 10:
            self._printed = time.monotonic()
            of = "" if total is None else f" of {total:,}"
            print(f"{doing}: {done:,}{of}", flush=True)
