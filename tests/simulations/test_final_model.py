"""Whole runs as mechanisms: final-model canaries by linear theory, against runs themselves."""

import numpy as np
import pytest

from fl_epe.accounting import gaussian_epsilon
from fl_epe.mechanism import ServerSGD
from simulations.others import final_model_canaries
from simulations.others.final_model import FinalModel, Training
from simulations.others.final_model_canaries import (
    Kind,
    common_deviation,
    kinds_of,
    play,
)
from simulations.others.final_model_theory import flat_shift, memory_of
from simulations.others.two_layer import TwoLayer

NETWORK = TwoLayer(inputs=5, hidden=3, classes=3)
DARK = NETWORK.hidden_inputs([4])  # a pixel that is always 0
ROUNDS = 6
DELTA = 1e-5


def _run(noise=0.5, momentum=0.5):
    rng = np.random.default_rng(3)
    batches = []
    for _ in range(ROUNDS):
        inputs, labels = rng.random((8, 5)), rng.integers(3, size=8)
        inputs[:, 4] = 0.0
        batches.append((inputs, labels))
    server = ServerSGD(0.7, momentum)
    return Training(
        NETWORK, NETWORK.initial(1) + 0.05, batches, noise, 10.0, server
    )


def _unit(dim, seed=0):
    vector = np.random.default_rng(seed).standard_normal(dim)
    return vector / np.linalg.norm(vector)


def _dark():
    vector = np.zeros(NETWORK.dim)
    vector[DARK] = _unit(DARK.size)
    return vector


@pytest.mark.parametrize("number", [0, 3, ROUNDS - 1])
def test_paths_are_derivatives_of_whole_runs(number):
    run = _run()
    canary, step = _unit(NETWORK.dim), 1e-5
    moved = [
        run.train(sign * step * canary, (number,), None)[-1] for sign in (1, -1)
    ]
    derivative = (moved[0] - moved[1]) / (2 * step)
    np.testing.assert_allclose(
        memory_of(run).paths[number] @ canary, derivative, atol=1e-6
    )


def test_what_clients_do_not_move_is_the_sum_of_rounds():
    run = _run()
    memory, weights = memory_of(run), run.weights
    for present in ((1,), tuple(range(ROUNDS))):
        expected = flat_shift(weights, run.noise_multiplier, present)
        assert memory.shift(_dark(), present) == pytest.approx(
            expected, rel=1e-6
        )
    assert memory.growth(_dark(), 2, weights[2] / run.size) == pytest.approx(
        1.0
    )
    # Every round: what the final model leaks is nearly what all models do.
    everything = np.sqrt(ROUNDS) / run.noise_multiplier
    assert flat_shift(np.ones(ROUNDS), 0.5, range(ROUNDS)) == pytest.approx(
        everything
    )


def test_the_best_direction_is_best_and_below_what_every_round_shows():
    run = _run()
    memory = memory_of(run)
    for number in range(ROUNDS):
        best, direction = memory.best(number)
        assert memory.shift(direction, (number,)) == pytest.approx(
            best, rel=1e-6
        )
        assert best < 1 / run.noise_multiplier
        assert all(
            memory.shift(_unit(NETWORK.dim, s), (number,)) <= best
            for s in range(20)
        )


def test_the_filter_sees_the_shift_of_theory():
    """Along the filter's direction, signal over deviation is μ; any other direction sees less."""
    run = _run()
    memory, canary = memory_of(run), _unit(NETWORK.dim)
    covariance = run.noise_multiplier**2 * np.einsum(
        "tij,tkj->ik", memory.paths, memory.paths
    )
    signal = memory.paths[2] @ canary
    along = memory.filter(canary, (2,))
    shift = along @ signal / np.sqrt(along @ covariance @ along)
    assert shift == pytest.approx(memory.shift(canary, (2,)), rel=1e-6)
    for seed in range(20):
        random_direction = _unit(NETWORK.dim, seed)
        assert (
            abs(random_direction @ signal)
            / np.sqrt(random_direction @ covariance @ random_direction)
            <= shift
        )


@pytest.mark.slow
def test_games_against_whole_runs_meet_theory():
    """With noise so small that training is linear."""
    run = _run(noise=2e-4)
    memory = memory_of(run)
    for name, canary in (("still", _dark()), ("random", _unit(NETWORK.dim))):
        small = Kind(name, canary * 1e-3, (2,), 0.0)
        scores = play(run, memory, small, 300, seed=1)
        distance = scores.observed.mean() - scores.unobserved.mean()
        deviation = np.sqrt(
            (scores.observed.var() + scores.unobserved.var()) / 2
        )
        expected = 1e-3 * memory.shift(canary, (2,))
        assert expected > 1
        error = np.sqrt(2 / 300 + expected**2 / 1200)
        assert distance / deviation == pytest.approx(expected, abs=4 * error)


def test_a_run_without_noise_repeats_and_has_its_canary():
    run = _run(noise=0.0)
    rng = np.random.default_rng(0)
    mechanism = FinalModel(run, (1,))
    nobody = np.empty((0, NETWORK.dim))
    without, again = (
        np.asarray(mechanism.release(nobody, rng)) for _ in range(2)
    )
    assert np.array_equal(without, again)
    canary = 10.0 * _dark()
    added = np.asarray(mechanism.release(canary[None], rng)) - without
    weight = run.weights[1] / run.size
    np.testing.assert_allclose(added, weight * canary, atol=1e-12)


def test_canaries_are_unit_vectors_of_rising_shift():
    run = _run()
    kinds = kinds_of(run, memory_of(run), seed=1)
    assert [len(kind.present) for kind in kinds] == [1, 1, 1, 1, ROUNDS]
    for kind in kinds:
        assert np.linalg.norm(kind.direction) == pytest.approx(1.0)
    assert max(kinds[2].expected, kinds[3].expected) >= kinds[0].expected
    still = kinds[1].direction
    assert set(np.flatnonzero(still)) == set(DARK)


@pytest.mark.slow
def test_the_interval_covers():
    rng, truth = np.random.default_rng(0), gaussian_epsilon(1.0, DELTA)
    inside = 0
    for _ in range(200):
        _, low, high = common_deviation(
            1 + rng.standard_normal(200), rng.standard_normal(200), DELTA
        )
        inside += low <= truth <= high
    assert inside / 200 > 0.95 - 3 * np.sqrt(0.95 * 0.05 / 200)
    assert common_deviation(
        np.array([0.0, 1.0]), np.array([5.0, 6.0]), DELTA
    ) == (
        0.0,
        0.0,
        0.0,
    )


@pytest.mark.slow
def test_the_quick_form_has_every_kind():
    lines: list[str] = []
    (result,) = final_model_canaries.main(seeds=1, quick=True, say=lines.append)
    assert result.passed
    rows = result.tables[0].rows
    for row in rows:
        bound, gdp_bound, allowed = np.array(row[-3:], float)
        assert max(bound, gdp_bound) <= allowed
    assert [line.split("  ")[0].split(" (")[0] for line in lines[2:]] == [
        str(row[0]).partition(" (")[0] for row in rows
    ]
