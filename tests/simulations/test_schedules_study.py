"""`simulations/studies/schedules_study.py`: the text of the study says what the script measures."""

import pytest

from simulations.studies import schedules_study

pytestmark = pytest.mark.weekly

TEXT = schedules_study.PAGE.read_text("utf-8")


def test_the_page_has_the_table_and_the_numbers_that_are_measured():
    section = schedules_study.late()  # the one that takes no simulation
    assert schedules_study.with_table(TEXT, section.table) == TEXT
    assert schedules_study.missing(TEXT, section.phrases) == []


def test_every_table_and_number_is_on_the_page():
    for measured, _, _ in schedules_study.SECTIONS:
        section = measured()
        assert schedules_study.with_table(TEXT, section.table) == TEXT
        assert schedules_study.missing(TEXT, section.phrases) == []


def test_a_table_is_replaced_by_its_header():
    text = "before\n\n| a | b |\n| --- | ---: |\n| 1 | 2 |\n\n| a | c |\n| --- | ---: |\nafter\n"
    table = schedules_study.table(["a", "b"], [["3", "4"], ["5", "6"]])
    filled = schedules_study.with_table(text, table)
    assert filled == text.replace("| 1 | 2 |", "| 3 | 4 |\n| 5 | 6 |")
    with pytest.raises(ValueError, match="found 0"):
        schedules_study.with_table("no table", table)
    with pytest.raises(ValueError, match="found 2"):
        schedules_study.with_table(text + "\n" + text, table)


def test_a_number_that_is_not_on_the_page_is_missing():
    assert schedules_study.missing("a cap\nof 8", ["cap of 8", "cap of 9"]) == [
        "cap of 9"
    ]
