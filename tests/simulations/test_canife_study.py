"""`simulations/paper/canife.py`: the quick form prints what the paper compares."""

import canife
import pytest

pytestmark = pytest.mark.slow


def test_the_quick_form_compares_both_audits():
    lines: list[str] = []
    rows = canife.main(seeds=1, quick=True, say=lines.append)
    value = {name: found[0] for name, found in rows.items()}
    published = value["CANIFE: lower limits, Rényi composition (as published)"]
    assert published <= value["CANIFE: the most it can say with so many scores"]
    assert published < value["  lower bound, Clopper–Pearson: every round, matched filter"]
    assert value["CANIFE: fitted Gaussians, mean ε of a round"] > 10 * published
    assert "34.5" in lines[1]
    assert all(any(name in line for line in lines) for name in rows)
