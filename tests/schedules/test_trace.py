"""Participation logs, in memory and in files."""

import json

import numpy as np
import pytest
from every_schedule import TRACE, T, assert_near
from trace_files import ROWS, write_csv

from fl_epe.schedules import Trace, presence


def _write_parquet(path, **columns):
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table(columns), path)
    return path


def test_a_trace_is_replayed():
    trace = Trace(*zip(*ROWS, strict=True))
    assert (trace.rounds, trace.population, trace.most_participations()) == (
        4,
        3,
        3,
    )
    assert trace.participations() == 5 / 3
    assert trace.clients.tolist() == ["a", "b", "c"]
    cohorts = [c.tolist() for c in trace.cohorts(3, np.random.default_rng(0))]
    assert cohorts == [[0, 2], [], [0, 1], [0]]
    assert Trace(trace.round_ids, trace.client_ids).round_ids.tolist() == [
        0,
        0,
        2,
        2,
        3,
    ]


@pytest.mark.parametrize(
    "ids", [["a", "b", "c"], ["7", "07", "10"], [10, 9, -1]]
)
def test_traces_in_files_are_the_same(tmp_path, ids):
    names = [ids["abc".index(client)] for _, client in ROWS]
    rounds = [t for t, _ in ROWS]
    trace = Trace(rounds, names)
    path = write_csv(tmp_path / "a.csv", zip(rounds, names, strict=True))
    assert Trace.read(path) == trace
    swapped = [(name, "x", t) for t, name in zip(rounds, names, strict=True)]
    header = ("client_id", "more", "round")
    assert Trace.read(write_csv(tmp_path / "b.csv", swapped, header)) == trace
    path = _write_parquet(
        tmp_path / "c.parquet", round=rounds, client_id=names, more=rounds
    )
    assert Trace.read(path) == trace
    assert Trace.read(path) != Trace([0], [0])


@pytest.mark.parametrize(
    "number",
    [
        lambda t: 7 * t,
        lambda t: 1_700_000_000 + 3600 * t,
        lambda t: 10**12 + 3_600_000 * t,
    ],
    ids=["gaps", "seconds", "milliseconds"],
)
def test_a_log_that_numbers_its_rounds_otherwise_is_asked_about(
    tmp_path, number
):
    rounds = list(range(4)) * 2
    rows = [
        (number(t), name) for t, name in zip(rounds, "aaaabbbb", strict=True)
    ]
    path = write_csv(tmp_path / "odd.csv", rows)
    with pytest.raises(
        ValueError,
        match=r"rounds, and 4 of them have clients.*Number the rounds",
    ):
        Trace.read(path)


def test_empty_rounds_are_kept_where_they_are_few(tmp_path):
    path = write_csv(tmp_path / "few.csv", [(0, "a"), (1, "b"), (3, "a")])
    kept = Trace.read(path)
    assert (kept.rounds, kept.round_ids.tolist()) == (4, [0, 1, 3])


def test_client_ids_are_integers_if_all_are(tmp_path):
    path = write_csv(
        tmp_path / "a.csv", [(1, 7), (2, 8), (3, "x"), (3, 10), (4, 7)]
    )
    assert Trace.read(path).clients.tolist() == ["10", "7", "8", "x"]
    path = write_csv(tmp_path / "b.csv", [(1, 7), (2, 8), (3, 10)])
    assert Trace.read(str(path)).clients.tolist() == [7, 8, 10]


# As Flower numbers its nodes: next to each other, and further than a float or int64 counts.
NODES = [2**64 - 1, 2**64 - 2, 2**53 + 1, 2**53, 7]


@pytest.mark.parametrize("kind", ["parquet", "parquet-texts", "csv", "jsonl"])
def test_every_digit_of_a_nodes_id_counts(kind, tmp_path):
    rounds = [0, 1, 2, 3, 4]
    path = tmp_path / f"a.{kind.partition('-')[0]}"
    if kind == "csv":
        write_csv(path, zip(rounds, NODES, strict=True))
    elif kind == "jsonl":
        rows = (
            json.dumps({"round": t, "client_id": c})
            for t, c in zip(rounds, NODES, strict=True)
        )
        path.write_text("\n".join(rows))
    else:
        ids = np.array(NODES, np.uint64)
        _write_parquet(
            path,
            round=rounds,
            client_id=ids.astype(str) if "-" in kind else ids,
        )
    found = Trace.read(path)
    assert found.clients.tolist() == sorted(NODES)
    assert (
        found
        == Trace(rounds, NODES)
        == Trace(rounds, np.array(NODES, np.uint64))
    )


def test_a_node_without_an_id_is_refused(tmp_path):
    """With a null among them, pandas makes floats of all, of which two are one."""
    import pyarrow as pa

    ids = pa.array([2**64 - 1, None, 2**53 + 1], pa.uint64())
    path = _write_parquet(
        tmp_path / "a.parquet", round=[0, 1, 2], client_id=ids
    )
    with pytest.raises(ValueError, match="row 2: client_id is empty"):
        Trace.read(path)
    path = _write_parquet(
        tmp_path / "b.parquet", round=[0, 1], client_id=[2.0**60, 1.0]
    )
    with pytest.raises(
        ValueError,
        match=r"row 1: client_id=1\.15.* is neither an integer nor text",
    ):
        Trace.read(path)
    for ids in ([2**64, 1], [2**63, -1]):
        with pytest.raises(
            ValueError, match="client_ids to be texts, or integers of 64 bits"
        ):
            Trace([0, 1], ids)


@pytest.mark.parametrize("count", [0, 3, 55, 150])
def test_a_sample_of_a_trace_has_its_clients(count):
    seen = presence(TRACE, count, np.random.default_rng(1))
    assert seen.shape == (T, count)
    assert seen.dtype == bool
    clients = presence(TRACE, TRACE.population, np.random.default_rng(0)).T
    sampled = [tuple(column) for column in seen.T]
    for row in {tuple(client) for client in clients}:
        among = sum(tuple(client) == row for client in clients)
        # without replacement while possible: floor or ceiling of count / population each
        drawn = sampled.count(row)
        assert count // 55 * among <= drawn <= -(-count // 55) * among


def test_any_two_of_a_sample_are_as_likely_to_be_one_client():
    # two clients for three places: one pair of places shares a client, with probability 1/3 each
    trace = Trace([0, 1], ["a", "b"])
    generators = map(np.random.default_rng, range(600))
    seen = np.stack([presence(trace, 3, rng)[0] for rng in generators])
    assert_near(seen == np.roll(seen, 1, axis=1), 1 / 3)


BAD_CSV = {
    "empty": ("", "the file is empty"),
    "no-client-column": (
        "round,client\n1,a\n",
        r"column 'client_id' is missing, found \['round', 'client'\]",
    ),
    "no-row": ("round,client_id\n", "there is no row"),
    "round-is-a-word": (
        "round,client_id\n1,a\n\nx,b\n",
        "line 4: round='x' is not an integer",
    ),
    "round-has-a-point": (
        "round,client_id\n1.0,a\n",
        "line 2: round='1.0' is not an integer",
    ),
    "round-too-large": (
        f"round,client_id\n{10**30},a\n",
        "line 2: round='10+' is not an integer",
    ),
    "client-empty": (
        "round,client_id\n1,a\n2, \n",
        "line 3: client_id is empty",
    ),
    "cell-missing": ("round,client_id\n1,a\n2\n", "line 3: client_id is empty"),
    "cell-too-many": (
        "round,client_id\n1,a,b\n",
        "line 2 has 3 cells, the header 2",
    ),
    "twice-in-a-round": (
        "round,client_id\n\n3,a\n4,a\n3,a\n",
        "client_id='a' once, got it twice in round 3",
    ),
    "rounds-as-seconds": (
        "round,client_id\n0,a\n1,a\n1700000000,a\n",
        ".* 1,700,000,001 rounds, and 3 of them",
    ),
}


@pytest.mark.parametrize(("text", "message"), BAD_CSV.values(), ids=BAD_CSV)
def test_bad_csv_traces(tmp_path, text, message):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(
        ValueError, match=rf"Expected \S+bad\.csv to hold a .*{message}"
    ):
        Trace.read(path)


BAD_PARQUET = {
    "no-client-column": ({"round": [1]}, "column 'client_id' is missing"),
    "round-not-integer": (
        {"round": [1.5], "client_id": [1]},
        "row 1: round=1.5 is not an integer",
    ),
    "client-not-integer": (
        {"round": [1], "client_id": [1.5]},
        "row 1: client_id=1.5 is neither an integer nor text",
    ),
    "client-missing": (
        {"round": [1, 2], "client_id": ["a", None]},
        "row 2: client_id is empty",
    ),
    "round-missing": (
        {"round": [1, None], "client_id": ["a", "b"]},
        "row 2: round=None is not an integer",
    ),
    "twice-in-a-round": (
        {"round": [1, 2, 1], "client_id": [5, 5, 5]},
        "client_id=5 once, got it twice in round 1",
    ),
}


@pytest.mark.parametrize(
    ("columns", "message"), BAD_PARQUET.values(), ids=BAD_PARQUET
)
def test_bad_parquet_traces(tmp_path, columns, message):
    path = _write_parquet(tmp_path / "bad.parquet", **columns)
    with pytest.raises(
        ValueError, match=rf"Expected \S+bad\.parquet to hold a .*{message}"
    ):
        Trace.read(path)


def test_files_that_are_no_traces(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"no")
    (tmp_path / "a.csv").write_bytes(b"round,client_id\n1,\xff\n")
    (tmp_path / "a.txt").write_text("round,client_id\n")
    for name in ("a.parquet", "a.csv"):
        with pytest.raises(
            ValueError, match=rf"{name} to hold a participation trace"
        ):
            Trace.read(tmp_path / name)
    with pytest.raises(
        ValueError,
        match=r"a.txt' to end with one of .csv, .tsv, .jsonl, .parquet ",
    ):
        Trace.read(tmp_path / "a.txt")
    with pytest.raises(FileNotFoundError, match=r"none.csv' to exist"):
        Trace.read(tmp_path / "none.csv")
