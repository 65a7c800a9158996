"""`simulations/audits/crafted_canaries.py`: the quick form prints each kind of canary."""

import crafted_canaries
import numpy as np
import pytest

pytestmark = pytest.mark.slow


def test_the_quick_form_has_every_kind():
    lines: list[str] = []
    (result,) = crafted_canaries.main(seeds=1, quick=True, say=lines.append)
    assert result.passed
    rows = result.tables[0].rows
    for row in rows:
        bound, gdp_bound, allowed = np.array(row[-3:], float)
        assert max(bound, gdp_bound) <= allowed
    assert [line.split("  ")[0].split(" (")[0] for line in lines[2:]] == [
        str(row[0]).partition(" (")[0] for row in rows
    ]
