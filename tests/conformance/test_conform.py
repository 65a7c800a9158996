"""The conformance suite finds broken mechanisms without a hint, and passes right ones."""

import dataclasses
import json
import math

import numpy as np
import pytest
from broken_targets import (
    DIM,
    PAIRS,
    Batches,
    by_coins,
    finite,
    from_example,
    gaussian,
    own_randomness,
    truncated_gaussian,
)

from fl_epe.accounting import gaussian_epsilon
from fl_epe.conformance import Target, conform
from simulations.tramer_2022 import broken_examples

QUICK = {
    "noisy-max-third": 2000,
    "exponential-double": 2000,
    "response-too-true": 500,
    "geometric-half": 500,
    "shared-by-shards": 200,
    "reused-in-steps": 200,
    "clips-entries": 200,
    "clips-layers": 200,
    "laplace-10-bits": 1000,
}
SLOW = sorted(set(PAIRS) - set(QUICK))


def names(found):
    return [check.name for check in found.failed]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(QUICK))
def test_a_broken_mechanism_is_found_and_the_right_one_passes(name):
    broken, right = PAIRS[name]
    assert not conform(broken, trials=QUICK[name]).passed
    assert names(conform(right, trials=QUICK[name])) == []


@pytest.mark.weekly
@pytest.mark.parametrize("name", SLOW)
def test_a_broken_mechanism_is_found_with_more_trials(name):
    broken, right = PAIRS[name]
    assert not conform(broken).passed
    assert names(conform(right)) == []


@pytest.mark.weekly
@pytest.mark.parametrize("name", sorted(broken_examples.EXAMPLES))
def test_every_entry_of_the_collection_is_found(name):
    example = broken_examples.EXAMPLES[name]
    assert not conform(from_example(example, example.broken)).passed
    assert names(conform(from_example(example, example.correct))) == []


def test_noise_of_its_own_is_not_taken_for_a_change():
    _, right = PAIRS["clips-entries"]
    found = conform(own_randomness(right), trials=200)
    assert names(found) == []
    assert [c.outcome for c in found.checks if c.name == "sensitivity"] == [
        "unknown"
    ]


def test_a_broken_mechanism_with_noise_of_its_own_is_found_by_games():
    broken, _ = PAIRS["clips-entries"]
    assert {"game: all entries"} <= set(
        names(conform(own_randomness(broken), trials=400))
    )


def test_a_claim_below_theory_fails():
    _, right = PAIRS["clips-entries"]
    found = conform(dataclasses.replace(right, epsilon=2.0), trials=40)
    (check,) = [check for check in found.failed if check.name == "accountant"]
    assert check.severity == "critical"  # 4.38 is more than twice 2


@pytest.mark.slow
def test_nan_that_reaches_the_release_is_not_handled_and_accuses_nobody():
    def release(updates, rng):
        norms = np.linalg.norm(updates, axis=1, keepdims=True)
        total = (updates / np.maximum(norms, 1.0)).sum(axis=0)
        return total + rng.normal(0, 1, total.size)

    found = conform(Target(release, **gaussian()), trials=200)
    assert names(found) == []
    unhandled = [
        check.name for check in found.checks if check.outcome == "not handled"
    ]
    assert {"input: NaN", "input: infinity"} <= set(unhandled)
    assert (
        f"{len(unhandled)} found inputs that are not handled" in found.summary
    )
    assert next(c.outcome for c in found.ranked) == "not handled"
    found = conform(Target(release, **gaussian(inputs="finite")), trials=200)
    assert "not handled" not in found.summary


def test_a_target_that_refuses_everything_does_not_pass():
    def release(updates, rng):
        raise RuntimeError("no")

    with pytest.raises(
        ValueError, match=r"ordinary updates, got RuntimeError: no"
    ):
        conform(Target(release, epsilon=1.0))


def test_truncated_noise_is_critical():
    found = conform(truncated_gaussian(2.0), trials=200)
    assert ("noise: tails", "critical") in [
        (check.name, check.severity) for check in found.failed
    ]


@pytest.mark.slow
def test_one_seed_in_every_call_is_found():
    def release(updates):
        return finite(updates).clip(-0.1, 0.1).sum(
            axis=0
        ) + np.random.default_rng(0).normal(size=DIM)

    found = conform(Target(release, **gaussian()), trials=100)
    assert "noise: fresh in each call" in names(found)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"delta": 1.5}, "delta"),
        ({"epsilon": None}, "epsilon"),
        ({"noise_multiplier": 1.0}, "noise_multiplier"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"steps": 0}, "steps"),
        ({"sampling_rate": 0.0}, "sampling_rate"),
    ],
    ids=["delta", "epsilon", "noise", "clip", "steps", "rate"],
)
def test_a_claim_out_of_range_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Target(**{"release": np.sum, "epsilon": 1.0, **changes})


def test_the_result_says_what_so_many_trials_find():
    few, many = (
        conform(PAIRS["response-too-true"][1], trials=n) for n in (400, 4000)
    )
    assert few.passed
    assert math.log(3) < many.detectable_epsilon < few.detectable_epsilon
    assert (
        f"400 trials find ε from {few.detectable_epsilon:.2f} on" in few.table()
    )


def test_a_claim_that_no_game_can_contradict_is_not_passed():
    found = conform(
        dataclasses.replace(PAIRS["response-too-true"][1], epsilon=9.0),
        trials=400,
    )
    games = [
        check.outcome for check in found.checks if check.name.startswith("game")
    ]
    assert set(games) == {"unknown"}
    assert (
        "so large a claim cannot be contradicted by games of 400 trials"
        in found.summary
    )


def test_a_failure_has_a_command_and_all_forms_show_it():
    broken = dataclasses.replace(
        PAIRS["response-too-true"][0], where="broken:one"
    )
    found = conform(broken, trials=500, seed=3)
    again = "fl-epe conform broken:one --trials 500 --level 0.01 --seed 3"
    assert {check.reproduce for check in found.failed} == {again}
    assert again in found.table()
    assert again in found.as_html()
    assert json.loads(json.dumps(found.as_json()))["passed"] is False


@pytest.mark.slow
def test_a_seed_repeats_the_result():
    one, other = (
        conform(PAIRS["clips-layers"][1], trials=100, seed=7) for _ in range(2)
    )
    assert one == other


def test_only_the_last_step_is_seen_by_an_adversary_who_sees_no_more():
    target = dataclasses.replace(
        PAIRS["reused-in-steps"][0], adversary="last", noise=None, delta=1e-5
    )
    assert "game: another in each step" not in names(
        conform(target, trials=200)
    )


@pytest.mark.slow
def test_sampling_that_is_claimed_is_played_where_the_target_does_not_sample():
    step = Batches(lambda count, step, rng: np.arange(count))
    target = dataclasses.replace(
        Batches.target(by_coins),
        release=step.release,
        reset=step.start,
        draws_batches=False,
    )
    assert names(conform(target, trials=200)) == []


MIXING = np.random.default_rng(0).normal(size=(12, 12))


@pytest.mark.slow
@pytest.mark.parametrize(
    "processed",
    [
        pytest.param(np.cumsum, id="cumsum"),
        pytest.param(lambda noisy: noisy - noisy.mean(), id="centred"),
        pytest.param(lambda noisy: MIXING @ noisy, id="matrix"),
    ],
)
def test_a_matrix_after_the_noise_leaks_no_more(processed):
    def release(updates, rng):
        lengths = np.linalg.norm(updates, axis=1, keepdims=True)
        clipped = updates / np.maximum(1, lengths)
        return processed(clipped.sum(axis=0) + rng.normal(0, 1, 12))

    claim = {
        "noise_multiplier": 1.0,
        "delta": 1e-5,
        "noise": "gaussian",
        "clip_norm": 1.0,
    }
    result = conform(Target(release, **claim, trials=400))
    assert [x.name for x in result.checks if x.outcome == "failed"] == []


def test_a_histogram_may_move_two_bins_where_a_record_is_replaced():
    """The claim is of one record more or less, which moves one bin by 1."""

    def release(updates, rng):
        bins = (
            np.bincount(updates.argmax(axis=1), minlength=12)
            if len(updates)
            else np.zeros(12)
        )
        return bins + rng.normal(0, 1, 12)

    claim = {
        "noise_multiplier": 1.0,
        "delta": 1e-5,
        "noise": "gaussian",
        "clip_norm": 1.0,
    }
    result = conform(Target(release, **claim, trials=400))
    assert [x.name for x in result.checks if x.outcome == "failed"] == []


def test_a_noisy_sum_over_a_noisy_count_leaks_no_more():
    def release(updates, rng):
        lengths = np.linalg.norm(updates, axis=1, keepdims=True)
        clipped = updates / np.maximum(1, lengths)
        summed = clipped.sum(axis=0) + rng.normal(0, 2, 12)
        return summed / max(len(updates) + rng.normal(0, 2), 1.0)

    epsilon = gaussian_epsilon(2 / math.sqrt(2), 1e-5)
    target = Target(
        release, epsilon=epsilon, delta=1e-5, noise="gaussian", trials=400
    )
    assert [
        x.name for x in conform(target).checks if x.outcome == "failed"
    ] == []
