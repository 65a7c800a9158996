"""Clients that reply with a canary instead of their own update.

The server selects these clients (`ClientCanaries`) and sends an order in the `ConfigRecord` of
their messages; `canary_mod` on the client writes the canary into the reply. Other clients get
the same messages as before. The server need not read the arrays of a reply, so this works under
secure aggregation.
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

# Names in the configuration of a message, and in the metrics of a reply.
_ORDER = "canary-order"
_ANSWER = "canary-answer"
_CLIPPING_MODS = ("fixedclipping_mod", "adaptiveclipping_mod", "LocalDpMod")
# The clip norm's name in the configuration of Flower's client-side wrappers.
_CLIPPING_NORM = "clipping_norm"
FAR_ABOVE = 1e3
"""The norm of a canary in clip norms, so that the clipping under audit scales it down."""

# The random stream of the choice of clients. It is larger than the canaries' indices, which are
# streams of the same seed.
_SHARE_STREAM = 1 << 62
# The largest number of nested functions in which mods are searched.
_MAX_NESTED = 20


@dataclasses.dataclass(frozen=True)
class CanaryOrder:
    """The server's order to a client to reply with a canary.

    Attributes:
        number: the index of the canary in its set, from 0.
        count: the size of the set.
        seed: the seed of the set, which only such clients ever see.
        kind: the kind of the set, see `CanarySet`.
        norm: the Euclidean norm of the canary's update. If it is 0, the norm is far above the
            clip norm that the message names, or else that of the client's own update.
        leave_out: the arrays without canaries, see `Layout.of`.
        acknowledge: whether the reply contains an `Acknowledgement`. The server must then
            remove it before a strategy sees the reply.
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
    """The result of an order in `canary_mod`; the server reads it in the reply's metrics."""

    CANARY = 1
    OUTSIDE_CLIPPING = 2
    UNFIT = 3


HINTS = {
    Acknowledgement.OUTSIDE_CLIPPING: "canary_mod stands outside a clipping mod, where nothing"
    " would clip a canary: put it last in mods=[…]",
    Acknowledgement.UNFIT: "replies do not contain one set of arrays like the message's",
}
"""The reason why a client sent its own update, and a remedy, as part of a sentence."""


def take_acknowledgement(content: RecordDict) -> Acknowledgement | None:
    """Remove the acknowledgement from a reply and return it; ``None`` without one."""
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
    """A client mod that replies with a canary's update if the server's message orders it.

    The client app trains as usual, and the form, the metrics and the number of examples of its
    reply stay the same. Only the arrays become the global model plus the canary. A metric says
    so to the server's `CanaryAudit`, which removes it. Without an order (of `CanaryAudit` with
    ``clients=``, or of `ClientCanaries`), the mod does nothing. If it cannot reply with a
    canary, it sends the client's own reply.

    The canary does not change arrays that are no free parameters as far as the client's own
    reply shows, see `free_arrays.not_free`: they stay as in the message.

    Put this mod last, next to the app, so that the other mods process a canary's update as they
    process a real one: ``ClientApp(mods=[secaggplus_mod, fixedclipping_mod, canary_mod])``.
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
        answer = _put_canary(order, sent, reply.content)
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


def _put_canary(
    order: CanaryOrder, sent: RecordDict, reply: RecordDict
) -> Acknowledgement:
    """Replace the arrays in a reply by the model plus the canary, if they fit.

    Args:
        order: the order.
        sent: the content of the server's message.
        reply: the content of the client's reply, which is changed.
    """
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


def _names_inside(call_next: object, depth: int = _MAX_NESTED) -> Iterator[str]:
    """The names of the mods between this one and the app.

    Flower nests them: each mod is a variable in the closure of the function that calls it.
    """
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
    """The clip norm in the configuration of a message; 0 without one."""
    for config in records_of(content, ConfigRecord).values():
        if _CLIPPING_NORM in config:
            return float(config[_CLIPPING_NORM])  # type: ignore[arg-type]
    return 0.0


@dataclasses.dataclass(eq=False, repr=False)  # the seed is a secret
class ClientCanaries:
    """The server's part: it selects the clients that reply with a canary, and their canaries.

    Attributes:
        count: the number of canaries; further clients stay real.
        unobserved: the number of further canaries, which no client gets, see `RunAuditor`.
        seed: the seed of the canaries, and of the choice of clients.
        clients: a share in (0, 1] of the clients, which is selected by hashing, or a list of
            them.
        identity: a function from a node id to a lasting id of the client, such as its partition
            id, for deployments whose nodes return with new ids (default: the node id).
        leave_out: the arrays without canaries, see `Layout.of`. These should be all arrays that
            are no free parameters, such as variances and frozen ones. Clients do not change
            them in any case, but the scores of canaries are too small if the server counts
            them.
        acknowledge: whether replies contain an `Acknowledgement`, see `CanaryOrder`.
        kind: the kind of the canaries, see `CanarySet`.
        numbers: the index of each selected client's canary. Clients are added when they are
            first asked.

    Raises:
        ArgumentError: for a share outside (0, 1], or a list that is empty, repeats a client or
            has more than ``count`` of them.
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
            requirement = (
                f"to be 1 to num_canaries={self.count} different clients"
            )
            raise_invalid("clients", chosen, requirement)
        self.numbers.update(
            {client: number for number, client in enumerate(chosen)}
        )

    def number(self, node_id: int) -> int | None:
        """The index of the client's canary; ``None`` for a real client.

        The first call for a client decides whether it gets a canary.
        """
        client = int((self.identity or int)(node_id))
        share = self.clients
        is_open = client not in self.numbers and len(self.numbers) < self.count
        if isinstance(share, (int, float)) and is_open:
            # The same client gets the same random number in every process.
            rng = generator(self.seed, _SHARE_STREAM, client)
            if rng.random() < share:
                self.numbers[client] = len(self.numbers)
        return self.numbers.get(client)

    def order(self, node_id: int, norm: float = 0.0) -> CanaryOrder | None:
        """The order to the client in this round; ``None`` for a real client."""
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
    """A copy of the message with the order in its configuration; the original is unchanged."""
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
