import math

import numpy as np
import pytest
import torch

from fl_epe.dp_sgd.step_checks import (
    StepFindings,
    StepSeen,
    check_steps,
    largest_clipped,
    sketch_of,
)

SIZES = np.array([500, 20, 80])


def steps(count=60, seed=0, scales=(1.0, 1.0, 1.0), claimed=1.0, **facts):
    """Steps with batches of 1,000 examples at a rate of 0.05, and noise of these scales."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(count):
        noise = rng.normal(0, np.repeat(scales, SIZES))
        squares = np.add.reduceat(noise**2, [0, 500, 520])
        seen = {
            "noise_scale": claimed,
            "largest": 1.0,
            "examples": float(rng.binomial(1000, 0.05)),
            "batches": 1,
            "squares": squares,
            "sketch": sketch_of(noise),
        }
        found.append(StepSeen(**(seen | facts)))
    return found


def faults(seen, rate=0.05):
    return "; ".join(check_steps(seen, SIZES, rate=rate, batch_size=50).faults)


@pytest.mark.parametrize("runs", [60, pytest.param(300, marks=pytest.mark.slow)])
def test_right_runs_have_no_fault(runs):
    # Each of four comparisons has at most 1e-4, so that 300 runs have 0.12 on average.
    found = [faults(steps(seed=seed)) for seed in range(runs)]
    assert sum(bool(text) for text in found) <= (2 if runs == 300 else 1)


def test_each_tensor_s_noise_has_its_claimed_scale():
    assert "the noise has 0.80 times" in faults(steps(scales=(0.8, 0.8, 0.8)))
    assert "the noise of tensor 2 of 3 has 0.5" in faults(steps(scales=(1, 0.5, 1)))
    assert "the noise of tensor 3 of 3 has 1.5" in faults(steps(scales=(1, 1, 1.5)))
    silent = check_steps(steps(scales=(1, 0, 1)), SIZES, rate=0.05, batch_size=50)
    assert silent.unbounded == "60 of 60 steps had no noise in some tensor"
    assert len(silent.faults) == 1
    assert check_steps(steps(scales=(0, 0, 0), claimed=0.0), SIZES).faults == ()


@pytest.mark.parametrize("sign", [1, -1])
def test_two_steps_of_many_with_the_same_noise(sign):
    seen = steps(300)
    seen[211] = StepSeen(**(vars(seen[211]) | {"sketch": sign * seen[17].sketch * 0.7}))
    found = check_steps(seen, SIZES, rate=0.05, batch_size=50)
    assert found.faults == ("the noise of step 212 is that of step 18 (correlation 1.000)",)
    assert found.unbounded == found.faults[0]


def test_batch_sizes():
    assert "60 of 60 batches have 50 examples" in faults(steps(examples=50.0))
    few = faults(steps(), rate=0.06)  # 50 examples are those of 833 then: no contradiction
    assert few == ""
    assert "100 examples on average" in faults(steps(examples=100.0))
    assert faults(steps(examples=50.0), rate=1.0) == ""  # everybody, in every step
    unknown = check_steps(steps(examples=math.nan), SIZES, rate=0.05, batch_size=50)
    assert "batch sizes" in unknown.unseen[0]
    assert check_steps([], SIZES) == StepFindings()


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
