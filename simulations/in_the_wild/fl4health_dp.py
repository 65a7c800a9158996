"""FL4Health 0.4.2: noise scaled by the next round's clip norm, and a count with raw bits.

    pip install --no-deps --target build/wild/fl4health fl4health==0.4.2 flwr==1.18.0
    PYTHONPATH=build/wild/fl4health python simulations/in_the_wild/fl4health_dp.py

`ClientLevelDPFedAvgM` with adaptive clipping first moves its clip norm by the noisy count of the
round, and then scales the noise of the same round by the moved norm, while the updates were clipped
to the norm before. Where the norm falls, as in the first rounds if it began too high, the noise is
too small: with the default rate of 1 and most clients below the norm, by exp(-½) each round.

Its count has the bits 0 and 1, where the formula that splits the noise takes −½ and ½, and it is
divided by the number of replies. So the count has a sensitivity of 1, not ½: the same defect as of
Opacus's adaptive clipping, negligible with the noise that the paper advises, a twentieth of the
cohort; the default is 1.

Claims are those of its own accountant for one round with all clients.

Expected with `--quick`::

                                                  claimed   proved by       severity
    falling clip norm, quantile 0.5                  4.75     7.48 gdp      theoretical
    falling clip norm, quantile 0.1                  4.75     12.1 gdp      critical
    raw bits, count noise 0.51                       4.75     8.17 gdp      theoretical
    rising clip norm, advised count noise            4.75     2.56 gdp      none found
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from fl_epe.checks import Floats
from fl_epe.conformance.games import Adjacency
from simulations.in_the_wild import wild

DIM, OTHERS = 24, 19


def one_round(
    others: Floats,
    adjacency: Adjacency,
    weights: tuple[float, float],
    **options: Any,
) -> wild.Game:
    """One round of the strategy, with clients that clip to 1 and report whether they had to.

    A score is ``weights`` times the model's move in clip norms, and times the count. The canary's
    update is as long as the clip norm, so that it is not clipped.
    """
    from fl4health.parameter_exchange.parameter_packer import (
        ParameterPackerWithClippingBit,
    )
    from fl4health.strategies.client_dp_fedavgm import ClientLevelDPFedAvgM
    from flwr.common import (
        Code,
        FitRes,
        Status,
        ndarrays_to_parameters,
        parameters_to_ndarrays,
    )

    packer, size = ParameterPackerWithClippingBit(), len(others) + 1

    def reply(update: Floats) -> Any:
        norm = max(float(np.linalg.norm(update)), 1.0)
        packed = packer.pack_parameters([update / norm], float(norm == 1))
        return FitRes(
            Status(Code.OK, ""), ndarrays_to_parameters(packed), 1, {}
        )

    def release(updates: Floats) -> Floats:
        strategy = ClientLevelDPFedAvgM(
            initial_parameters=ndarrays_to_parameters([np.zeros(DIM)]),
            initial_clipping_bound=1.0,
            fit_metrics_aggregation_fn=lambda _: {},
            adaptive_clipping=True,
            **options,
        )
        results = [(None, reply(update[:-1])) for update in updates]
        parameters, _ = strategy.aggregate_fit(1, results, [])
        model, bound = packer.unpack_parameters(
            parameters_to_ndarrays(parameters)
        )
        count = (strategy.clipping_quantile - np.log(bound)) * size
        return np.append(model[0] * size / bound, count)

    of_model, of_count = weights
    direction = np.eye(DIM)[0]
    mixed = np.append(of_model * direction, of_count)
    rows = np.hstack([others, np.zeros((len(others), 1))])
    canary = np.append(direction, 0.0)
    return wild.played(
        release, canary, others=rows, adjacency=adjacency, weights=mixed
    )


def leads() -> list[wild.Lead]:
    """A falling clip norm, a small noise on the count, and what the paper advises."""
    from fl4health.privacy.fl_accountants import (
        FlClientLevelAccountantPoissonSampling,
    )

    accountant = FlClientLevelAccountantPoissonSampling(1.0, 1.0)
    claim, units = (
        float(accountant.get_epsilon(1, wild.DELTA)),
        np.eye(DIM)[1 : OTHERS + 1],
    )
    advised = 10.0  # a twentieth of 200

    def lead(name: str, game: wild.Game, **options: Any) -> wild.Lead:
        return wild.Lead(name, claim, game, method="gdp", **options)

    def falling(quantile: float) -> wild.Game:
        options = {
            "clipping_quantile": quantile,
            "clipping_noise_multiplier": 2.5,
        }
        return one_round(0.1 * units, "zero-out", (1.0, 0.0), **options)

    def counted(
        noise: float,
    ) -> wild.Game:  # all others are clipped, so the clip norm rises
        size = 1 - 1 / (2 * noise) ** 2
        weights = size * np.exp(-0.5), noise**-2
        return one_round(
            10 * units,
            "add-or-remove",
            weights,
            clipping_noise_multiplier=noise,
        )

    return [
        lead(
            "falling clip norm, quantile 0.5",
            falling(0.5),
            defect=True,
            note="the defaults",
        ),
        lead(
            "falling clip norm, quantile 0.1",
            falling(0.1),
            defect=True,
            note="of the updates",
        ),
        lead(
            "raw bits, count noise 0.51",
            counted(0.51),
            defect=True,
            note="almost the least",
        ),
        lead("rising clip norm, advised count noise", counted(advised)),
    ]


if __name__ == "__main__":
    sys.exit(wild.main("fl4health", leads))
