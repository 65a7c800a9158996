"""Clients that answer with a canary in place of their own update.

The server chooses them (`ClientCanaries`) and says so in the `ConfigRecord` of their messages;
`canary_mod` on the client puts the canary into the reply. Other clients see nothing new. The server
reads no reply, so this works under secure aggregation.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import enum
import json
import logging
from collections.abc import (
    Callable,
    Collection,
    Iterator,
    MutableMapping,
    Sequence,
)
from typing import Any

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp.typing import ClientAppCallable

from fl_epe.canaries import CanaryKind, CanarySet
from fl_epe.checks import raise_invalid
from fl_epe.flower.free_arrays import leave_alone, not_free
from fl_epe.flower.layout import Layout, longest_norm
from fl_epe.mechanism import norm
from fl_epe.messages import records_of
from fl_epe.seeding import generator

logger = logging.getLogger("flwr.fl_epe")

_ORDER = "canary-order"
_ANSWER = "canary-answer"
_CLIPPING_MODS = ("fixedclipping_mod", "adaptiveclipping_mod", "LocalDpMod")
# What Flower's client-side wrappers put into the configuration.
_CLIPPING_NORM = "clipping_norm"
FAR_ABOVE = 1e3
"""How many times the clip norm a canary is, so that the clipping under audit scales it down."""

_SHARE_STREAM = 1 << 62  # apart from every canary's number


@dataclasses.dataclass(frozen=True)
class CanaryOrder:
    """What the server tells a client that is to answer with a canary.

    Attributes:
        number: of the canary in its set.
        count: size of the set.
        seed: of the set, which only such clients ever see.
        kind: of the set, see `CanarySet`.
        norm: Euclidean norm of the canary's update; 0 for "as long as the client's own", or far
            above the clip norm where the message names one.
        leave_out: see `Layout.of`.
        acknowledge: whether the reply shall say that it is a canary's (`Acknowledgement`). The
            server must then take that out before a strategy sees it.
    """

    number: int
    count: int
    seed: int
    kind: CanaryKind = "rotation"
    norm: float = 0.0
    leave_out: Sequence[str] = ()
    acknowledge: bool = False

    def add_to(self, config: MutableMapping[str, Any]) -> None:
        """Write the order into a message's configuration."""
        config[_ORDER] = json.dumps(dataclasses.asdict(self))

    @classmethod
    def take_from(cls, content: RecordDict) -> CanaryOrder | None:
        """Remove the order from a message's content and return it; ``None`` if there is none."""
        for config in records_of(content, ConfigRecord).values():
            if _ORDER in config:
                return cls(**json.loads(str(config.pop(_ORDER))))
        return None


class Acknowledgement(enum.IntEnum):
    """What `canary_mod` did with an order; the server reads it in the reply's metrics."""

    CANARY = 1
    OUTSIDE_CLIPPING = 2
    UNFIT = 3


HINTS = {
    Acknowledgement.OUTSIDE_CLIPPING: "canary_mod stands outside a clipping mod, where nothing"
    " would clip a canary: put it last in mods=[…]",
    Acknowledgement.UNFIT: "replies do not hold one set of arrays like the message's",
}
"""Why a client answered for itself, and what to do about it, as part of a sentence."""


def take_acknowledgement(content: RecordDict) -> Acknowledgement | None:
    """Remove what `canary_mod` noted in a reply and return it; ``None`` if it noted nothing."""
    for name, metrics in records_of(content, MetricRecord).items():
        if _ANSWER in metrics:
            value = Acknowledgement(int(metrics.pop(_ANSWER)))  # type: ignore[arg-type]
            if not metrics:
                del content[name]
            return value
    return None


def canary_mod(
    message: Message, context: Context, call_next: ClientAppCallable
) -> Message:
    """A client mod: where the server's message says so, answer with a canary's update.

    The client app trains as ever, and its reply keeps its form, its metrics and its number of
    examples; only the arrays become the global model plus the canary, and a metric says so to the
    server's `CanaryAudit`, which takes it out. Without such an order (`CanaryAudit` with
    ``clients=``, or `ClientCanaries`) the mod does nothing. Where it cannot answer with a canary
    the client's own reply goes out as it is.

    The canary leaves arrays alone that are no free parameters as far as the client's own reply
    shows, see `free_arrays.not_free`: they are as in the message.

    Put it last, so that it stands next to the app and everything that happens to a real update
    happens to a canary's: ``ClientApp(mods=[secaggplus_mod, fixedclipping_mod, canary_mod])``.
    """
    order = CanaryOrder.take_from(message.content)
    if order is None:
        return call_next(message, context)
    # An app may train in the arrays that it was sent.
    sent = copy.deepcopy(message.content)
    reply = call_next(message, context)
    if reply.has_error():
        return reply
    if any(name in _CLIPPING_MODS for name in _names_inside(call_next)):
        answer = Acknowledgement.OUTSIDE_CLIPPING
    else:
        answer = _answer(order, sent, reply.content)
    if answer is not Acknowledgement.CANARY:
        logger.warning(
            "canary_mod sends the client's own reply: %s", HINTS[answer]
        )
    if order.acknowledge:
        if not records_of(reply.content, MetricRecord):
            reply.content[_ANSWER] = MetricRecord()
        first = next(iter(records_of(reply.content, MetricRecord).values()))
        first[_ANSWER] = int(answer)
    return reply


def _answer(
    order: CanaryOrder, sent: RecordDict, reply: RecordDict
) -> Acknowledgement:
    try:
        _, sent_arrays = _only(sent, "message")
        name, reply_arrays = _only(reply, "reply")
        layout = Layout.of(sent_arrays, order.leave_out)
        before = layout.flatten(sent_arrays)
        after = layout.flatten(reply_arrays)
    except ValueError as error:
        logger.warning("canary_mod: %s", error)
        return Acknowledgement.UNFIT
    length = order.norm or FAR_ABOVE * _clip_norm(sent) or norm(after - before)
    length = min(length, longest_norm(reply_arrays))
    canaries = CanarySet(layout.dim, order.count, order.seed, order.kind)
    fixed_names = not_free(layout.split(before), [layout.split(after)])
    canary = leave_alone(fixed_names, canaries.vector(order.number), layout)
    model = before + before.dtype.type(length) * canary
    reply[name] = layout.form(reply_arrays, sent_arrays)(model)
    return Acknowledgement.CANARY


def _names_inside(call_next: object, depth: int = 20) -> Iterator[str]:
    """Names of the mods between this one and the app, which Flower keeps in nested closures."""
    if depth == 0:
        return
    for cell in getattr(call_next, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # an empty cell
            inner = cell.cell_contents
            yield getattr(inner, "__name__", type(inner).__name__)
            yield from _names_inside(inner, depth - 1)


def _only(content: RecordDict, place: str) -> tuple[str, ArrayRecord]:
    """The only arrays in a message or a reply, and their name."""
    records = records_of(content, ArrayRecord)
    if len(records) != 1:
        raise ValueError(
            f"Expected one ArrayRecord in the {place}, got {len(records)}."
        )
    return next(iter(records.items()))


def _clip_norm(content: RecordDict) -> float:
    for config in records_of(content, ConfigRecord).values():
        if _CLIPPING_NORM in config:
            return float(config[_CLIPPING_NORM])  # type: ignore[arg-type]
    return 0.0


@dataclasses.dataclass(eq=False, repr=False)  # the seed is a secret
class ClientCanaries:
    """The server's half: which clients answer with a canary, and with which.

    Attributes:
        count: number of canaries; clients beyond that stay real.
        unobserved: canaries that only the server knows, see `RunAuditor`.
        seed: of the canaries, and of the choice of clients.
        clients: a share in (0, 1] of the clients, chosen by hashing, or an explicit list.
        identity: what stays the same about a client, such as its partition id, from its node id,
            for deployments whose nodes come back under new ids; the node id by default.
        leave_out: see `Layout.of`. Name all arrays that are no free parameters, such as variances
            and frozen ones: clients leave them alone in any case, but the scores of canaries are
            too small if the server counts them.
        acknowledge: see `CanaryOrder`.
        kind: of the canaries, see `CanarySet`.
        numbers: of the canaries, by the clients that have one; those that are known are kept.

    Raises:
        ArgumentError: for a share outside (0, 1], or an empty or repeating list.
    """

    count: int
    unobserved: int
    seed: int
    clients: float | Collection[int]
    identity: Callable[[int], int] | None = None
    leave_out: Sequence[str] = ()
    _: dataclasses.KW_ONLY
    acknowledge: bool = False
    kind: CanaryKind = "rotation"
    numbers: dict[int, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.clients, (int, float)):
            if not 0 < self.clients <= 1:
                raise_invalid(
                    "clients", self.clients, "in (0, 1], or a list of clients"
                )
            return
        # NumPy's numbers would not fit into a checkpoint.
        chosen = [int(client) for client in self.clients]
        if (
            not chosen
            or len(set(chosen)) < len(chosen)
            or len(chosen) > self.count
        ):
            wanted = f"to be 1 to num_canaries={self.count} different clients"
            raise_invalid("clients", chosen, wanted)
        self.numbers.update(
            {client: number for number, client in enumerate(chosen)}
        )

    def number(self, node_id: int) -> int | None:
        """The number of the client's canary; ``None`` for a real client."""
        client = int((self.identity or int)(node_id))
        share = self.clients
        is_open = client not in self.numbers and len(self.numbers) < self.count
        if isinstance(share, (int, float)) and is_open:
            coin = generator(self.seed, _SHARE_STREAM, client)
            if coin.random() < share:
                self.numbers[client] = len(self.numbers)
        return self.numbers.get(client)

    def order(self, node_id: int, norm: float = 0.0) -> CanaryOrder | None:
        """What to tell the client in this round; ``None`` for a real client."""
        number = self.number(node_id)
        if number is None:
            return None
        return CanaryOrder(
            number=number,
            count=self.count + self.unobserved,
            seed=self.seed,
            kind=self.kind,
            norm=norm,
            leave_out=self.leave_out,
            acknowledge=self.acknowledge,
        )


def with_order(message: Message, order: CanaryOrder) -> Message:
    """The message with the order in a configuration of its own; the original stays as it is."""
    content = RecordDict(dict(message.content.items()))
    configs = records_of(content, ConfigRecord) or {"config": ConfigRecord()}
    name, first = next(iter(configs.items()))
    config = ConfigRecord(dict(first))
    order.add_to(config)
    content[name] = config
    meta = message.metadata
    return Message(
        content,
        meta.dst_node_id,
        meta.message_type,
        ttl=meta.ttl,
        group_id=meta.group_id,
    )
