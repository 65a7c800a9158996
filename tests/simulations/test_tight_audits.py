"""Nasr et al. (2023): `tight_audits.py`, `trade_offs.py`, `step_audit.py`, `input_canaries.py`."""

import re

import numpy as np
import pytest

from simulations.nasr_2023 import (
    input_canaries,
    step_audit,
    subsampled,
    tight_audits,
    trade_offs,
)
from simulations.shared.audit_script import Settings
from simulations.shared.composed import noise_of_epsilon

QUICK = Settings(quick=True)


@pytest.mark.slow
def test_both_figures_and_the_table():
    result = tight_audits.audit(Settings(quick=True, observations=1000))
    assert result.passed
    figure_3, figure_4, paper, single, composed = (
        table.rows for table in result.tables
    )
    assert {row[:2] for row in figure_3} == {(1.0, 1000), (4.0, 1000)}
    assert len(figure_4) == 15
    assert [row[0] for row in paper] == [row[0] for row in single]
    assert len(composed) == 1
    columns = result.tables[0].columns
    shares = {
        columns[i]: float(cell or 0) / 4
        for i, cell in enumerate(figure_3[1])
        if i > 1
    }
    assert shares["f-DP (CP)"] > 0.75
    assert shares["(ε, δ) (CP)"] < 0.5


@pytest.mark.slow
def test_the_docstring_has_the_steps_that_are_measured():
    printed_rows = re.findall(r"^ +a step +(.+)$", tight_audits.__doc__, re.M)
    assert len(printed_rows) == len(tight_audits.PAPER_TABLE_1)
    for epsilon, row in zip(
        tight_audits.PAPER_TABLE_1, printed_rows, strict=True
    ):
        noise = noise_of_epsilon(epsilon, QUICK.delta)
        bounds = tight_audits.bounds_of_one_step(Settings(), noise, 2500)
        np.testing.assert_allclose(
            [float(cell) for cell in row.split()], bounds, atol=0.006
        )


@pytest.mark.slow
def test_what_the_paper_says_of_trade_off_curves():
    result = trade_offs.audit(QUICK)
    assert result.passed
    numbers = [
        np.array([row[1:] for row in table.rows], float)
        for table in result.tables
    ]
    curves, regions, lines, observations = numbers
    assert np.all(
        curves[:, 0] <= curves[:, 3]
    )  # (ε, δ)-DP allows what Gaussian noise does not
    assert regions[0, 2] == pytest.approx(0.3, abs=1e-3)  # the paper's red dot
    assert regions[1, 3] == pytest.approx(1.0)
    assert np.all(lines[:, 2] <= lines[:, 3])
    assert np.all(lines[:, 3] <= lines[:, 0])
    assert trade_offs.best_threshold(QUICK.delta) == pytest.approx(
        4.877, abs=1e-3
    )
    assert (observations[:, 4] == 0).tolist() == [True, False, False]


@pytest.mark.weekly
@pytest.mark.parametrize(
    "audit", [step_audit.audit, input_canaries.audit], ids=["steps", "inputs"]
)
def test_no_valid_bound_is_above_theory(audit):
    result = audit(QUICK)
    assert result.passed
    assert all(
        len(row) == len(table.columns)
        for table in result.tables
        for row in table.rows
    )
    assert result.summary in str(result)


@pytest.mark.slow
def test_bounds_by_the_accountant_hold_and_bayes_is_no_bound():
    shares = subsampled.subsampled(0.5, 0.25, 1, 40)
    assert shares["f-DP"][0] == shares["CP"][0] == 0
    assert shares["f-DP"][1] > shares["GDP"][1] > shares["CP"][1]
    assert set(subsampled.credible(30, 5)) >= {
        "response, CP",
        "response, Bayes",
    }
