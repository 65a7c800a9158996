"""Nasr et al. (2023): `tight_audits.py`, `step_audit.py` and `input_canaries.py`."""

import input_canaries
import pytest
import step_audit
import subsampled
import tight_audits
from audit_script import Settings

QUICK = Settings(quick=True)


def test_both_figures_and_the_table():
    result = tight_audits.audit(Settings(quick=True, observations=1000))
    assert result.passed
    figure_3, figure_4, paper, single, composed = (table.rows for table in result.tables)
    assert {row[:2] for row in figure_3} == {(1.0, 1000), (4.0, 1000)}
    assert len(figure_4) == 15
    assert [row[0] for row in paper] == [row[0] for row in single]
    assert len(composed) == 1
    columns = result.tables[0].columns
    shares = {columns[i]: float(cell or 0) / 4 for i, cell in enumerate(figure_3[1]) if i > 1}
    assert shares["f-DP (CP)"] > 0.75
    assert shares["(ε, δ) (CP)"] < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("audit", [step_audit.audit, input_canaries.audit], ids=["steps", "inputs"])
def test_no_valid_bound_is_above_theory(audit):
    result = audit(QUICK)
    assert result.passed
    assert all(len(row) == len(table.columns) for table in result.tables for row in table.rows)
    assert result.summary in str(result)


@pytest.mark.slow
def test_bounds_by_the_accountant_hold_and_bayes_is_no_bound():
    found = subsampled.subsampled(0.5, 0.25, 1, 40)
    assert found["f-DP"][0] == found["CP"][0] == 0
    assert found["f-DP"][1] > found["GDP"][1] > found["CP"][1]
    assert set(subsampled.credible(30, 5)) >= {"response, CP", "response, Bayes"}
