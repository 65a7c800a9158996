"""Figures to publish: what is drawn stands in their CSV files, and the files are the same again."""

import csv
import io
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import scipy
from records import make_record, record_of

from fl_epe.auditing import (
    EVERY_ROUND,
    Adversary,
    ServerStep,
    epsilon_by_round,
    expected_score_fit,
    seen_by,
)
from fl_epe.limit import limit_record
from fl_epe.reporting import summarize, write_figures
from fl_epe.reporting.drawing import rgb
from fl_epe.reporting.figures import FIGURES, PUBLISHED, published
from fl_epe.schedules import ShuffledEpochs

ALWAYS = {"scores.csv", "table.tex"}
ALL_BUT_CALIBRATION = set(PUBLISHED) - {"calibration"}  # synthetic records measured no null


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
    return directory, write_figures(_record(), directory, ("pdf", "svg"))


def read(path):
    return list(csv.DictReader(io.StringIO(path.read_text("utf-8"))))


def test_every_figure_has_its_files(figures):
    directory, written = figures
    names = {f"{name}.{end}" for name in ALL_BUT_CALIBRATION for end in ("pdf", "svg", "csv")}
    assert {path.name for path in directory.iterdir()} == names | ALWAYS
    assert sorted(written) == sorted(directory.iterdir())


@pytest.mark.slow
def test_the_same_record_gives_the_same_bytes(figures, tmp_path):
    directory, _ = figures
    write_figures(_record(), tmp_path, ("svg", "pdf"))
    for path in directory.iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes(), path.name


def test_fonts_are_embedded_and_text_is_text(figures):
    directory, _ = figures
    for name in ALL_BUT_CALIBRATION:
        pdf = (directory / f"{name}.pdf").read_bytes()
        assert b"/CreationDate" not in pdf
        assert b"/Type3" not in pdf
        root = ET.fromstring((directory / f"{name}.svg").read_text("utf-8"))  # noqa: S314
        texts = list(root.iter("{http://www.w3.org/2000/svg}text"))
        assert len(texts) > 3, name
        sizes = re.findall(
            r"font(?:-size)?: ?([\d.]+)px", "".join(t.get("style", "") for t in texts)
        )
        assert min(map(float, sizes)) >= 7, name  # sizes of SVG are in points here


def test_figures_are_one_or_two_columns_wide(figures):
    directory, _ = figures
    for name in ALL_BUT_CALIBRATION:
        root = ET.fromstring((directory / f"{name}.svg").read_text("utf-8"))  # noqa: S314
        assert float(root.get("width").removesuffix("pt")) / 72 in (3.3, 6.9), name


def test_histograms_are_told_apart_without_colour(figures):
    """A fill with a hatch, an outline, a solid and a dashed line."""
    directory, _ = figures
    for name in ("scores_final", "scores_all"):
        svg = (directory / f"{name}.svg").read_text("utf-8")
        assert "<pattern" in svg
        assert "fill: none" in svg
        assert "stroke-dasharray" in svg


def test_the_epsilon_table_has_what_the_report_has(figures):
    directory, _ = figures
    summary = summarize(_record())
    rows = read(directory / "epsilon.csv")
    assert [row["statistic"] for row in rows[:-1]] == [row.name for row in summary.rows()]
    for row, told in zip(rows, summary.rows(), strict=False):
        assert float(row["epsilon"]) == told.part.estimate.epsilon
        assert float(row["high"]) == told.part.estimate.high
    assert float(rows[-1]["epsilon"]) == summary.analytical.epsilon


def test_histograms_are_densities_of_the_scores(figures):
    directory, _ = figures
    rows = read(directory / "scores_all.csv")
    scores = seen_by(_record(), EVERY_ROUND).scores()
    for name, group in (("observed", scores.observed), ("unobserved", scores.unobserved)):
        bars = [row for row in rows if (row["panel"], row["series"]) == ("matched filter", name)]
        low, high, density = (
            np.array([float(row[column]) for row in bars])
            for column in ("score_from", "score_to", "density")
        )
        counts, _ = np.histogram(group, np.append(low, high[-1]))
        assert density * (high - low) * len(group) == pytest.approx(counts)
    fitted = [row for row in rows if row["series"] == "observed, fitted Gaussian"]
    grid, drawn = (np.array([float(row[c]) for row in fitted[:400]]) for c in ("score", "density"))
    normal = scipy.stats.norm(scores.observed.mean(), scores.observed.std(ddof=1))
    assert drawn == pytest.approx(normal.pdf(grid))


def test_the_trade_off_counts_errors_of_every_threshold(figures):
    directory, _ = figures
    rows = [row for row in read(directory / "trade_off.csv") if row["panel"] == "every round"]
    scores = seen_by(_record(), EVERY_ROUND).scores()
    points = {
        (float(row["false_positive_rate"]), float(row["false_negative_rate"]))
        for row in rows
        if row["series"] == "canaries"
    }
    for threshold in np.concatenate([scores.observed, scores.unobserved, [-np.inf]]):
        errors = np.mean(scores.unobserved > threshold), np.mean(scores.observed <= threshold)
        assert min(np.hypot(*np.subtract(errors, point)) for point in points) < 1e-12


def test_the_analytical_limit_is_that_of_epsilon_and_delta(figures):
    directory, _ = figures
    analytical = float(summarize(_record()).analytical.epsilon or 0)
    rows = read(directory / "trade_off.csv")
    for row in rows:
        if row["series"] == "least by the analytical ε":
            x, y = float(row["false_positive_rate"]), float(row["false_negative_rate"])
            for p, q in ((x, 1 - y), (y, 1 - x)):  # both ways
                assert q <= np.exp(analytical) * p + 1e-3 + 1e-9
            wanted = max(0, 1 - 1e-3 - np.exp(analytical) * x, np.exp(-analytical) * (1 - 1e-3 - x))
            assert y == pytest.approx(wanted, abs=1e-12)


def test_running_epsilon_is_drawn_with_its_interval(figures):
    directory, _ = figures
    rows = [r for r in read(directory / "running.csv") if r["series"] == "estimate so far"]
    found = [each.estimate for each in epsilon_by_round(_record())]
    assert [float(row["low"]) for row in rows] == [estimate.low for estimate in found]
    assert [int(row["round"]) for row in rows] == list(range(1, 7))


def test_expected_scores_are_those_of_the_regression(figures):
    directory, _ = figures
    rows = [row for row in read(directory / "expected_scores.csv") if row["panel"] == "every round"]
    dots = [row for row in rows if row["series"] == "canaries"]
    assert [float(r["expected_score"]) for r in dots] == seen_by(
        _record(), EVERY_ROUND
    ).expected_scores.tolist()
    line = [row for row in rows if row["series"] == "regression"][-1]
    scale = expected_score_fit(seen_by(_record(), EVERY_ROUND)).scale
    assert float(line["score"]) / float(line["expected_score"]) == pytest.approx(scale)


def test_the_schedule_has_every_participation_once(figures):
    directory, _ = figures
    rows = read(directory / "schedule.csv")
    assert sum(float(row["share_that_took_part"]) for row in rows) == _record().presence.sum()


@pytest.mark.slow
def test_a_large_schedule_is_averaged(tmp_path):
    rounds, count = 400, 700
    record = limit_record(ShuffledEpochs(rounds, 2), 0.5, 1e-3, num_canaries=count, unobserved=20)
    layer = PUBLISHED["schedule"].layers(record, summarize(record))[0]
    cells = (layer["round_to"] - layer["round_from"] + 1) * (
        layer["canary_to"] - layer["canary_from"] + 1
    )
    assert cells.sum() == rounds * count
    assert len(cells) <= 150 * 200
    assert (cells * layer["share_that_took_part"]).sum() == pytest.approx(record.presence.sum())


def test_scores_have_a_row_for_each_canary(figures):
    directory, _ = figures
    rows, record = read(directory / "scores.csv"), _record()
    assert len(rows) == 70
    assert [int(row["participations"]) for row in rows[:40]] == [3] * 40
    assert {row["observed"] for row in rows[40:]} == {"0"}
    for name, sees, statistic in (
        ("displacement", "final", "displacement"),
        ("matched_filter", "all", "matched-filter"),
        ("maximum_cosine", "all", "maximum"),
    ):
        scores = seen_by(record, Adversary(sees)).scores(statistic)
        both = np.concatenate([scores.observed, scores.unobserved])
        assert [float(row[f"score_{name}"]) for row in rows] == both.tolist()


@pytest.mark.slow
def test_canaries_that_never_took_part_have_no_matched_filter(tmp_path):
    presence = _record().presence.copy()
    presence[:, 3] = False
    write_figures(make_record(presence=presence), tmp_path, ("svg",))
    rows = read(tmp_path / "scores.csv")
    assert rows[3]["score_matched_filter"] == ""
    assert rows[3]["score_displacement"]
    assert rows[4]["score_matched_filter"]
    assert rows[3]["expected_score_all"] == "0.0"


@pytest.mark.slow
def test_what_was_not_measured_has_no_figure_and_none_of_an_earlier_call(tmp_path):
    write_figures(_record(), tmp_path, ("svg",))
    write_figures(record_of(1), tmp_path, ("svg",))
    kept = {path.stem for path in tmp_path.iterdir()} - {"scores", "table"}
    assert kept == {"rounds", "schedule"}
    assert "not measured" in (tmp_path / "table.tex").read_text()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(
            {"noise_multiplier": None, "sum_noise_multiplier": None}, marks=pytest.mark.slow
        ),
        pytest.param({"clip_norms": np.full(6, np.nan)}, marks=pytest.mark.slow),
        pytest.param(
            {"server": ServerStep("adam", np.ones(6)), "observed.deltas": None},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"noise_multiplier": 0.0, "sum_noise_multiplier": 0.0}, marks=pytest.mark.slow
        ),
        pytest.param({"norms.displacement": 0.0}, marks=pytest.mark.slow),
    ],
    ids=["unknown-noise", "no-clip-norms", "adam", "no-noise", "no-displacement"],
)
def test_records_of_every_kind_are_drawn(changes, tmp_path):
    changes = dict(changes)
    if changes.pop("observed.deltas", 0) is None:
        means = make_record()
        changes |= {
            "observed.deltas": means.observed.means,
            "unobserved.deltas": means.unobserved.means,
        }
    record = make_record(**changes)
    written = write_figures(record, tmp_path, ("png",))
    names = published(record, summarize(record))
    assert {path.stem for path in written} == {*names, "scores", "table"}


def test_a_format_that_is_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match="formats='bmp'"):
        write_figures(_record(), tmp_path / "figures", ("bmp",))
    assert not (tmp_path / "figures").exists()


def test_the_pages_pictures_are_figures_to_publish():
    assert set(FIGURES) <= set(PUBLISHED)
    assert rgb("#ff8000") == (1.0, 128 / 255, 0.0)


@pytest.mark.slow
def test_no_seed_is_in_any_file(tmp_path):
    seed = 2**127
    for path in write_figures(_record(), tmp_path, ("svg",)):
        assert str(seed) not in path.read_text("utf-8")
