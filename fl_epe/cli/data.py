"""``fl-epe new`` and ``fl-epe data convert``: a task on the user's data, and published data."""

import dataclasses
import json
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from fl_epe.checks import did_you_mean, raise_invalid
from fl_epe.cli.console import ProgressLine, print_unwrapped, waiting
from fl_epe.config import RunConfig
from fl_epe.files import write_text
from fl_epe.tasks import (
    CLEAR_CLASSES,
    ColumnKinds,
    classes_to_predict,
    sort_columns,
)

_CLIENTS = 100  # number of clients, if no column names the owner of a row
_LEAST_PARTICIPATIONS = (
    2  # participations of a client in the example's run, at least
)

# Columns of the example, a data set of scikit-learn.
_CANCER = [
    f"{kind} {measure}"
    for kind in ("mean", "worst")
    for measure in ("radius", "texture", "smoothness", "concavity", "symmetry")
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
                "data",
                None,
                "beside --targets and --by, which are columns of it",
            )
        about = list[str]()
        if self.data is None:
            kinds = ColumnKinds(numbers=_CANCER)
            text = _filled_template(path, kinds, ["target"], 60)
        else:
            with waiting(f"Reading {self.data}"):
                text, about = self._of_table(self.data)
        write_text(path, text)
        command = f"fl-epe run {path.stem}:task"
        if path.parent != Path():
            command = f"cd {shlex.quote(str(path.parent))} && {command}"
        print_unwrapped(
            f"{path}: a task of your own", *about, f"Next: {command}"
        )
        return 0

    def _of_table(self, data: Path) -> tuple[str, list[str]]:
        """The text of the file for a table, and lines about the use of its columns."""
        from fl_epe.tasks import read_tables

        tables = read_tables(str(data), self.by or "")
        train = "train" if "train" in tables else next(iter(tables))
        names = [str(name) for name in tables[train].columns]
        needed = self._needed_columns(data, names)
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
        if self.by is not None:
            clients = table[self.by].nunique()
        else:
            # A tenth of the rows is held out.
            clients = min(_CLIENTS, len(table) * 9 // 10)
        if clients < 2:
            raise_invalid(
                "data",
                str(data),
                f"to have the rows of 2 clients, found {clients}",
            )
        # A source that is no path is the id of a hub's data set.
        if data.exists():
            source = data.resolve()
        else:
            source = data
        values: dict[str, Any] = {"train": train, "source": str(source)}
        if classes is None:
            numbers = table[self.targets].astype(float)
            values["outputs"] = 1
            values["mean"] = numbers.mean()
            values["deviation"] = numbers.std(ddof=0) or 1.0
            target = "a real number"
        else:
            values["outputs"] = classes
            target = f"one of {classes:,} classes"
        about = [f"To predict: {self.targets}, {target}", *_described(kinds)]
        dropped = len(tables[train]) - len(table)
        if dropped:
            about.append(
                f"Rows left out, without {' or '.join(needed)}: {dropped:,}"
            )
        return _filled_template(
            self.file, kinds, needed, clients, **values
        ), about

    def _needed_columns(self, data: Path, names: list[str]) -> list[str]:
        """The column of the target and, if there is one, that of the owner."""
        columns = ", ".join(names)
        if self.targets is None:
            raise_invalid(
                "targets", None, f"to name a column of {data}: {columns}"
            )
        needed = {"targets": self.targets}
        if self.by is not None:
            needed["by"] = self.by
        for argument, column in needed.items():
            if column not in names:
                hint = did_you_mean(column, names)
                raise_invalid(
                    argument,
                    column,
                    f"to be a column of {data}: {columns}{hint}",
                )
        if self.by == self.targets:
            raise_invalid("by", self.by, "to be another column than --targets")
        return list(needed.values())


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
        """Convert the data set."""
        from fl_epe.data import convert

        with ProgressLine() as line:
            store = convert(
                self.task,
                self.source,
                self.target,
                vocabulary=self.vocabulary,
                on_progress=line.show,
            )
        print_unwrapped(
            f"{self.target}: {len(store):,} clients, {store.about['examples']:,} examples, "
            f"{store.about['held_out']:,} held out"
        )
        empty = store.about["clients_without_examples"]
        if empty:
            print_unwrapped(f"Clients left out, without examples: {empty:,}")
        return 0


def _filled_template(
    path: Path,
    kinds: ColumnKinds,
    needed: list[str],
    clients: int,
    **parts: object,
) -> str:
    """The text of the file, from the template.

    Args:
        path: the path of the file.
        kinds: the kind of each column.
        needed: the columns of the target and, if there is one, of the owner.
        clients: the number of clients.
        parts: further values of the template.
    """
    from fl_epe.reporting import render_page

    default_cohort = min(RunConfig.clients_per_round, clients // 2)
    least_cohort = math.ceil(_LEAST_PARTICIPATIONS * clients / RunConfig.rounds)
    text = render_page(
        "own_task.py.j2",
        "cli",
        module=path.stem,
        kinds=kinds,
        needed=needed,
        owner=needed[1] if len(needed) > 1 else None,
        clients=clients,
        cohort=max(1, default_cohort, least_cohort),
        rounds=RunConfig.rounds,
        most_levels=CLEAR_CLASSES,
        quoted=_quoted,
        **parts,
    )
    return text + "\n"


def _described(kinds: ColumnKinds) -> list[str]:
    """A line for each kind of columns, and one for each column that is left out."""
    named = {
        "Numbers": kinds.numbers,
        "Categories": kinds.categories,
        "Dates": kinds.dates,
    }
    lines = [
        f"{kind}: {', '.join(names)}" for kind, names in named.items() if names
    ]
    for name, reason in kinds.left_out.items():
        lines.append(f"Left out: {name} ({reason})")
    return lines


def _quoted(value: object) -> str:
    """A literal with double quotes; if it is long, each of several values has its own line.

    Letters that are not printable are escaped as in Python, or as in JSON where JSON escapes
    them.
    """
    text = json.dumps(value, ensure_ascii=False)
    if len(text) >= 80:
        text = json.dumps(value, ensure_ascii=False, indent=4)
    return "".join(
        c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text
    )
