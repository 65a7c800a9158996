"""The page of a report as a file: complete, small, and safe whatever a record holds."""

import base64
import gzip
import html
import json
import re

import pytest
from plotly.offline import get_plotlyjs
from records import make_record

from fl_epe.reporting import summarize, write_report
from fl_epe.reporting.details import details
from fl_epe.reporting.report import plotly_script
from fl_epe.reporting.sentences import (
    first_sentence,
    table_note,
    table_rows,
    what_to_do,
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    directory = tmp_path_factory.mktemp("page")
    record = make_record(task="</script><b>x</b>", num_rounds=6)
    record.save(directory / "record.npz")
    write_report(summarize(record), directory)
    return (directory / "report.html").read_text()


def test_the_script_in_the_page_is_the_installed_one(page):
    (packed,) = re.findall(r'id="plotly">([^<]*)<', page)
    assert packed == plotly_script()
    assert gzip.decompress(base64.b64decode(packed)).decode() == get_plotlyjs()
    assert len(packed) < 0.5 * len(get_plotlyjs())


def test_what_is_drawn_is_json_in_the_page(page):
    (drawn,) = re.findall(r'id="drawn">(.*?)</script>', page, re.DOTALL)
    charts = json.loads(drawn)
    assert list(charts) == re.findall(
        r'<figure id="([^"]*)" class="chart">', page
    )
    assert charts["epsilon"]["data"][0]["x"]
    assert '<button type="button" data-axis="y"' in page


def test_a_task_of_any_name_stays_text(page):
    assert "<b>x</b>" not in page
    assert "&lt;/script&gt;&lt;b&gt;x" in page


def test_the_top_comes_in_order(page):
    marks = (
        "<h1>",
        'class="finding"',
        '<table class="rows"',
        '<figure id="epsilon"',
        "<h2>Details",
    )
    places = [page.index(words) for words in marks]
    assert places == sorted(places)
    assert (
        "not whether this training data is easy to attack" in page[: places[3]]
    )


def test_the_page_and_the_terminal_have_the_same_sentences(page):
    summary = summarize(make_record(task="</script><b>x</b>", num_rounds=6))
    text = html.unescape(page)
    for sentence in (
        first_sentence(summary),
        what_to_do(summary),
        table_note(summary),
    ):
        assert sentence in text
    for question, lines in details(summary):
        assert all(line in text for line in (question, *lines))
    assert all(cell in text for row in table_rows(summary) for cell in row)


def test_a_date_is_never_synthetic(tmp_path):
    write_report(summarize(make_record()), tmp_path)  # without its file
    assert " · date not recorded" in (tmp_path / "report.html").read_text()


def test_every_picture_has_words_with_numbers(page):
    images = re.findall(r'<img alt="([^"]*)"', page)
    assert len(images) == page.count("<img ") == 4
    assert all(re.search(r"\d", words) for words in images)
