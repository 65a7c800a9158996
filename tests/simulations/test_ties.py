"""`simulations/studies/ties.py`: bounds on discrete scores."""

import pytest

from simulations.studies import ties as study

pytestmark = pytest.mark.slow


def test_every_law_sums_to_1_and_has_its_epsilon():
    for pair in study.MECHANISMS.values():
        assert [law.sum() for law in pair] == pytest.approx([1, 1])
    truths = {mechanism: truth for _, mechanism, _, truth in study.cells()}
    pure = ("geometric", "one bit", "votes", "randomised response")
    assert [truths[name] for name in pure] == pytest.approx([1, 1, 1, 0.5])


def test_a_line_for_each_bound_that_is_called_valid(capsys, monkeypatch):
    monkeypatch.setattr(study, "MECHANISMS", {"votes": study.votes()})
    study.main(["--quick", "--only", "one-run"])
    printed = capsys.readouterr().out
    assert printed.count("votes") == 1
    assert "ORDER" not in printed
