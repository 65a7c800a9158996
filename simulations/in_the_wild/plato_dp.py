"""Plato 1.0 (plato-learn): a variance taken for a deviation, and ε for one bit of many.

    pip install --no-deps --target build/wild/plato plato-learn==1.0
    PYTHONPATH=build/wild/plato python simulations/in_the_wild/plato_dp.py

`feature_gaussian` computes 2·ln(1.25/δ)·S²/ε², which is the variance of the classical Gaussian
mechanism, and hands it to `numpy.random.normal` as the standard deviation. Where that is below 1
there is too little noise: at ε = 1 and a sensitivity of 0.05 a quarter of it, at 0.01 a
twentieth. At a large sensitivity there is too much.

`unary_encoding.randomize` flips each bit with the probability that gives ε to two bits that differ,
as between two one-hot vectors. The processors `feature_randomized_response` and
`model_randomized_response` give it the signs of all features or weights, any of which may differ: ε
is d/2 times the claim.

The trainer `diff_privacy` calibrates its noise for the configured ε anew in each call of
`train_model`, that is in each round in which a client takes part. That was read, not run: it needs
a configuration on the command line. It also reads its clip norm only if another key is set.

Expected::

                                                  claimed   proved by       severity
    feature_gaussian, ε = 1, sensitivity 0.05           1     2.68 gdp      critical
    feature_gaussian, ε = 1, sensitivity 0.01           1     23.8 gdp      critical
    randomized response, 64 features                    1     4.58 weighted critical
    feature_gaussian, ε = 1, sensitivity 10             1        0 gdp      none found
    randomized response, two features                   1    0.778 weighted none found
    feature_laplace, ε = 1                              1    0.556 weighted none found

The last four with `--quick`.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np

from fl_epe.checks import Floats
from simulations.in_the_wild import wild

DIM = 64


def leads() -> list[wild.Lead]:
    """The Gaussian processor at two sensitivities, the bits of one and of many, and Laplace."""
    import torch
    from plato.processors import feature_gaussian, feature_laplace
    from plato.utils import unary_encoding

    def features(processor: Any) -> wild.Release:
        def release(updates: Floats) -> Floats:
            ((values, _),) = processor.process(
                [(torch.tensor(updates[0]), None)]
            )
            return np.asarray(values, np.float64)

        return release

    def bits(epsilon: float) -> wild.Release:
        def release(updates: Floats) -> Floats:
            encoded = unary_encoding.encode(updates[0].copy())
            return np.asarray(
                unary_encoding.randomize(encoded, epsilon), np.float64
            )

        return release

    common: dict[str, Any] = {
        "client_id": 1,
        "trainer": SimpleNamespace(device="cpu"),
    }

    def gaussian(sensitivity: float, **options: Any) -> wild.Lead:
        processor = feature_gaussian.Processor(
            1.0, wild.DELTA, sensitivity, **common
        )
        canary = sensitivity * np.eye(DIM)[0]
        game = wild.played(features(processor), canary, adjacency="zero-out")
        name = f"feature_gaussian, ε = 1, sensitivity {sensitivity:g}"
        return wild.Lead(name, 1.0, game, method="gdp", **options)

    laplace = feature_laplace.Processor(1.0, 1.0, **common)
    unit, signs = np.eye(DIM)[0], np.ones(DIM)

    def encoded(name: str, canary: Floats, **options: Any) -> wild.Lead:
        game = wild.played(bits(1.0), canary, adjacency="substitute")
        return wild.Lead(name, 1.0, game, delta=0.0, **options)

    return [
        gaussian(0.05, defect=True),
        gaussian(0.01, defect=True),
        encoded(
            "randomized response, 64 features",
            signs,
            defect=True,
            note="ε is 32",
        ),
        gaussian(10.0, note="too much noise"),
        encoded("randomized response, two features", np.array([1.0, -1.0])),
        wild.Lead(
            "feature_laplace, ε = 1",
            1.0,
            wild.played(features(laplace), unit, adjacency="zero-out"),
            delta=0.0,
        ),
    ]


if __name__ == "__main__":
    sys.exit(wild.main("plato-learn", leads))
