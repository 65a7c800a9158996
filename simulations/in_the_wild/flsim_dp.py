r"""FLSim 0.1.0: weights that the noise does not know, and a seed used in every round.

    pip install --no-deps --target build/wild/flsim flsim==0.1.0 hydra-core omegaconf \
        antlr4-python3-runtime==4.9.3
    PYTHONPATH=build/wild/flsim python simulations/in_the_wild/flsim_dp.py

`WeightedDPRoundReducer` has a method for the sensitivity of a weighted average, and nothing calls
it: the noise is that of unweighted clients, z·C over the sum of weights. A client with a weight of
w has w times the sensitivity, and up to ``max_weight`` is allowed. (The method itself multiplies by
``min_weight`` where its docstring divides.) Weights of at most 1 are safe.

The servers attach the privacy engine anew in every round, which seeds its generator: with a
``noise_seed`` each round has the same noise, and a difference of two rounds has none. The setting
is marked as one for debugging.

The lead that FLSim's adaptive clipping is wrong as Opacus's is refuted for this release, the
newest: it has none. FLSim was written for Python 3.10 and older, whose data classes take defaults
that later ones refuse; here they are made hashable while it is imported.

Expected, with 60 observations::

                                                  claimed   proved by       severity
    weights from 1 to 10, the canary at 10           1.01      6.2 gdp      critical

The other rows were not run to the end: a round takes tens of milliseconds here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from fl_epe.checks import Floats
from simulations.in_the_wild import wild

DIM, USERS = 8, 10
ORDERS = [
    2.0,
    4.0,
    8.0,
    16.0,
    18.0,
    20.0,
    22.0,
    32.0,
    64.0,
]  # of Rényi, few for speed


@contextlib.contextmanager
def older_dataclasses() -> Iterator[None]:
    """FLSim's data classes may be defaults of fields, as all might before Python 3.11."""
    ours = dataclasses.dataclass

    def hashable(cls: Any = None, /, **options: Any) -> Any:
        if cls is None:
            return lambda found: hashable(found, **options)
        if cls.__module__.startswith("flsim."):
            options["unsafe_hash"] = True
        return ours(cls, **options)

    dataclasses.dataclass = hashable
    try:
        yield
    finally:
        dataclasses.dataclass = ours


def reduced(most: float) -> tuple[wild.Release, float]:
    """A round of the weighted reducer, whose last user has the largest weight, and its ε."""
    import torch
    from flsim.privacy.common import PrivacySetting
    from flsim.reducers.base_round_reducer import ReductionType
    from flsim.reducers.weighted_dp_round_reducer import WeightedDPRoundReducer

    def model(values: Floats) -> Any:
        module = torch.nn.Linear(DIM, 1, bias=False)
        module.weight.data = torch.tensor(values[None], dtype=torch.float32)
        return SimpleNamespace(fl_get_module=lambda: module)

    sizes = [1.0] * (USERS - 1) + [most]

    def made() -> Any:
        return WeightedDPRoundReducer(
            global_model=model(np.zeros(DIM)),
            num_users_per_round=USERS,
            total_number_of_users=USERS,
            reduction_type=ReductionType.WEIGHTED_AVERAGE,
            min_weight=1.0,
            max_weight=most,
            mean_weight=most,
            privacy_setting=PrivacySetting(
                noise_multiplier=4.0, clipping_value=1.0, alphas=ORDERS
            ),
        )

    def run(reducer: Any, updates: Floats) -> Any:
        reducer.reset(reducer.ref_model)
        for update, size in zip(updates, sizes, strict=True):
            reducer.collect_update(model(update), size)
        module, _ = reducer.reduce()
        return module

    def release(updates: Floats) -> Floats:
        module = run(reducer, updates)
        return np.asarray(module.weight.detach()[0], np.float64)

    reducer, once = made(), made()
    run(once, np.zeros((USERS, DIM)))
    return release, float(once.privacy_budget.epsilon)


def two_rounds(seed: int | None) -> tuple[wild.Release, float]:
    """A client takes part in the first of two rounds; the difference of both is released."""
    import torch
    from flsim.privacy.common import PrivacySetting
    from flsim.privacy.privacy_engine import GaussianPrivacyEngine

    setting = PrivacySetting(
        noise_multiplier=4.0, clipping_value=1.0, alphas=ORDERS, noise_seed=seed
    )

    def run(updates: Floats) -> tuple[Floats, Any]:
        engine, released = GaussianPrivacyEngine(setting, USERS, USERS), []
        for total in (updates.sum(axis=0), np.zeros(DIM)):
            module = torch.nn.Linear(DIM, 1, bias=False)
            module.weight.data = torch.tensor(total[None], dtype=torch.float32)
            engine.attach(module)  # as the servers do in every round
            engine.add_noise(module, 1.0)
            released.append(np.asarray(module.weight.detach()[0], np.float64))
        return released[0] - released[1], engine

    _, engine = run(np.zeros((1, DIM)))
    return lambda updates: run(updates)[0], float(
        engine.get_privacy_spent().epsilon
    )


def leads() -> list[wild.Lead]:
    """Unequal and equal weights, and two rounds with and without a seed."""
    with older_dataclasses():
        import flsim.reducers.weighted_dp_round_reducer  # noqa: F401

    canary, other_updates = (
        np.eye(DIM)[0],
        0.1 * np.eye(DIM)[1 + np.arange(USERS - 1) % (DIM - 1)],
    )

    def weighed(name: str, most: float, **options: Any) -> wild.Lead:
        release, claim = reduced(most)
        game = wild.played(
            release, canary, others=other_updates, adjacency="zero-out"
        )
        return wild.Lead(name, claim, game, method="gdp", most=1000, **options)

    def twice(name: str, seed: int | None, **options: Any) -> wild.Lead:
        release, claim = two_rounds(seed)
        return wild.Lead(
            name, claim, wild.played(release, canary), most=1000, **options
        )

    return [
        weighed("weights from 1 to 10, the canary at 10", 10.0, defect=True),
        weighed("weights from 1 to 3, the canary at 3", 3.0, defect=True),
        weighed("weights from 1 to 1", 1.0),
        twice(
            "two rounds, noise_seed=1",
            1,
            defect=True,
            note="a setting for debugging",
        ),
        twice("two rounds without a seed", None),
    ]


if __name__ == "__main__":
    sys.exit(wild.main("flsim", leads))
