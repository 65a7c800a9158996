"""``fl-epe new`` and ``fl-epe data convert``: a task on data of one's own, and published data."""

import dataclasses
import importlib.resources
import json
import shlex
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from fl_epe.checks import raise_invalid
from fl_epe.cli.console import ProgressLine, print_whole
from fl_epe.config import RunConfig
from fl_epe.files import write_text

_CLIENTS = 100  # where no column says whose a row is
_CANCER = [
    f"{kind} {what}"
    for kind in ("mean", "worst")
    for what in ("radius", "texture", "smoothness", "concavity", "symmetry")
]


@dataclasses.dataclass(frozen=True)
class New:
    """Write a Python file with a model and a data set, which 'fl-epe run' trains and audits.

    With --data it is for your own table: all columns of numbers become inputs.

    Examples:
        fl-epe new && fl-epe run my_task:task
        fl-epe new flights.py --data flights.csv --targets delayed --by airport

    Attributes:
        file: file to write, in the current folder.
        data: a table to train on: a CSV, JSON lines or Parquet file, or a folder that datasets
            wrote. Without it, the task is an example on data that come with scikit-learn.
        targets: the column that is to be predicted.
        by: the column that says whose a row is: every value is a client (default: rows are
            partitioned over 100 clients at random).
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
                "file", str(path), "to be a name that Python can import, such as my_task.py"
            )
        if path.exists():
            raise_invalid("file", str(path), "not to exist: name another one")
        if self.data is None and (self.targets or self.by):
            raise_invalid("data", None, "beside --targets and --by, which are columns of it")
        if self.data is None:
            text = _filled(path, _CANCER, "target", "iid:60", 60, example=_template("own_rows"))
        else:
            text = self._of_table(self.data)
        write_text(path, text)
        go = "" if path.parent == Path() else f"cd {shlex.quote(str(path.parent))} && "
        print_whole(f"{path}: a task of your own", f"Next: {go}fl-epe run {path.stem}:task")
        return 0

    def _of_table(self, data: Path) -> str:
        from fl_epe.tasks.tables import class_count, number_columns, open_source, read_column

        rows, held_out = open_source(str(data), None, 0)
        names, columns = rows.column_names, ", ".join(rows.column_names)
        if self.targets is None:
            raise_invalid("targets", None, f"to name a column of {data}: {columns}")
        for name, column in (("targets", self.targets), ("by", self.by)):
            if column not in (None, *names):
                raise_invalid(name, column, f"to be a column of {data}: {columns}")
        inputs = [one for one in number_columns(rows) if one not in (self.targets, self.by)]
        if not inputs:
            raise_invalid(
                "data",
                str(data),
                f"to have columns of numbers beside {self.targets}: {columns}. For images or text, "
                "write the task with fl_epe.tasks.from_datasets: see docs/guides/own-task.md",
            )
        clients = min(_CLIENTS if self.by is None else len(set(rows[self.by])), len(rows))
        outputs, loss = class_count((rows, held_out), self.targets), {}
        if outputs is None:
            values = read_column(rows, self.targets, "targets").double()
            mean, deviation = values.mean().item(), values.std(correction=0).item() or 1.0
            text = _template("own_loss").format(mean=mean, deviation=deviation)
            loss = {"loss": text, "own_loss": "    loss=loss,\n"}
        return _filled(
            self.file,
            inputs,
            self.targets,
            f"iid:{clients}" if self.by is None else f"by:{self.by}",
            clients,
            outputs=outputs or 1,
            rows=_quoted(data.resolve() if data.exists() else data),  # or a hub's id
            **loss,
        )


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
        print_whole(f"{self.target}: {found}, {store.about['held_out']:,} held out")
        return 0


def _template(name: str) -> str:
    place = importlib.resources.files("fl_epe") / "cli" / "templates" / f"{name}.txt"
    return place.read_text(encoding="utf-8")


def _filled(
    path: Path, inputs: list[str], target: str, partition: str, clients: int, **parts: object
) -> str:
    """The template with names of columns, and parts of a program."""
    # Cohorts that the clients suffice for.
    cohort = max(1, min(24, clients // 2))
    return string.Template(_template("own_task")).substitute(
        module=path.stem,
        inputs=_quoted(inputs),
        features=len(inputs),
        target=_quoted(target),
        partition=_quoted(partition),
        often=f"{RunConfig.rounds * cohort / clients:.3g}",
        defaults=f'{{"clients_per_round": {cohort}}}',
        **{"outputs": 2, "rows": "rows", "example": "", "loss": "", "own_loss": "", **parts},
    )


def _quoted(value: object) -> str:
    """A literal with double quotes; a list on lines of its own if it is long."""
    if not isinstance(value, list):
        return json.dumps(str(value), ensure_ascii=False)
    text = f"[{', '.join(map(_quoted, value))}]"
    lines = "".join(f"        {_quoted(one)},\n" for one in value)
    return text if len(text) < 80 else f"[\n{lines}    ]"
