"""A hundred damaged files of every kind; the long form is in ``support/fuzz_files.py``."""

import collections

import pytest
from fuzz_files import Fuzzer, fuzzing

CASES = [140, pytest.param(285, marks=pytest.mark.slow)]
ENTROPY = 0


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory):
    with fuzzing(tmp_path_factory.mktemp("fuzz") / "files") as made:
        yield made


@pytest.mark.parametrize("cases", CASES)
def test_no_damaged_file_ends_in_a_traceback_or_changes_a_number(fuzzer, cases):
    outcomes = [fuzzer.run(number, ENTROPY) for number in range(cases)]
    assert [outcome for outcome in outcomes if not outcome.fine] == []
    kinds = collections.defaultdict(set)
    for outcome in outcomes:
        kinds[outcome.kind].add(outcome.what)
    assert len(kinds) == len(fuzzer.seeds)
    assert all("refused" in found for found in kinds.values())


def test_the_fuzzer_sees_what_is_wrong(fuzzer, monkeypatch):
    """Each of its four complaints, provoked."""
    broken: dict = {}
    monkeypatch.setattr(
        "fuzz_files.call", lambda words: broken["command"](words)
    )
    monkeypatch.setattr(
        Fuzzer, "damaged", lambda self, *_: (self.seeds[0], "raw", b"broken")
    )
    monkeypatch.setattr("fuzz_files.SECONDS", 0.2)

    def hang(words):
        while True:
            pass

    def raising(words):
        raise LookupError("oh")

    def other_numbers(words):
        from pathlib import Path

        Path(words[-1], "report.json").write_text("{}")
        return 0

    def speechless(words):
        return 2

    expected = {
        hang: "hang",
        raising: "raised LookupError",
        other_numbers: "CHANGED",
        speechless: "not one line",
    }
    for command, what in expected.items():
        broken["command"] = command
        assert fuzzer.run(0, ENTROPY).what == what
