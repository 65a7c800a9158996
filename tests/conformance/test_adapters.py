"""Targets of Flower, Opacus and pfl: what is right passes, and known defects are found."""

import sys
import types

import numpy as np
import pytest
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)
from opacus.optimizers import DPOptimizer

from fl_epe.conformance import conform
from fl_epe.conformance.adapters import (
    of_flower_mod,
    of_flower_strategy,
    of_opacus,
    of_pfl,
)

CLAIM = {"noise_multiplier": 1.0, "delta": 1e-5, "noise": "gaussian"}


def failed(found):
    return {check.name for check in found.failed}


@pytest.mark.weekly
def test_flowers_wrapper_weighs_by_examples_and_lets_0_d_arrays_and_nan_through():
    target = of_flower_strategy(
        lambda: DifferentialPrivacyServerSideFixedClipping(
            FedAvg(), 1.0, 1.0, 4
        ),
        sensitivity=0.25,
        **CLAIM,
    )
    result = conform(target, trials=40)
    found = failed(result)
    assert {"input: 1,000 times the examples", "input: a 0-d array"} <= found
    assert "input: NaN" in [
        c.name for c in result.checks if c.outcome == "not handled"
    ]
    assert (
        not {"sensitivity", "input: huge entries", "input: arrays renamed"}
        & found
    )
    assert not any(name.startswith(("noise", "game")) for name in found)


@pytest.mark.slow
def test_a_mod_whose_noise_does_not_follow_the_clip_norm():
    def mod(clip_norm):
        claim = {"epsilon": 4.0, "delta": 1e-5, "noise": "gaussian"}
        return of_flower_mod(
            lambda: LocalDpMod(clip_norm, 1.0, 4.0, 1e-5), **claim
        )

    assert "sensitivity" not in failed(conform(mod(1.0), trials=40))
    assert "sensitivity" in failed(conform(mod(10.0), trials=40))


OPTIMIZER = of_opacus(
    lambda inner: DPOptimizer(
        inner,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=None,
        loss_reduction="sum",
    ),
    **CLAIM,
)


@pytest.mark.weekly
def test_an_optimizer_step_passes():
    assert failed(conform(OPTIMIZER, trials=40)) == set()


@pytest.mark.slow
def test_the_form_of_pfl(monkeypatch):
    """With stand-ins that have pfl's names, as pfl itself is not installed here."""

    class Statistics(dict):
        def __init__(self, values, weight):
            super().__init__(values)

        def __add__(self, other):
            return Statistics(
                {name: self[name] + other[name] for name in self}, 1.0
            )

    class Mechanism:
        apart = 1

        def constrain_sensitivity(self, user, seed):
            norm = np.sqrt(sum((array**2).sum() for array in user.values()))
            return Statistics(
                {k: v / max(norm, 1.0) for k, v in user.items()}, 1.0
            ), None

        def add_noise(self, total, cohort_size, seed):
            rngs = [
                np.random.default_rng((seed, i * self.apart)) for i in range(2)
            ]
            noisy = {
                name: array + rng.normal(0, 1, array.shape).reshape(array.shape)
                for (name, array), rng in zip(total.items(), rngs, strict=True)
            }
            return Statistics(noisy, 1.0), None

    module = types.ModuleType("pfl.stats")
    monkeypatch.setattr(
        module, "MappedVectorStatistics", Statistics, raising=False
    )
    monkeypatch.setitem(sys.modules, "pfl", types.ModuleType("pfl"))
    monkeypatch.setitem(sys.modules, "pfl.stats", module)
    mechanism = Mechanism()
    assert failed(conform(of_pfl(mechanism, **CLAIM), trials=100)) == set()
    mechanism.apart = 0  # one seed for both arrays
    assert {"noise: independence of arrays", "game: one entry"} <= failed(
        conform(of_pfl(mechanism, **CLAIM), trials=200)
    )


@pytest.mark.parametrize(
    "name", ["of_flower_strategy", "of_flower_mod", "of_opacus", "of_pfl"]
)
def test_an_adapter_is_made_without_its_library(name, monkeypatch):
    from fl_epe.conformance import adapters

    for library in ("flwr", "flwr.app", "torch", "opacus", "pfl"):
        monkeypatch.setitem(sys.modules, library, None)
    assert getattr(adapters, name)(
        lambda: None, **CLAIM
    ).claimed_epsilon == pytest.approx(4.377, abs=1e-3)
