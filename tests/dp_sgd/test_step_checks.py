import math

import numpy as np
import pytest

from fl_epe.dp_sgd import step_checks
from fl_epe.dp_sgd.clipping import BatchSeen
from fl_epe.dp_sgd.movement import Movement
from fl_epe.dp_sgd.step_checks import StepFindings, StepSeen
from fl_epe.noise import check_noise

SILENT = check_noise(np.zeros(10), 1.0)
RIGHT = check_noise(np.random.default_rng(2**40).normal(size=500), 1.0)


def check_steps(seen, noise, **options):
    return step_checks.check_steps(seen, noise, Movement(dim=3), **options)


def steps(count=60, seed=0, silent=False, **facts):
    """Steps with batches of 1,000 examples at a rate of 0.05."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(count):
        seen = {"largest": 1.0, "examples": float(rng.binomial(1000, 0.05))}
        found.append(StepSeen(1, (BatchSeen(**(seen | facts)),), silent=silent))
    return found


def faults(seen, rate=0.05):
    return "; ".join(check_steps(seen, RIGHT, rate=rate, batch_size=50).faults)


@pytest.mark.parametrize(
    "runs", [60, pytest.param(300, marks=pytest.mark.slow)]
)
def test_right_runs_have_no_fault(runs):
    # The two comparisons of batch sizes have at most 1e-4 each: 300 runs have 0.06 on average.
    found = [faults(steps(seed=seed)) for seed in range(runs)]
    assert sum(bool(text) for text in found) <= (2 if runs == 300 else 1)


def test_noise_that_is_missing_or_not_as_claimed():
    silent = check_steps(steps(), SILENT, rate=0.05, batch_size=50)
    assert silent.unbounded == "the noise: 1 of 1 without any: array 1"
    assert (
        "not as claimed (arrays without noise): 1 of 1 without any"
        in silent.faults[0]
    )
    none = check_steps(steps(silent=True), [])
    assert (none.faults, none.unbounded) == ((), "60 of 60 steps had no noise")
    same = np.random.default_rng(2**40).normal(size=100)
    repeats = check_steps(
        steps(), check_noise([same, same], 1.0), rate=0.05, batch_size=50
    )
    assert repeats.unbounded == "the noise: rounds 1 and 2 have the same noise"
    assert "rounds 1 and 2 have the same noise" in repeats.faults[0]
    seeded = check_noise(np.random.default_rng(1).normal(size=100), 1.0)
    found = check_steps(steps(), seeded, rate=0.05, batch_size=50)
    assert "numpy.random.default_rng(1)" in found.faults[0]
    assert found.unbounded is None


def test_batch_sizes():
    assert "60 of 60 batches have 50 examples" in faults(steps(examples=50.0))
    few = faults(
        steps(), rate=0.06
    )  # 50 examples are those of 833 then: no contradiction
    assert few == ""
    assert "100 examples on average" in faults(steps(examples=100.0))
    assert (
        faults(steps(examples=50.0), rate=1.0) == ""
    )  # everybody, in every step
    unknown = check_steps(
        steps(examples=math.nan), RIGHT, rate=0.05, batch_size=50
    )
    assert "batch sizes" in unknown.unseen[0]
    assert check_steps([], []) == StepFindings()


def test_a_batch_of_unknown_size_does_not_switch_the_check_off():
    unknown = StepSeen(1, (BatchSeen(),))
    many = [unknown, *steps(examples=100.0)]
    assert "98.36 examples on average" in faults(many)
    few = [
        unknown,
        *steps(examples=20.0),
    ]  # the one may have had 2,000: no contradiction
    assert "on average" not in faults(few)
    assert "60 of 61 batches have 20 examples" in faults(few)
    unseen = check_steps(few, RIGHT, rate=0.05, batch_size=50).unseen
    assert unseen == ("batch sizes in 1 of 61 steps",)
    assert faults([unknown, *steps()]) == ""


def test_lengths_of_clipped_gradients():
    assert "up to 2 times as long as the clip norm, in 60 of 60" in faults(
        steps(largest=2.0)
    )
    parts = (
        BatchSeen(10.0, 1.0),
        BatchSeen(10.0, 2.0),
        BatchSeen(10.0, unseen="nobody knows"),
    )
    found = check_steps([StepSeen(1, parts)], RIGHT)
    assert (
        "up to 2 times as long as the clip norm, in 1 of 1" in found.faults[0]
    )
    assert found.unseen[0] == "clipping of 1 of 3 batches: nobody knows"


def test_one_factor_for_all_gradients_of_a_batch():
    same = steps(common_factor=0.3)  # such as a change of units
    assert faults(same) == ""
    assert "from 0.3 to 0.5 by batch" in faults(
        [*same, *steps(1, common_factor=0.5)]
    )


@pytest.mark.parametrize(
    ("square", "words", "infinite"),
    [
        pytest.param(100.0, "", False, id="right"),
        pytest.param(
            25.0, "0.5 times its scale in 100 entries", False, id="half"
        ),
        pytest.param(0.0, "0 times", True, id="none"),
    ],
)
def test_noise_where_no_gradient_is(square, words, infinite):
    seen = [
        StepSeen(
            1, (BatchSeen(50.0, 1.0),), untouched=100, untouched_square=square
        )
    ]
    found = check_steps([*seen, *steps()], RIGHT, rate=0.05, batch_size=50)
    assert words in "; ".join(found.faults)
    assert bool(found.faults) == bool(words)
    assert (found.unbounded is not None) == infinite
