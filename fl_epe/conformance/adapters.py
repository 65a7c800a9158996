"""Targets of widely used libraries: Flower's strategies and mods, Opacus's optimizer, pfl.

Each function takes the claim as `Target` does, and the target imports its library when it is
called. Noise comes from the library's global generator, which is seeded before each release, so
that two releases with one seed have the same noise. Updates of Flower's clients may have any
values, as clients send them; updates of the other libraries are finite. ``sensitivity`` is the
sensitivity of the release: for a mean over n clients it is the clip norm over n. Adjacency is
"zero-out", and the model has two arrays, "weight" and "bias".

Examples:
    >>> from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping as Wrapper
    >>> from flwr.serverapp.strategy import FedAvg
    >>> target = of_flower_strategy(
    ...     lambda: Wrapper(FedAvg(), 1.0, 1.0, 4),
    ...     noise_multiplier=1.0, delta=1e-5, sensitivity=0.25, noise="gaussian")
    >>> target(np.ones((4, 12)), np.random.default_rng(0)).shape
    (12,)
"""

import contextlib
import logging
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fl_epe.checks import Floats
from fl_epe.conformance.target import Target

Arrays = dict[str, np.ndarray]

_DIM = 12  # parameters of the model
_HALF = 6  # parameters of each of its two arrays
_CLAIM = {"adjacency": "zero-out", "arrays": (_HALF, _HALF)}
_ZERO_NORM = 1e-9  # replaces the norm of a zero update, by which Flower's clipping divides
_FLOWER = {**_CLAIM, "zero_update_norm": _ZERO_NORM, "trials": 400}
_LOCAL = {**_CLAIM, "inputs": "finite", "trials": 2000}


def of_flower_strategy(
    make: Callable[[], Any], *, nodes: int = 4, **claim: Any
) -> Target:
    """One round of a strategy of Flower's message API, with its DP wrapper.

    Args:
        make: a function that returns a new strategy for each round.
        nodes: number of clients that the strategy samples, all of which reply.
        claim: the claim, as arguments of `Target`.
    """

    def release(updates: Any, rng: np.random.Generator) -> Floats:
        from flwr.app import ArrayRecord, ConfigRecord

        # A probe has arrays with a number of examples; a game has rows of one example each.
        replies = [
            update if isinstance(update, tuple) else (_named(update), 1)
            for update in updates
        ]
        first_reply, _ = replies[0]
        # The initial model is 0, also in the 0-d arrays that a probe may have.
        model = _named(np.zeros(_DIM))
        for name, array in first_reply.items():
            if array.ndim == 0:
                model[name] = np.zeros_like(array)
        # The part of Flower's `Grid` that strategies use.
        grid = types.SimpleNamespace(
            get_node_ids=lambda: list(range(1, nodes + 1)),
            create_message=lambda *_, **__: None,
        )
        with _quiet_flower(rng):
            strategy = make()
            start = ArrayRecord(_packed(model))
            list(strategy.configure_train(1, start, ConfigRecord(), grid))
            messages = [
                _message(arrays, examples, node)
                for node, (arrays, examples) in enumerate(replies, 1)
            ]
            released, _ = strategy.aggregate_train(1, messages)
        if released is None:
            raise ValueError("no model was released")
        return _flat(released)

    other_updates = np.random.default_rng(1).normal(0, 1, (nodes - 1, _DIM))
    vector = np.full(_DIM, claim.get("clip_norm", 1.0) / np.sqrt(_DIM))
    update = _named(vector)
    zero_update = _named(_ZERO_NORM * vector)

    def pair(
        odd: Arrays,
        ordinary: Arrays = zero_update,
        examples: int = 1,
        **extra: Any,
    ) -> Any:
        """Replies of which the last is odd, and the same replies with an ordinary last one."""
        replies = [(_named(row) | extra, 1) for row in other_updates]
        return [*replies, (odd, examples)], [*replies, (ordinary | extra, 1)]

    probes = {
        "1,000 times the examples": pair(update, examples=1000),
        "arrays renamed": pair(
            {f"new.{name}": array for name, array in update.items()}
        ),
        "an extra array": pair(update | {"extra": np.ones(3)}),
        "arrays in another order": pair(dict(reversed(update.items())), update),
        "a 0-d array": pair(
            zero_update | {"n": np.array(100.0)}, n=np.array(0.0)
        ),
        "a 0-d array of integers": pair(
            zero_update | {"n": np.array(100)}, n=np.array(0)
        ),
    }
    defaults = {**_FLOWER, "others": other_updates, "probes": probes}
    return Target(release, **{**defaults, **claim})


def of_flower_mod(make: Callable[[], Any], **claim: Any) -> Target:
    """A mod of Flower's clients, which processes the update of one client.

    Args:
        make: a function that returns the mod.
        claim: the claim, as arguments of `Target`.
    """

    def release(updates: Floats, rng: np.random.Generator) -> Floats:
        from flwr.app import (
            ArrayRecord,
            ConfigRecord,
            Context,
            Message,
            MessageType,
            RecordDict,
        )

        content = RecordDict(
            {
                "arrays": ArrayRecord(_packed(_named(np.zeros(_DIM)))),
                "config": ConfigRecord({"server-round": 1}),
            }
        )
        context = Context(0, 1, {}, RecordDict(), {})
        with _quiet_flower(rng):
            instruction = Message(content, 1, MessageType.TRAIN)
            reply = make()(
                instruction,
                context,
                lambda *_: _message(_named(updates[0]), 1, 1),
            )
        if reply.has_error():
            raise ValueError(reply.error.reason)
        return _flat(reply.content.array_records["arrays"])

    return Target(release, **{**_FLOWER, "others": [], **claim})


def of_opacus(make: Callable[[Any], Any], **claim: Any) -> Target:
    """A step of Opacus's `DPOptimizer`: updates are the gradients of a batch's examples.

    Args:
        make: a function from a `torch.optim.SGD` with a learning rate of 1 to the optimizer
            with DP.
        claim: the claim, as arguments of `Target`.
    """

    def release(updates: Floats, rng: np.random.Generator) -> Floats:
        import torch

        torch.manual_seed(int(rng.integers(2**63)))
        parameters = [torch.nn.Parameter(torch.zeros(_HALF)) for _ in range(2)]
        optimizer = make(torch.optim.SGD(parameters, lr=1.0))
        gradients = np.split(updates, 2, axis=1)
        for parameter, rows in zip(parameters, gradients, strict=True):
            parameter.grad_sample = torch.tensor(rows, dtype=torch.float32)  # type: ignore[attr-defined]
        optimizer.step()
        return np.concatenate([-p.detach().numpy() for p in parameters])

    return Target(release, **{**_LOCAL, **claim})


def of_pfl(mechanism: Any, **claim: Any) -> Target:
    """A mechanism of pfl: users' statistics are constrained and summed, and noise is added.

    Args:
        mechanism: a mechanism of pfl, with ``constrain_sensitivity`` and ``add_noise``.
        claim: the claim, as arguments of `Target`.
    """

    def release(updates: Floats, rng: np.random.Generator) -> Floats:
        from pfl.stats import MappedVectorStatistics

        seed = int(rng.integers(2**32))
        np.random.seed(seed)  # noqa: NPY002 (the generator that pfl draws from)
        zeros = _named(np.zeros(_DIM, np.float32))
        total = MappedVectorStatistics(zeros, weight=1.0)
        users = [
            MappedVectorStatistics(_named(row.astype(np.float32)), weight=1.0)
            for row in updates
        ]
        for user in users:
            total = total + mechanism.constrain_sensitivity(user, seed=seed)[0]
        noisy, _ = mechanism.add_noise(total, cohort_size=len(users), seed=seed)
        return np.concatenate([np.ravel(noisy[name]) for name in zeros])

    return Target(release, **{**_LOCAL, **claim})


def _flat(arrays: Any) -> Floats:
    """The entries of a Flower record's arrays, one after the other."""
    return np.concatenate(
        [np.ravel(array.numpy()) for array in arrays.values()]
    )


def _named(row: Floats) -> Arrays:
    """The two arrays of the model, a matrix and a vector, from a vector of their entries."""
    return {"weight": row[:_HALF].reshape(3, 2), "bias": row[_HALF:]}


def _packed(arrays: Arrays) -> dict[str, Any]:
    """NumPy arrays as Flower's arrays."""
    from flwr.app import Array

    return {name: Array(array) for name, array in arrays.items()}


def _message(arrays: Arrays, examples: int, node: int) -> Any:
    """A client's reply with these arrays."""
    from flwr.app import (
        ArrayRecord,
        Message,
        MessageType,
        MetricRecord,
        RecordDict,
    )

    metrics = MetricRecord({"num-examples": examples})
    content = RecordDict(
        {"arrays": ArrayRecord(_packed(arrays)), "metrics": metrics}
    )
    return Message(
        content, reply_to=Message(RecordDict(), node, MessageType.TRAIN)
    )


@contextlib.contextmanager
def _quiet_flower(rng: np.random.Generator) -> Iterator[None]:
    """In this context Flower has a seeded generator, may make messages, and logs no warnings."""
    from fl_epe.simulation import ensure_task_identity

    ensure_task_identity(0)
    np.random.seed(int(rng.integers(2**32)))  # noqa: NPY002
    log = logging.getLogger("flwr")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
