"""How often does the conformance suite accuse a mechanism that is right?

    python simulations/studies/conform_false_alarms.py              # 500 runs of each: half an hour
    python simulations/studies/conform_false_alarms.py --runs 20    # for a look

All checks of `fl_epe.conformance.conform` together are to fail for a right mechanism with a
probability of at most 1%: in at most 9 of 500 runs, which at 1% is exceeded in one study of 32. The
mechanisms are the Gaussian one, Laplace's, and Gaussian noise on batches that are drawn by coins.
With ``--trials 200``, the default, no run of the 500 of each accused one (2026-11-26).
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

import numpy as np

from fl_epe.checks import Floats
from fl_epe.conformance import Target, conform
from fl_epe.conformance.games import clipped

_STEPS, _RATE = 4, 0.25


def gaussian(updates: Floats, rng: np.random.Generator) -> Floats:
    """The clipped sum with z = 1."""
    return np.asarray(
        clipped(updates, 1.0).sum(axis=0) + rng.normal(0, 1, updates.shape[1])
    )


def laplace(updates: Floats, rng: np.random.Generator) -> Floats:
    """The sum of updates that are clipped in L1, with ε = 1."""
    norms = np.abs(updates).sum(axis=1, keepdims=True)
    total = (updates / np.maximum(norms, 1.0)).sum(axis=0)
    return np.asarray(total + rng.laplace(0, 1, total.size))


def sampled(updates: Floats, rng: np.random.Generator) -> Floats:
    """The clipped sum of a batch that is drawn by coins, with z = 1."""
    return gaussian(updates[rng.random(len(updates)) < _RATE], rng)


TARGETS = {
    "gaussian": Target(
        gaussian,
        delta=1e-5,
        noise_multiplier=1.0,
        noise="gaussian",
        inputs="finite",
    ),
    "laplace": Target(
        laplace, epsilon=1.0, norm="l1", noise="laplace", inputs="finite"
    ),
    "sampled": Target(
        sampled,
        delta=1e-5,
        noise_multiplier=1.0,
        noise="gaussian",
        inputs="finite",
        steps=_STEPS,
        sampling_rate=_RATE,
        draws_batches=True,
    ),
}


def main() -> None:
    """Print how many runs accused each mechanism, and by which checks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument(
        "--first", type=int, default=0, help="seed of the first run"
    )
    parser.add_argument(
        "--only", nargs="+", choices=TARGETS, default=list(TARGETS)
    )
    options = parser.parse_args()
    for name in options.only:
        alarms, by, start = 0, Counter[str](), time.monotonic()
        for run in range(1, options.runs + 1):
            result = conform(
                TARGETS[name],
                trials=options.trials,
                seed=options.first + run - 1,
            )
            alarms += not result.passed
            by.update(check.name for check in result.failed)
            if run % 50 == 0 or run == options.runs:
                took = (time.monotonic() - start) / run
                print(
                    f"{name}: {alarms} of {run} runs, {took:.2f} s each; {dict(by)}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
