"""One sound file of each kind that a command reads, small, for the fuzzer to damage."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import gzip
import hashlib
import io
import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import data_files
import numpy as np
import pyarrow as pa
from pyarrow import parquet
from records import make_record
from tiny import Tiny

from fl_epe import AuditRecord, cli
from fl_epe.config import RunConfig
from fl_epe.reporting import summarize
from fl_epe.seeding import Seeds
from fl_epe.simulation import Job, simulate

Command = Callable[[Path, Path], list[str]]
"""The words of the command, given the damaged file and an empty folder to write to."""


@dataclasses.dataclass(frozen=True)
class Seed:
    """A sound file and what is done with damaged copies of it.

    Attributes:
        name: of the kind.
        path: the file's name; a command may expect it.
        content: its bytes.
        command: what reads it.
        result: the numbers that a successful command leaves, given the folder and what it printed.
        checked: whether the file has checksums, so that no damage may change a number.
    """

    name: str
    path: str
    content: bytes
    command: Command
    result: Callable[[Path, str], Any]
    checked: bool = False


def _report(folder: Path, printed: str) -> Any:
    found = json.loads((folder / "report.json").read_text())
    return {
        name: value for name, value in found.items() if name != "run"
    }  # when it ran


def _printed(folder: Path, printed: str) -> Any:
    return json.loads(printed)


def _nothing(folder: Path, printed: str) -> Any:
    return None


def _beside(*words: str) -> Command:
    """A command on the folder that the file is in."""
    return lambda path, folder: [*words, str(path.parent)]


def _estimate(path: Path, folder: Path) -> list[str]:
    return ["estimate", str(path), "--json", "--dim", "1000"]


def _advise_log(path: Path, folder: Path) -> list[str]:
    return ["advise", "log", str(path), "--noise-multiplier", "0.5", "--json"]


def _advise_noise(path: Path, folder: Path) -> list[str]:
    like = ["--like", str(path.parent), "--json"]
    return ["advise", "noise", "--target-epsilon", "2", *like]


def _convert(kind: str, words: Path) -> Command:
    more = ["--vocabulary", str(words)] if kind == "stackoverflow" else []
    return lambda path, folder: [
        "data",
        "convert",
        kind,
        str(path),
        str(folder / "out"),
        *more,
    ]


def tiny_task(name: str, **options: Any) -> Tiny:
    """The task of the checkpoint, which the package does not know."""
    if name != "tiny":
        raise ValueError(f"Expected task name={name!r:.40} to be 'tiny'.")
    return Tiny(inputs=20)


def _tiny_found(name: str) -> Any:
    tiny_task(name)
    return mock.Mock(settings=Tiny)


def _checkpoint(folder: Path) -> bytes:
    config = RunConfig(
        clients=20, rounds=4, clients_per_round=5, num_canaries=6, unobserved=6, delta=1e-2,
        local_epochs=1, clipping="fixed", canary_participations=1,
    )  # fmt: skip
    job = Job(Tiny(inputs=20), config, Seeds.derive(1), evaluate_every=2)
    path = folder / "checkpoint.npz"
    kept: list[bytes] = []

    def keep(progress: Any) -> None:
        if progress.round == 3:
            kept.append(path.read_bytes())

    simulate(job, workers=1, checkpoint=path, checkpoint_every=3, on_round=keep)
    return kept[0]


def _bytes_of(write: Callable[[Path], Any], path: Path) -> bytes:
    write(path)
    return path.read_bytes()


def _csv(header: list[str], rows: list[tuple[Any, ...]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([header, *rows])
    return text.getvalue().encode()


def seeds(folder: Path) -> list[Seed]:
    """Every kind of file; ``folder`` is for what has to be written first."""
    rng = np.random.default_rng(7)
    observed, unobserved = rng.normal(0.1, 0.03, 12), rng.normal(0, 0.03, 10)
    columns = {
        "observed": observed,
        "unobserved": np.append(unobserved, [np.nan] * 2),
    }
    wide = [
        (a, b if i < 10 else "")
        for i, (a, b) in enumerate(
            zip(*(c.tolist() for c in columns.values()), strict=True)
        )
    ]
    long = {"score": [*observed, *unobserved], "member": [1] * 12 + [0] * 10}
    record = make_record(
        metrics={"eval_round": np.arange(2), "eval_accuracy": np.ones(2) / 2}
    )
    whole = _bytes_of(record.save, folder / "record.npz")
    checkpoint = _checkpoint(folder)
    log = [(t, f"phone-{c}") for t in range(6) for c in range(8) if (t + c) % 3]
    rounds, clients = zip(*log, strict=True)
    nodes = np.array(
        [2**64 - 9 + int(client[-1]) for client in clients], np.uint64
    )
    trace = _csv(["round", "client_id"], log)
    events = [{"round": t, "client_id": client} for t, client in log]
    scores = _csv(list(columns), wide)
    tsv = scores.replace(b",", b"\t")
    decimal_commas = scores.replace(b",", b";").replace(b".", b",")
    lines = _json_lines(
        [{"score": s, "member": m} for s, m in zip(*long.values(), strict=True)]
    )

    def npz(path: Path) -> None:
        np.savez(path, observed=observed, unobserved=unobserved)

    def table(values: Any) -> Callable[[Path], None]:
        return lambda path: parquet.write_table(
            pa.table(values), path, write_page_checksum=True
        )

    json_text = json.dumps(
        {"observed": observed.tolist(), "unobserved": unobserved.tolist()}
    )
    npy = _bytes_of(lambda path: np.save(path, observed), folder / "a.npy")
    scored = _bytes_of(table(long), folder / "b.parquet")
    record_file, checkpoint_file = "record.npz", "checkpoint.npz"
    return [
        Seed(
            "record",
            record_file,
            whole,
            _beside("report"),
            _report,
            checked=True,
        ),
        Seed(
            "record-like",
            record_file,
            whole,
            _advise_noise,
            _printed,
            checked=True,
        ),
        Seed(
            "checkpoint",
            checkpoint_file,
            checkpoint,
            _beside("resume"),
            _report,
            checked=True,
        ),
        Seed(
            "scores-npz",
            "a.npz",
            _bytes_of(npz, folder / "a.npz"),
            _estimate,
            _printed,
        ),
        Seed("scores-npy", "a.npy", npy, _estimate, _printed),
        Seed("scores-csv", "a.csv", scores, _estimate, _printed),
        Seed("scores-json", "a.json", json_text.encode(), _estimate, _printed),
        Seed("scores-parquet", "a.parquet", scored, _estimate, _printed),
        Seed("scores-tsv", "a.tsv", tsv, _estimate, _printed),
        Seed("scores-jsonl", "a.jsonl", lines, _estimate, _printed),
        Seed(
            "scores-jsonl-gz",
            "a.jsonl.gz",
            gzip.compress(lines),
            _estimate,
            _printed,
        ),
        Seed(
            "scores-csv-gz",
            "a.csv.gz",
            gzip.compress(scores),
            _estimate,
            _printed,
        ),
        Seed(
            "scores-decimal-commas",
            "d.csv",
            decimal_commas,
            _estimate,
            _printed,
        ),
        Seed("trace-csv", "log.csv", trace, _advise_log, _printed),
        Seed(
            "trace-csv-gz",
            "log.csv.gz",
            gzip.compress(trace),
            _advise_log,
            _printed,
        ),
        Seed(
            "trace-jsonl",
            "log.jsonl",
            _json_lines(events),
            _advise_log,
            _printed,
        ),
        Seed(
            "trace-parquet",
            "log.parquet",
            _bytes_of(
                table({"round": rounds, "client_id": clients}),
                folder / "c.parquet",
            ),
            _advise_log,
            _printed,
        ),
        Seed(
            "trace-nodes",
            "log.parquet",
            _bytes_of(
                table({"round": rounds, "client_id": nodes}),
                folder / "d.parquet",
            ),
            _advise_log,
            _printed,
        ),
        *_tables(folder),
        *_sources(folder),
    ]


def _json_lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _new(path: Path, folder: Path) -> list[str]:
    named = {".json": ("y", "user")}.get(path.suffix, ("label", "client"))
    return ["new", str(folder / "task.py"), "--data", str(path), "--targets", named[0], "--by",
            named[1]]  # fmt: skip


def _leaf(inputs: list[Any]) -> bytes:
    """Five clients with these inputs each, as LEAF writes them."""
    labels = [0, 1, 2, 3]
    users = [f"f{i}" for i in range(5)]
    of_users = {user: {"x": inputs, "y": labels} for user in users}
    counts = [len(labels)] * len(users)
    return json.dumps(
        {"users": users, "num_samples": counts, "user_data": of_users}
    ).encode()


def _tables(folder: Path) -> list[Seed]:
    """Tables of examples, for 'fl-epe new'."""
    rows = [
        {
            "client": f"0{i % 4}",
            "size": i / 8,
            "city": "ab"[i % 2],
            "label": "xy"[i % 3 == 0],
        }
        for i in range(24)
    ]
    text = _csv(list(rows[0]), [tuple(row.values()) for row in rows])
    pixels = [[i / 784] * 784 for i in range(4)]
    parquet_file = folder / "e.parquet"
    parquet.write_table(
        pa.Table.from_pylist(rows), parquet_file, write_page_checksum=True
    )
    contents = {
        "table-csv": ("t.csv", text),
        "table-tsv-gz": ("t.tsv.gz", gzip.compress(text.replace(b",", b"\t"))),
        "table-jsonl": ("t.jsonl", _json_lines(rows)),
        "table-parquet": ("t.parquet", parquet_file.read_bytes()),
        "table-leaf": ("t.json", _leaf([0.5, 1.5, 2.0, 4.0])),
    }
    leaf = _leaf(pixels)
    converted = Seed(
        "emnist-leaf", "l.json", leaf, _convert("emnist", folder), _nothing
    )
    return [
        *(
            Seed(name, path, content, _new, _nothing)
            for name, (path, content) in contents.items()
        ),
        converted,
    ]


def _sources(folder: Path) -> list[Seed]:
    ink, labels = data_files.handwriting(12)
    images: data_files.Rows = [
        (
            "train",
            f"f{i % 3}",
            {"pixels": 1 - image / np.float32(255), "label": label},
        )
        for i, (image, label) in enumerate(zip(ink, labels, strict=True))
    ]
    posts: data_files.Rows = [
        (
            split,
            f"user-{i % 4}",
            {"tokens": f"a word and {i} more words of a user", "score": i},
        )
        for i in range(20)
        for split in ("train", "test")
    ]
    tokens: data_files.Rows = [
        ("", client, {"tokens": f["tokens"]}) for _, client, f in posts
    ]

    def packed(path: Path) -> None:
        data_files.write_sqlite(path, posts)

    written = {
        "emnist-hdf5": ("emnist", "a.h5", lambda p: data_files.write_hdf5(p, images)),
        "stackoverflow-sqlite": ("stackoverflow", "a.sqlite", packed),
        "stackoverflow-lzma": ("stackoverflow", "b.sqlite.lzma", packed),
        "stackoverflow-parquet": (
            "stackoverflow", "a.parquet", lambda p: data_files.write_parquet(p, tokens, "user_id"),
        ),
    }  # fmt: skip
    (folder / "sources").mkdir()
    words = folder / "sources" / "stackoverflow.word_count"
    words.write_text("a 2\nword 1\n")
    return [
        Seed(
            name,
            path,
            _bytes_of(write, folder / "sources" / path),
            _convert(kind, words),
            _nothing,
        )
        for name, (kind, path, write) in written.items()
    ]


@contextlib.contextmanager
def cheap_commands() -> Iterator[None]:
    """Commands without what takes long and reads nothing: pictures."""

    known: dict[bytes, Any] = {}

    def summarize_once(record: AuditRecord, **how: Any) -> Any:
        digest = hashlib.sha256(repr(sorted(how.items())).encode())
        for name, value in sorted(record.by_name().items()):
            digest.update(f"{name} {value!r}".encode())
            for array in value.values() if name == "metrics" else [value]:
                if isinstance(array, np.ndarray):
                    digest.update(array.tobytes())
        key = digest.digest()
        if key not in known:
            known[key] = summarize(record, **how)
        return known[key]

    with (
        mock.patch("fl_epe.reporting.summarize", summarize_once),
        mock.patch("fl_epe.simulation.checkpoint.load_task", tiny_task),
        mock.patch("fl_epe.simulation.checkpoint.find_task", _tiny_found),
        mock.patch("fl_epe.reporting.report.run_charts", return_value=[]),
    ):
        yield


def call(words: list[str]) -> int:
    """The command line, in this process."""
    return cli.main(words)


def sqlite_bytes(
    path: Path, changes: Callable[[sqlite3.Connection], Any]
) -> bytes:
    """The bytes of a data base after some changes through SQLite itself."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        changes(database)
        database.commit()
    return path.read_bytes()
