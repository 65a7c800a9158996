"""``fl-epe data convert``: turn a published data set into files that are grouped by client."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from fl_epe import data
from fl_epe.checks import check_count
from fl_epe.cli.console import ProgressLine, terminal
from fl_epe.cli.options import a_path, add_command, add_options, given, some_text
from fl_epe.cli.sizes import check_memory

_EXAMPLES = """examples:
  fl-epe data convert stackoverflow DOWNLOADS data/stackoverflow
  fl-epe data convert emnist flwrlabs/femnist data/emnist
  fl-epe data convert emnist fed_emnist_train.h5 data/emnist

Of StackOverflow, SOURCE is a folder with stackoverflow.sqlite.lzma (or .sqlite, .h5, Parquet or
JSON lines with user_id and tokens) and stackoverflow.word_count. Then: fl-epe run stackoverflow
--data-dir data/stackoverflow
"""


_SOURCE = "file, folder, or id of a hub's data set"


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
    convert = add_command(
        actions,
        "convert",
        _convert,
        summary="convert a data set once, into files that are mapped into memory",
        description="Read a data set in the files it is published in, group it by client in "
        "bounded memory, and write a folder that 'fl-epe run TASK --data-dir' maps into memory.",
        examples=_EXAMPLES,
    )
    convert.add_argument("task", choices=data.KINDS, metavar="TASK", help=", ".join(data.KINDS))
    convert.add_argument("source", metavar="SOURCE", type=some_text, help=_SOURCE)
    convert.add_argument("target", metavar="TARGET", type=a_path, help="folder to write")
    add_options(convert, _Convert)


def _convert(arguments: argparse.Namespace) -> int:
    options = _Convert(**given(arguments, _Convert))
    check_count("memory", options.memory)
    check_memory(options.memory << 20, "sorting", memory=options.memory)
    console = terminal()
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
