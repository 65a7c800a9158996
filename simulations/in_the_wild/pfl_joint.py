"""pfl-research 0.6.0: one seed for every sub-mechanism of `JointMechanism`, and what is sound.

    pip install --no-deps --target build/wild/pfl pfl==0.6.0 prv-accountant==0.2.0
    PYTHONPATH=build/wild/pfl python simulations/in_the_wild/pfl_joint.py

`JointMechanism` protects arrays by several mechanisms and hands each of them the seed of the round,
which pfl's own training algorithm always sets. Two Gaussian mechanisms then add the same noise, up
to its scale, to arrays of equal shape: their difference is free of noise. The claim is that of
pfl's `JointPrivacyAccountant`. Without a seed the same game finds nothing, but pfl offers no such
training. With arrays of different shapes the same holds for the numbers that both draws begin with:
always with NumPy, and with PyTorch for shapes of fewer than 16 entries.

The defect of the banded matrix mechanism has a script of its own,
`simulations/in_the_wild/pfl_banded.py`.

Expected with `--quick`::

                                                  claimed   proved by       severity
    JointMechanism, seeded                           1.36     5.07 weighted critical
    JointMechanism, another scale                    1.05     4.81 weighted critical
    JointMechanism, another shape                    1.36     5.05 weighted critical
    JointMechanism without a seed                    1.36    0.452 weighted none found
    GaussianMechanism                                4.38      1.7 weighted none found
    GaussianMechanism for ε = 2                         2    0.734 weighted none found
    LaplaceMechanism                                    2     1.48 weighted none found
    AdaptiveClippingGaussianMechanism                4.38     1.42 weighted none found
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from fl_epe.checks import Floats
from simulations.in_the_wild import wild

SIZE = 8  # of each array
NOISE = 4.0  # of each mechanism
BITS = 2**32  # as pfl draws the seed of a round


def server(
    mechanism: Any, shapes: dict[str, int], seeded: bool
) -> wild.Release:
    """A round of pfl: users' postprocessing, a sum, and the server's."""
    import torch
    from pfl.common_types import Population
    from pfl.context import CentralContext, UserContext
    from pfl.metrics import Metrics
    from pfl.stats import MappedVectorStatistics

    cuts = np.cumsum(list(shapes.values()))[:-1]
    rng = np.random.default_rng()

    def statistics(update: Floats, weight: int) -> Any:
        parts = np.split(update.astype(np.float32), cuts)
        tensors = map(torch.from_numpy, parts)
        return MappedVectorStatistics(
            dict(zip(shapes, tensors, strict=True)), weight=weight
        )

    def release(updates: Floats) -> Floats:
        total = None
        for update in updates:
            user = UserContext(num_datapoints=1, seed=None)
            stats, _ = mechanism.postprocess_one_user(
                stats=statistics(update, 1), user_context=user
            )
            total = stats if total is None else total + stats
        total = total or statistics(np.zeros(sum(shapes.values())), 0)
        context = CentralContext(
            current_central_iteration=0,
            do_evaluation=False,
            cohort_size=max(len(updates), 1),
            population=Population.TRAIN,
            algorithm_params=None,
            model_train_params=None,
            seed=int(rng.integers(BITS)) if seeded else None,
        )
        noisy, _ = mechanism.postprocess_server(
            stats=total, central_context=context, aggregate_metrics=Metrics()
        )
        return np.concatenate(
            [np.asarray(noisy[name], np.float64) for name in shapes]
        )

    return release


def leads() -> list[wild.Lead]:
    """The joint mechanism with and without a seed, and pfl's other mechanisms."""
    from pfl.internal.ops import pytorch_ops
    from pfl.internal.ops.selector import set_framework_module
    from pfl.privacy.adaptive_clipping import AdaptiveClippingGaussianMechanism
    from pfl.privacy.gaussian_mechanism import GaussianMechanism
    from pfl.privacy.joint_mechanism import JointMechanism
    from pfl.privacy.joint_privacy_accountant import JointPrivacyAccountant
    from pfl.privacy.laplace_mechanism import LaplaceMechanism
    from pfl.privacy.privacy_accountant import PLDPrivacyAccountant
    from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

    set_framework_module(pytorch_ops)

    def joint(
        other_noise: float, seeded: bool, second: int = SIZE, **options: Any
    ) -> wild.Lead:
        noises = [NOISE, other_noise]
        accountant = JointPrivacyAccountant(
            mechanisms=["gaussian", "gaussian"],
            accountants=PLDPrivacyAccountant,
            num_compositions=1,
            sampling_probability=1.0,
            noise_parameters=noises,
            total_delta=wild.DELTA,
        )
        gaussians = [GaussianMechanism(1.0, z) for z in noises]
        mechanisms = {"a": (gaussians[0], ["a"]), "b": (gaussians[1], ["b"])}
        mechanism = CentrallyAppliedPrivacyMechanism(JointMechanism(mechanisms))
        canary = np.zeros(SIZE + second)
        canary[0], canary[SIZE] = 2.0, -2.0  # clipped to 1 in each array
        weights = np.zeros(SIZE + second)
        weights[0], weights[SIZE] = 1 / noises[0], -1 / noises[1]
        release = server(mechanism, {"a": SIZE, "b": second}, seeded)
        game = wild.played(release, canary, weights=weights)
        return wild.Lead(
            claim=accountant.total_epsilon, game=game, most=2000, **options
        )

    def single(
        name: str, local: Any, claim: float, delta: float = wild.DELTA
    ) -> wild.Lead:
        mechanism = CentrallyAppliedPrivacyMechanism(local)
        canary = 5.0 * np.eye(2 * SIZE)[0]
        release = server(mechanism, {"a": SIZE, "b": SIZE}, True)
        return wild.Lead(
            name, claim, wild.played(release, canary), delta=delta, most=2000
        )

    adaptive = AdaptiveClippingGaussianMechanism(
        lambda c: GaussianMechanism(c, 1.0), 1.0, 2.0, 0.5
    )
    gaussian = PLDPrivacyAccountant(
        1, 1.0, "gaussian", delta=wild.DELTA, noise_parameter=1.0
    )
    once = GaussianMechanism.construct_single_iteration(1.0, 2.0, wild.DELTA)
    equal, unequal = (
        "equal shapes, as in every run",
        "arrays of 8 and of 6 entries",
    )
    return [
        joint(
            NOISE, True, name="JointMechanism, seeded", defect=True, note=equal
        ),
        joint(
            8.0,
            True,
            name="JointMechanism, another scale",
            defect=True,
            note=equal,
        ),
        joint(
            NOISE,
            True,
            6,
            name="JointMechanism, another shape",
            defect=True,
            note=unequal,
        ),
        joint(NOISE, False, name="JointMechanism without a seed"),
        single(
            "GaussianMechanism", GaussianMechanism(1.0, 1.0), gaussian.epsilon
        ),
        single("GaussianMechanism for ε = 2", once, 2.0),
        single("LaplaceMechanism", LaplaceMechanism(1.0, 2.0), 2.0, delta=0.0),
        wild.Lead(
            "AdaptiveClippingGaussianMechanism",
            gaussian.epsilon,
            _adaptive_game(adaptive),
            note="model and clip norm together",
            most=2000,
        ),
    ]


def _adaptive_game(mechanism: Any) -> wild.Game:
    """The model and the clip norm together; pfl's cohorts have a fixed size, as here."""
    inner = server(mechanism, {"a": 2 * SIZE}, True)
    other_updates = 0.1 * np.eye(2 * SIZE)[1:5]
    bound, start = (
        mechanism.mutable_clipping_bound,
        mechanism.mutable_clipping_bound.value(),
    )

    def release(updates: Floats) -> Floats:
        bound.set_value(start)
        released = inner(updates[:, :-1])
        count = (-np.log(bound.value() / start) / 0.2 + 0.5) * len(
            updates
        )  # who was not clipped
        return np.append(released, count)

    canary = np.append(
        np.eye(2 * SIZE)[0], 0.0
    )  # of the clip norm: not clipped
    with_clip_norm = np.hstack(
        [other_updates, np.zeros((len(other_updates), 1))]
    )
    weights = np.append(canary[:-1], 0.25)
    return wild.played(
        release,
        canary,
        others=with_clip_norm,
        adjacency="zero-out",
        weights=weights,
    )


if __name__ == "__main__":
    sys.exit(wild.main("pfl", leads))
