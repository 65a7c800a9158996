"""What a folder that somebody sent can do to who runs ``fl-epe`` in it: nothing beyond the folder.

Each attempt lays a trap in ``received``, the current folder. Beside it are a home and files of the
reader's own: none of them may change, and a secret in them may not get into what is printed or
written. A trap that starts a program makes a file there.
"""

import ast
import csv
import dataclasses
import hashlib
import io
import json
import lzma
import multiprocessing
import os
import pickle
import re
import resource
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from data_files import example, write_hdf5, write_parquet, write_sqlite
from records import limit_with_clients, make_record

import fl_epe
from fl_epe.cli.main import main
from fl_epe.config import RunConfig
from fl_epe.files import CHECKPOINT, RECORD
from fl_epe.seeding import Seeds
from fl_epe.simulation.checkpoint import Job, write_checkpoint
from fl_epe.tasks import load_task

PATIENCE = 300
"""Seconds to wait for a command: only one that hangs takes so long, on any machine."""

MARK = "secret-7f3a91"
"""Stands in files of the reader's own."""

LARGEST = 1 << 31
"""Bytes that a command may allocate, or write into one file."""

SMALL = RunConfig(
    clients=60, rounds=1, clients_per_round=10, num_canaries=8, unobserved=8
)


@dataclasses.dataclass
class Place:
    """Where an attempt is made.

    Attributes:
        received: the folder that somebody sent.
        own: the reader's files, among them the home.
    """

    received: Path
    own: Path

    @property
    def started(self) -> str:
        """A command for a shell that shows that it was started."""
        return f"touch {self.own / 'started'}"

    def record(self, **changes: Any) -> None:
        """Write a record that can be reported."""
        make_record(**changes).save(self.received / RECORD)

    def unfinished(self, task: str = "digits", **changes: Any) -> None:
        """Write a checkpoint of a run that had not begun; ``changes`` are of its values."""
        job = Job(
            load_task("digits", num_clients=60), SMALL, Seeds.derive(1)
        ).to_dict()
        options = changes.pop("options", job["options"])
        config = job["config"] | changes
        values = job | {"task": task, "options": options, "config": config}
        write_checkpoint(self.received / CHECKPOINT, values, {})

    def program(self, path: Path) -> None:
        """A Python file that shows that it was imported."""
        path.write_text(f"import os\nos.system({self.started!r})\n")


@dataclasses.dataclass(frozen=True)
class Attempt:
    """What is laid out, what is typed, what is said, and if an interpreter must start there."""

    lay: Callable[[Place], object]
    words: tuple[str, ...]
    says: str
    fresh: bool


ATTEMPTS: dict[str, Attempt] = {}


def attempt(
    *words: str, says: str, fresh: bool = False
) -> Callable[[Any], Any]:
    """An attempt of a function's name; ``says`` is what must be printed, as a pattern."""

    def add(lay: Callable[[Place], object]) -> Callable[[Place], object]:
        ATTEMPTS[lay.__name__.replace("_", "-")] = Attempt(
            lay, words, says, fresh
        )
        return lay

    return add


REPORT = ("report", ".")


class Bomb:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def _pickled(place: Place) -> np.ndarray:
    return np.array([Bomb(place.started)], dtype=object)


@attempt(*REPORT, says="to be a record")
def pickle_in_a_record(place):
    np.savez(place.received / RECORD, meta=_pickled(place))


@attempt("estimate", "scores.npz", says="scores.npz")
def pickle_in_scores(place):
    np.savez(
        place.received / "scores.npz",
        observed=_pickled(place),
        unobserved=np.zeros(9),
    )


@attempt(
    "advise",
    "noise",
    "--target-epsilon",
    "2",
    "--mechanism",
    "matrix.npy",
    says="matrix.npy",
)
def pickle_in_a_matrix(place):
    np.save(place.received / "matrix.npy", _pickled(place))


@attempt(*REPORT, says="Report: ", fresh=True)
def settings_of_matplotlib_run_latex(place):
    place.record()
    text = "text.usetex: True\nbackend: module://evil\n"
    (place.received / "matplotlibrc").write_text(text)
    place.program(place.received / "evil.py")


@attempt(*REPORT, says="Report: ", fresh=True)
def settings_of_matplotlib_are_a_link(place):
    place.record()
    (place.received / "matplotlibrc").symlink_to(place.own / "secret.txt")


@attempt("report", ".", "--figures", "svg", says="Figures: ", fresh=True)
def settings_of_matplotlib_are_a_pipe(place):
    place.record()
    os.mkfifo(place.received / "matplotlibrc")


@attempt(*REPORT, says="Report: ", fresh=True)
def modules_of_known_names(place):
    place.record()
    names = "sitecustomize usercustomize fl_epe numpy torch matplotlib json rich jinja2 plotly"
    for name in names.split():
        place.program(place.received / f"{name}.py")
    (place.received / "evil.pth").write_text(
        f"import os; os.system({place.started!r})\n"
    )


@attempt(*REPORT, says="Report: ")
def templates_and_texts_with_code(place):
    code = (
        "{{ cycler.__init__.__globals__.os.system('" + place.started + "') }}"
    )
    folder = place.received / "templates"
    folder.mkdir()
    for name in ("report.html.j2", "silos.html.j2"):
        (folder / name).write_text(code)
        (place.received / name).write_text(code)
    place.record(unit=code, task=code, settings={code: code})


@attempt(
    "report",
    ".",
    "--details",
    "--figures",
    "svg",
    "--clients",
    says="Clients: ",
)
def outputs_that_are_links(place):
    _with_clients(place)
    for name in ("report.json", "report.html", "epsilon.png", "clients.csv"):
        (place.received / name).symlink_to(place.own / "notes.txt")


@attempt("report", ".", "--clients", "--figures", "svg", says="Clients: ")
def outputs_that_are_hard_links(place):
    _with_clients(place)
    (place.received / "figures").mkdir()
    names = ("report.json", "report.html", "epsilon.png", "clients.csv")
    for name in (
        *names,
        "figures/scores.csv",
        "figures/epsilon.svg",
    ):
        os.link(place.own / "notes.txt", place.received / name)


def _with_clients(place: Place) -> None:
    limit_with_clients().save(place.received / RECORD)


@attempt("report", ".", "--figures", "svg", says="figures")
def figures_that_are_a_link(place):
    place.record()
    (place.received / "figures").symlink_to(place.own / "home")


@attempt(*REPORT, says="record.npz")
def a_record_that_is_a_link(place):
    make_record(task=MARK).save(place.own / "private.npz")
    (place.received / RECORD).symlink_to(place.own / "private.npz")


@attempt("export", ".", "copy.npz", says="record.npz")
def a_record_to_export_that_is_a_link(place):
    make_record(task=MARK).save(place.own / "private.npz")
    (place.received / RECORD).symlink_to(place.own / "private.npz")


@attempt(
    "advise", "noise", "--target-epsilon", "2", "--like", ".", says="record.npz"
)
def a_record_to_be_like_that_is_a_link(place):
    make_record(task=MARK).save(place.own / "private.npz")
    (place.received / RECORD).symlink_to(place.own / "private.npz")


@attempt("export", ".", "copy.npz", says="copy.npz")
def a_copy_that_is_a_link(place):
    place.record()
    (place.received / "copy.npz").symlink_to(place.own / "new.npz")


@attempt(*REPORT, says="record.npz")
def a_record_that_is_a_pipe(place):
    os.mkfifo(place.received / RECORD)


@attempt(*REPORT, says="MiB unpacked")
def a_record_that_fills_the_memory(place):
    with (
        zipfile.ZipFile(
            place.received / RECORD, "w", zipfile.ZIP_DEFLATED
        ) as archive,
        archive.open("meta.npy", "w", force_zip64=True) as member,
    ):
        for _ in range(300):
            member.write(bytes(1 << 20))


@attempt(*REPORT, says="to be a record")
def a_record_with_paths_for_names(place):
    place.record()
    with zipfile.ZipFile(place.received / RECORD, "a") as archive:
        archive.writestr("../own/notes.txt.npy", b"x")
        archive.writestr(f"{place.own}/notes.txt", b"x")


@attempt(*REPORT, says="Report: ")
def half_written_files_that_are_links(place):
    place.record()
    for name in (RECORD, "report.json", "x"):
        part = place.received / f"{name}.0123abcd.fl-epe-part"
        part.symlink_to(place.own / "notes.txt")


@attempt("resume", ".", says="fl-epe.lock")
def a_lock_that_is_a_hard_link(place):
    os.link(place.own / "notes.txt", place.received / "fl-epe.lock")


@attempt("resume", ".", says="fl-epe.lock")
def a_lock_that_is_a_link(place):
    (place.received / "fl-epe.lock").symlink_to(place.own / "new.txt")


@attempt("resume", ".", "--workers", "1", says="run.log")
def a_log_that_is_a_hard_link(place):
    place.unfinished()
    os.link(place.own / "notes.txt", place.received / "run.log")


@attempt("resume", ".", "--workers", "1", says="run.log")
def a_log_that_is_a_link(place):
    place.unfinished()
    (place.received / "run.log").symlink_to(place.own / "notes.txt")


@attempt(
    "resume",
    ".",
    "--workers",
    "1",
    "--log-to",
    "tensorboard",
    says="tensorboard",
)
def a_folder_of_a_logger_that_is_a_link(place):
    place.unfinished()
    (place.received / "tensorboard").symlink_to(place.own / "home")


@attempt("resume", ".", says="--task='evil:task'")
def a_checkpoint_that_names_a_module(place):
    place.unfinished("evil:task", options={})
    place.program(place.received / "evil.py")


@attempt("resume", ".", says="--reads=")
def a_checkpoint_that_names_a_folder_of_data(place):
    place.unfinished("emnist", options={"data_dir": str(place.own / "data")})


@attempt("resume", ".", says="--reads=")
def a_checkpoint_that_names_a_matrix(place):
    place.unfinished(mechanism=str(place.own / "matrix.npy"))


@attempt("resume", ".", says="recorded trace")
def a_checkpoint_that_names_a_log(place):
    log = json.dumps(
        {"of": f"trace:path={place.own / 'log.csv'}", "per_run": 3}
    )
    place.unfinished(participation=f"capped:{log}")


@attempt("resume", ".", says="checkpoint.npz")
def a_checkpoint_that_is_a_link(place):
    place.unfinished()
    (place.received / CHECKPOINT).rename(place.own / "private.npz")
    (place.received / CHECKPOINT).symlink_to(place.own / "private.npz")


@attempt("compare", "--task", "digits", "--task-option", "num_clients=60", "--rounds", "2",
         "--schedules", "epochs", "--noise-multipliers", "1", "--workers", "1", "--output", ".",
         says="cells")  # fmt: skip
def a_folder_of_trainings_that_is_a_link(place):
    (place.received / "cells").symlink_to(place.own / "home")


@attempt("report", "a", "b", says="Comparison: ")
def formulas_in_names_and_texts(place):
    for name in "ab":
        (place.received / name).mkdir()
        formula = "=HYPERLINK(A1)"
        settings = {"=1+1": f"@{name}", "x": f"y;=1{name}", "z": f"t\t=1{name}"}
        metrics = {
            "eval_round": [1],
            "eval_loss": [0.5],
            "eval_accuracy": [0.5],
        }
        record = make_record(
            metrics={n: np.array(v, float) for n, v in metrics.items()}
        )
        record = record.with_values(
            metric=formula, settings=settings, chance_accuracy=0.1
        )
        record.save(place.received / name / RECORD)


@attempt("report", ".", "--details", says="Report: ")
def lines_that_a_record_forges(place):
    place.record(
        faults=("round 1, a client failed:\nForged: ε = 0",),
        task="a\nForged: ε = 0",
    )


@attempt(*REPORT, says="Report: ")
def escapes_in_a_record(place):
    place.record(unit="\x1b]0;x\x07\x1b[2J", faults=("\x1b[31mred",))


CONVERT = ("data", "convert", "stackoverflow", "source", "out")


def _sentences(place: Place) -> Path:
    """A folder for a source of sentences, with its vocabulary."""
    source = place.received / "source"
    source.mkdir()
    (source / "stackoverflow.word_count").write_text("a 2\nb 1\n")
    return source


def _database(place: Place) -> sqlite3.Connection:
    path = _sentences(place) / "x.sqlite"
    write_sqlite(
        path, [("train", f"c{i}", example(tokens="a b")) for i in range(9)]
    )
    return sqlite3.connect(path)


ENDLESS = """
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000000)
SELECT old.* FROM n, old
"""


@attempt(*CONVERT, says="to be a table|too large|view")
def a_view_without_end(place):
    with _database(place) as database:
        database.execute("ALTER TABLE examples RENAME TO old")
        database.execute(f"CREATE VIEW Examples AS {ENDLESS}")


@attempt(*CONVERT, says="to be a table|too large|view")
def a_view_of_clients_without_end(place):
    with _database(place) as database:
        database.execute("ALTER TABLE client_metadata RENAME TO old")
        database.execute(f"CREATE VIEW client_metadata AS {ENDLESS}")


@attempt(*CONVERT, says="x.sqlite")
def a_column_that_is_computed(place):
    with _database(place) as database:
        database.execute("DROP TABLE examples")
        large = "CAST(zeroblob(900000000) AS TEXT)"
        database.execute(
            "CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB"
            f" GENERATED ALWAYS AS ({large}) VIRTUAL)"
        )
        database.executemany(
            "INSERT INTO examples VALUES (?, ?)", [("train", "c")] * 9
        )


@attempt(*CONVERT, says="x.sqlite")
def a_database_that_is_a_link(place):
    source = _sentences(place)
    rows = [("train", f"c{i}", example(tokens=MARK)) for i in range(9)]
    write_sqlite(place.own / "private.sqlite", rows)
    (source / "x.sqlite").symlink_to(place.own / "private.sqlite")


@attempt(*CONVERT, says="MiB unpacked")
def a_database_that_fills_the_disk(place):
    packed = lzma.LZMACompressor(format=lzma.FORMAT_ALONE)
    with (_sentences(place) / "x.sqlite.lzma").open("wb") as file:
        for _ in range(300):
            file.write(packed.compress(bytes(1 << 20)))
        file.write(packed.flush())


def _images(place: Place, **links: Any) -> None:
    """An HDF5 file of images; ``links`` are put in the place of a client's labels."""
    rng = np.random.default_rng(5)
    rows = [
        (
            "train",
            f"c{i}",
            {"pixels": np.ones((28, 28), np.float32), "label": int(label)},
        )
        for i, label in enumerate(rng.integers(0, 10, 6))
    ]
    path = place.received / "source.h5"
    write_hdf5(path, rows)
    with h5py.File(path, "r+") as file:
        group = file["examples/c3"]
        del group["label"]
        if "make" in links:
            links["make"](group)
        else:
            group["label"] = links["link"]


IMAGES = ("data", "convert", "emnist", "source.h5", "out")


@attempt(*IMAGES, says="source.h5")
def hdf5_with_storage_elsewhere(place):
    (place.own / "labels.bin").write_bytes(bytes([7]))
    stored = [(str(place.own / "labels.bin"), 0, 1)]
    _images(
        place,
        make=lambda group: group.create_dataset(
            "label", (1,), np.uint8, external=stored
        ),
    )


@attempt(*IMAGES, says="source.h5")
def hdf5_with_a_link_elsewhere(place):
    with h5py.File(place.own / "private.h5", "w") as file:
        file["label"] = np.array([7])
    _images(
        place, link=h5py.ExternalLink(str(place.own / "private.h5"), "label")
    )


@attempt(*IMAGES, says="source.h5")
def hdf5_with_parts_elsewhere(place):
    with h5py.File(place.own / "private.h5", "w") as file:
        file["label"] = np.array([7])
    layout = h5py.VirtualLayout((1,), int)
    layout[:] = h5py.VirtualSource(str(place.own / "private.h5"), "label", (1,))
    _images(
        place, make=lambda group: group.create_virtual_dataset("label", layout)
    )


@attempt(*IMAGES, says="source.h5")
def hdf5_that_goes_round(place):
    _images(place, link=h5py.SoftLink("/examples/c3/label"))


@attempt(*IMAGES, says="source.h5")
def hdf5_that_fills_the_memory(place):
    def make(group: Any) -> None:
        group.create_dataset("label", (1 << 33,), np.uint8, chunks=(1 << 20,))

    _images(place, make=make)


@attempt("data", "convert", "emnist", "source", "out", says="train.parquet")
def a_file_of_a_source_that_is_a_link(place):
    rows = [
        ("train", MARK, {"pixels": np.ones(784, np.float32), "label": i})
        for i in range(9)
    ]
    write_parquet(place.own / "private.parquet", rows, "client_id")
    (place.received / "source").mkdir()
    (place.received / "source" / "train.parquet").symlink_to(
        place.own / "private.parquet"
    )


@attempt("data", "convert", "emnist", "source", "out", says="source")
def a_data_set_that_names_files_elsewhere(place):
    import datasets

    rows = {
        "client_id": [MARK] * 9,
        "pixels": [[1.0] * 784] * 9,
        "label": list(range(9)),
    }
    datasets.Dataset.from_dict(rows).save_to_disk(place.own / "private")
    (place.own / "private").rename(place.own / "moved")
    source = place.received / "source"
    source.mkdir()
    for name in ("state.json", "dataset_info.json"):
        (source / name).write_bytes((place.own / "moved" / name).read_bytes())
    state = json.loads((source / "state.json").read_text())
    for file in state["_data_files"]:
        file["filename"] = f"../../own/moved/{file['filename']}"
    (source / "state.json").write_text(json.dumps(state))


@attempt(
    "data", "convert", "emnist", "source.h5", "out", says="out.fl-epe-part.lock"
)
def a_lock_of_a_conversion_that_is_a_hard_link(place):
    _images(place, link=np.array([3]))
    os.link(place.own / "notes.txt", place.received / "out.fl-epe-part.lock")


@attempt(
    "new",
    "task.py",
    "--data",
    "./rows",
    "--targets",
    "y",
    says="to be in the folder",
)
def rows_whose_description_names_another_file(place):
    private = place.own / "private.csv"
    private.write_text(f"x,y,{MARK}\n" + "1,2,3\n" * 20)
    (place.received / "rows").mkdir()
    description = (
        f"---\nconfigs:\n- config_name: default\n  data_files: {private}\n---\n"
    )
    (place.received / "rows" / "README.md").write_text(description)


@attempt(
    "new",
    "task.py",
    "--data",
    "table.csv",
    "--targets",
    "y",
    says="a task of your own",
)
def columns_with_code(place):
    code = f'"]; import os; os.system("{place.started}")  # """'
    with (place.received / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["x", code, "y"])
        writer.writerows([i, code if i % 2 else "b", i % 2] for i in range(300))


@attempt("advise", "log", "log.csv", "--noise-multiplier", "1", says="log.csv")
def a_log_of_clients_that_is_a_pipe(place):
    os.mkfifo(place.received / "log.csv")


@attempt("report", "--details", ".", says="Report: ")
def paths_in_every_text(place):
    path = str(place.own / "secret.txt")
    place.record(task=path, unit=path, settings={"data_dir": path}, metric=path)


def _tree(folder: Path) -> dict[str, tuple[int, str]]:
    """Mode and content of everything in a folder; links are not followed."""
    found = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        content = ""
        if path.is_symlink():
            content = os.readlink(path)
        elif path.is_file():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(folder))] = path.lstat().st_mode, content
    return found


def _texts(path: Path) -> str:
    content = path.read_bytes()
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            content += b"".join(
                archive.read(name) for name in archive.namelist()
            )
    return content.decode(errors="replace") + content.decode(
        "utf-32", errors="replace"
    )


@pytest.fixture(scope="module")
def fonts(tmp_path_factory):
    """Where Matplotlib keeps what it knows of fonts: to find them takes seconds."""
    return tmp_path_factory.mktemp("matplotlib")


@pytest.fixture
def place(tmp_path):
    """A folder that somebody sent, and files of the reader's own."""
    found = Place(tmp_path / "received", tmp_path / "own")
    for folder in (
        found.received,
        found.own,
        found.own / "home",
        found.own / "data",
    ):
        folder.mkdir()
    (found.own / "secret.txt").write_text(f"{MARK}\n")
    (found.own / "notes.txt").write_text("my notes\n")
    np.save(found.own / "matrix.npy", np.eye(1))
    (found.own / "log.csv").write_text("round,client_id\n0,1\n")
    programs = tmp_path / "programs"  # of the reader, which a trap may start
    programs.mkdir()
    for name in (
        "latex",
        "dvipng",
        "kpsewhich",
        "xelatex",
        "pdflatex",
        "gs",
        "ffmpeg",
    ):
        (programs / name).write_text(f"#!/bin/sh\n{found.started}\nexit 1\n")
        (programs / name).chmod(0o755)
    return found


def _limit() -> None:
    """Not much more memory than there is now, and no large file."""
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    most = pages * resource.getpagesize() + LARGEST
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST, LARGEST))


def _environment(place: Place, fonts: Path) -> dict[str, str]:
    kept = {
        name: os.environ[name]
        for name in ("LANG", "LD_LIBRARY_PATH")
        if name in os.environ
    }
    home = place.own / "home"
    return kept | {
        "PATH": f"{place.own.parent / 'programs'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(Path(fl_epe.__file__).parents[1]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(home),
        "MPLCONFIGDIR": str(fonts),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "FL_EPE_CACHE": str(home / "cache"),
        "FL_EPE_DEVICE": "cpu",
        "HF_HOME": str(fonts),
        "HF_HUB_OFFLINE": "1",
    }


def _command(
    place: Place, fonts: Path, words: tuple[str, ...], said: Path
) -> None:
    """In a process of its own: what was typed in the received folder."""
    environment = _environment(place, fonts)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(place.received)
    _limit()
    with said.open("w", encoding="utf-8") as file:
        sys.stdout = sys.stderr = file
        sys.exit(main(list(words)))


def _run(place: Place, fonts: Path, tried: Attempt) -> tuple[int | None, str]:
    """The exit status and what is printed; as the script ``fl-epe`` does it.

    The current folder is none in which Python looks. All that needs no interpreter of its own runs
    in a copy of this process, which has loaded everything.
    """
    said = place.own.parent / "said.txt"
    if tried.fresh:
        with said.open("w") as file:
            status = subprocess.run(
                [sys.executable, "-P", "-m", "fl_epe", *tried.words],
                cwd=place.received,
                env=_environment(place, fonts),
                stdout=file,
                stderr=file,
                timeout=PATIENCE,
                check=False,
                preexec_fn=_limit,
            ).returncode
        return status, said.read_text()
    child = multiprocessing.get_context("fork").Process(
        target=_command, args=(place, fonts, tried.words, said)
    )
    child.start()
    child.join(PATIENCE)
    if child.is_alive():
        child.kill()
        child.join()
    return child.exitcode, said.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTEMPTS)
def test_a_received_folder_reaches_nothing_beyond_it(name, place, fonts):
    tried = ATTEMPTS[name]
    tried.lay(place)
    own, received = _tree(place.own), _tree(place.received)
    status, said = _run(place, fonts, tried)
    assert _tree(place.own) == own
    assert re.search(tried.says, said), said
    assert "Traceback" not in said
    assert status in (0, 2, 3), said
    assert MARK not in said
    written = {
        path: _texts(place.received / path)
        for path, content in _tree(place.received).items()
        if content != received.get(path) and (place.received / path).is_file()
    }
    assert not [path for path, text in written.items() if MARK in text]
    assert "\x1b" not in said
    assert not [
        line for line in said.splitlines() if line.strip().startswith("Forged")
    ]
    for path, text in written.items():
        if path.endswith(".csv"):
            cells = [
                cell for row in csv.reader(io.StringIO(text)) for cell in row
            ]
            parts = [
                part for cell in cells for part in re.split("[;\t\n]", cell)
            ]
            assert not [part for part in parts if part.startswith(("=", "@"))]
        if path.endswith(".py"):  # names and values are texts in it
            found_there = ast.walk(
                ast.parse((place.received / path).read_text())
            )
            assert not any(map(_imports_os, found_there))


def _imports_os(node: ast.AST) -> bool:
    return isinstance(node, ast.Import) and any(
        alias.name == "os" for alias in node.names
    )


def test_there_are_enough_attempts():
    assert len(ATTEMPTS) >= 20


def test_a_pickle_of_these_attempts_would_run(tmp_path):
    """The trap itself works."""
    pickle.loads(pickle.dumps(Bomb(f"touch {tmp_path / 'started'}")))  # noqa: S301
    assert (tmp_path / "started").exists()
