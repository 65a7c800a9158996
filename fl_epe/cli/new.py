"""``fl-epe new``: a file with a task of one's own, to run as it is and to change."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.resources
import os
import shlex
import string
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fl_epe.checks import ArgumentError
from fl_epe.cli.console import terminal
from fl_epe.cli.options import a_path, add_command, add_options, given
from fl_epe.files import write_text

_ROUNDS = 60  # of `RunConfig`
_CLIENTS = 100  # where no column says whose a row is
_CANCER = [
    f"{kind} {what}"
    for kind in ("mean", "worst")
    for what in ("radius", "texture", "smoothness", "concavity", "symmetry")
]
_EXAMPLE = '''

def rows():
    """Your data instead of these: a datasets.Dataset or DatasetDict."""
    import datasets
    from sklearn.datasets import load_breast_cancer

    table = load_breast_cancer(as_frame=True).frame  # 569 rows; the column "target" is 0 or 1
    return datasets.Dataset.from_pandas(table)
'''
_LOSS = '''
def loss(outputs, targets):
    """The mean square of targets in units of their spread: 1 is no better than their mean.

    So outputs are (target - mean) / deviation. Both numbers are those of the whole table: put in
    what is known without it, where they are nobody's business.
    """
    return torch.nn.functional.mse_loss(outputs[:, 0], (targets - {mean:.3g}) / {deviation:.3g})

'''
_GUIDE = "see docs/guides/own-task.md"
_EXAMPLES = """examples:
  fl-epe new && fl-epe run my_task:task
  fl-epe new flights.py --data flights.csv --targets delayed --by airport
"""


@dataclasses.dataclass(frozen=True)
class _New:
    """One call of ``fl-epe new``.

    Attributes:
        data: a table to train on: a CSV, JSON lines or Parquet file, or a folder that datasets
            wrote. Without it, the task is an example on data that come with scikit-learn.
        targets: the column that is to be predicted.
        by: the column that says whose a row is: every value is a client (default: rows are shared
            out over 100 clients at random).
    """

    data: Path | None = None
    targets: str | None = None
    by: str | None = None


def add_new(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``new`` to the subcommands."""
    new = add_command(
        commands,
        "new",
        _new,
        summary="write a file with a task of your own, to run and to change",
        description="Write a Python file with a model and a data set, which 'fl-epe run' trains "
        "and audits. With --data it is for your own table: all columns of numbers become inputs.",
        examples=_EXAMPLES,
    )
    new.add_argument(
        "file",
        nargs="?",
        type=a_path,
        default=Path("my_task.py"),
        metavar="FILE",
        help="file to write, in the current folder (default: my_task.py)",
    )
    add_options(new, _New)


def _new(arguments: argparse.Namespace) -> int:
    path, asked = arguments.file, _New(**given(arguments, _New))
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise ArgumentError(
            "Expected {file} to be a name that Python can import, such as my_task.py.",
            file=str(path),
        )
    if path.exists():
        raise ArgumentError("Expected {file} not to exist: name another one.", file=str(path))
    if asked.data is None and (asked.targets or asked.by):
        raise ArgumentError(
            "Expected {data} beside --targets and --by, which are columns of it.", data=None
        )
    left_out: list[str] = []
    values = _example() if asked.data is None else _of_table(asked, path, left_out)
    write_text(path, _filled(module=path.stem, **values))
    console, there = terminal(), str(path.parent)
    go = "" if there == "." else f"cd {shlex.quote(there)} && "
    following = f"Next: {go}fl-epe run {path.stem}:task"
    for line in (f"{path}: a task of your own", *left_out, following):
        console.print(line, markup=False, soft_wrap=True, highlight=False)
    return 0


def _filled(**values: Any) -> str:
    source = importlib.resources.files("fl_epe") / "cli" / "templates" / "own_task.txt"
    return string.Template(source.read_text(encoding="utf-8")).substitute(values)


def _quoted(text: object) -> str:
    """A literal with double quotes where that needs no escapes."""
    plain = repr(str(text))
    return plain if '"' in plain or "\\" in plain else f'"{plain[1:-1]}"'


def _list(names: list[str]) -> str:
    """A literal list of names, on lines of at most 100 characters."""
    text = ", ".join(map(_quoted, names))
    if len(text) < 80:
        return f"[{text}]"
    lines = [""]
    for name in map(_quoted, names):
        if len(lines[-1]) + len(name) > 88 and lines[-1]:
            lines.append("")
        lines[-1] += f"{name}, "
    return "[\n" + "\n".join(f"        {line.rstrip()}" for line in lines) + "\n    ]"


def _settings(clients: int) -> dict[str, str]:
    """Cohorts that the clients suffice for, with about a fifth of canaries; how often they come."""
    cohort = max(1, min(24, clients // 2))
    return {
        "defaults": f'{{"clients_per_round": {cohort}, "num_canaries": {15 * max(cohort, 4)}}}',
        "often": f"{_ROUNDS * cohort / clients:.3g}",
    }


def _example() -> dict[str, Any]:
    return {
        "imports": "",
        "example": _EXAMPLE,
        "rows": "rows",
        "features": len(_CANCER),
        "outputs": 2,
        "inputs": _list(_CANCER),
        "target": _quoted("target"),
        "partition": _quoted("iid:60"),
        "loss": "",
        "own_loss": "",
        **_settings(60),
    }


def _beside(data: Path, file: Path) -> tuple[str, str]:
    """An import, and the place of the data as seen from the file; a hub's id is left as it is."""
    if data.is_absolute() or not data.exists():
        return "", _quoted(data)
    there = Path(os.path.relpath(data, file.parent)).as_posix()
    return "from pathlib import Path\n\n", f"Path(__file__).parent / {_quoted(there)}"


def _not_numbers(features: Mapping[str, Any], used: Collection[str | None]) -> list[str]:
    """Which columns are no inputs, and why."""
    left = [
        f"{name or 'a column without a name'} ({getattr(kind, 'dtype', type(kind).__name__)})"
        for name, kind in features.items()
        if name not in used
    ]
    if not left:
        return []
    return [
        f"Left out of the inputs, as they are no columns of numbers: {', '.join(left)}. Turn them "
        f"into numbers to use them: {_GUIDE}."
    ]


def _of_table(asked: _New, path: Path, left_out: list[str]) -> dict[str, Any]:
    from fl_epe.tasks import class_count, no_progress_bars, number_columns, open_source, read_column

    rows, held_out = open_source(str(asked.data), None, 0)
    columns = ", ".join(rows.column_names)
    for name, column in (("targets", asked.targets), ("by", asked.by)):
        if column is None and name == "targets":
            raise ArgumentError(
                f"Expected {{targets}} to name a column of {asked.data}: {columns}.", targets=None
            )
        if column is not None and column not in rows.column_names:
            raise ArgumentError(
                f"Expected {{{name}}} to be a column of {asked.data}: {columns}.", **{name: column}
            )
    numbers = number_columns(rows)
    inputs = [name for name in numbers if name not in (asked.targets, asked.by)]
    if not inputs:
        raise ArgumentError(
            f"Expected {{data}} to have columns of numbers beside {asked.targets}: {columns}. For "
            f"images or text, write the task with fl_epe.tasks.from_datasets: {_GUIDE}.",
            data=str(asked.data),
        )
    with no_progress_bars():
        clients = _CLIENTS if asked.by is None else len(rows.unique(asked.by))
    clients = min(clients, len(rows))
    left_out += _not_numbers(rows.features, {*inputs, asked.targets, asked.by})
    imports, place = _beside(Path(str(asked.data)), path)
    outputs, own = class_count((rows, held_out), str(asked.targets)), ""
    if outputs is None:
        values = read_column(rows, str(asked.targets), "targets").double()
        spread = {"mean": values.mean().item(), "deviation": values.std(correction=0).item() or 1.0}
        own = _LOSS.format(**spread)
    return {
        "imports": imports,
        "example": "",
        "rows": place,
        "features": len(inputs),
        "outputs": outputs or 1,
        "loss": own,
        "own_loss": "    loss=loss,\n" if own else "",
        "inputs": _list(inputs),
        "target": _quoted(asked.targets),
        "partition": _quoted(f"iid:{clients}" if asked.by is None else f"by:{asked.by}"),
        **_settings(clients),
    }
