"""Flower 1.42.0 and 1.41.0: replies weighed by examples, and local DP by the classical formula.

    python simulations/in_the_wild/flower_dp.py

**Weights.** `DifferentialPrivacyServerSideFixedClipping` scales its noise for n equal shares, and
the strategy inside weighs replies by ``num-examples``. With sizes as unequal as in a log-normal
distribution (σ = 1) the heaviest of 50 clients has six shares; one client of 1,000 examples among
clients of ten has almost all of them. With an accountant the wrapper refuses unequal weights: the
defect is of its use without one, which is its default.

**LocalDpMod.** Its noise has standard deviation S·√(2·ln(1.25/δ))/ε for a ``sensitivity`` S that
nothing ties to the clip norm. Two clipped updates are up to 2C apart, so S must be 2C for local DP,
and with S = C the real ε is more than twice the claim at large ε. The formula also holds only for
ε ≤ 1: with the right S it gives too little noise from ε = 8.42 on; at 30 the real ε is 44.8.

What else was found in Flower, such as 0-d arrays, lost replies and other optimizers:
`simulations/in_the_wild/audit_flower_dp.py`.

Expected, with 200 observations for the weights and 4,000 for the others::

                                                  claimed   proved by       severity
    weights, the heaviest of 50 log-normal           4.38     22.7 gdp      critical
    weights, 1,000 examples among tens               4.38     12.8 gdp      critical
    LocalDpMod, ε = 10, sensitivity 1·C                10     23.3 gdp      critical
    LocalDpMod, ε = 30, sensitivity 2·C                30     37.4 gdp      theoretical
    equal weights                                    4.38        0 gdp      none found
    LocalDpMod, ε = 1, sensitivity 2·C                  1        0 gdp      none found

The second had 50 observations.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import scipy
from flwr.app import (
    Array,
    ArrayRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)

from fl_epe.accounting import gaussian_epsilon
from fl_epe.checks import Floats
from fl_epe.simulation.flower_internals import ensure_task_identity
from simulations.in_the_wild import wild

DIM = 8


def record(values: Floats) -> ArrayRecord:
    """One array, as Flower sends it."""
    return ArrayRecord({"w": Array(values)})


def wrapped(sizes: Floats) -> wild.Release:
    """A round of FedAvg in the wrapper, with noise multiplier 1; client i has ``sizes[i]``."""

    def release(updates: Floats) -> Floats:
        strategy = DifferentialPrivacyServerSideFixedClipping(
            FedAvg(), 1.0, 1.0, len(sizes)
        )
        strategy.current_arrays = record(np.zeros(DIM))
        replies = []
        for values, size in zip(updates, sizes, strict=True):
            update = (
                values if values.any() else np.full(DIM, 1e-9)
            )  # it divides by the norm
            sent = Message(RecordDict(), dst_node_id=1, message_type="train")
            metrics = MetricRecord({"num-examples": float(size)})
            content = RecordDict({"arrays": record(update), "metrics": metrics})
            replies.append(Message(content, reply_to=sent))
        arrays, _ = strategy.aggregate_train(1, replies)
        assert arrays is not None
        return np.asarray(arrays["w"].numpy(), np.float64)

    return release


def local(epsilon: float, sensitivity: float) -> wild.Release:
    """What `LocalDpMod` sends for one client, with a clip norm of 1."""
    mod = LocalDpMod(1.0, sensitivity, epsilon, wild.DELTA)
    context = Context(0, 0, {}, RecordDict(), {})

    def release(updates: Floats) -> Floats:
        sent = RecordDict({"arrays": record(np.zeros(DIM))})
        message = Message(sent, dst_node_id=1, message_type="train")

        def client(received: Message, _: Context) -> Message:
            return Message(
                RecordDict({"arrays": record(updates[0])}), reply_to=received
            )

        (arrays,) = mod(message, context, client).content.array_records.values()
        return np.asarray(arrays["w"].numpy(), np.float64)

    return release


def leads() -> list[wild.Lead]:
    """Unequal and equal weights, and local DP for small and large ε."""
    ensure_task_identity(0)
    canary, claim = 5 * np.eye(DIM)[0], gaussian_epsilon(1.0, wild.DELTA)

    def weighed(name: str, sizes: Floats, **options: Any) -> wild.Lead:
        other_updates = (
            0.1 * np.eye(DIM)[1 + np.arange(len(sizes) - 1) % (DIM - 1)]
        )
        game = wild.played(
            wrapped(sizes), canary, others=other_updates, adjacency="zero-out"
        )
        return wild.Lead(name, claim, game, most=200, method="gdp", **options)

    def own(epsilon: float, sensitivity: float, **options: Any) -> wild.Lead:
        name = f"LocalDpMod, ε = {epsilon:g}, sensitivity {sensitivity:g}·C"
        game = wild.played(
            local(epsilon, sensitivity), canary, adjacency="substitute"
        )
        return wild.Lead(name, epsilon, game, method="gdp", **options)

    lognormal = np.exp(
        scipy.special.ndtri((np.arange(50) + 0.5) / 50)
    )  # the last is the heaviest
    tens = np.array([10.0] * 19 + [1000.0])
    return [
        weighed(
            "weights, the heaviest of 50 log-normal", lognormal, defect=True
        ),
        weighed("weights, 1,000 examples among tens", tens, defect=True),
        own(10.0, 1.0, defect=True, note="S = C, as the name suggests"),
        own(30.0, 2.0, defect=True, note="S = 2C: the formula alone"),
        weighed("equal weights", np.full(20, 10.0)),
        own(1.0, 2.0),
    ]


if __name__ == "__main__":
    sys.exit(wild.main("flwr", leads))
