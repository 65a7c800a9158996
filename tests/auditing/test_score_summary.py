"""`fl-epe estimate FILE`: files good and bad."""

import json
from typing import Any

import numpy as np
import pytest

from fl_epe import epsilon_from_cosines, epsilon_from_scores
from fl_epe.auditing import read_scores
from fl_epe.auditing.bounds import BOUNDS
from fl_epe.auditing.claims.score_file import bare_scores, summarize_scores
from fl_epe.cli import main

RNG = np.random.default_rng(0)
OBSERVED, UNOBSERVED = RNG.standard_normal(60) + 2, RNG.standard_normal(50)


def _write(path, kind):
    if kind == "wide.csv":
        rows = [
            f"{a!r},{b}"
            for a, b in zip(
                OBSERVED.tolist(),
                [*map(repr, UNOBSERVED.tolist()), *[""] * 10],
                strict=True,
            )
        ]
        path.write_text("observed, unobserved\n" + "\n".join(rows) + "\n")
    elif kind == "long.csv":
        rows = [f"{s!r},1" for s in OBSERVED.tolist()] + [
            f"{s!r},false" for s in UNOBSERVED.tolist()
        ]
        path.write_text("Score,Member\n" + "\n".join(rows) + "\n")
    elif kind == "x.npz":
        np.savez(path, observed=OBSERVED, unobserved=UNOBSERVED)
    elif kind == "x.json":
        path.write_text(
            json.dumps(
                {
                    "observed": OBSERVED.tolist(),
                    "unobserved": UNOBSERVED.tolist(),
                    "z": 3,
                }
            )
        )
    else:
        import pyarrow
        from pyarrow import parquet

        table = pyarrow.table(
            {"observed": OBSERVED, "unobserved": [*UNOBSERVED, *[None] * 10]}
        )
        parquet.write_table(table, path)


@pytest.mark.parametrize(
    "kind", ["wide.csv", "long.csv", "x.npz", "x.json", "x.parquet"]
)
def test_every_format_gives_the_same_scores(kind, tmp_path):
    _write(tmp_path / kind, kind)
    observed, unobserved = read_scores(tmp_path / kind)
    assert np.array_equal(observed, OBSERVED)
    assert np.array_equal(unobserved, UNOBSERVED)


def test_json_output_holds_every_estimate_and_bound(tmp_path, capsys):
    _write(tmp_path / "x.npz", "x.npz")
    assert (
        main(
            [
                "estimate",
                str(tmp_path / "x.npz"),
                "--json",
                "--delta",
                "1e-3",
                "--coins",
            ]
        )
        == 0
    )
    result = json.loads(capsys.readouterr().out)
    expected = epsilon_from_scores(OBSERVED, UNOBSERVED, 1e-3)
    assert result["answer"]["epsilon"] == pytest.approx(expected.epsilon)
    assert result["details"]["bounds"].keys() == set(BOUNDS)
    assert list(result["details"]["gaussian"]) == ["observed", "unobserved"]


def test_table_output(tmp_path, capsys):
    _write(tmp_path / "x.json", "x.json")
    assert main(["estimate", str(tmp_path / "x.json"), "--details"]) == 0
    printed = capsys.readouterr().out
    for word in (
        "two fitted Gaussians",
        "clopper-pearson",
        "primary bound",
        "Gaussian: A²",
    ):
        assert word in printed
    assert "one-run" not in printed  # nobody said that coins were thrown


def test_cosines_alone_with_their_dimension():
    cosines = OBSERVED / 100
    result = summarize_scores(bare_scores(cosines, None, 10_000), 1e-5)
    known = epsilon_from_cosines(cosines, 10_000, 1e-5)
    assert result.estimates[0].epsilon == known.epsilon
    assert result.estimates[1].method == "cosines, fitted variance"
    assert {"gdp", "clopper-pearson"} <= result.bounds.keys()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        pytest.param("a.csv", "", "the file is empty", id="csv-empty"),
        pytest.param("a.csv", "junk\n1\n", "found ['junk']", id="csv-junk"),
        pytest.param(
            "a.csv",
            "observed,unobserved\n1,x\n",
            "line 2: unobserved='x' is not a number",
            id="csv-not-a-number",
        ),
        pytest.param(
            "a.csv",
            "observed\n1\n1,2\n",
            "line 3 has 2 cells, the header 1",
            id="csv-cell-too-many",
        ),
        pytest.param(
            "a.csv",
            "score,member\n1,maybe\n",
            "member='maybe' is neither 1 nor 0",
            id="csv-member-unclear",
        ),
        pytest.param(
            "a.csv",
            "observed,unobserved\n1,2\nnan,3\n4,5\n",
            "line 3: observed='nan' is not a number",
            id="csv-nan",
        ),
        pytest.param(
            "a.json", "{", "Expecting property name", id="json-broken"
        ),
        pytest.param(
            "a.json", "[1]", "is a list, not a JSON object", id="json-list"
        ),
        pytest.param("a.npz", "no archive", "hold columns", id="npz-broken"),
        pytest.param(
            "a.parquet", "no parquet", "hold columns", id="parquet-broken"
        ),
        pytest.param(
            "a.txt",
            "1",
            ".jsonl, .parquet, .npz, .json, .npy (of text, also with .gz)",
            id="txt",
        ),
    ],
)
def test_nonsense_gets_one_clear_line(name, content, message, tmp_path, capsys):
    (tmp_path / name).write_text(content)
    assert main(["estimate", str(tmp_path / name)]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.startswith("fl-epe: error: ")
    assert len(printed.strip().splitlines()) == 1


def test_missing_file_and_bad_options(tmp_path, capsys):
    assert main(["estimate", str(tmp_path / "none.csv")]) == 2
    assert "none.csv' to exist" in capsys.readouterr().err
    _write(tmp_path / "x.npz", "x.npz")
    for option, message in (
        (["--delta", "2"], "delta=2.0 in (0, 1)"),
        (["--confidence", "1"], "confidence=1.0 in (0, 1)"),
        (["--dim", "9"], "in [-1, 1]"),
    ):
        assert main(["estimate", str(tmp_path / "x.npz"), *option]) == 2
        assert message in capsys.readouterr().err


def test_scores_without_their_members_are_not_taken_for_observed_ones(tmp_path):
    """A column "observed" beside "score" says who took part: it holds no scores."""
    path = tmp_path / "scores.csv"
    path.write_text("score,observed\n0.3,1\n0.1,0\n0.2,1\n0.0,0\n")
    with pytest.raises(ValueError, match="'score' needs a column 'member'"):
        read_scores(path)


@pytest.mark.parametrize(
    ("content", "side"),
    [
        pytest.param(
            "observed\n1\n2\n", "did not take part", id="no-column-of-others"
        ),
        pytest.param(
            "observed,unobserved\n1,\n2,\n",
            "did not take part",
            id="empty-column",
        ),
        pytest.param(
            "score,member\n1,1\n2,1\n", "did not take part", id="members-alone"
        ),
        pytest.param(
            "score,member\n1,0\n2,0\n", "took part", id="others-alone"
        ),
        pytest.param(
            "unobserved\n1\n2\n", "took part", id="column-of-others-alone"
        ),
        pytest.param(
            "observed,unobserved\n,1\n,2\n", "took part", id="empty-observed"
        ),
        pytest.param("score,member\n", "took part", id="no-row"),
    ],
)
def test_a_side_without_scores_is_named_and_nothing_is_measured(
    content, side, tmp_path, capsys
):
    (tmp_path / "a.csv").write_text(content)
    assert main(["estimate", str(tmp_path / "a.csv")]) == 3
    assert capsys.readouterr().err.startswith(
        f"Not measured: there is no score of a canary that {side}; an ε needs at least 2"
    )
    assert main(["estimate", str(tmp_path / "a.csv"), "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert f"a canary that {side};" in found["warnings"][0]["text"]


@pytest.mark.parametrize(
    "words",
    [
        pytest.param("1 0", id="digits"),
        pytest.param("true FALSE", id="true-false"),
        pytest.param("yes No", id="yes-no"),
        pytest.param("1.0 0.000e+00", id="as-numpy-saves"),
        pytest.param("+1e+00 -0", id="with-signs"),
    ],
)
def test_who_took_part_is_written_in_several_ways(words, tmp_path):
    took, did_not = words.split()
    (tmp_path / "a.csv").write_text(f"score,member\n2,{took}\n1,{did_not}\n")
    assert [side.tolist() for side in read_scores(tmp_path / "a.csv")] == [
        [2],
        [1],
    ]


def test_scores_that_numpy_saves_as_they_come(tmp_path):
    rows = np.column_stack([[2.0, 1.0], [1, 0]])
    np.savetxt(
        tmp_path / "a.csv",
        rows,
        delimiter=",",
        header="score,member",
        comments="",
    )
    assert [side.tolist() for side in read_scores(tmp_path / "a.csv")] == [
        [2],
        [1],
    ]


@pytest.mark.parametrize("orient", ["columns", "list"])
def test_scores_that_pandas_writes_as_json(orient, tmp_path):
    values: dict[str, Any] = {
        "observed": {"0": 1.5, "1": 2.5},
        "unobserved": {"0": 0.5, "1": None},
    }
    if orient == "list":
        values = {name: list(cells.values()) for name, cells in values.items()}
    (tmp_path / "a.json").write_text(json.dumps(values))
    assert [side.tolist() for side in read_scores(tmp_path / "a.json")] == [
        [1.5, 2.5],
        [0.5],
    ]


INFINITE = {
    "a.csv": "score,member\ninf,1\n-Infinity,0\n2,1\n",
    "a.tsv": "score\tmember\nInf\t1\n-inf\t0\n2\t1\n",
    "a.json": '{"observed": [Infinity, 2], "unobserved": [-Infinity]}',
    "a.jsonl": '{"observed": Infinity, "unobserved": -Infinity}\n{"observed": 2}\n',
}


@pytest.mark.parametrize("name", [*INFINITE, "a.npz", "a.parquet"])
def test_infinite_scores_are_read(name, tmp_path):
    path = tmp_path / name
    if name == "a.npz":
        np.savez(path, observed=[np.inf, 2], unobserved=[-np.inf])
    elif name == "a.parquet":
        import pyarrow
        from pyarrow import parquet

        table = pyarrow.table(
            {"observed": [np.inf, 2.0], "unobserved": [-np.inf, None]}
        )
        parquet.write_table(table, path)
    else:
        path.write_text(INFINITE[name])
    assert [side.tolist() for side in read_scores(path)] == [
        [np.inf, 2],
        [-np.inf],
    ]


def test_infinite_scores_count_by_their_order_and_have_no_mean(
    tmp_path, capsys
):
    """Bounds of order alone are those of any finite scores in the same order."""
    observed, unobserved = OBSERVED.copy(), UNOBSERVED.copy()
    finite = observed.copy(), unobserved.copy()
    for sides, most in ((finite, 1e3), ((observed, unobserved), np.inf)):
        sides[0][:9] = most
        sides[1][:9] = -most
    found = summarize_scores(
        bare_scores(observed, unobserved, None), 1e-2, coins=True, claim=0.5
    )
    expected = summarize_scores(bare_scores(*finite, None), 1e-2, coins=True)
    for method in ("jeffreys", "simultaneous", "weighted", "lifted", "one-run"):
        assert found.bounds[method] == expected.bounds[method]
    assert found.bounds["simultaneous"] > 0.2
    assert 0 < found.bounds["clopper-pearson"] <= found.bounds["gdp"] < np.inf
    assert found.estimate is None
    assert "these scores are not Gaussian (some are infinite)" in str(
        found.refusal
    )
    assert found.gaussian == {}
    assert found.evidence.estimate is None
    assert (
        found.evidence.laws.objection
        == "some scores are infinite, and Gaussian ones are not"
    )
    np.savez(tmp_path / "a.npz", observed=observed, unobserved=unobserved)
    assert (
        main(["estimate", str(tmp_path / "a.npz"), "--json", "--delta", "1e-2"])
        == 3
    )
    answer = json.loads(capsys.readouterr().out)["answer"]
    assert (answer["epsilon"], answer["unbounded"]) == (None, [])
    assert answer["proved"] == found.proved


def test_cosines_and_scores_of_a_record_are_finite():
    with pytest.raises(ValueError, match=r"cosines=inf to be finite"):
        bare_scores([np.inf, 0.1], None, 100)
    with pytest.raises(ValueError, match=r"observed=nan to be a number"):
        bare_scores([np.nan, 0.1], [0.0, 0.1], None)


@pytest.mark.parametrize(
    "values",
    [np.array([True, False]), np.array([np.nan, 1.0])],
    ids=["booleans", "not-a-number"],
)
def test_an_array_with_what_is_no_score_is_refused_by_its_row(values, tmp_path):
    np.save(tmp_path / "scores.npy", values)
    with pytest.raises(ValueError, match=r"row 1: observed=(True|nan) is not"):
        read_scores(tmp_path / "scores.npy")
