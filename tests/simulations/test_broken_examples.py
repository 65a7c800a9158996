"""Each broken mechanism has its bug, each correct version has the noise that it claims."""

import math
from typing import Any

import numpy as np
import pytest

from fl_epe.conformance import games
from fl_epe.mechanism import AdaptiveClip, gaussian_noise
from simulations.tramer_2022 import noise_bugs, sensitivity_bugs
from simulations.tramer_2022.broken_examples import EXAMPLES

DIM = 4
LONG = np.array([[30.0, 40.0, 0.0, 0.0]])
NOBODY = np.zeros((0, DIM))


def rng():
    return np.random.default_rng(3)


WITHOUT_NOISE: dict[str, tuple[Any, list[float]]] = {
    "clips-the-mean": (
        sensitivity_bugs.ClipsTheMean(1.0, 0.0, 10),
        [0.6, 0.8, 0, 0],
    ),
    "mean-is-short": (
        sensitivity_bugs.ClipsTheMean(10.0, 0.0, 10),
        [3, 4, 0, 0],
    ),
    "over-batch": (
        sensitivity_bugs.SensitivityOverBatch(5.0, 0.0, 10),
        [3, 4, 0, 0],
    ),
    "over-batch-long": (
        sensitivity_bugs.SensitivityOverBatch(1.0, 0.0, 10),
        [0.6, 0.8, 0, 0],
    ),
    "weights": (
        sensitivity_bugs.WeightedSum(1.0, 0.0, [3.0]),
        [1.8, 2.4, 0, 0],
    ),
    "capped-weights": (
        sensitivity_bugs.WeightedSum(1.0, 0.0, [3.0], most=2.0),
        [1.2, 1.6, 0, 0],
    ),
    "too-little-noise": (
        noise_bugs.TooLittleNoise(1.0, 0.0, 2.0),
        [0.6, 0.8, 0, 0],
    ),
    "by-tensor": (
        sensitivity_bugs.ClippedByTensor(1.0, 0.0, 4, 0.5),
        [0.5, 0.5, 0, 0],
    ),
    "workers": (
        noise_bugs.NoiseOfWorkers(1.0, 0.0, 10, 2, right=True),
        [0.06, 0.08, 0, 0],
    ),
    "prefix-sums": (
        noise_bugs.PrefixSums(1.0, 0.0, noise_bugs.banded_factor(3)),
        [0.6, 0.8, 0, 0],
    ),
    "few-seeds": (noise_bugs.FewSeeds(1.0, 0.0), [0.6, 0.8, 0, 0]),
    "shared-noise": (noise_bugs.SharedNoise(1.0, 0.0), [0.6, 0.8, 0, 0]),
    "repeated-noise": (noise_bugs.RepeatedNoise(1.0, 0.0, 2), [0.6, 0.8, 0, 0]),
}


@pytest.mark.parametrize("name", WITHOUT_NOISE)
def test_what_is_released_without_noise(name):
    mechanism, expected = WITHOUT_NOISE[name]
    np.testing.assert_allclose(mechanism.release(LONG, rng()), expected)


def test_the_last_tensor_is_not_clipped():
    released = sensitivity_bugs.OneTensorUnclipped(1.0, 0.0).release(
        np.array([[3.0, 4.0, 7.0, 8.0]]), rng()
    )
    np.testing.assert_allclose(released, [0.6, 0.8, 7.0, 8.0])


def test_weights_go_by_place():
    mechanism = sensitivity_bugs.WeightedSum(
        1.0, 0.0, [1.0, 1.0, 3.0], most=None
    )
    rows = np.eye(DIM)[:3] * 9
    np.testing.assert_allclose(mechanism.release(rows, rng()), [1, 1, 3, 0])
    np.testing.assert_allclose(mechanism.release(rows[:2], rng()), [1, 1, 0, 0])


@pytest.mark.parametrize(
    ("mechanism", "std"),
    [
        (sensitivity_bugs.ClipsTheMean(2.0, 3.0, 10), 0.6),
        (sensitivity_bugs.SensitivityOverBatch(2.0, 3.0, 10), 0.6),
        (sensitivity_bugs.WeightedSum(2.0, 3.0, [1.0], most=2.0), 12.0),
        (sensitivity_bugs.WeightedSum(2.0, 3.0, [1.0]), 6.0),
        (sensitivity_bugs.OneTensorUnclipped(2.0, 3.0), 6.0),
        (sensitivity_bugs.ClippedByTensor(2.0, 3.0, 2, 1.0), 6.0),
        (noise_bugs.TooLittleNoise(2.0, 3.0, 2.0), 3.0),
        (noise_bugs.NoiseOfWorkers(2.0, 3.0, 10, 4, right=True), 0.6),
        (noise_bugs.NoiseOfWorkers(2.0, 3.0, 10, 4, right=False), 0.3),
    ],
    ids=lambda value: (
        type(value).__name__
        if isinstance(value, games.AuditedMechanism)
        else str(value)
    ),
)
def test_how_large_the_noise_is(mechanism, std):
    count = 20_000
    noise = mechanism.release(np.zeros((0, count)), rng())
    assert noise.std() == pytest.approx(std, rel=5 / math.sqrt(2 * count))


def test_noise_of_few_seeds_is_one_of_its_table():
    mechanism, draws = noise_bugs.FewSeeds(1.0, 2.0, seeds=5), rng()
    table = mechanism.noises(DIM)
    seen = {tuple(mechanism.release(NOBODY, draws)) for _ in range(100)}
    assert seen == {tuple(row) for row in table}
    assert len(seen) == 5


def test_tensors_share_noise():
    first, second = np.split(
        noise_bugs.SharedNoise(1.0, 1.0).release(NOBODY, rng()), 2
    )
    np.testing.assert_array_equal(first, second)
    assert first.all()


def test_a_resumed_run_repeats_its_noise_and_a_new_one_does_not():
    mechanism, draws = (
        noise_bugs.RepeatedNoise(1.0, 1.0, resumed_after=2),
        rng(),
    )
    steps = [mechanism.release(NOBODY, draws) for _ in range(4)]
    np.testing.assert_array_equal(steps[2:], steps[:2])
    assert not np.isin(steps[0], steps[1]).any()
    mechanism.reset()
    assert not np.isin(mechanism.release(NOBODY, draws), steps).any()


@pytest.mark.parametrize("right", [True, False])
def test_prefix_sums_have_the_noise_of_their_factor(right):
    steps, noise_multiplier, clip_norm = 5, 2.0, 3.0
    factor = noise_bugs.banded_factor(steps)
    mechanism = noise_bugs.PrefixSums(
        clip_norm, noise_multiplier, factor, right=right
    )
    draws, again = rng(), rng()
    released = [mechanism.release(np.eye(DIM)[:1], draws) for _ in range(steps)]
    std = noise_multiplier * clip_norm * math.sqrt(1.25)
    fresh = np.array([gaussian_noise(again, DIM, std) for _ in range(steps)])
    ones = np.tril(np.ones((steps, steps)))
    of_noise = np.linalg.solve(factor.T, ones.T).T if right else factor
    np.testing.assert_allclose(
        released, ones @ np.tile(np.eye(DIM)[0], (steps, 1)) + of_noise @ fresh
    )
    if right:
        np.testing.assert_allclose(of_noise @ factor, ones, atol=1e-12)
    mechanism.reset()
    np.testing.assert_allclose(
        mechanism.release(NOBODY, again), of_noise[0, 0] * _next(fresh, std)
    )


def _next(fresh, std):
    """The draw after as many as there are rows of ``fresh``."""
    draws = rng()
    return [gaussian_noise(draws, DIM, std) for _ in range(len(fresh) + 1)][-1]


def test_the_wrong_sign_moves_the_clip_norm_the_other_way():
    rule = AdaptiveClip(1.0, quantile=0.5, rate=0.3, count_std=1.0, voters=4)
    right, wrong = (
        sensitivity_bugs.AdaptiveSum(rule, 0.5),
        sensitivity_bugs.AdaptiveSum(rule, 0.5, right=False),
    )
    updates = np.eye(DIM) * 7
    released = [
        mechanism.release(updates, rng()) for mechanism in (right, wrong)
    ]
    np.testing.assert_array_equal(*released)  # in units of the clip norm
    assert right.clip_norm > 1
    assert right.clip_norm * wrong.clip_norm == pytest.approx(1.0)
    assert sensitivity_bugs.strays_from(wrong, updates, 20, rng())
    assert not sensitivity_bugs.strays_from(right, updates, 20, rng())
    wrong.reset()
    assert wrong.clip_norm == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_correct_version_has_the_noise_that_it_claims(name):
    """Where worlds are Gaussian, μ of the inner product is at most sqrt(participations) / z."""
    example, count = EXAMPLES[name], 150
    scores = example.play(example.correct, count, seed=1)
    claimed = math.sqrt(example.participations) / example.noise_multiplier
    for one in scores:
        observed, unobserved = one.both()
        std = math.sqrt((observed.var() + unobserved.var()) / 2)
        shift = (observed.mean() - unobserved.mean()) / std
        assert shift <= claimed + 4 * math.sqrt((2 + claimed**2 / 2) / count)
    assert [one.statistic for one in scores] == [
        one.name for one in example.statistics
    ]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_same_seed_repeats_a_game_with_a_broken_one(name):
    example = EXAMPLES[name]
    first, again = (example.play(example.broken, 5, seed=2) for _ in range(2))
    for scores, repeated in zip(first, again, strict=True):
        np.testing.assert_array_equal(scores.both(), repeated.both())
