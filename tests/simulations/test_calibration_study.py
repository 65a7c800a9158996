"""`simulations/studies/calibration.py`: who is warned of a null that is wrong."""

import calibration
import numpy as np
import pytest

from fl_epe.auditing import MeasuredNull

pytestmark = pytest.mark.slow


def test_the_laws_have_their_moments():
    middles = np.concatenate([[-6.1], (MeasuredNull.edges[1:] - 0.125), [6.1]])
    for law in (
        calibration.normal(0.1, 1.2),
        calibration.gradual(0.0166, 1.5),
        calibration.beyond(4.0, 3.0),
    ):
        assert law.cells.sum() == pytest.approx(1)
        assert law.cells @ middles == pytest.approx(law.mean, abs=1e-3)
        # Sheppard's correction for cells of a quarter of a deviation
        variance = law.cells @ (middles - law.mean) ** 2 - 0.25**2 / 12
        assert variance == pytest.approx(law.variance, rel=2e-3)


def test_the_quick_form_prints_what_is_judged():
    lines: list[str] = []
    calibration.main(quick=True, say=lines.append)
    rows = {line[:20].strip(): line[20:].split() for line in lines[1:-1]}
    assert len(lines) == 13
    for name in ("3% too wide", "3% too narrow", "30% too wide", "tails x5 beyond 4"):
        assert rows[name][3] == "100.00%"
    for line in lines[1:3]:  # 0.3 expected
        assert int(line[20:].split()[2]) <= 3
