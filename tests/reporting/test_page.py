"""The page of a report as a file: complete, small, and safe whatever a record holds."""

import base64
import gzip
import json
import re

import pytest
from plotly.offline import get_plotlyjs
from records import make_record

from fl_epe.reporting import summarize, write_report
from fl_epe.reporting.report import plotly_script


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    directory = tmp_path_factory.mktemp("page")
    record = make_record(task="</script><b>x</b>", num_rounds=6)
    record.save(directory / "record.npz")
    write_report(record, directory)
    return (directory / "report.html").read_text()


def test_the_script_in_the_page_is_the_installed_one(page):
    (packed,) = re.findall(r'id="plotly">([^<]*)<', page)
    assert packed == plotly_script()
    assert gzip.decompress(base64.b64decode(packed)).decode() == get_plotlyjs()
    assert len(packed) < 0.5 * len(get_plotlyjs())


def test_what_is_drawn_is_json_in_the_page(page):
    (drawn,) = re.findall(r'id="drawn">(.*?)</script>', page, re.DOTALL)
    charts = json.loads(drawn)
    assert list(charts) == re.findall(r'<figure id="([^"]*)" class="chart">', page)
    assert charts["epsilon"]["data"][0]["x"]
    assert charts["epsilon"]["logs"] == {"y": None}


def test_a_task_of_any_name_stays_text(page):
    assert "<b>x</b>" not in page
    assert "&lt;/script&gt;&lt;b&gt;x" in page


def test_the_top_comes_in_order(page):
    places = [
        page.index(words)
        for words in ("<h1>", 'class="finding"', 'class="verdict"', "What that means", "<dt>date")
    ]
    assert places == sorted(places)
    assert re.search(r"<dt>date</dt><dd>\d{4}-\d\d-\d\d \(UTC\), when its record", page)
    assert "6 rounds" in page


def test_a_date_is_never_synthetic(tmp_path):
    write_report(make_record(), tmp_path)  # without its file
    assert "<dt>date</dt><dd>not recorded</dd>" in (tmp_path / "report.html").read_text()


def test_every_picture_has_words_with_numbers(page):
    images = re.findall(r'<img alt="([^"]*)"', page)
    assert len(images) == page.count("<img ") == 4
    assert all(re.search(r"\d", words) for words in images)


def test_every_number_of_the_summary_is_in_the_page(page):
    summary = summarize(make_record())
    for row in summary.rows():
        assert f"{row.part.estimate.epsilon:.2f}"[:4] in page
