"""Statistics that look for one kind of bug, and several statistics of one game."""

import numpy as np
import pytest

from fl_epe.conformance import games
from simulations.tramer_2022.broken_examples import always, once
from simulations.tramer_2022.cancelling_statistics import (
    between_steps,
    between_tensors,
    nearest_noise,
    whitened,
)
from simulations.tramer_2022.noise_bugs import SharedNoise

CANARY = np.array(
    [[2.0, 0.0, 0.0, 0.0], [0.0, 0.0, 3.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
)
NOISE = np.array(
    [[0.3, -1.0, 0.3, -1.0], [2.0, 0.1, 2.0, 0.1], [0.3, -1.0, 0.3, -1.0]]
)


def seen(released, canaries=CANARY):
    return np.array(released, float), np.array(canaries, float)


def test_shared_noise_cancels_between_tensors():
    score = between_tensors(4).score
    assert score(*seen(CANARY + NOISE)) == pytest.approx(5.0)
    assert score(*seen(NOISE)) == pytest.approx(0.0)
    thirds = between_tensors(3, tensors=3).score
    assert thirds(*seen([[6.0, 1.0, 1.0]], [[5.0, 0.0, 0.0]])) == pytest.approx(
        5.0
    )


def test_repeated_noise_cancels_between_steps():
    score = between_steps(2).score
    assert score(*seen(CANARY + NOISE)) == pytest.approx(2.0)
    assert score(*seen(NOISE)) == pytest.approx(0.0)
    redrawn = seen([[0.0, 0.0], [3.0, 4.0]], [[0.0, 4.0], [3.0, 0.0]])
    assert between_steps(1).score(*redrawn) == pytest.approx((9 - 16) / 5)


def test_the_nearest_noise_tells_the_worlds_apart():
    statistic = nearest_noise(
        NOISE[:2], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 5.0, 0.0]
    )
    for noise in NOISE[:2]:
        with_canary = statistic.score(
            *seen([noise + np.array([1, 1, 6, 1])], CANARY[:1])
        )
        without = statistic.score(*seen([noise + 1], CANARY[:1]))
        assert with_canary > 1
        assert without < -1
    assert statistic.name == "nearest of 2 noises"


def test_whitening_is_the_likelihood_ratio():
    """For r = shift + F·n the log-likelihood ratio is shift' (FF')⁻¹ r and a constant."""
    rng = np.random.default_rng(1)
    factor = np.tril(rng.standard_normal((3, 3))) + 3 * np.eye(3)
    workload = np.tril(np.ones((3, 3)))
    canaries = np.array([[0.0, 0.0], [0.0, -7.0], [0.0, 0.0]])
    released = rng.standard_normal((3, 2))
    expected = (
        workload[:, 1] @ np.linalg.inv(factor @ factor.T) @ -released[:, 1]
    )
    score = whitened(factor, workload).score(*seen(released, canaries))
    assert score == pytest.approx(expected)


def test_steps_without_the_canary_do_not_count():
    assert games.ALONG_CANARY.score(*seen(NOISE)) == pytest.approx(0.3 + 2.0)
    canary = once(always(np.array([5.0, 0.0])), steps=3, at=1)
    vectors = [canary(step) for step in range(6)]
    np.testing.assert_array_equal(vectors, [[0, 0], [5, 0], [0, 0]] * 2)


def test_a_canary_that_the_difference_of_tensors_cancels_is_refused():
    """Its scores were all 0, and passed as private whatever noise was shared."""
    shared = SharedNoise(1.0, 1.0)
    how = {"observations": 5, "statistic": between_tensors(4)}
    with pytest.raises(ValueError, match="differs between tensors"):
        games.play_game(shared, "add-or-remove", np.full(4, 0.5), **how)
    game_scores = games.play_game(shared, "add-or-remove", np.eye(4)[0], **how)
    assert game_scores.observed.min() > game_scores.unobserved.max()


@pytest.mark.parametrize(
    ("said", "make"),
    [
        ("lag=0 >= 1", lambda: between_steps(0)),
        ("steps=3 > lag=3", lambda: between_steps(3).score(*seen(NOISE))),
        ("dim=5 to be a multiple of tensors=2", lambda: between_tensors(5)),
        ("tensors=1 >= 2", lambda: between_tensors(4, tensors=1)),
    ],
    ids=["lag", "steps", "dim", "tensors"],
)
def test_what_cannot_be_is_refused(said, make):
    with pytest.raises(ValueError, match=said):
        make()
