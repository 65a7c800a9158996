"""`simulations/studies/secret_rounds.py`: ε of unequal and of correlated secret rounds."""

import numpy as np
import pytest

from fl_epe.accounting import hidden_rounds_epsilon
from fl_epe.schedules import Events
from simulations.studies import secret_rounds as study


def test_the_truth_of_independent_rounds_is_what_is_computed():
    cell = study.CELLS[0]
    exact = study.exact_epsilon(cell, draws=30_000)
    events = Events.coins(np.full(len(cell.signals), 0.5))
    computed = hidden_rounds_epsilon(events, cell.signals, study.DELTA)
    assert exact == pytest.approx(computed, rel=0.01)


@pytest.mark.slow
def test_lines(capsys, monkeypatch):
    monkeypatch.setattr(study, "CELLS", (study.CELLS[4], study.CELLS[6]))
    monkeypatch.setattr(
        "sys.argv", ["secret_rounds", "--runs", "2", "--draws", "6000"]
    )
    study.main()
    unequal, correlated = capsys.readouterr().out.splitlines()[1:]
    assert unequal.split()[-3] == "2"
    assert correlated.split()[-3:] == ["0", "–", "–"]
