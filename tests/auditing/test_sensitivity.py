"""Sanity checks of a claimed sensitivity, against mechanisms whose sensitivity is known."""

import numpy as np
import pytest

from fl_epe.auditing import games

CANARIES = [games.dirac(6, 50.0, index) for index in (0, 5)] + [games.constant(6, 50.0)]
OTHERS = np.eye(6)[1:4] * 3
OWN = np.random.default_rng(9)


@pytest.mark.parametrize("batch", [1, 3, 10, 4096])
def test_the_mean_of_a_batch_is_within_the_triangle_inequality(batch):
    assert games.sensitivity_is_possible(2.0 / batch, batch, norm=2.0)
    assert games.sensitivity_is_possible(1.0, batch, norm=batch)
    assert not games.sensitivity_is_possible(2.0 / batch, batch, norm=2.001)


@pytest.mark.parametrize(
    ("game", "times"),
    [(games.ADD_OR_REMOVE, 1), (games.ZERO_OUT, 1), (games.SUBSTITUTE, 2)],
    ids=["add-or-remove", "zero-out", "substitute"],
)
@pytest.mark.parametrize("denominator", [1.0, 4.0])
def test_a_right_mechanism_has_its_sensitivity(game, times, denominator):
    mechanism = games.NoisySum(1.5, 2.0, denominator)
    found = games.measured_sensitivity(mechanism, game, CANARIES, others=OTHERS, seed=3)
    assert found == pytest.approx(times * 1.5 / denominator)


def test_the_longest_change_of_any_canary_counts():
    mechanism = games.zoo.OneTensorUnclipped(1.0, 1.0)
    first, last, both = (
        games.measured_sensitivity(mechanism, games.ADD_OR_REMOVE, [canary], others=OTHERS)
        for canary in CANARIES
    )
    assert (first, last) == pytest.approx((1.0, 50.0))
    assert first < both < last
    assert games.measured_sensitivity(mechanism, games.ADD_OR_REMOVE, CANARIES) == pytest.approx(50)


@pytest.mark.parametrize("batch", [1, 7])
def test_a_batch_of_alike_updates_adds_up(batch):
    mechanism = games.NoisySum(1.5, 2.0, denominator=7.0)
    assert games.measured_batch(mechanism, CANARIES[0], batch) == pytest.approx(1.5 * batch / 7)


def test_the_bug_of_the_paper_fails_the_check():
    """Sensitivity C/B for clipped shares of a mean: B of them are B·C long, not C."""
    clip_norm, batch = 1.0, 20
    broken = games.zoo.SensitivityOverBatch(clip_norm, 1.0, batch)
    length = games.measured_batch(broken, games.dirac(6, 1000.0), batch)
    assert length == pytest.approx(clip_norm * batch)
    assert not games.sensitivity_is_possible(broken.sensitivity, batch, length)
    assert games.sensitivity_is_possible(clip_norm, batch, length)


@pytest.mark.parametrize("name", ["sensitivity", "batch_size", "norm"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_an_argument_out_of_range_is_named(name, value):
    arguments = {"sensitivity": 1.0, "batch_size": 1.0, "norm": 1.0} | {name: value}
    with pytest.raises(ValueError, match=f"{name}={value}"):
        games.sensitivity_is_possible(**arguments)


def _adds(draw):
    """The clipped sum, and what ``draw`` makes of the number of updates and the generator."""

    class Adds(games.Mechanism):
        def release(self, updates, rng):
            return games.clipped(updates, 1.0).sum(axis=0) + draw(len(updates), rng)

    return Adds()


class _Sampled(games.Mechanism):
    def release(self, updates, rng):
        return games.clipped(updates, 1.0)[rng.random(len(updates)) < 0.5].sum(axis=0)


@pytest.mark.parametrize(
    "mechanism",
    [
        pytest.param(_adds(lambda _, __: OWN.normal(size=6)), id="own-generator"),
        pytest.param(games.of_function(lambda rows: OWN.normal(size=6)), id="own-function"),
        pytest.param(_adds(lambda n, rng: rng.normal(size=(n, 6)).sum(0)), id="noise-of-each"),
        pytest.param(_Sampled(), id="sampled"),
    ],
)
def test_noise_that_does_not_cancel_is_no_sensitivity(mechanism):
    with pytest.raises(ValueError, match="noise cancels"):
        games.measured_sensitivity(mechanism, games.ADD_OR_REMOVE, CANARIES, others=OTHERS)
    with pytest.raises(ValueError, match="noise cancels"):
        games.measured_batch(mechanism, CANARIES[0], 5)


def test_noise_in_float32_cancels():
    noisy = _adds(lambda _, rng: rng.normal(size=6).astype(np.float32))
    found = games.measured_sensitivity(noisy, games.ADD_OR_REMOVE, CANARIES)
    assert found == pytest.approx(1.0, rel=1e-5)


def test_canaries_that_change_nothing_measure_nothing():
    silent = games.of_function(lambda rows: np.zeros(6))
    with pytest.raises(ValueError, match="one changes what is released, got none"):
        games.measured_sensitivity(silent, games.ADD_OR_REMOVE, CANARIES)


def test_a_canary_is_needed():
    with pytest.raises(ValueError, match="canaries"):
        games.measured_sensitivity(games.NoisySum(1.0, 1.0), games.ZERO_OUT, [])
