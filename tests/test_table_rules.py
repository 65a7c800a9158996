"""Every reader of a table keeps the same rules: endings, packing, text, separators, headers."""

import gzip
import json

import pytest

from fl_epe.archive import UnreadableFileError
from fl_epe.auditing import read_scores
from fl_epe.schedules import Trace

LOG = [{"round": "0", "client_id": "Zoë"}, {"round": "1", "client_id": "b"}]
SCORES = [{"score": "0.5", "member": "1"}, {"score": "1e-1", "member": "0"}]
READERS = {"log": (Trace.read, LOG), "scores": (read_scores, SCORES)}


def _found(read, path):
    """What a reader makes of a file, in a form that can be compared."""
    made = read(path)
    if isinstance(made, Trace):
        return made.round_ids.tolist(), made.clients[made.client_ids].tolist()
    return [None if side is None else side.tolist() for side in made]


EXPECTED = {"log": ([0, 1], ["Zoë", "b"]), "scores": [[0.5], [0.1]]}


def _text(rows, separator=",", end="\n"):
    lines = [
        separator.join(rows[0]),
        *(separator.join(row.values()) for row in rows),
    ]
    return end.join(lines) + end


def _decimal_commas(rows):
    return _text(rows, ";").replace(".", ",")


def _json_lines(rows):
    return "\n".join(json.dumps(row) for row in rows)


def _keys_in_capitals(rows):
    return _json_lines(
        {name.upper(): cell for name, cell in row.items()} for row in rows
    )


FILES = {
    "csv": (".csv", _text, "utf-8"),
    "csv-in-capitals": (".CSV", _text, "utf-8"),
    "csv-with-mark": (".csv", _text, "utf-8-sig"),
    "csv-packed": (".Csv.GZ", _text, "utf-8"),
    "csv-of-windows": (".csv", lambda rows: _text(rows, end="\r\n"), "utf-8"),
    "header-in-capitals": (
        ".csv",
        lambda rows: (
            _text(rows).replace("round", " Round").replace("score", "SCORE ")
        ),
        "utf-8",
    ),
    "semicolons": (".csv", lambda rows: _text(rows, ";"), "utf-8"),
    "semicolons-and-decimal-commas": (".csv", _decimal_commas, "utf-8"),
    "tabs-in-csv": (".csv", lambda rows: _text(rows, "\t"), "utf-8"),
    "utf-16-of-a-spreadsheet": (
        ".csv",
        lambda rows: _text(rows, "\t"),
        "utf-16",
    ),
    "tsv": (".tsv", lambda rows: _text(rows, "\t"), "utf-8"),
    "tsv-packed": (".tsv.gz", lambda rows: _text(rows, "\t"), "utf-8"),
    "packed-without-last-line-break": (
        ".csv.gz",
        lambda rows: _text(rows)[:-1],
        "utf-8",
    ),
    "json-lines": (".jsonl", _json_lines, "utf-8"),
    "json-lines-packed": (".jsonl.gz", _json_lines, "utf-8"),
    "json-lines-in-utf-16": (".jsonl", _json_lines, "utf-16"),
    "json-lines-in-capitals": (".jsonl", _keys_in_capitals, "utf-8"),
    "empty-lines": (
        ".jsonl",
        lambda rows: "\n\n" + _json_lines(rows) + "\n\n",
        "utf-8",
    ),
}


def _write(path, content):
    path.write_bytes(
        gzip.compress(content) if path.suffix.lower() == ".gz" else content
    )
    return path


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize(
    ("ending", "write", "encoding"), FILES.values(), ids=FILES
)
def test_every_reader_takes_every_form(kind, ending, write, encoding, tmp_path):
    read, rows = READERS[kind]
    path = _write(tmp_path / f"a{ending}", write(rows).encode(encoding))
    assert _found(read, path) == EXPECTED[kind]


def _first_column_twice(rows):
    name = next(iter(rows[0]))
    return _text([{**row, name.upper(): "1"} for row in rows])


def _first_key_twice(rows):
    name = next(iter(rows[0]))
    return json.dumps({**rows[0], name.upper(): "1"})


def _new_key(rows):
    return (
        json.dumps({next(iter(rows[0])): "1"} | {"x": 1})
        + "\n"
        + _json_lines(rows)
    )


CUT_OFF = "the last line has no line break, as if the file was cut off"
LATIN = "no text in UTF-8 .*é.*: save it as UTF-8"
REFUSED = {
    "no-last-line-break": (".csv", lambda rows: _text(rows)[:-1], CUT_OFF),
    "no-last-line-break-tsv": (
        ".tsv",
        lambda rows: _text(rows, "\t")[:-1],
        CUT_OFF,
    ),
    "latin-1": (".csv", lambda rows: _text(rows) + "é\n", LATIN),
    "latin-1-lines": (".jsonl", lambda rows: '{"é": 1}', LATIN),
    "columns-alike": (
        ".csv",
        _first_column_twice,
        "duplicate column '(round|score)'",
    ),
    "keys-alike": (
        ".jsonl",
        _first_key_twice,
        "line 1: duplicate column '(round|score)'",
    ),
    "duplicate-key": (
        ".jsonl",
        lambda rows: '{"a": 1, "a": 2}',
        "line 1 is no JSON .duplicate",
    ),
    "list-of-rows": (
        ".jsonl",
        json.dumps,
        "line 1 is a list, not a JSON object",
    ),
    "half-a-line": (
        ".jsonl",
        lambda rows: _json_lines(rows)[:-1],
        "line 2 is no JSON",
    ),
    "empty": (".jsonl", lambda rows: "\n", "the file is empty"),
    "long-line": (
        ".csv",
        lambda rows: _text(rows) + "x" * (1 << 22) + "\n",
        "longer than 4,194,304",
    ),
}


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize(
    ("ending", "write", "message"), REFUSED.values(), ids=REFUSED
)
def test_every_reader_refuses_the_same(kind, ending, write, message, tmp_path):
    read, rows = READERS[kind]
    path = _write(
        tmp_path / f"a{ending}",
        write(rows).encode("latin-1" if message is LATIN else "utf-8"),
    )
    with pytest.raises(UnreadableFileError, match=message):
        read(path)


def test_the_first_line_of_json_says_which_columns_there_are(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"observed": 1}\n{"observed": 2, "unobserved": 0}\n'
    )
    with pytest.raises(
        ValueError,
        match="line 2 has 'unobserved', which the first line does not have",
    ):
        read_scores(tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").write_text(
        '{"round": 1, "client_id": "a"}\n{"round": 2, "x": 3}\n'
    )
    with pytest.raises(
        ValueError, match="line 2: column 'client_id' is missing"
    ):
        Trace.read(tmp_path / "b.jsonl")


@pytest.mark.parametrize("damage", ["cut", "changed", "no-gzip"])
@pytest.mark.parametrize("ending", [".csv.gz", ".jsonl.gz"])
def test_a_damaged_packed_file_is_refused(ending, damage, tmp_path):
    text = _text(SCORES) if ending == ".csv.gz" else _json_lines(SCORES)
    packed = bytearray(gzip.compress(text.encode()))
    packed = {
        "cut": packed[:-9],
        "changed": packed[:-6] + bytes([packed[-6] ^ 1]) + packed[-5:],
        "no-gzip": bytearray(text, "utf-8"),
    }[damage]
    (tmp_path / f"a{ending}").write_bytes(packed)
    with pytest.raises(UnreadableFileError, match=r"end-of-stream|CRC|gzipped"):
        read_scores(tmp_path / f"a{ending}")


@pytest.mark.slow
def test_a_packed_file_that_unpacks_to_too_much_is_refused(
    tmp_path, monkeypatch
):
    path = _write(tmp_path / "a.csv.gz", b"observed\n" + b"1\n" * 600_000)
    monkeypatch.setenv("FL_EPE_READ_LIMIT", "1")
    with pytest.raises(
        ValueError,
        match=r"limit of 1\. If you trust it, set FL_EPE_READ_LIMIT=2",
    ):
        read_scores(path)
    monkeypatch.setenv("FL_EPE_READ_LIMIT", "2")
    assert len(read_scores(path)[0]) == 600_000


def test_a_decimal_comma_is_none_where_points_stand_in_other_numbers(tmp_path):
    (tmp_path / "a.csv").write_text("score;member\n0,5;1\n1.234;0\n")
    with pytest.raises(
        ValueError, match="line 3: score='1\\?234' is not a number"
    ):
        read_scores(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text('round;client_id\n0;1,5\n1;"1,5"\n1;1.5\n')
    assert Trace.read(tmp_path / "b.csv").clients.tolist() == ["1,5", "1.5"]


def test_a_row_that_stands_in_parquet_many_times_is_refused(tmp_path):
    """Three kilobytes that Python would read for minutes."""
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table({"score": pa.array([0.5]), "member": pa.array([1])}).take(
        [0] * (1 << 21)
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(UnreadableFileError, match="more than the limit of 2"):
        read_scores(tmp_path / "a.parquet")
