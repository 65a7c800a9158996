"""``fl-epe data convert``: turn a published data set into files that are grouped by client."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from rich.console import Console

from fl_epe import data
from fl_epe.cli.console import ProgressLine
from fl_epe.cli.options import add_options, given

_EXAMPLES = """examples:
  fl-epe data convert stackoverflow DOWNLOADS data/stackoverflow
  fl-epe data convert emnist flwrlabs/femnist data/emnist
  fl-epe data convert emnist fed_emnist_train.h5 data/emnist

Of StackOverflow, SOURCE is a folder with stackoverflow.sqlite.lzma (or .sqlite, .h5, Parquet or
JSON lines with user_id and tokens) and stackoverflow.word_count. Then: fl-epe run stackoverflow
--data-dir data/stackoverflow
"""


@dataclasses.dataclass(frozen=True)
class _Convert:
    """How a data set is converted.

    Attributes:
        vocabulary: file with the words of stackoverflow in lines 'word count' (default:
            stackoverflow.word_count beside the source; if there is none, the words are counted).
        memory: MiB for sorting, besides what the libraries take.
    """

    vocabulary: Path | None = None
    memory: int = 64


def add_data(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``data convert`` to the subcommands."""
    text = "prepare published data sets"
    actions = commands.add_parser(
        "data", help=text, description=f"{text.capitalize()}."
    ).add_subparsers(required=True, metavar="ACTION")
    convert = actions.add_parser(
        "convert",
        help="convert a data set once, into files that are mapped into memory",
        description="Read a data set in the files it is published in, group it by client in "
        "bounded memory, and write a folder that 'fl-epe run TASK --data-dir' maps into memory.",
        epilog=_EXAMPLES,
    )
    convert.add_argument("task", choices=data.KINDS, metavar="TASK", help=", ".join(data.KINDS))
    convert.add_argument("source", metavar="SOURCE", help="file, folder, or id of a hub's data set")
    convert.add_argument("target", metavar="TARGET", type=Path, help="folder to write")
    add_options(convert, _Convert)
    convert.set_defaults(command=_convert)


def _convert(arguments: argparse.Namespace) -> int:
    options = _Convert(**given(arguments, _Convert))
    if options.memory < 1:
        raise ValueError(f"Expected memory={options.memory} >= 1.")
    console = Console()
    with ProgressLine(console) as line:
        store = data.convert(
            arguments.task,
            arguments.source,
            arguments.target,
            vocabulary=options.vocabulary,
            memory=options.memory << 20,
            on_progress=line.show,
        )
    console.print(
        f"{arguments.target}: {len(store):,} clients, {store.about['examples']:,} examples, "
        f"{store.about['held_out']:,} held out",
        soft_wrap=True,
        highlight=False,
    )
    return 0
