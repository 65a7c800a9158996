"""Runs side by side: a common δ, which settings differ, and no winner without evidence."""

import csv
import io
import json
import re

import pytest
from records import make_record, record_of
from rich.console import Console

from fl_epe.auditing import answers, epsilon_difference
from fl_epe.limit import limit_record
from fl_epe.reporting import (
    as_report,
    compare_runs,
    print_runs_compared,
    summarize,
    write_runs_compared,
)
from fl_epe.reporting.summary import settings_of
from fl_epe.schedules import ShuffledEpochs


def limit(noise, seed, delta=1e-3, canaries=100, **changes):
    """A run in the limit, with seeds that say that it is independent of others."""
    record = limit_record(
        ShuffledEpochs(6, 2),
        noise,
        delta,
        num_canaries=canaries,
        unobserved=50,
        beside=9 * canaries,
        seed=seed,
    )
    return record.with_values(
        **{"seeds": {"canary": seed, "noise": None}} | changes
    )


@pytest.fixture(scope="module")
def two():
    return compare_runs({"loud": limit(0.3, 1), "quiet": limit(1.0, 2)})


def pairs(found, adversary="all"):
    return {
        (p.first, p.second): p
        for p in found.differences
        if p.adversary == adversary
    }


@pytest.mark.slow
def test_the_numbers_are_those_of_each_report(two):
    for run, record in zip(
        two.runs, (limit(0.3, 1), limit(1.0, 2)), strict=True
    ):
        assert as_report(run.summary) == as_report(summarize(record))


def test_a_difference_that_is_larger_than_chance(two):
    pair = pairs(two)["A", "B"]
    one, other = (
        answers(record)[1].estimate for record in (limit(0.3, 1), limit(1.0, 2))
    )
    assert pair.difference == epsilon_difference(one, other)
    assert pair.difference.larger_than_chance
    assert "A leaks more than B" in pair.sentence()


def test_equal_runs_have_no_winner():
    found = compare_runs({"one": limit(0.5, 1), "other": limit(0.5, 2)})
    assert not any(
        pair.difference.larger_than_chance for pair in found.differences
    )
    for pair in found.differences:
        assert "cannot be told apart" in pair.sentence()
        assert "more than B" not in pair.sentence()


@pytest.mark.slow
def test_the_same_seed_is_not_taken_for_independence():
    shared = compare_runs({"one": limit(0.3, 7), "other": limit(1.0, 7)})
    apart = compare_runs({"one": limit(0.3, 7), "other": limit(1.0, 8)})
    wide, narrow = (
        pairs(found)["A", "B"].difference for found in (shared, apart)
    )
    assert not wide.independent
    assert narrow.independent
    assert wide.high - wide.low > narrow.high - narrow.low
    assert wide.confidence == pytest.approx(0.95)
    assert any("may be dependent" in note for note in shared.notes)
    assert not any("may be dependent" in note for note in apart.notes)


@pytest.mark.slow
def test_a_record_without_seeds_may_depend_on_any_other():
    found = compare_runs(
        {"one": limit(0.3, 1), "other": limit(0.3, 2).with_values(seeds={})}
    )
    assert not any(pair.difference.independent for pair in found.differences)


@pytest.mark.slow
def test_several_pairs_hold_together():
    records = {
        name: limit(0.5, seed) for seed, name in enumerate(("a", "b", "c"), 1)
    }
    three, couple = (
        compare_runs(records),
        compare_runs(dict(list(records.items())[:2])),
    )
    assert set(pairs(three)) == {("A", "B"), ("A", "C"), ("B", "C")}
    wide, narrow = (
        pairs(found)["A", "B"].difference for found in (three, couple)
    )
    assert wide.confidence == pytest.approx(1 - 0.05 / 3)
    assert wide.high - wide.low > narrow.high - narrow.low
    assert any("Bonferroni" in note for note in three.notes)


@pytest.mark.slow
def test_many_runs_are_compared_with_the_first():
    records = {str(seed): limit(0.5, seed, canaries=20) for seed in range(1, 8)}
    found = compare_runs(records)
    assert set(pairs(found)) == {("A", letter) for letter in "BCDEFG"}


@pytest.mark.slow
def test_other_deltas_are_said_and_computed_again():
    records = {
        "loose": limit(0.5, 1, delta=1e-2),
        "strict": limit(0.5, 2, delta=1e-5),
    }
    found = compare_runs(records)
    assert found.delta == 1e-5
    wanted = answers(records["loose"], 1e-5)[1].estimate
    assert found.runs[0].summary.answers[1].estimate == wanted
    assert any("another δ (A 0.01, B 1e-05)" in note for note in found.notes)
    asked = compare_runs(records, 1e-3)
    assert asked.delta == 1e-3
    assert {run.summary.delta for run in asked.runs} == {1e-3}


def test_one_delta_needs_no_word(two):
    assert not any("δ" in note for note in two.notes)


def test_runs_that_were_not_measured_are_not_compared():
    found = compare_runs({"whole": limit(0.5, 1), "one canary": record_of(1)})
    assert not found.all_ok
    assert found.differences == ()
    assert any(
        note.startswith("Run B (not measured): only 1 canary")
        for note in found.notes
    )


def test_settings_that_differ_come_apart_from_those_that_do_not(two):
    assert two.different["noise_multiplier"] == ["0.3", "1"]
    assert "rounds" not in two.different


def test_no_seed_is_a_setting():
    assert not any("seed" in name for name in settings_of(make_record()))
    assert str(2**127) not in str(settings_of(make_record()))


@pytest.mark.parametrize("count", [0, 1, 27])
def test_as_many_runs_as_there_are_letters(count):
    with pytest.raises(ValueError, match=f"got {count}"):
        compare_runs({str(place): make_record() for place in range(count)})


def test_a_delta_out_of_range():
    with pytest.raises(ValueError, match="delta=1"):
        compare_runs({"a": make_record(), "b": make_record()}, 1.5)


@pytest.fixture(scope="module")
def directory(two, tmp_path_factory):
    directory = tmp_path_factory.mktemp("comparison")
    paths = write_runs_compared(two, directory)
    assert {path.name for path in paths} == {
        "comparison.html",
        "comparison.json",
        "comparison.csv",
    }
    return directory


class TestPages:
    """The page, the JSON and the CSV of a comparison, and what the terminal shows."""

    def test_json(self, directory, two):
        values = json.loads((directory / "comparison.json").read_text("utf-8"))
        assert [run["directory"] for run in values["runs"]] == ["loud", "quiet"]
        assert values["runs"][0]["report"]["status"] == "ok"
        pair = values["differences"][1]
        assert (pair["adversary"], pair["larger_than_chance"]) == ("all", True)
        assert pair["found"]["low"] == pairs(two)["A", "B"].difference.low

    def test_csv(self, directory, two):
        rows = list(
            csv.DictReader(
                io.StringIO((directory / "comparison.csv").read_text("utf-8"))
            )
        )
        assert [(row["run"], row["sees"]) for row in rows] == [
            ("A", "final"),
            ("A", "all"),
            ("B", "final"),
            ("B", "all"),
        ]
        assert (
            float(rows[1]["epsilon"])
            == two.runs[0].summary.answers[1].estimate.epsilon
        )
        assert rows[0]["setting: noise_multiplier"] == "0.3"

    def test_the_page_asks_nobody_and_says_its_picture_in_numbers(
        self, directory
    ):
        page = (directory / "comparison.html").read_text("utf-8")
        assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#)(?!data:)""", page)
        (words,) = re.findall(r'<img alt="([^"]+)" src="data:image/svg', page)
        assert "final model, A: ε " in words
        assert "every round, B: ε " in words

    def test_the_page_is_the_same_again(self, directory, two, tmp_path):
        write_runs_compared(two, tmp_path)
        for path in directory.iterdir():
            assert path.read_bytes() == (tmp_path / path.name).read_bytes()

    def test_names_are_text_in_the_page(self, tmp_path):
        found = compare_runs({"<b>x</b>": limit(0.5, 1), "=1+1": limit(0.5, 2)})
        write_runs_compared(found, tmp_path)
        assert "<b>x</b>" not in (tmp_path / "comparison.html").read_text(
            "utf-8"
        )
        assert "'=1+1" in (tmp_path / "comparison.csv").read_text("utf-8")

    def test_the_terminal(self, two):
        console = Console(record=True, width=80, file=io.StringIO())
        print_runs_compared(console, two)
        text = console.export_text()
        assert text.index("Settings that differ") < text.index("ε at δ =")
        assert "run A leaks more than run B" in " ".join(text.split())
        assert max(map(len, text.splitlines())) <= 80

    def test_what_was_not_measured(self, tmp_path):
        found = compare_runs(
            {"whole": limit(0.5, 1), "one canary": record_of(1)}
        )
        write_runs_compared(found, tmp_path)
        page = (tmp_path / "comparison.html").read_text("utf-8")
        assert 'role="alert"' in page
        assert "not measured" in page
        assert "Too few of these runs were measured" in page
