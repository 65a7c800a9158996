"""``fl-epe new`` and ``fl-epe data convert``: a task on your own data, and published data sets."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

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

if TYPE_CHECKING:
    import pandas

_CLIENTS = 100  # number of clients, if no column names the owner of a row
_MIN_PARTICIPATIONS = 2  # of a client in a run of the written task

# The example: columns of a data set of scikit-learn, and the number of clients.
_EXAMPLE_COLUMNS = [
    f"{kind} {measure}"
    for kind in ("mean", "worst")
    for measure in ("radius", "texture", "smoothness", "concavity", "symmetry")
]
_EXAMPLE_CLIENTS = 60

# The number of characters from which on a literal in the written file has several lines.
_MIN_FOLDED = 80


@dataclasses.dataclass(frozen=True)
class New:
    """Write a Python file with a model and a data set, which 'fl-epe run' trains and audits.

    With --data, the task is for your own table: numbers, categories and dates become inputs, and
    identifiers are left out. The file lists the use of each column, which you can change there.

    Examples:
        fl-epe new && fl-epe run my_task:task
        fl-epe new flights.py --data flights.csv --targets delayed --by airport

    Attributes:
        file: file to write.
        data: table to train on: a CSV, TSV, JSON lines or Parquet file, or a folder of such files
            or of a data set of the datasets library (default: an example that comes with
            scikit-learn).
        targets: column to predict.
        by: column with the owner of each row: every distinct value, exactly as it is written, is a
            client (default: rows are partitioned among 100 clients at random).
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
                path,
                "to be a name that Python can import, such as my_task.py",
            )
        if path.exists():
            raise_invalid("file", path, "not to exist: name another one")
        if not path.parent.is_dir():
            raise_invalid("file", path, "to be in a folder that exists")
        if self.data is None and (self.targets or self.by):
            raise_invalid(
                "data",
                None,
                "beside --targets and --by, which are columns of it",
            )
        about: list[str] = []
        if self.data is None:
            kinds = ColumnKinds(numbers=_EXAMPLE_COLUMNS)
            text = self._filled_template(kinds, ["target"], _EXAMPLE_CLIENTS)
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
        target_column = needed[0]
        classes = classes_to_predict(tables[train][target_column])
        rows = tables[train].dropna(subset=needed)
        kinds = self._input_kinds(rows, needed)
        # A source that is no path is the id of a data set on the hub.
        source = str(data)
        if data.exists():
            source = str(data.resolve())
        values: dict[str, Any] = {"train": train, "source": source}
        if classes is None:
            numbers = rows[target_column].astype(float)
            target = "a real number"
            values["outputs"] = 1
            values["mean"] = numbers.mean()
            values["deviation"] = numbers.std(ddof=0) or 1.0
        else:
            target = f"one of {classes:,} classes"
            values["outputs"] = classes
        text = self._filled_template(
            kinds, needed, self._num_clients(rows), **values
        )
        about = [f"To predict: {self.targets}, {target}", *_described(kinds)]
        dropped = len(tables[train]) - len(rows)
        if dropped:
            about.append(
                f"Rows left out, without {' or '.join(needed)}: {dropped:,}"
            )
        return text, about

    def _input_kinds(
        self, rows: pandas.DataFrame, needed: list[str]
    ) -> ColumnKinds:
        """The kind of each column that is not needed otherwise; some must become inputs."""
        kinds = sort_columns(rows, excluded=needed)
        if not (kinds.numbers or kinds.categories or kinds.dates):
            raise_invalid(
                "data",
                self.data,
                f"to have columns of numbers, categories or dates beside {', '.join(needed)}: "
                f"{', '.join(map(str, rows.columns))}. For images or text, write the task with "
                "fl_epe.tasks.from_datasets: see docs/guides/own-task.md",
            )
        return kinds

    def _num_clients(self, rows: pandas.DataFrame) -> int:
        """The number of clients among whom the rows are partitioned."""
        if self.by is not None:
            clients: int = rows[self.by].nunique()
        else:
            # A tenth of the rows is held out.
            clients = min(_CLIENTS, len(rows) * 9 // 10)
        if clients < 2:
            raise_invalid(
                "data",
                self.data,
                f"to have the rows of at least 2 clients, found {clients}",
            )
        return clients

    def _needed_columns(self, data: Path, names: list[str]) -> list[str]:
        """The column to predict first, and the column with the owner of a row if one was typed."""
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

    def _filled_template(
        self,
        kinds: ColumnKinds,
        needed: list[str],
        clients: int,
        **values: object,
    ) -> str:
        """The text of the file.

        Args:
            kinds: the kind of each column.
            needed: the columns of `_needed_columns`.
            clients: the number of clients.
            values: further values of the template.
        """
        from fl_epe.reporting import render_page

        default_cohort = min(RunConfig.clients_per_round, clients // 2)
        min_cohort = math.ceil(_MIN_PARTICIPATIONS * clients / RunConfig.rounds)
        text = render_page(
            "own_task.py.j2",
            "cli",
            module=self.file.stem,
            kinds=kinds,
            needed=needed,
            owner=self.by,
            clients=clients,
            cohort=max(1, default_cohort, min_cohort),
            rounds=RunConfig.rounds,
            most_levels=CLEAR_CLASSES,
            quoted=_quoted,
            **values,
        )
        return f"{text}\n"


@dataclasses.dataclass(frozen=True)
class Convert:
    """Convert a published data set, for 'fl-epe run TASK --data-dir'.

    Reads a data set in its published files, groups the examples by client in bounded memory, and
    writes a folder with files that training maps into memory.

    For stackoverflow, SOURCE is a folder with stackoverflow.sqlite.lzma (or .sqlite, .h5, or
    Parquet with user_id and tokens) and stackoverflow.word_count. Then: fl-epe run stackoverflow
    --data-dir data/stackoverflow

    Examples:
        fl-epe data convert stackoverflow DOWNLOADS data/stackoverflow
        fl-epe data convert emnist flwrlabs/femnist data/emnist
        fl-epe data convert emnist fed_emnist_train.h5 data/emnist

    Attributes:
        task: stackoverflow or emnist.
        source: file or folder of the data set, or its id on the Hugging Face hub.
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
    """A value as a literal of Python, with double quotes; a long list has one item a line.

    Characters that are not printable are escaped.
    """
    text = json.dumps(value, ensure_ascii=False)
    if len(text) >= _MIN_FOLDED:
        text = json.dumps(value, ensure_ascii=False, indent=4)
    return "".join(
        character
        if character.isprintable() or character == "\n"
        else ascii(character).strip("'")
        for character in text
    )
