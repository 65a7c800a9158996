"""Broken mechanisms of the literature are found and named, and right ones are not accused."""

import dataclasses

import numpy as np
import pytest

from fl_epe.accounting import gaussian_epsilon, poisson_epsilon
from fl_epe.conformance import Target, conform
from fl_epe.conformance.claim import Profile, detectable
from simulations.studies import conform_collection as study
from simulations.studies.mechanism_collection import (
    BROKEN,
    DELTA,
    GAUSSIAN,
    HARMLESS,
    KNOWN,
    MORE_BROKEN,
    MORE_SOUND,
    SAMPLED,
    SOUND,
    noisy_sum,
)
from simulations.studies.sound_collection import FROM_OUTSIDE

MANY = {
    "exponential-half-sensitivity",
    "top-two-for-one",
    "twelve-uniforms",
    "one-batch-for-all-steps",
    "replays-last-step",
}
"""They need 4,000 trials."""
MISTAKES = {**KNOWN, **BROKEN, **MORE_BROKEN}
RIGHT = {**HARMLESS, **SOUND, **MORE_SOUND, **FROM_OUTSIDE}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(MISTAKES) - MANY))
def test_a_mistake_is_found_and_named(name):
    target, words = MISTAKES[name]
    found = conform(target, trials=1000)
    assert study.names_it(found, words), found.table()


@pytest.mark.weekly
@pytest.mark.parametrize("name", sorted(MANY))
def test_a_mistake_is_found_and_named_with_more_trials(name):
    target, words = MISTAKES[name]
    found = conform(target, trials=4000)
    assert study.names_it(found, words), found.table()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(RIGHT))
def test_a_right_mechanism_is_not_accused(name):
    assert study.accuse({name: RIGHT[name]}, 200, [0]) == 0


@pytest.mark.weekly
@pytest.mark.parametrize("name", sorted(RIGHT))
def test_a_right_mechanism_is_not_accused_in_20_seeds(name):
    assert study.accuse({name: RIGHT[name]}, 1000, range(20)) == 0


@pytest.mark.slow
def test_the_study_prints_a_line_for_each(capsys):
    assert study.find({"laplace-for-l2": KNOWN["laplace-for-l2"]}, 100, 0) == 1
    assert study.accuse({"clamped": HARMLESS["clamped"]}, 100, [0]) == 0
    printed = capsys.readouterr().out
    assert "laplace-for-l2             named  critical: sensitivity" in printed
    assert "clamped                    accused in 0 of 1 runs" in printed


def test_a_law_refuses_a_norm_that_its_scale_does_not_follow():
    with pytest.raises(ValueError, match="to be l1 for laplace noise"):
        Target(noisy_sum, epsilon=1.0, noise="laplace")
    with pytest.raises(ValueError, match="to be l1 or l2 for gaussian noise"):
        Target(noisy_sum, norm="linf", **GAUSSIAN)
    assert (
        Target(noisy_sum, epsilon=1.0, noise="laplace", arrays=(1,)).norm
        == "l2"
    )


def test_who_samples_has_to_be_said():
    with pytest.raises(
        ValueError,
        match=r"draws_batches=None to be set with sampling_rate < 1",
    ):
        Target(noisy_sum, sampling_rate=0.25, **GAUSSIAN)


def test_a_claimed_epsilon_needs_its_noise():
    target = SOUND["gaussian-by-epsilon"]
    assert target.multiplier == pytest.approx(1.0, rel=1e-4)
    assert target.multiplier is not None
    assert target.multiplier <= 1.0
    assert Target(noisy_sum, epsilon=2.0, delta=1e-5).multiplier is None
    sampled = {**GAUSSIAN, **SAMPLED, "noise_multiplier": None}
    claim = poisson_epsilon(1.0, 0.25, 4, 1e-5)
    assert Target(
        noisy_sum, epsilon=claim, **sampled
    ).multiplier == pytest.approx(1.0, rel=1e-3)


def test_what_is_proved_of_a_sampled_claim_is_at_its_own_delta():
    target = SOUND["poisson-sampled"]
    true, claim = Profile.of(target, 0.5), Profile.of(target)
    fpr = np.geomspace(1e-4, 0.5, 50)
    rates = [
        (float(a), float(b)) for a, b in zip(fpr, true.fnr(fpr), strict=True)
    ]
    epsilon = max(claim.epsilon(*one, target.delta) for one in rates)
    assert target.claimed_epsilon < epsilon <= true.epsilons[-1]
    assert claim.epsilon(0.5, 0.5, target.delta) == 0


def test_of_batches_that_are_not_sampled_no_more_is_proved_than_they_leak():
    """ε is 4.38, whatever is claimed of sampling."""
    target = SOUND["poisson-sampled"]
    alone = Profile.of(
        dataclasses.replace(
            target, sampling_rate=1.0, steps=1, draws_batches=None
        )
    )
    fpr = np.geomspace(1e-3, 0.5, 50)
    rates = zip(fpr, alone.fnr(fpr), strict=True)
    claim = Profile.of(target)
    assert (
        max(claim.epsilon(float(a), float(b), DELTA) for a, b in rates)
        <= alone.epsilons[-1]
    )


def test_what_is_detectable_is_found():
    target = SOUND["gaussian-sum"]
    least = detectable(target, 500, 1e-3)
    assert gaussian_epsilon(1.0, 1e-5) < least < 12
    assert detectable(target, 5000, 1e-3) < least
