"""`simulations/studies/correlated_noise.py`: the final model tells more."""

import pytest

from fl_epe.accounting import gaussian_epsilon
from simulations.studies import correlated_noise

pytestmark = pytest.mark.slow


def test_the_final_model_tells_more_where_sums_are_less_noisy(capsys):
    correlated_noise.main(["--rounds", "128"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    every, final, error = zip(
        *(map(float, row[1:]) for row in rows), strict=True
    )
    assert every == pytest.approx([gaussian_epsilon(0.25, 1e-5)] * 6, abs=0.01)
    assert final[0] == pytest.approx(
        gaussian_epsilon(0.25 * 128**0.5, 1e-5), abs=0.001
    )
    assert error[0] == pytest.approx(64.5**0.5, abs=0.01)
    assert min(final[1:]) > 2 * final[0]
    assert max(error[1:]) < error[0] / 2
