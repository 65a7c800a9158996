"""Figures to publish: what is drawn stands in their CSV files, and the files are the same again."""

import csv
import io
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from records import make_record, record_of

from fl_epe.auditing import ServerStep, answers
from fl_epe.reporting import summarize, write_figures
from fl_epe.reporting.publish import table_text
from fl_epe.reporting.still import picture

CHARTS = {"epsilon", "rounds", "scores", "training"}


def _record():
    return make_record(
        metrics={
            "train_loss": np.linspace(3, 1, 6),
            "eval_round": np.array([3.0, 6.0]),
            "eval_loss": np.array([2.0, 1.0]),
            "eval_accuracy": np.array([0.5, 0.6]),
        }
    )


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    directory = tmp_path_factory.mktemp("figures")
    return directory, write_figures(summarize(_record()), directory, ("svg",))


def read(path):
    return list(csv.DictReader(io.StringIO(path.read_text("utf-8"))))


@pytest.mark.slow
def test_every_chart_has_its_files(figures):
    directory, written = figures
    names = {f"{name}.{end}" for name in CHARTS for end in ("svg", "csv")}
    assert {path.name for path in directory.iterdir()} == names | {"scores.csv"}
    assert sorted(written) == sorted(directory.iterdir())


@pytest.mark.slow
def test_the_same_record_gives_the_same_bytes(figures, tmp_path):
    directory, _ = figures
    write_figures(summarize(_record()), tmp_path, ("svg",))
    for path in directory.iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes(), (
            path.name
        )


def test_a_png_is_the_same_again_and_has_no_date(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        write_figures(summarize(record_of(0)), folder, ("png",))
    image = (first / "training.png").read_bytes()
    assert image == (second / "training.png").read_bytes()
    assert b"Creation Time" not in image
    assert b"Software" not in image


def test_text_is_text(figures):
    directory, _ = figures
    for name in CHARTS:
        root = ET.fromstring((directory / f"{name}.svg").read_text("utf-8"))  # noqa: S314
        assert len(list(root.iter("{http://www.w3.org/2000/svg}text"))) > 3, (
            name
        )


def test_the_epsilon_table_has_what_the_answer_has(figures):
    directory, _ = figures
    points = [
        row
        for row in read(directory / "epsilon.csv")
        if row["series"] == "median client"
    ]
    found = [answer.estimate.epsilon for answer in answers(_record())]
    assert [row["adversary"] for row in points] == [
        "final model",
        "every round",
    ]
    assert [float(row["ε"]) for row in points] == pytest.approx(found, rel=1e-4)


def test_scores_have_a_row_for_each_canary(figures):
    directory, _ = figures
    rows = read(directory / "scores.csv")
    assert len(rows) == 70
    assert [int(row["participations"]) for row in rows[:40]] == [3] * 40
    assert {row["observed"] for row in rows[40:]} == {"0"}
    for answer in answers(_record()):
        sees, scores = answer.adversary.sees, answer.scores
        both = np.concatenate([scores.observed, scores.unobserved])
        assert [float(row[f"score_{sees}"]) for row in rows] == both.tolist()
        expected = np.array(
            [float(row[f"expected_score_{sees}"]) for row in rows]
        )
        assert not expected[40:].any()
        scale = both[:40] @ expected[:40] / (expected @ expected)
        assert scale == pytest.approx(answer.fit.scale, rel=1e-3)


@pytest.mark.slow
def test_canaries_that_never_took_part_have_no_score_of_rounds(tmp_path):
    presence = _record().presence.copy()
    presence[:, 3] = False
    write_figures(summarize(make_record(presence=presence)), tmp_path, ("svg",))
    rows = read(tmp_path / "scores.csv")
    assert rows[3]["score_all"] == ""
    assert rows[3]["score_final"]
    assert rows[4]["score_all"]
    assert rows[3]["expected_score_all"] == "0.0"


def test_what_was_not_measured_has_no_figure(tmp_path):
    write_figures(summarize(record_of(1)), tmp_path, ("svg",))
    assert {path.stem for path in tmp_path.iterdir()} == {"training", "scores"}
    assert read(tmp_path / "scores.csv")[0]["expected_score_all"] == ""


@pytest.mark.weekly
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(
            {"noise_multiplier": None, "sum_noise_multiplier": None},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"clip_norms": np.full(6, np.nan)}, marks=pytest.mark.slow
        ),
        pytest.param(
            {
                "server": ServerStep("adam", np.ones(6)),
                "observed.model_updates": None,
            },
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"noise_multiplier": 0.0, "sum_noise_multiplier": 0.0},
            marks=pytest.mark.slow,
        ),
        pytest.param({"norms.displacement": 0.0}, marks=pytest.mark.slow),
    ],
    ids=[
        "unknown-noise",
        "no-clip-norms",
        "adam",
        "no-noise",
        "no-displacement",
    ],
)
def test_records_of_every_kind_are_drawn(changes, tmp_path):
    changes = dict(changes)
    if changes.pop("observed.model_updates", 0) is None:
        means = make_record()
        changes |= {
            "observed.model_updates": means.observed.means,
            "unobserved.model_updates": means.unobserved.means,
        }
    record = make_record(**changes)
    written = write_figures(summarize(record), tmp_path, ("png",))
    assert {"scores"} < {path.stem for path in written} <= CHARTS | {"scores"}


def test_a_format_that_is_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match="formats='pdf' to be among svg, png"):
        write_figures(summarize(_record()), tmp_path / "figures", ("pdf",))
    assert not (tmp_path / "figures").exists()


@pytest.mark.slow
def test_no_seed_is_in_any_file(tmp_path):
    seed = 2**127
    for path in write_figures(summarize(_record()), tmp_path, ("svg",)):
        assert str(seed) not in path.read_text("utf-8")


def test_no_cell_and_no_name_of_a_column_is_a_formula():
    rows = [
        {
            "=1+1": "@A1",
            "x;=2": "-3.5",
            "+": "a\t=1",
            "＝": "a;b",
            "number": -1.5,
        }
    ]
    header, cells = csv.reader(io.StringIO(table_text(rows)))
    assert header == ["'=1+1", "x;'=2", "'+", "'＝", "number"]
    assert cells == ["'@A1", "-3.5", "a\t'=1", "a;b", "-1.5"]


def test_a_picture_does_not_depend_on_settings_of_matplotlib(pictures):
    import matplotlib

    from fl_epe.reporting.chart_rounds import run_charts

    chart = run_charts(summarize(_record()))[0]
    before = picture(chart, "svg")
    with matplotlib.rc_context(
        {"text.usetex": True, "lines.linewidth": 9, "font.size": 30}
    ):
        assert picture(chart, "svg") == before
        assert (
            matplotlib.rcParams["font.size"] == 30
        )  # those of the caller stay
