"""Games: each part does what it says, and goes with every other."""

import math
from typing import Any

import numpy as np
import pytest

from fl_epe.accounting import gaussian_epsilon
from fl_epe.auditing.bounds import lower_bound
from fl_epe.conformance import games
from simulations.shared.noisy_sum import NoisySum

DIM = 12
DIRAC = np.eye(DIM)[0]


def redrawn(step):
    vector = np.random.default_rng(step).normal(size=DIM)
    return vector / np.linalg.norm(vector)


CANARIES = {
    "fixed": 2 * np.eye(DIM)[3],
    "redrawn": lambda step: 2 * redrawn(step),
}


@pytest.mark.parametrize("name", CANARIES)
@pytest.mark.parametrize("game", ["add-or-remove", "zero-out", "substitute"])
def test_scores_are_the_gaussians_of_theory(name, game):
    """Along a canary of the clip norm C, at noise z·C: N(C, z²C²) against N(0 or −C, z²C²)."""
    noise, count = 1.5, 500
    mechanism = NoisySum(2.0, noise)
    scores = games.play_game(
        mechanism, game, CANARIES[name], observations=count, seed=5
    )
    error = 5 * 2.0 * noise / math.sqrt(count)
    absent = 2.0 * {"add-or-remove": 0, "zero-out": 0, "substitute": -1}[game]
    assert scores.observed.mean() == pytest.approx(2.0, abs=error)
    assert scores.unobserved.mean() == pytest.approx(absent, abs=error)
    for side in scores.both():
        assert side.std() == pytest.approx(3.0, rel=5 / math.sqrt(2 * count))


def test_longer_updates_are_clipped_and_others_cancel():
    others = np.arange(3 * DIM, dtype=float).reshape(3, DIM)
    mechanism = NoisySum(1.0, 0.0, denominator=4.0)
    canary = 50 * DIRAC
    scores = games.play_game(
        mechanism, "add-or-remove", canary, observations=2, others=others
    )
    np.testing.assert_allclose(np.subtract(*scores.both()), 0.25)


def test_a_sampled_canary_takes_part_in_its_share_of_steps():
    rate, steps, count = 0.25, 40, 200
    mechanism = NoisySum(1.0, 0.0)
    arguments = (mechanism, "add-or-remove", DIRAC)
    scores = games.play_game(
        *arguments, observations=count, steps=steps, sampling_rate=rate, seed=3
    )
    assert not scores.unobserved.any()
    assert set(scores.observed % 1) == {0.0}
    error = 5 * math.sqrt(steps * rate * (1 - rate) / count)
    assert scores.observed.mean() == pytest.approx(steps * rate, abs=error)


class Function(games.AuditedMechanism):
    """Releases what a function makes of the updates."""

    def __init__(self, function):
        self.function = function

    def release(self, updates, rng):
        return self.function(updates)


class Counter(games.AuditedMechanism):
    """Counts its steps; what it releases tells nothing of the updates."""

    def __init__(self):
        self.steps = self.resets = 0

    def release(self, updates, rng):
        self.steps += 1
        return np.full(updates.shape[1], float(self.steps))

    def reset(self):
        self.steps, self.resets = 0, self.resets + 1


def test_every_observation_is_of_a_fresh_mechanism_and_every_run_too():
    counter, canary = Counter(), DIRAC
    arguments = {
        "statistic": games.Statistic(
            "one", lambda released, _: released[:, 1].sum()
        )
    }
    scores = games.play_game(
        counter, "zero-out", canary, observations=3, steps=2, **arguments
    )
    assert set(np.concatenate(scores.both())) == {3.0}  # 1 + 2
    assert counter.resets == 6
    scores = games.play_game(
        counter, "zero-out", canary, observations=3, two_runs=True, **arguments
    )
    for side in scores.both():
        np.testing.assert_array_equal(side, [1, 2, 3])
    assert counter.resets == 8


def test_others_may_depend_on_the_step():
    mechanism = Function(lambda updates: updates.sum(axis=0))
    canary = np.eye(2)[0]
    scores = games.play_game(
        mechanism,
        "zero-out",
        canary,
        observations=3,
        two_runs=True,
        others=lambda step: [[step, 0], [0, 1]],
        statistic=games.Statistic(
            "along", lambda released, _: released.sum(axis=0) @ [0.6, 0.8]
        ),
    )
    np.testing.assert_allclose(scores.observed, [1.4, 2.0, 2.6])
    np.testing.assert_allclose(scores.unobserved, [2.6, 3.2, 3.8])


@pytest.mark.parametrize("two_runs", [False, True])
def test_a_seed_repeats_a_game(two_runs):
    arguments = (NoisySum(1.0, 1.0), "add-or-remove", redrawn)
    how = {"observations": 20, "sampling_rate": 0.5, "two_runs": two_runs}
    first, again, other = (
        games.play_game(*arguments, **how, seed=seed) for seed in (7, 7, 8)
    )
    np.testing.assert_array_equal(first.both(), again.both())
    assert not np.isin(other.observed, first.observed).any()


def test_a_right_round_is_within_its_theorem_and_a_noiseless_one_is_not():
    canary = DIRAC
    for noise, violated in ((1.0, False), (0.0, True)):
        scores = games.play_game(
            NoisySum(1.0, noise),
            "add-or-remove",
            canary,
            observations=500,
            seed=1,
        )
        bound = lower_bound(
            scores, 1e-5, confidence=0.99, method="clopper-pearson"
        )
        assert (bound > gaussian_epsilon(1.0, 1e-5)) == violated


RIGHT: dict[str, Any] = {
    "mechanism": NoisySum(1.0, 1.0),
    "adjacency": "zero-out",
    "canary": DIRAC,
    "observations": 2,
}
WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "observations": (r"observations=1 >= 2", {"observations": 1}),
    "steps": (r"steps=0 >= 1", {"steps": 0}),
    "sampling_rate": (r"sampling_rate=0 in \(0, 1\]", {"sampling_rate": 0}),
    "others": (
        r"others\.shape=\(1, 3\) to be \(n, 12\)",
        {"others": [[1, 2, 3]]},
    ),
    "released": (
        r"released\.shape=\(\) to be \(12,\)",
        {"mechanism": Function(np.sum)},
    ),
    "not-finite": (
        r"released.*finite",
        {"mechanism": Function(lambda updates: updates[0] * np.nan)},
    ),
    "two_runs": (
        "steps=2 to be 1 with two_runs",
        {"steps": 2, "two_runs": True},
    ),
    "adjacency": ("adjacency='other' to be one of", {"adjacency": "other"}),
    "zero": (r"norm=0\.0 > 0", {"canary": np.zeros(DIM)}),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_named(name):
    said, change = WRONG[name]
    with pytest.raises(ValueError, match=said):
        games.play_game(**RIGHT | change)
