"""`simulations/andrew_2024/`: a table that differs from what is expected fails."""

import dataclasses

import numpy as np
import pytest

from fl_epe.accounting import epsilon_two_gaussians
from fl_epe.auditing import seen_by
from fl_epe.limit import limit_record
from fl_epe.limit.simulated_record import RealUpdates
from fl_epe.reporting import NOT_MEASURED
from fl_epe.schedules import ShuffledEpochs
from simulations.andrew_2024 import paper_runs, table2, table3
from simulations.andrew_2024.paper_tables import apart
from simulations.andrew_2024.stackoverflow import TABLE

SMALL = ["--dim", "3000", "--canaries", "100", "--runs", "8"]


def test_four_standard_errors_are_apart_and_so_is_what_is_not_a_number():
    assert not apart([1.0, 3.0], 0.0, 1.0)  # 2 = 2.8 errors
    assert apart([2.0, 4.0], 0.0, 1.0)
    assert not apart(
        [2.0, 4.0], 0.0, 1.0, runs=2
    )  # whose mean has an error of its own
    assert apart([np.nan, 0.0], 0.0, 1.0)


@pytest.mark.slow
def test_table_2_agrees_with_theory(capsys):
    table2.main(SMALL)
    printed = capsys.readouterr().out
    assert printed.count("known") == printed.count("fitted") == 3
    assert "PARTS" not in printed


@pytest.mark.slow
def test_table_2_fails_where_theory_is_another(monkeypatch, capsys):
    monkeypatch.setattr(table2, "expected_epsilon", lambda *_: (5.0, 0.5))
    with pytest.raises(SystemExit, match="1"):
        table2.main(SMALL)
    assert (
        capsys.readouterr().out.count("PARTS") == 5
    )  # fitted values at z = 1.54 are 4.5


@pytest.fixture
def one_noise(monkeypatch):
    table = dataclasses.replace(TABLE, rows=TABLE.rows[:2])
    monkeypatch.setattr(table3, "TABLE", table)
    return table.rows[1].noise_multiplier


@pytest.mark.slow
def test_table_3_agrees_with_what_other_seeds_gave(one_noise, capsys):
    table3.main(["--seeds", "2"])
    printed = capsys.readouterr().out
    assert printed.count("expected") == len(table3.ROWS)
    assert "PARTS" not in printed


@pytest.mark.weekly
def test_table_3_fails_where_something_else_is_expected(
    one_noise, monkeypatch, capsys
):
    rows = ((mean + 5 * sd, sd) for mean, sd in table3.EXPECTED[one_noise])
    monkeypatch.setattr(table3, "EXPECTED", {one_noise: tuple(rows)})
    with pytest.raises(SystemExit, match="1"):
        table3.main(["--seeds", "2"])
    assert capsys.readouterr().out.count("PARTS") == len(table3.ROWS)


def growing_clip_norms(updates=0.0):
    """A short run whose clip norm grows twentyfold, so that late rounds weigh most."""
    return limit_record(
        ShuffledEpochs(64, 1),
        0.1,
        1e-5,
        clip_norms=np.geomspace(0.1, 2, 64),
        momentum=0.9,
        real=RealUpdates(np.full(64, updates), updates),
    )


def test_final_epsilon_and_its_limit_are_of_the_same_client(monkeypatch):
    record = growing_clip_norms()
    assert paper_runs.check_limit(record) == ("", False)
    mean = epsilon_two_gaussians(
        0, 1, seen_by(record).expected_scores.observed.mean(), 1, record.delta
    )
    assert paper_runs.limit_final(record) > 1.5 * mean
    monkeypatch.setattr(
        paper_runs, "limit_final", lambda _: mean
    )  # of a client in the middle
    words, parts = paper_runs.check_limit(record)
    assert parts
    assert "parts from the limit" in words


def test_where_updates_outweigh_noise_the_limit_does_not_apply():
    words, parts = paper_runs.check_limit(
        growing_clip_norms(updates=0.01)
    )  # as much as the noise
    assert words == "updates are 50% of θ_T − θ_0: the limit does not apply"
    assert not parts


def test_cosines_of_equal_canaries_are_gaussian_and_a_mixture_is_not():
    equal = limit_record(ShuffledEpochs(64, 1), 0.1, 1e-5, num_canaries=1000)
    _, p_value = paper_runs.gaussianity(equal).split()
    assert float(p_value.strip("()")) > 0.01
    none = limit_record(ShuffledEpochs(64, 1), 0.1, 1e-5, num_canaries=2)
    assert paper_runs.gaussianity(none) == NOT_MEASURED
    growing = limit_record(
        ShuffledEpochs(64, 1),
        0.01,
        1e-5,
        num_canaries=1000,
        clip_norms=np.geomspace(0.1, 2, 64),
    )
    statistic, p_value = paper_runs.gaussianity(growing).split()
    assert float(statistic) > 10
    assert p_value == "(0)"
