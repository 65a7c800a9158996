"""Tables are read by row: what is missing is refused with its row, and moves no other value."""

import json
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from fl_epe.archive import UnreadableFileError
from fl_epe.auditing import read_scores
from fl_epe.schedules import Trace

SCORES, MEMBERS = [4.0, 3.0, 2.0, 1.0], [1, 1, 0, 0]


def _parquet(path, names=None, **columns):
    table = pa.Table.from_arrays(
        [pa.array(c) for c in columns.values()], names or list(columns)
    )
    parquet.write_table(table, path)
    return path


def test_a_parquet_file_pairs_scores_with_members_by_row(tmp_path):
    ours, others = read_scores(
        _parquet(tmp_path / "a.parquet", score=SCORES, member=MEMBERS)
    )
    assert (ours.tolist(), others.tolist()) == ([4, 3], [2, 1])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"score": [4.0, None, 2.0, 1.0], "member": MEMBERS}, "row 2: score is missing"),
        ({"score": SCORES, "member": [1, 1, None, 0]}, "row 3: member is missing"),
        ({"score": [None, 3.0, 2.0, 1.0], "member": [1, None, 0, 0]}, "row 1: score is missing"),
        ({"score": [4.0, np.nan, 2.0, 1.0], "member": MEMBERS}, "row 2: score=nan is not a number"),
        ({"observed": [1.0, None, 2.0], "unobserved": [0.0] * 3}, "row 2: observed is missing"),
        ({"score": [[1.0]] * 4, "member": MEMBERS}, r"row 1: score=\[1.0\] is not a number"),
        ({"score": [True] * 4, "member": MEMBERS}, "row 1: score=True is not a number"),
        ({"score": [b"1"] * 4, "member": MEMBERS}, "row 1: score=b'1' is not a number"),
        ({"x": SCORES}, r"found \['x'\]"),
    ],
    ids=[
        "score-null", "member-null", "both-null", "nan", "hole", "list", "bool", "bytes",
        "no-column",
    ],
)  # fmt: skip
def test_rows_that_are_not_whole_are_refused_with_their_number(
    columns, message, tmp_path
):
    with pytest.raises(
        UnreadableFileError, match=rf"a\.parquet to hold .*: {message}\.$"
    ):
        read_scores(_parquet(tmp_path / "a.parquet", **columns))


@pytest.mark.parametrize(
    "names", [["score", "score"], ["Score", " score "]], ids=["same", "alike"]
)
def test_a_column_that_stands_twice_is_refused(names, tmp_path):
    path = _parquet(tmp_path / "a.parquet", names, a=SCORES, b=SCORES)
    with pytest.raises(ValueError, match=r"duplicate column 'score'|found"):
        read_scores(path)
    rows = "\n".join(["1,2", "3,4"])
    (tmp_path / "a.csv").write_text(f"{','.join(names)}\n{rows}\n")
    with pytest.raises(ValueError, match="duplicate column 'score'"):
        read_scores(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("round,client_id,round\n1,a,1\n")
    with pytest.raises(ValueError, match="duplicate column 'round'"):
        Trace.read(tmp_path / "b.csv")
    (tmp_path / "a.json").write_text('{"observed": [1, 2], "observed": [3, 4]}')
    with pytest.raises(ValueError, match="duplicate key"):
        read_scores(tmp_path / "a.json")


CSV = {
    "hole": (
        b"observed,unobserved\n1,2\n,3\n4,5\n",
        "line 3: observed is missing",
    ),
    "no-member": (b"score,member\n1,1\n2\n", "line 3: member is missing"),
    "long-field": (
        b"observed\n1\n" + b"1" * 200_000 + b"\n",
        "field larger than field limit",
    ),
    "400-digits": (
        b"observed\n1\n" + b"9" * 400 + b"\n",
        "line 3: observed='9+…* is not a number",
    ),
    "5000-digits": (
        b"score,member\n1,1\n2," + b"9" * 5000 + b"\n",
        "line 3: member='9+… is n",
    ),
    "underscores": (
        b"observed\n1\n1_0\n",
        "line 3: observed='1_0' is not a number",
    ),
    "nul": (
        b"observed\n1\n2\0\n",
        r"no text in UTF-8 \(it has zero bytes\): save it as UTF-8",
    ),
    "latin": (b"observed\n1\n\xe9\n", "no text in UTF-8 .*: save it as UTF-8"),
    "utf-16-without-mark": (
        "observed\n1\n".encode("utf-16-le"),
        "no text in UTF-8",
    ),
    "utf-16-cut-off": (
        "observed\n1\n".encode("utf-16")[:-1],
        "the last line has no line break",
    ),
    "layouts": (
        b"score,member,observed\n1,1,3\n",
        r"\['member', 'observed', 'score'\], of two",
    ),
    "layouts-member": (
        b"observed,unobserved,member\n1,2,1\n",
        "of two layouts: keep one of them",
    ),
    "open-quote": (b'observed\n1\n"2\n', "unexpected end of data"),
    "ragged": (b"observed\n1\n2,3\n", "line 3 has 2 cells, the header 1"),
}


@pytest.mark.parametrize(("content", "message"), CSV.values(), ids=CSV)
def test_csv_scores_that_are_none(content, message, tmp_path):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(UnreadableFileError, match=message) as refusal:
        read_scores(tmp_path / "a.csv")
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 600


@pytest.mark.parametrize("header", ["observed,unobserved", "score,member"])
def test_a_file_that_is_cut_off_inside_a_row_is_refused(header, tmp_path):
    whole = f"{header}\n1.5,1\n2.25,0\n3.125,1\n".encode()
    for end in range(len(header) + 2, len(whole)):
        (tmp_path / "a.csv").write_bytes(whole[:end])
        if whole[end - 1 : end] != b"\n":
            with pytest.raises(
                UnreadableFileError, match="last line has no line break, as if"
            ):
                read_scores(tmp_path / "a.csv")


@pytest.mark.slow
def test_a_large_table_takes_the_memory_of_its_numbers(tmp_path):
    rows = 20_000
    (tmp_path / "a.csv").write_text(
        "observed,unobserved\n" + "0.125,0.0625\n" * rows
    )
    tracemalloc.start()
    read_scores(tmp_path / "a.csv")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * rows * 2 * 8 + (
        1 << 20
    )  # arrays that grow, and what a reader needs itself


def test_only_the_shorter_column_may_end_in_empty_cells(tmp_path):
    (tmp_path / "a.csv").write_text("observed,unobserved\n1,2\n3,\n4,\n")
    ours, others = read_scores(tmp_path / "a.csv")
    assert (ours.tolist(), others.tolist()) == ([1, 3, 4], [2])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"observed": [1, 10**400]}, "row 2: observed=1000.* is not a number"),
        (
            {"observed": [1, float("nan")]},
            "row 2: observed=nan is not a number",
        ),
        ({"observed": [1, None, 2]}, "row 2: observed is missing"),
        ({"observed": [1, {}]}, r"row 2: observed=\{\} is not a number"),
        ({"score": [1, 2], "member": [1]}, "score has 2 values and member 1"),
    ],
    ids=["400-digits", "nan", "null", "object", "lengths"],
)
def test_json_scores_that_are_none(values, message, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(values))
    with pytest.raises(UnreadableFileError, match=message):
        read_scores(tmp_path / "a.json")


def test_one_array_is_the_observed_scores(tmp_path):
    np.save(tmp_path / "a.npy", np.array(SCORES))
    ours, others = read_scores(tmp_path / "a.npy")
    assert (ours.tolist(), others) == (SCORES, None)
    np.save(tmp_path / "a.npy", np.array([SCORES]))
    with pytest.raises(ValueError, match=r"shape=\(1, 4\) is not \(k,\)"):
        read_scores(tmp_path / "a.npy")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"round,client_id\n1_0,a\n", "line 2: round='1_0' is not an integer"),
        (
            b"round,client_id\n" + b"9" * 400 + b",a\n",
            "line 2: round='9+… is not an integer",
        ),
        (
            b"round,client_id\n1," + b"a" * 300 + b"\n",
            "line 2: client_id is longer than 256",
        ),
        (
            b"round,client_id\n1,phone-1",
            "the last line has no line break, as if the file was cut",
        ),
        (
            b"round,client_id\n1," + b"a" * 200_000 + b"\n",
            "field larger than field limit",
        ),
    ],
    ids=["underscore", "400-digits", "long-id", "cut-off", "200-kB"],
)
def test_csv_traces_that_are_none(content, message, tmp_path):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(UnreadableFileError, match=message):
        Trace.read(tmp_path / "a.csv")


def test_a_damaged_page_is_refused_where_the_file_has_checksums(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"observed": np.arange(1000.0)})
    parquet.write_table(
        table,
        path,
        write_page_checksum=True,
        compression="none",
        use_dictionary=False,
    )
    content = bytearray(path.read_bytes())
    at = content.index(np.array([500.0]).tobytes())
    content[at + 6] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=r"a\.parquet to hold .*[Cc]hecksum|CRC"
    ):
        read_scores(path)


@pytest.mark.slow
def test_a_parquet_file_that_unpacks_to_too_much_is_refused(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("FL_EPE_READ_LIMIT", "1")
    path = _parquet(tmp_path / "a.parquet", observed=np.zeros(200_000))
    with pytest.raises(
        ValueError,
        match=r"limit of 1\. If you trust it, set FL_EPE_READ_LIMIT=2",
    ):
        read_scores(path)
    monkeypatch.setenv("FL_EPE_READ_LIMIT", "2")
    assert len(read_scores(path)[0]) == 200_000
