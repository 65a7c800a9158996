"""`simulations/studies/canary_removed.py`: a canary that stays in the model is partly forgotten."""

import sys

import pytest

from simulations.studies import canary_removed


@pytest.mark.slow
def test_clients_train_against_a_canary(monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["canary_removed.py", "--seeds", "3", "--rounds", "100"]
    )
    canary_removed.main()
    row = capsys.readouterr().out.splitlines()[-1].split()
    stays, error = (float(word.rstrip("%")) for word in (row[5], row[7]))
    assert stays + 5 * error < 100
    assert stays > 80
