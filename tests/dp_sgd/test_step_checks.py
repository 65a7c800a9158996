import math

import numpy as np
import pytest
import torch

from fl_epe.dp_sgd.step_checks import StepFindings, StepSeen, check_steps, largest_clipped
from fl_epe.noise import check_noise

SILENT = check_noise(np.zeros(10), 1.0)
RIGHT = check_noise(np.random.default_rng(2**40).normal(size=500), 1.0)


def steps(count=60, seed=0, **facts):
    """Steps with batches of 1,000 examples at a rate of 0.05."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(count):
        seen = {"largest": 1.0, "examples": float(rng.binomial(1000, 0.05)), "batches": 1}
        found.append(StepSeen(**(seen | facts)))
    return found


def faults(seen, rate=0.05):
    return "; ".join(check_steps(seen, RIGHT, rate=rate, batch_size=50).faults)


@pytest.mark.parametrize("runs", [60, pytest.param(300, marks=pytest.mark.slow)])
def test_right_runs_have_no_fault(runs):
    # The two comparisons of batch sizes have at most 1e-4 each: 300 runs have 0.06 on average.
    found = [faults(steps(seed=seed)) for seed in range(runs)]
    assert sum(bool(text) for text in found) <= (2 if runs == 300 else 1)


def test_noise_that_is_missing_or_not_as_claimed():
    silent = check_steps(steps(), SILENT, rate=0.05, batch_size=50)
    assert silent.unbounded == "the noise: 1 of 1 without any: array 1"
    assert "not as claimed (arrays without noise): 1 of 1 without any" in silent.faults[0]
    none = check_steps(steps(silent=True), [])
    assert (none.faults, none.unbounded) == ((), "60 of 60 steps had no noise")
    same = np.random.default_rng(2**40).normal(size=100)
    repeats = check_steps(steps(), check_noise([same, same], 1.0), rate=0.05, batch_size=50)
    assert repeats.unbounded == "the noise: rounds 1 and 2 have the same noise"
    assert "rounds 1 and 2 have the same noise" in repeats.faults[0]
    seeded = check_noise(np.random.default_rng(1).normal(size=100), 1.0)
    found = check_steps(steps(), seeded, rate=0.05, batch_size=50)
    assert "numpy.random.default_rng(1)" in found.faults[0]
    assert found.unbounded is None


def test_batch_sizes():
    assert "60 of 60 batches have 50 examples" in faults(steps(examples=50.0))
    few = faults(steps(), rate=0.06)  # 50 examples are those of 833 then: no contradiction
    assert few == ""
    assert "100 examples on average" in faults(steps(examples=100.0))
    assert faults(steps(examples=50.0), rate=1.0) == ""  # everybody, in every step
    unknown = check_steps(steps(examples=math.nan), RIGHT, rate=0.05, batch_size=50)
    assert "batch sizes" in unknown.unseen[0]
    assert check_steps([], []) == StepFindings()


def test_the_longest_clipped_gradient():
    rng = np.random.default_rng(1)
    gradients = rng.normal(size=(40, 300)) * rng.lognormal(-3, 1, 40)[:, None]
    norms = np.linalg.norm(gradients, axis=1)

    def longest(total):
        return largest_clipped([torch.from_numpy(gradients)], [torch.from_numpy(total)], 1.0)

    for limit in (0.5, 1.0, 1.7, 1e9):
        found = longest(np.minimum(1, limit / norms) @ gradients)
        assert found == pytest.approx(min(limit, norms.max()))
    assert math.isnan(longest((1 / (norms + 0.3)) @ gradients))  # smooth clipping: not known
    assert longest(np.zeros(300)) >= 0 or math.isnan(longest(np.zeros(300)))
    assert "longer" not in faults(steps(largest=math.nan))
    assert "up to 2 times as long as the clip norm, in 60 of 60" in faults(steps(largest=2.0))
