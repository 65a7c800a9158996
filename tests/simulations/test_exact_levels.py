"""`simulations/studies/exact_levels.py`: bounds on scores of few values, by enumeration."""

import numpy as np
import pytest

from fl_epe.auditing.bounds import BOUNDS
from simulations.studies import exact_levels as study


def test_every_mechanism_has_its_epsilon():
    for family in ("pure", "leaks"):
        for values in (2, 3):
            for case in study.mechanisms(family, values):
                assert case.member.sum() == pytest.approx(1)
                ratio = np.exp(case.epsilon)
                excess = np.maximum(case.member - ratio * case.other, 0).sum()
                missing = np.maximum(case.other - ratio * case.member, 0).sum()
                assert max(excess, missing) <= case.delta + 1e-12


def test_every_data_set_is_listed_once():
    ways = study.counts(5, 3)
    assert len({tuple(way) for way in ways.tolist()}) == len(ways) == 21
    assert study.probabilities(
        ways, np.array([0.2, 0.3, 0.5])
    ).sum() == pytest.approx(1)


# The sizes at which coins that came from a hash of the scores gave 7 to 10%.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "size"),
    [("weighted", 13), ("weighted", 16), ("one-run", 3), ("one-run", 8)],
)
def test_levels_of_two_values(method, size):
    cases = [
        case for case in study.mechanisms("pure", 2) if case.epsilon <= 0.3
    ]
    assert study.levels(method, size, cases).max() <= study.ALPHA


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [name for name, bound in BOUNDS.items() if bound.valid]
)
@pytest.mark.parametrize("values", [2, 3])
def test_levels_of_a_small_size(method, values):
    cases = list(study.mechanisms("Gaussian", values))
    assert study.levels(method, 4, cases).max() <= study.ALPHA


def test_a_line_for_each_family(capsys):
    study.main(["--only", "lifted", "--quick", "--values", "2"])
    printed = capsys.readouterr().out
    assert printed.count("lifted") == 3
