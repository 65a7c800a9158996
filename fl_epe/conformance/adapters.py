"""Targets of what people use: Flower's strategies and mods, Opacus's optimizer, pfl's mechanisms.

Each takes the claim as `Target` does, and imports its library when it is called. Noise comes from
the library's global generator, which is seeded before each release, so that noise cancels where it
should. Updates may have any values where others send them, as of Flower's clients, and are finite
elsewhere. ``sensitivity`` is that of what is released: of a mean over n clients the clip norm over
n. Adjacency is "zero-out", and the model has two arrays, "weight" and "bias".

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
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from fl_epe.checks import Floats
from fl_epe.conformance.target import Target

Arrays = dict[str, np.ndarray]
_DIM, _HALF = 12, 6
_MANY = 1000  # times the others' number of examples
_KNOWN: Mapping[str, Any] = {
    "adjacency": "zero-out",
    "arrays": (_HALF, _HALF),
    "trials": 400,
}
_FLOWER = {
    **_KNOWN,
    "nothing": 1e-9,
}  # Flower's clipping divides by the length of an update
_LOCAL = {**_KNOWN, "inputs": "finite", "trials": 2000}


def of_flower_strategy(
    make: Callable[[], Any], *, nodes: int = 4, **claim: Any
) -> Target:
    """One round of a strategy of Flower's message API, with its DP wrapper.

    Args:
        make: makes the strategy, anew for each round.
        nodes: number of clients that it samples and that reply.
        claim: of `Target`.
    """

    def release(updates: Any, rng: np.random.Generator) -> Floats:
        from flwr.app import ArrayRecord, ConfigRecord

        replies = [
            one if isinstance(one, tuple) else (_named(one), 1) for one in updates
        ]
        beside = {k: np.zeros_like(v) for k, v in replies[0][0].items() if v.ndim == 0}
        grid = types.SimpleNamespace(get_node_ids=lambda: list(range(1, nodes + 1)))
        grid.create_message = lambda *_, **__: None
        with _quiet_flower(rng):
            strategy, start = (
                make(),
                ArrayRecord(_packed(_named(np.zeros(_DIM)) | beside)),
            )
            list(strategy.configure_train(1, start, ConfigRecord(), grid))
            messages = [
                _message(reply, n, i + 1) for i, (reply, n) in enumerate(replies)
            ]
            arrays, _ = strategy.aggregate_train(1, messages)
        if arrays is None:
            raise ValueError("no model was released")
        return _flat(arrays)

    others = np.random.default_rng(1).normal(0, 1, (nodes - 1, _DIM))
    unit = np.full(_DIM, claim.get("clip_norm", 1.0) / np.sqrt(_DIM))
    own, none = _named(unit), _named(1e-9 * unit)

    def odd(
        last: Arrays, instead: Arrays = none, examples: int = 1, **beside: Any
    ) -> Any:
        rest = [(_named(row) | beside, 1) for row in others]
        return [*rest, (last, examples)], [*rest, (instead | beside, 1)]

    probes = {
        "1,000 times the examples": odd(own, examples=_MANY),
        "arrays renamed": odd({f"new.{name}": array for name, array in own.items()}),
        "an extra array": odd(own | {"extra": np.ones(3)}),
        "arrays in another order": odd(dict(reversed(own.items())), own),
        "a 0-d array": odd(none | {"n": np.array(100.0)}, n=np.array(0.0)),
        "a 0-d array of integers": odd(none | {"n": np.array(100)}, n=np.array(0)),
    }
    return Target(release, **{**_FLOWER, "others": others, "probes": probes, **claim})


def _flat(arrays: Any) -> Floats:
    """The entries of a Flower record's arrays, one after the other."""
    return np.concatenate([np.ravel(array.numpy()) for array in arrays.values()])


def of_flower_mod(make: Callable[[], Any], **claim: Any) -> Target:
    """A mod of Flower's clients, through which the update of one client goes.

    Args:
        make: makes the mod.
        claim: of `Target`.
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

        start = ArrayRecord(_packed(_named(np.zeros(_DIM))))
        content = RecordDict(
            {"arrays": start, "config": ConfigRecord({"server-round": 1})}
        )
        context = Context(0, 1, {}, RecordDict(), {})
        with _quiet_flower(rng):
            asked = Message(content, 1, MessageType.TRAIN)
            reply = make()(
                asked, context, lambda *_: _message(_named(updates[0]), 1, 1)
            )
        if reply.has_error():
            raise ValueError(reply.error.reason)
        arrays = reply.content.array_records["arrays"]
        return _flat(arrays)

    return Target(release, **{**_FLOWER, "others": [], **claim})


def of_opacus(make: Callable[[Any], Any], **claim: Any) -> Target:
    """A step of Opacus's `DPOptimizer`: updates are the gradients of a batch's examples.

    Args:
        make: from a `torch.optim.SGD` with a learning rate of 1 to the optimizer with DP.
        claim: of `Target`.
    """

    def release(updates: Floats, rng: np.random.Generator) -> Floats:
        import torch

        torch.manual_seed(int(rng.integers(2**63)))
        both = [torch.nn.Parameter(torch.zeros(_HALF)) for _ in range(2)]
        optimizer = make(torch.optim.SGD(both, lr=1.0))
        for parameter, rows in zip(both, np.split(updates, 2, axis=1), strict=True):
            parameter.grad_sample = torch.tensor(rows, dtype=torch.float32)  # type: ignore[attr-defined]
        optimizer.step()
        return np.concatenate([-parameter.detach().numpy() for parameter in both])

    return Target(release, **{**_LOCAL, **claim})


def of_pfl(mechanism: Any, **claim: Any) -> Target:
    """A mechanism of pfl: users' statistics are constrained, added up, and get noise.

    Args:
        mechanism: with ``constrain_sensitivity`` and ``add_noise`` as pfl's have them.
        claim: of `Target`.
    """

    def release(updates: Floats, rng: np.random.Generator) -> Floats:
        from pfl.stats import MappedVectorStatistics

        np.random.seed(seed := int(rng.integers(2**32)))  # noqa: NPY002 (what pfl draws from)
        rows = [_named(row.astype(np.float32)) for row in (np.zeros(_DIM), *updates)]
        total, *users = [MappedVectorStatistics(row, weight=1.0) for row in rows]
        for user in users:
            total = total + mechanism.constrain_sensitivity(user, seed=seed)[0]
        noisy, _ = mechanism.add_noise(total, cohort_size=len(users), seed=seed)
        return np.concatenate([np.ravel(noisy[name]) for name in rows[0]])

    return Target(release, **{**_LOCAL, **claim})


def _named(row: Floats) -> Arrays:
    return {"weight": row[:_HALF].reshape(3, 2), "bias": row[_HALF:]}


def _packed(arrays: Arrays) -> dict[str, Any]:
    from flwr.app import Array

    return {name: Array(array) for name, array in arrays.items()}


def _message(arrays: Arrays, examples: int, node: int) -> Any:
    from flwr.app import ArrayRecord, Message, MessageType, MetricRecord, RecordDict

    metrics = MetricRecord({"num-examples": examples})
    content = RecordDict({"arrays": ArrayRecord(_packed(arrays)), "metrics": metrics})
    return Message(content, reply_to=Message(RecordDict(), node, MessageType.TRAIN))


@contextlib.contextmanager
def _quiet_flower(rng: np.random.Generator) -> Iterator[None]:
    """Seed what Flower draws from, let it make messages, and keep its log still."""
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
