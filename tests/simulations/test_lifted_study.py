"""`simulations/studies/lifted.py`: bounds where canaries are correlated on purpose."""

import pytest

from simulations.studies import lifted as study

pytestmark = pytest.mark.slow

RUNS = 40
BY_NAME = {setting.name: setting for setting in study.settings()}


def test_plain_bounds_fail_where_canaries_share_a_direction_and_lifted_ones_hold():
    coverage = study.coverage(BY_NAME["one direction, ρ = 0.25"], 100, RUNS)
    assert coverage["gdp"][0] < study.least(RUNS)
    assert coverage["lifted"][0] >= study.least(RUNS)


def test_a_distribution_free_bound_fails_where_canaries_share_all_noise():
    coverage = study.coverage(BY_NAME["one noise"], 200, RUNS)
    assert coverage["simultaneous"][0] < study.least(RUNS)
    assert coverage["lifted"][0] >= study.least(RUNS)


def test_rates_from_several_runs():
    for runs, held, _ in study.rates(200, 100):
        independent, betting, bernstein, _ = held
        assert independent < study.least(100), runs
        assert min(betting, bernstein) >= study.least(100), runs


def test_the_quick_form_prints_four_tables(capsys, monkeypatch):
    monkeypatch.setattr(study, "RUNS", (1, 2))
    monkeypatch.setattr(study, "PLAIN", ("gdp",))
    study.main(["--quick"])
    printed = capsys.readouterr().out
    assert printed.count("Table") == 4
    assert printed.count("one loudness") == 3


def test_independent_scores_pay_for_what_lifted_does_not_assume():
    weighted, lifted = study.price(4, 200, 3)
    assert 10 < lifted < weighted < 24.4
