"""`simulations/studies/silos.py`: a record's ε, from what a federation of silos releases."""

import pytest
import silos as study

from fl_epe.accounting import poisson_epsilon

SMALL = study.Setting(silos=3, steps=10, rounds=12, rate=0.05, noise=0.8)


@pytest.mark.parametrize("adversary", study.ADVERSARIES)
def test_each_adversary_has_its_line(adversary):
    exact = study.exact_epsilon(SMALL, adversary)
    runs = [study.audited(SMALL, adversary, canaries=150, dim=3000, seed=s) for s in range(5)]
    held = [
        run.estimate is not None and run.estimate.low < exact < run.estimate.high for run in runs
    ]
    assert sum(held) >= 4  # of 60 seeds 98%
    found, *_ = runs
    assert not found.adversary.knows_rounds
    assert found.participations == pytest.approx(6)
    # Theory is of every step, and holds for all of them.
    every_step = poisson_epsilon(0.8, 0.05, 120, study.DELTA)
    assert found.analytical.epsilon == pytest.approx(every_step)
    assert found.analytical.adjacency == "add-or-remove"
    assert exact < every_step


def test_who_sees_less_learns_less():
    found = [study.exact_epsilon(SMALL, adversary) for adversary in study.ADVERSARIES]
    assert found == sorted(found, reverse=True)


def test_lines(monkeypatch, capsys):
    monkeypatch.setattr(study, "SETTINGS", (SMALL,))
    monkeypatch.setattr("sys.argv", ["silos", "--runs", "1", "--canaries", "60", "--dim", "1500"])
    study.main()
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["silos", "steps"]
    assert [row.split()[5] for row in rows] == list(study.ADVERSARIES)
