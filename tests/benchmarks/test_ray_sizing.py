"""`benchmarks/ray_sizing.py`: its formula, and that each part is there to be measured.

Nothing is timed here.
"""

import argparse
import math

import pytest
import ray_sizing
from ray_sizing import FORMULA, Dense, Load, Parts, predicted

PARTS = Parts(1.0, 2.0, 3.0, 4.0, 100.0, 5.0, 6.0, 7.0)


def test_a_round_is_the_sum_of_its_parts():
    load = Load(dim=50, clients=5, canaries=3.0)
    working, moving, serving = predicted(PARTS, load, 2, network=300.0)
    assert working == 1.0 + 3 * 2.0 + 2 * 3.0 + 4.0
    assert moving == pytest.approx(12 * 50 * 2 / 100.0 + 12 * 50 * 2 / 300.0)
    assert serving == 5.0 + 2 * 6.0 + 7.0


def test_without_scoring_the_server_has_less_to_do():
    load = Load(dim=50, clients=5, canaries=0.0)
    with_scores, without = (
        predicted(PARTS, load, 2, scored=how) for how in (True, False)
    )
    assert with_scores[2] - without[2] == 7.0
    assert with_scores[:2] == without[:2]


def test_a_worker_more_helps_the_workers_alone():
    load = Load(dim=50, clients=64, canaries=8.0)
    fewer, more = (predicted(PARTS, load, workers) for workers in (4, 8))
    assert more[0] < fewer[0]
    assert more[1] > fewer[1]
    assert more[2] > fewer[2]


def test_the_formula_is_in_the_docstring():
    assert FORMULA in ray_sizing.__doc__
    assert "{formula}" not in ray_sizing.__doc__


@pytest.mark.parametrize("size", [100_000, 1_200_000, 10_000_000])
def test_a_model_has_about_the_size_that_was_asked_for(size):
    assert Dense(size).dim == pytest.approx(size, rel=0.01)


@pytest.mark.slow
def test_every_part_is_measured():
    task = Dense(2_000, 80)
    found = ray_sizing.worker_parts(task, 2, 2) | ray_sizing.server_parts(
        task, 8, 3
    )
    names = {"client", "canary", "order", "server", "answer", "scores"}
    assert found.keys() == names
    assert all(math.isfinite(value) and value >= 0 for value in found.values())


@pytest.mark.slow
def test_the_table_has_a_row_for_each_size_and_number_of_workers(capsys):
    options = argparse.Namespace(
        cohort=8,
        bandwidth=10.0,
        few=2,
        turns=1,
        client_seconds=0.5,
        sizes=[2_000],
        workers=[4, 8],
    )
    ray_sizing.sized(options, ray_sizing.NOTHING)
    rows = [
        line.split()
        for line in capsys.readouterr().out.splitlines()
        if "%" in line
    ]
    assert [row[1] for row in rows] == ["4", "8"] * 2
    assert (
        float(rows[2][2]) > float(rows[3][2]) > 0.5
    )  # two clients each, then one
