"""The largest change of a release, against mechanisms whose sensitivity is known."""

import numpy as np
import pytest

from fl_epe.conformance import games
from simulations.shared.noisy_sum import NoisySum
from simulations.tramer_2022.broken_mechanisms import largest_change

CANARIES = [*(50 * np.eye(6)[[0, 5]]), np.full(6, 50 / np.sqrt(6))]
OTHERS = np.eye(6)[1:4] * 3
OWN = np.random.default_rng(9)


@pytest.mark.parametrize(
    ("game", "times"),
    [("add-or-remove", 1), ("zero-out", 1), ("substitute", 2)],
)
@pytest.mark.parametrize("denominator", [1.0, 4.0])
def test_a_right_mechanism_has_its_sensitivity(game, times, denominator):
    mechanism = NoisySum(1.5, 2.0, denominator)
    change = largest_change(mechanism, game, CANARIES, OTHERS)
    assert change == pytest.approx(times * 1.5 / denominator)


class _OneTensorUnclipped(games.AuditedMechanism):
    def release(self, updates, rng):
        first = games.clipped(updates[:, :3], 1.0)
        return np.concatenate([first, updates[:, 3:]], axis=1).sum(
            axis=0
        ) + rng.normal(size=6)


def test_the_longest_change_of_any_canary_counts():
    mechanism = _OneTensorUnclipped()
    first, last, together = (
        largest_change(mechanism, "add-or-remove", [canary], OTHERS)
        for canary in CANARIES
    )
    assert (first, last) == pytest.approx((1.0, 50.0))
    assert first < together < last
    assert largest_change(
        mechanism, "add-or-remove", CANARIES
    ) == pytest.approx(50)


def _adds(draw):
    """The clipped sum, and what ``draw`` makes of the number of updates and the generator."""

    class Adds(games.AuditedMechanism):
        def release(self, updates, rng):
            return games.clipped(updates, 1.0).sum(axis=0) + draw(
                len(updates), rng
            )

    return Adds()


class _Sampled(games.AuditedMechanism):
    def release(self, updates, rng):
        return games.clipped(updates, 1.0)[rng.random(len(updates)) < 0.5].sum(
            axis=0
        )


@pytest.mark.parametrize(
    "mechanism",
    [
        pytest.param(
            _adds(lambda _, __: OWN.normal(size=6)), id="own-generator"
        ),
        pytest.param(
            _adds(lambda n, rng: rng.normal(size=(n, 6)).sum(0)),
            id="noise-of-each",
        ),
        pytest.param(_Sampled(), id="sampled"),
    ],
)
def test_noise_that_does_not_cancel_is_no_sensitivity(mechanism):
    with pytest.raises(ValueError, match="noise cancels"):
        largest_change(mechanism, "add-or-remove", CANARIES, OTHERS)


def test_noise_in_float32_cancels():
    noisy = _adds(lambda _, rng: rng.normal(size=6).astype(np.float32))
    change = largest_change(noisy, "add-or-remove", CANARIES)
    assert change == pytest.approx(1.0, rel=1e-5)
