"""`simulations/studies/any_law.py`: estimates of scores that are not Gaussian."""

import math

import pytest

from fl_epe import epsilon_two_gaussians
from simulations.studies import any_law as study


def test_truths_are_known_ones():
    gaussian, laplace, _, response, _ = (
        study.truth(tails, 0.01) for _, tails in study.LAWS.values()
    )
    assert gaussian == pytest.approx(
        float(epsilon_two_gaussians(0, 1, 1, 1, 0.01)), rel=1e-3
    )
    assert laplace == pytest.approx(1 + 2 * math.log1p(-0.01), rel=1e-3)
    assert response == pytest.approx(
        1 + math.log1p(-0.01 * (1 + math.exp(-1))), rel=1e-6
    )


def test_both_tables_are_printed(capsys):
    study.main(["--quick"])
    printed = capsys.readouterr().out
    assert printed.count("Laplace") == 3
    assert "100.0%" in printed
