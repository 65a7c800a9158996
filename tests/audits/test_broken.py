"""The hunt in the zoo: what it counts, and what each check is known to find and to miss."""

import pytest
from matplotlib.figure import Figure

from fl_epe.auditing import games
from fl_epe.audits import AUDITS, AuditSettings
from fl_epe.audits.broken import sensitivity_table
from fl_epe.audits.hunt import doubling, hunt

HOW = {"delta": 1e-5, "confidence": 0.99, "seed": 1}


def test_numbers_of_observations_double():
    assert doubling(1000) == [10, 20, 50, 100, 200, 500, 1000]
    assert doubling(60) == [10, 20, 50, 60]
    assert doubling(4) == [4]


def test_fewer_observations_are_the_first_of_many():
    """What is needed does not depend on how many there are, once they are enough."""
    few, many = (hunt("clips-the-mean", most=n, count=2, bounds=["gdp"], **HOW) for n in (20, 50))
    assert few.needed == many.needed == {("along the canary", "gdp"): 20}
    assert few.alarms == {("along the canary", "gdp"): 0}
    assert few.claim == pytest.approx(4.377, abs=1e-3)


def test_more_games_never_need_fewer_observations():
    one, four = (hunt("wrong-clip-norm", most=100, count=n, bounds=["mean"], **HOW) for n in (1, 4))
    method = ("along the canary", "mean")
    assert (four.needed[method] or 1000) >= (one.needed[method] or 1000)


def test_a_bug_that_does_not_leak_is_found_by_its_sign_test_alone():
    found = hunt("adaptive-clip-sign", most=20, count=2, bounds=["gdp", "mean"], **HOW)
    assert found.named == ("clip norm", "sign test")
    assert found.needed.pop(found.named) == 10
    assert set(found.needed.values()) == {None}
    assert set(found.alarms.values()) == {0}


def test_what_sanity_checks_of_the_sensitivity_find():
    rows = {row[0]: row[1:] for row in sensitivity_table().rows}
    assert {name for name, row in rows.items() if row[2]} == {
        "clips-the-mean",
        "sensitivity-over-batch",
        "weights-by-examples",
        "one-tensor-unclipped",
        "wrong-clip-norm",
    }
    missed = {name for name, row in rows.items() if row[2] and not row[3]}
    assert missed == {"clips-the-mean"}  # a batch is clipped as a whole
    for claimed, *_, twin, possible in rows.values():
        assert twin == pytest.approx(claimed)
        assert possible


def test_too_few_observations_are_no_failure():
    result = AUDITS["broken"].run(AuditSettings(observations=10, quick=True))
    assert result.passed is None
    assert "of 12 broken mechanisms" in result.finding


def test_the_picture_has_a_named_row_for_each_bug():
    result = AUDITS["broken"].run(AuditSettings(observations=10, quick=True))
    (picture,) = result.pictures
    figure = Figure()
    picture.draw(figure)
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(games.ZOO)
    top, bottom = (axes.transData.transform((10, row))[1] for row in (1, len(games.ZOO)))
    assert top > bottom
    found = {round(y) for line in picture.lines for y in line.y}
    needed = {row[0] for row in result.tables[0].rows if any(row[2:])}
    assert {list(games.ZOO)[row - 1] for row in found} == needed
