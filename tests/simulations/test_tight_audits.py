"""`simulations/paper/tight_audits.py` and `studies/subsampled.py` print their tables."""

import pytest
import subsampled
import tight_audits

from fl_epe.audits import AuditSettings

pytestmark = pytest.mark.slow


def test_the_paper_stands_beside_ours():
    lines: list[str] = []
    tight_audits.main(AuditSettings(quick=True, observations=1000), say=lines.append)
    text = "\n".join(lines)
    assert text.count("paper  ") == len(tight_audits.PAPER_TABLE_1)
    shares = [line for line in lines if line.startswith("  ε = ")]
    assert len(shares) == 2
    assert all("(ε, δ) no" in line for line in shares)


def test_bounds_by_the_accountant_hold_and_bayes_is_no_bound():
    found = subsampled.subsampled(0.5, 0.25, 1, 40)
    assert found["f-DP"][0] == found["CP"][0] == 0
    assert found["f-DP"][1] > found["GDP"][1] > found["CP"][1]
    assert set(subsampled.credible(30, 5)) >= {"response, CP", "response, Bayes"}
