"""Opacus 1.6.0 and 1.5.4: what adaptive clipping releases beside the gradient, and plain DP-SGD.

    pip install --no-deps opacus==1.6.0   # of the extra `opacus`
    python simulations/in_the_wild/opacus_dp.py
    pip install --no-deps --target build/wild/opacus opacus==1.5.4
    PYTHONPATH=build/wild/opacus python simulations/in_the_wild/opacus_dp.py

`AdaClipDPOptimizer` releases a noisy gradient sum and, by its clip norm, a noisy count of gradients
that were not clipped. The accounting follows Andrew et al. (2021, Theorem 1): the count has a
sensitivity of ½, because each example adds +½ or −½, and is divided by a fixed number. Here each
example adds 0 or 1, and the count is divided by how many were sampled, so that its sensitivity is
1. At noise multiplier z and count noise σ_b the release is μ-GDP with μ² = 1/z² + 3/(4·σ_b²) and
not 1/z². The paper's σ_b is a twentieth of the batch: there the excess is negligible. Near its
smallest value, z/2, μ is twice the claim.

Until 1.5.4 the optimizer also kept the larger multiplier of the gradient alone as its own, so that
the accountant left the count out altogether. 1.6.0 accounts it.

Claims are those of Opacus's PRV accountant (its default) for one step with all examples,
from what its hook reads of the optimizer.

Expected, 1.6.0::

                                                  claimed   proved by       severity
    AdaClip, z = 1, σ_b = 0.51                       4.39     8.59 gdp      theoretical
    AdaClip, z = 1, σ_b = 1.2                        4.39     5.19 gdp      theoretical
    AdaClip, z = 1, σ_b = 10                         4.39     4.09 gdp      none found
    DPOptimizer, z = 1                               4.39     2.68 weighted none found
    DPPerLayerOptimizer, z = 1                       4.39     2.68 weighted none found

and 1.5.4::

                                                  claimed   proved by       severity
    AdaClip, z = 1, σ_b = 0.51                      0.724     8.59 gdp      critical
    AdaClip, z = 1, σ_b = 1.2                        3.93     5.19 gdp      theoretical
    AdaClip, z = 1, σ_b = 10                         4.38     4.09 gdp      none found
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from fl_epe.checks import Floats
from simulations.in_the_wild import wild

DIM, OTHERS = 8, 9


def step(
    make: Callable[[Any], Any], counted: bool
) -> tuple[wild.Release, float]:
    """One step of an optimizer on given gradients of examples, and ε of what it accounts."""
    import torch
    from opacus.accountants import PRVAccountant

    def fresh() -> tuple[Any, Any]:
        parameter = torch.nn.Parameter(torch.zeros(DIM))
        return parameter, make(torch.optim.SGD([parameter], lr=1.0))

    def release(updates: Floats) -> Floats:
        parameter, optimizer = fresh()
        gradients = updates[:, :DIM]
        parameter.grad_sample = torch.tensor(gradients, dtype=torch.float32)
        optimizer.step()
        summed = -np.asarray(parameter.detach().numpy(), np.float64)
        if not counted:
            return summed
        share = (
            -np.log(float(optimizer.max_grad_norm))
            + optimizer.target_unclipped_quantile
        )
        return np.append(
            summed, share * (OTHERS + 1)
        )  # a count, as who sees it would guess

    accountant, (_, optimizer) = PRVAccountant(), fresh()
    accountant.step(
        noise_multiplier=optimizer.noise_multiplier, sample_rate=1.0
    )
    return release, float(accountant.get_epsilon(wild.DELTA))


def leads() -> list[wild.Lead]:
    """Adaptive clipping with three amounts of noise on the count, and plain DP-SGD."""
    import opacus
    from opacus.optimizers import (
        AdaClipDPOptimizer,
        DPOptimizer,
        DPPerLayerOptimizer,
    )

    fixed = {"expected_batch_size": 1, "loss_reduction": "sum"}

    def adaptive(noise: float, count_noise: float, **options: Any) -> wild.Lead:
        def make(inner: Any) -> Any:
            return AdaClipDPOptimizer(
                inner,
                noise_multiplier=noise,
                max_grad_norm=1.0,
                target_unclipped_quantile=0.5,
                clipbound_learning_rate=1.0,
                max_clipbound=1e6,
                min_clipbound=1e-6,
                unclipped_num_std=count_noise,
                **fixed,
            )

        release, claim = step(make, counted=True)
        of_gradient = noise**-2 - (2 * count_noise) ** -2  # 1 over its variance
        canary = np.append(0.999 * np.eye(DIM)[0], 0.0)  # not clipped
        weights = np.append(of_gradient * np.eye(DIM)[0], count_noise**-2)
        other_updates = np.hstack(
            [10 * np.eye(DIM)[[1, 2, 3] * 3], np.zeros((OTHERS, 1))]
        )  # clipped
        game = wild.played(
            release, canary, others=other_updates, weights=weights
        )
        name = f"AdaClip, z = {noise:g}, σ_b = {count_noise:g}"
        return wild.Lead(name, claim, game, method="gdp", **options)

    def plain(name: str, make: Callable[[Any], Any]) -> wild.Lead:
        release, claim = step(make, counted=False)
        game = wild.played(
            release, 5 * np.eye(DIM)[0], others=0.1 * np.eye(DIM)[1:5]
        )
        return wild.Lead(name, claim, game)

    old = opacus.__version__.startswith("1.5")
    by_layer = {"max_grad_norm": [1.0]}
    return [
        adaptive(
            1.0, 0.51, defect=True, note="almost the least noise on the count"
        ),
        adaptive(1.0, 1.2, defect=True, note="as little as on the gradient"),
        adaptive(1.0, 10.0, note="as the paper advises"),
        plain(
            "DPOptimizer, z = 1",
            lambda inner: DPOptimizer(
                inner, noise_multiplier=1.0, max_grad_norm=1.0, **fixed
            ),
        ),
        plain(
            "DPPerLayerOptimizer, z = 1",
            lambda inner: DPPerLayerOptimizer(
                inner, noise_multiplier=1.0, **by_layer, **fixed
            ),
        ),
    ][: None if not old else 5]


if __name__ == "__main__":
    sys.exit(wild.main("opacus", leads, observations=6000))
