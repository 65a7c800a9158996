"""Targets of what people use: Flower's strategies and mods, Opacus's optimizer, pfl's mechanisms.

Each takes the claim as `Target` does, and imports its library when it is called. Noise comes from
the library's global generator, which is seeded before each release, so that noise cancels where it
should. Updates may have any values where others send them, as of Flower's clients, and are finite
elsewhere. ``sensitivity`` is that of what is released: of a mean over n clients the clip norm over n.

Examples:
    >>> from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping as Wrapper
    >>> from flwr.serverapp.strategy import FedAvg
    >>> target = of_flower_strategy(
    ...     lambda: Wrapper(FedAvg(), 1.0, 1.0, 4),
    ...     noise_multiplier=1.0, delta=1e-5, sensitivity=0.25, noise="gaussian")
    >>> target(np.ones((4, 12)), np.random.default_rng(0)).shape
    (12,)
"""

from __future__ import annotations

import contextlib
import logging
import math
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_epe.checks import Floats
from fl_epe.conformance.target import Probe, Target

Shapes = Mapping[str, tuple[int, ...]]
Reply = tuple[dict[str, NDArray[Any]], int]
"""The update of a client by array, and its number of examples."""

_SHAPES: Shapes = {"weight": (3, 2), "bias": (6,)}
_MANY = 1000  # times the others' number of examples
_NEARLY_ZERO = 1e-9  # in clip norms, as Flower divides by the length of an update


def of_flower_strategy(
    make: Callable[[], Any], *, nodes: int = 4, shapes: Shapes = _SHAPES, **claim: Any
) -> Target:
    """One round of a strategy of Flower's message API, with its DP wrapper; adjacency "zero-out".

    Args:
        make: makes the strategy, anew for each round.
        nodes: number of clients that it samples and that reply.
        shapes: of the model's arrays by name.
        claim: of `Target`.
    """

    def aggregate(replies: Sequence[Reply], rng: np.random.Generator, extra: Any = None) -> Floats:
        from flwr.app import ArrayRecord, ConfigRecord

        start = {name: np.zeros(shape) for name, shape in shapes.items()} | (extra or {})
        grid = types.SimpleNamespace(get_node_ids=lambda: list(range(1, nodes + 1)))
        grid.create_message = lambda *_, **__: None
        with _quiet_flower(rng):
            strategy = make()
            list(strategy.configure_train(1, ArrayRecord(_packed(start)), ConfigRecord(), grid))
            messages = [_message(*reply, node=i + 1) for i, reply in enumerate(replies)]
            arrays, _ = strategy.aggregate_train(1, messages)
        if arrays is None:
            raise ValueError("no model was released")
        return np.concatenate([np.ravel(array.numpy()) for array in arrays.values()])

    def release(updates: Floats, rng: np.random.Generator) -> Floats:
        return aggregate([(_named(row, shapes), 1) for row in updates], rng)

    others = np.random.default_rng(1).normal(0, 1, (nodes - 1, _size(shapes)))
    clients = [_named(row, shapes) for row in others]
    unit = np.ones(_size(shapes)) * claim.get("clip_norm", 1.0) / math.sqrt(_size(shapes))
    own, nothing = _named(unit, shapes), _named(_NEARLY_ZERO * unit, shapes)

    def odd(
        changed: dict[str, Any], examples: int = 1, extra: Any = None, base: Any = None
    ) -> Probe:
        def pair(rng: np.random.Generator) -> tuple[Floats, Floats]:
            state, extras = rng.bit_generator.state, extra or {}
            sides = []
            for last in ((changed, examples), ((base or nothing) | extras, 1)):
                rng.bit_generator.state = state
                replies = [(client | extras, 1) for client in clients]
                sides.append(aggregate([*replies, last], rng, extra))
            return sides[0], sides[1]

        return pair

    scalar = {"batches": np.array(0.0)}
    probes = {
        "1,000 times the examples": odd(own, _MANY),
        "arrays renamed": odd({f"new.{name}": array for name, array in own.items()}),
        "an extra array": odd(own | {"extra": np.ones(3)}),
        "arrays in another order": odd(dict(reversed(own.items())), base=own),
        "a 0-d array": odd(nothing | {"batches": np.array(100.0)}, extra=scalar),
        "a 0-d array of integers": odd(
            nothing | {"batches": np.array(100)}, extra={"batches": np.array(0)}
        ),
    }
    return _target(release, claim, shapes, others=others, probes=probes, nothing=_NEARLY_ZERO)


def of_flower_mod(
    make: Callable[[], Any],
    *,
    shapes: Shapes = _SHAPES,
    config: Mapping[str, Any] | None = None,
    **claim: Any,
) -> Target:
    """A mod of Flower's clients, through which the update of one client goes; "zero-out".

    Args:
        make: makes the mod.
        shapes: of the model's arrays by name.
        config: of the message from the server, beside the round.
        claim: of `Target`.
    """

    def release(updates: Floats, rng: np.random.Generator) -> Floats:
        from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict

        start = {name: np.zeros(shape) for name, shape in shapes.items()}
        settings = ConfigRecord({"server-round": 1, **(config or {})})
        content = RecordDict({"arrays": ArrayRecord(_packed(start)), "config": settings})
        asked = Message(content, 1, MessageType.TRAIN)
        context = Context(0, 1, {}, RecordDict(), {})
        with _quiet_flower(rng):
            reply = make()(asked, context, lambda *_: _message(_named(updates[0], shapes), 1, 1))
        if reply.has_error():
            raise ValueError(reply.error.reason)
        arrays = reply.content.array_records["arrays"]
        return np.concatenate([np.ravel(array.numpy()) for array in arrays.values()])

    alone = np.empty((0, _size(shapes)))
    return _target(release, claim, shapes, others=alone, nothing=_NEARLY_ZERO)


def of_opacus(make: Callable[[Any], Any], *, shapes: Shapes = _SHAPES, **claim: Any) -> Target:
    """A step of Opacus's `DPOptimizer`: updates are the gradients of a batch's examples.

    Args:
        make: from a `torch.optim.SGD` with a learning rate of 1 to the optimizer with DP.
        shapes: of the parameters by name.
        claim: of `Target`.
    """

    def release(updates: Floats, rng: np.random.Generator) -> Floats:
        import torch

        torch.manual_seed(int(rng.integers(2**63)))
        parameters = {name: torch.nn.Parameter(torch.zeros(s)) for name, s in shapes.items()}
        optimizer = make(torch.optim.SGD(parameters.values(), lr=1.0))
        for name, parameter in parameters.items():
            rows = np.array([_named(row, shapes)[name] for row in updates])
            parameter.grad_sample = torch.tensor(  # type: ignore[attr-defined]
                rows.reshape(len(updates), *shapes[name]), dtype=parameter.dtype
            )
        optimizer.step()
        return np.concatenate([-p.detach().numpy().ravel() for p in parameters.values()])

    return _target(release, claim, shapes, inputs="finite", trials=2000)


def of_pfl(mechanism: Any, *, shapes: Shapes = _SHAPES, **claim: Any) -> Target:
    """A mechanism of pfl: users' statistics are constrained, added up, and get noise.

    Args:
        mechanism: with ``constrain_sensitivity`` and ``add_noise`` as pfl's have them.
        shapes: of the arrays by name.
        claim: of `Target`.
    """

    def release(updates: Floats, rng: np.random.Generator) -> Floats:
        from pfl.stats import MappedVectorStatistics

        np.random.seed(seed := int(rng.integers(2**32)))  # noqa: NPY002 (what pfl draws from)
        rows = [*updates, np.zeros(_size(shapes))]
        users = [MappedVectorStatistics(_float32(_named(row, shapes)), weight=1.0) for row in rows]
        total = users.pop()
        for user in users:
            total = total + mechanism.constrain_sensitivity(user, seed=seed)[0]
        noisy, _ = mechanism.add_noise(total, cohort_size=len(users), seed=seed)
        return np.concatenate([np.ravel(noisy[name]) for name in shapes])

    return _target(release, claim, shapes, inputs="finite", trials=2000)


def _target(release: Any, claim: dict[str, Any], shapes: Shapes, **more: Any) -> Target:
    arrays = tuple(math.prod(shape) for shape in shapes.values())
    by_library = {"adjacency": "zero-out", "arrays": arrays, "trials": 400}
    return Target(release, **(by_library | more | claim))


def _size(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


def _named(row: Floats, shapes: Shapes) -> dict[str, NDArray[Any]]:
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    parts = np.split(row, ends[:-1])
    return {name: x.reshape(s) for (name, s), x in zip(shapes.items(), parts, strict=True)}


def _float32(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[np.float32]]:
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def _packed(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    from flwr.app import Array

    return {name: Array(array) for name, array in arrays.items()}


def _message(arrays: Mapping[str, NDArray[Any]], examples: int, node: int) -> Any:
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
