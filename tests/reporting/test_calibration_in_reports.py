"""The measured null in reports: its panel, its numbers in report.json, and its warnings."""

import html
import json
import re

import calibration
import numpy as np
import pytest
from records import make_record

from fl_epe.auditing import MeasuredNull, least_deviations
from fl_epe.reporting import as_text, summarize, write_report
from fl_epe.reporting.calibration import NAMES, calibration_chart, calibration_table
from fl_epe.reporting.notes import notes

SIZE = 129_072
RIGHT = calibration.normal()
ORDER = ("model", "displacement", "matched-filter", "maximum")


def _record(**laws):
    """A record whose statistics have these laws, by name; the others are right."""
    rng = np.random.default_rng(1)
    chosen = tuple(laws.get(name.replace("-", "_"), RIGHT) for name in ORDER)
    nulls = [calibration.draw(rng, SIZE, (law,)) for law in chosen]
    return make_record(
        **{
            "null.statistics": ORDER,
            "null.means": np.concatenate([null.means for null in nulls]),
            "null.deviations": np.concatenate([null.deviations for null in nulls]),
            "null.counts": np.concatenate([null.counts for null in nulls]),
        }
    )


def _warnings(record):
    return [line for line in notes(summarize(record)) if "canaries that took no part" in line]


def _panel(directory):
    page = html.unescape((directory / "report.html").read_text())
    start = page.index("<h2>Calibration")
    return page[start : page.index("<details>", start)]


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    directory = tmp_path_factory.mktemp("report")
    record = _record(maximum=calibration.normal(-1.3, 1.8))
    return directory, record, write_report(record, directory)


def test_a_right_null_is_shown_and_nothing_is_warned_of(right):
    directory, record, summary = right
    assert _warnings(record) == []
    panel = _panel(directory)
    line = "The null on which every ε rests was measured on 129,072 canaries that took no part: it"
    assert line in panel
    assert line in " ".join(as_text(summary, width=10_000).split())
    assert "misfit" not in panel
    assert "The maximum has no exact null" in panel
    low, high = (side[6] for side in record.null.tails(1))
    alternative = calibration_chart(record.null).alternative
    for words in (f"{low} scores below −4 and {high} above 4 where 4.1 are expected", "maximum"):
        assert words in alternative


def test_the_table_has_what_was_measured_and_what_was_expected(right):
    _, record, _ = right
    names, rows = calibration_table(record.null, least_deviations(record))
    assert names == [NAMES[name] for name in NAMES]
    cells = dict(rows)
    assert [cell.text for cell in cells["canaries"]] == ["129,072"] * 4
    displacement = ORDER.index("displacement")
    assert cells["deviation (1 expected)"][0].text == (
        f"{record.null.deviations[displacement]:.4f}"
    )
    low, high = record.null.tails(displacement)
    for limit, expected in (("1", "(20,478 ± 143)"), ("4.5", "(0.4 ± 0.7)")):
        place = list(MeasuredNull.limits).index(float(limit))
        cell = cells[f"below −{limit}, above {limit}"][0]
        assert (cell.text, cell.expected) == (f"{low[place]:,} and {high[place]:,}", expected)
        assert cell.fits


def test_the_numbers_are_in_the_file(right):
    directory, record, _ = right
    found = json.loads((directory / "report.json").read_text())["null"]
    assert found["statistics"] == list(ORDER)
    assert found["means"] == record.null.means.tolist()
    assert found["deviations"] == record.null.deviations.tolist()
    assert np.array_equal(found["counts"], record.null.counts)
    assert len(found["edges"]) + 1 == len(found["counts"][0])
    for number in range(4):
        low, high = record.null.tails(number)
        assert (found["below"][number], found["above"][number]) == (low.tolist(), high.tolist())
    assert found["expected"][0][0] == pytest.approx(20_478, abs=1)
    assert found["misfits"] == []


def test_a_record_without_a_measured_null_says_nothing(tmp_path):
    summary = write_report(make_record(), tmp_path)
    assert "null" not in summary.to_dict()
    assert "Calibration" not in (tmp_path / "report.html").read_text()
    assert "took no part" not in as_text(summary)


@pytest.mark.parametrize(
    ("laws", "words"),
    [
        pytest.param(
            {"displacement": calibration.normal(0, 1.3)},
            (
                "“final model displacement”",
                "spread 1.3 times as wide",
                "its interval too narrow, and bounds that use the exact null do not hold",
                'variance="fitted"',
                "--canary-kind sphere",
            ),
            id="wide",
        ),
        pytest.param(
            {"matched_filter": calibration.normal(0, 0.9)},
            ("“every round matched filter”", "spread only 0.9", "ε is too small"),
            id="narrow",
        ),
        pytest.param(
            {"model": calibration.normal(0.05)},
            ("“final model paper's cosine”", "mean +0.0", "are too large", "unobserved canaries"),
            id="shifted-up",
        ),
        pytest.param(
            {"model": calibration.normal(-0.05)}, ("mean −0.0", "are too small"), id="shifted-down"
        ),
        pytest.param(
            {"displacement": calibration.beyond(4.0, 5.0)},
            ("tails that are too heavy", "beyond 4 deviations (8.2 ± 2.9 expected)"),
            id="heavy",
        ),
    ],
)
def test_a_misfit_is_a_warning_in_plain_words(laws, words):
    found = _warnings(_record(**laws))
    text = " ".join(found)
    assert found[0].startswith("Warning: scores of “")
    for word in words:
        assert word in text
    assert ("heavy" in text) == ("heavy" in words[0] or "spread 1.3" in text)


def test_a_misfit_is_marked_in_the_panel(tmp_path):
    write_report(_record(displacement=calibration.normal(0, 1.3)), tmp_path)
    panel = _panel(tmp_path)
    assert "it is not the exact one for “final model displacement”, see the warnings" in panel
    marked = re.findall(r'class="n misfit" data-label="([^"]*)"', panel)
    assert marked == ["final model displacement"] * 3  # its deviation, beyond 3 and beyond 4
    found = json.loads((tmp_path / "report.json").read_text())["null"]["misfits"]
    assert {misfit["statistic"] for misfit in found} == {"displacement"}


@pytest.mark.slow
def test_overlap_is_explained_and_not_warned_of(tmp_path):
    """Canaries that are much of the displacement, and a null that is as narrow as that makes it."""
    record = _record()
    record = record.with_values(**{"norms.displacement": 0.8})
    width = least_deviations(record)["displacement"]
    assert 0.5 < width < 0.95
    narrow = _record(displacement=calibration.normal(0, width)).with_values(
        **{"norms.displacement": 0.8}
    )
    assert _warnings(narrow) == []
    write_report(narrow, tmp_path)
    panel = _panel(tmp_path)
    assert "but for the overlap of canaries" in panel
    assert f"({width:.3f} to 1)" in panel
    far = _record(displacement=calibration.normal(0, width - 0.1))
    assert "spread only" in _warnings(far.with_values(**{"norms.displacement": 0.8}))[0]
