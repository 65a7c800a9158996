"""``fl-epe new`` and ``fl-epe data convert``: a task on data of one's own, and published data."""

import dataclasses
import json
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from fl_epe.checks import did_you_mean, raise_invalid
from fl_epe.cli.console import ProgressLine, print_whole, waiting
from fl_epe.config import RunConfig
from fl_epe.files import write_text
from fl_epe.tasks import CLEAR_CLASSES, ColumnKinds, classes_to_predict, sort_columns

_CLIENTS = 100  # where no column says whose a row is
_ENOUGH = RunConfig.clients_per_round  # clients of a round, to train
_LEAST_OFTEN = 2  # of a client in a run, as nothing is measured of who never takes part
_CANCER = [
    f"{kind} {what}"
    for kind in ("mean", "worst")
    for what in ("radius", "texture", "smoothness", "concavity", "symmetry")
]


@dataclasses.dataclass(frozen=True)
class New:
    """Write a Python file with a model and a data set, which 'fl-epe run' trains and audits.

    With --data it is for your own table: numbers, categories and dates become inputs, and
    identifiers are left out. The file says what became of each column, to be changed there.

    Examples:
        fl-epe new && fl-epe run my_task:task
        fl-epe new flights.py --data flights.csv --targets delayed --by airport

    Attributes:
        file: file to write, in the current folder.
        data: a table to train on: a CSV, TSV, JSON lines or Parquet file, or a folder of such files
            or that datasets wrote. Without it, the task is an example on data that come with
            scikit-learn.
        targets: the column that is to be predicted.
        by: the column that says whose a row is: every value is a client, exactly as it is written
            (default: rows are partitioned over 100 clients at random).
    """

    file: Annotated[Path, "FILE"] = Path("my_task.py")
    data: Path | None = None
    targets: str | None = None
    by: str | None = None

    def __call__(self, words: Sequence[str]) -> int:
        """Write the file."""
        path = self.file
        if path.suffix != ".py" or not path.stem.isidentifier():
            raise_invalid(
                "file",
                str(path),
                "to be a name that Python can import, such as my_task.py",
            )
        if path.exists():
            raise_invalid("file", str(path), "not to exist: name another one")
        if not path.parent.is_dir():
            raise_invalid("file", str(path), "to be in a folder that exists")
        if self.data is None and (self.targets or self.by):
            raise_invalid(
                "data", None, "beside --targets and --by, which are columns of it"
            )
        about = list[str]()
        if self.data is None:
            kinds = ColumnKinds(numbers=_CANCER)
            text = _filled(path, kinds, ["target"], 60)
        else:
            with waiting(f"Reading {self.data}"):
                text, about = self._of_table(self.data)
        write_text(path, text)
        go = "" if path.parent == Path() else f"cd {shlex.quote(str(path.parent))} && "
        print_whole(
            f"{path}: a task of your own",
            *about,
            f"Next: {go}fl-epe run {path.stem}:task",
        )
        return 0

    def _of_table(self, data: Path) -> tuple[str, list[str]]:
        """The file for a table, and lines about what becomes of its columns."""
        from fl_epe.tasks import read_tables

        tables = read_tables(str(data), self.by or "")
        train = "train" if "train" in tables else next(iter(tables))
        names = [str(name) for name in tables[train].columns]
        if self.targets is None:
            raise_invalid(
                "targets", None, f"to name a column of {data}: {', '.join(names)}"
            )
        needed = [self.targets] if self.by is None else [self.targets, self.by]
        for argument, column in zip(("targets", "by"), needed, strict=False):
            if column not in names:
                wanted = f"to be a column of {data}: {', '.join(names)}"
                raise_invalid(argument, column, wanted + did_you_mean(column, names))
        if self.by == self.targets:
            raise_invalid("by", self.by, "to be another column than --targets")
        table = tables[train].dropna(subset=needed)
        classes = classes_to_predict(tables[train][self.targets])
        kinds = sort_columns(table, but=needed)
        if not (kinds.numbers or kinds.categories or kinds.dates):
            raise_invalid(
                "data",
                str(data),
                f"to have columns of numbers, categories or dates beside {', '.join(needed)}: "
                f"{', '.join(names)}. For images or text, write the task with "
                "fl_epe.tasks.from_datasets: see docs/guides/own-task.md",
            )
        if self.by is None:
            clients = min(
                _CLIENTS, len(table) * 9 // 10
            )  # a tenth of the rows is held out
        else:
            clients = table[self.by].nunique()
        if clients < 2:
            raise_invalid(
                "data", str(data), f"to have the rows of 2 clients, found {clients}"
            )
        values: dict[str, Any] = {"outputs": classes or 1, "train": train}
        if classes is None:
            numbers = table[self.targets].astype(float)
            values |= {"mean": numbers.mean(), "deviation": numbers.std(ddof=0) or 1.0}
        values["source"] = str(
            data.resolve() if data.exists() else data
        )  # or a hub's id
        text = _filled(self.file, kinds, needed, clients, **values)
        what = "a real number" if classes is None else f"one of {classes:,} classes"
        about = [f"To predict: {self.targets}, {what}", *_described(kinds)]
        if dropped := len(tables[train]) - len(table):
            about.append(f"Rows left out, without {' or '.join(needed)}: {dropped:,}")
        return text, about


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
        from fl_epe.data import convert

        with ProgressLine() as line:
            store = convert(
                self.task,
                self.source,
                self.target,
                vocabulary=self.vocabulary,
                on_progress=line.show,
            )
        found = f"{len(store):,} clients, {store.about['examples']:,} examples"
        lines = [f"{self.target}: {found}, {store.about['held_out']:,} held out"]
        if without := store.about["clients_without_examples"]:
            lines.append(f"Clients left out, without examples: {without:,}")
        print_whole(*lines)
        return 0


def _filled(
    path: Path, kinds: ColumnKinds, needed: list[str], clients: int, **parts: object
) -> str:
    """The template with names of columns.

    Args:
        path: of the file.
        kinds: what each column is.
        needed: the target, and the column of the owner if there is one.
        clients: how many there are.
        parts: what the template shows of a table beside the columns.
    """
    from fl_epe.reporting import render_page

    few = min(_ENOUGH, clients // 2)
    text = render_page(
        "own_task.py.j2",
        "cli",
        module=path.stem,
        kinds=kinds,
        needed=needed,
        owner=needed[1] if len(needed) > 1 else None,
        clients=clients,
        cohort=max(1, few, math.ceil(_LEAST_OFTEN * clients / RunConfig.rounds)),
        rounds=RunConfig.rounds,
        most_levels=CLEAR_CLASSES,
        quoted=_quoted,
        **parts,
    )
    return text + "\n"


def _described(kinds: ColumnKinds) -> list[str]:
    """A line for each kind of column that there is, and one for each that is left out."""
    named = {
        "Numbers": kinds.numbers,
        "Categories": kinds.categories,
        "Dates": list(kinds.dates),
    }
    lines = [f"{what}: {', '.join(names)}" for what, names in named.items() if names]
    return lines + [
        f"Left out: {name} ({reason})" for name, reason in kinds.left_out.items()
    ]


def _quoted(value: object) -> str:
    """A literal with double quotes; of several values each on a line of its own if it is long.

    What is not printable is written as Python's escapes, which are JSON's for what that escapes.
    """
    text = json.dumps(value, ensure_ascii=False)
    if len(text) >= 80:
        text = json.dumps(value, ensure_ascii=False, indent=4)
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
