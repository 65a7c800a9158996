"""Messages: a `TrainInstruction` to a node, and its `PartialAggregate` back."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
import pydantic
from flwr.app import ArrayRecord, ConfigRecord, Message, Metadata, RecordDict

from fl_epe.archive import UNREADABLE, one_line
from fl_epe.auditing import Fault, FaultKind
from fl_epe.canaries import CanaryKind
from fl_epe.checks import Floats32
from fl_epe.mechanism import norm
from fl_epe.messages import error_kind, read_only, records_of, share
from fl_epe.simulation.dp_fedavg import ClippedSums


class RefusedError(ValueError):
    """An answer that cannot be used.

    Attributes:
        kind: of the fault.
    """

    def __init__(self, text: str, kind: FaultKind = FaultKind.ANSWER_REFUSED) -> None:
        super().__init__(text)
        self.kind = kind


def content_of(reply: Message) -> RecordDict:
    """What a node answers; raises a `RefusedError` if that is an error."""
    if reply.has_error():
        raise RefusedError(str(reply.error.reason), error_kind(reply.error))
    return reply.content


@dataclasses.dataclass(frozen=True)
class TrainInstruction:
    """What a worker is to do in a round: which clients and canaries take part there, and how.

    The node learns nothing about the clients and canaries of other nodes, nor about the noise.
    """

    theta: Floats32
    round_number: int
    clip_norm: float
    clients: list[int]
    canary_ids: list[int]
    canary_seed: int
    num_canaries: int
    canary_kind: CanaryKind
    local_seed: int
    local_epochs: int
    local_batch_size: int
    local_learning_rate: float
    separate: bool

    def encode(self, model: ArrayRecord | None = None) -> RecordDict:
        """As the content of a message.

        Args:
            model: ``theta``, if it is encoded already; orders to many nodes can share it.
        """
        # Seeds are wider than the 64 bits of an integer on the wire.
        told = {**vars(self), **{name: str(getattr(self, name)) for name in _SEEDS}}
        theta = told.pop("theta")
        return RecordDict(
            {"model": model or share(theta=theta), "order": ConfigRecord(told)}
        )

    @classmethod
    def decode(cls, content: RecordDict) -> TrainInstruction:
        """The inverse of `encode`."""
        told: dict[str, Any] = dict(records_of(content, ConfigRecord)["order"])
        told |= {name: int(told[name]) for name in _SEEDS}
        return cls(
            theta=read_only(records_of(content, ArrayRecord)["model"]["theta"]), **told
        )


@dataclasses.dataclass(eq=False)
class PartialAggregate(ClippedSums):
    """What a worker answers: sums over its clipped updates, never a single one.

    Attributes:
        examples: predictions made by the clients while they trained.
        loss_sum: their summed loss.
        correct: how many of them were right, or the sum of the task's metric.
        faults: one for each update that was lost.
    """

    __pydantic_config__: ClassVar = pydantic.ConfigDict(arbitrary_types_allowed=True)

    examples: int = 0
    loss_sum: float = 0.0
    correct: float = 0
    faults: list[Fault] = dataclasses.field(default_factory=list)

    def encode(self) -> RecordDict:
        """As the content of a reply."""
        told = {name: value for name, value in vars(self).items() if value is not None}
        sums = share(**{name: told.pop(name) for name in _SUMS if name in told})
        told["faults"] = [fault.text for fault in self.faults]
        told["kinds"] = [str(fault.kind) for fault in self.faults]
        return RecordDict({"sums": sums, "told": ConfigRecord(told)})

    @classmethod
    def decode(cls, content: RecordDict) -> PartialAggregate:
        """The inverse of `encode`.

        Raises:
            RefusedError: if something is missing or cannot be read.
        """
        try:
            sums = records_of(content, ArrayRecord)["sums"]
            told: dict[str, Any] = dict(records_of(content, ConfigRecord)["told"])
            told["faults"] = list(zip(told.pop("kinds"), told["faults"], strict=True))
            arrays = {name: read_only(array) for name, array in sums.items()}
            return _ANSWER.validate_python({**arrays, **told})
        except KeyError as error:
            raise RefusedError(f"Expected {error} in the reply.") from error
        except pydantic.ValidationError as error:
            wrong = error.errors()[0]
            raise RefusedError(
                f"Expected {wrong['loc'][0]}={wrong['input']!r:.40} of its type: {wrong['msg']}."
            ) from error
        except UNREADABLE as error:
            raise RefusedError(
                f"Expected a readable reply: {one_line(error)}."
            ) from error

    def check(self, order: TrainInstruction) -> None:
        """Refuse an answer that does not fit its order.

        Raises:
            RefusedError: for a wrong shape or type, a sum that is not finite, or one that is longer
                than its number of clipped updates allows.
        """
        most = {"clients": len(order.clients), "canaries": len(order.canary_ids)}
        for name, largest in (*most.items(), ("unclipped", self.clients)):
            if not 0 <= (count := getattr(self, name)) <= largest:
                raise RefusedError(f"Expected {name}={count} >= 0 and <= {largest}.")
        counts = {"total": self.clients + self.canaries}
        if order.separate:
            counts["clients_total"] = self.clients
        elif self.clients_total is not None:
            raise RefusedError(
                "Expected no sum of clients apart, as none was asked for."
            )
        for name, count in counts.items():
            total = getattr(self, name)
            if (
                total is None
                or total.shape != order.theta.shape
                or total.dtype != np.float64
            ):
                found = "nothing" if total is None else f"{total.dtype} {total.shape}"
                raise RefusedError(
                    f"Expected {name} to be float64 {order.theta.shape}, got {found}.",
                    FaultKind.ANSWER_OF_WRONG_SHAPE,
                )
            length = norm(total)
            if not length <= count * order.clip_norm * (1 + 1e-6):  # also refuses NaN
                raise RefusedError(
                    f"Expected the norm={length} of {name}, a sum of {count}, to be at most "
                    f"{count} times clip_norm={order.clip_norm}.",
                    FaultKind.ANSWER_REFUSED
                    if math.isfinite(length)
                    else FaultKind.ANSWER_NOT_FINITE,
                )


_SEEDS = ("canary_seed", "local_seed")
_SUMS = ("total", "clients_total")
_NUMBERS = ("clients", "canaries", "unclipped", "examples", "loss_sum", "correct")
_ANSWER = pydantic.TypeAdapter(PartialAggregate)


def collect(
    replies: Iterable[Message],
    instructions: Mapping[int, TrainInstruction],
    sent: Iterable[Metadata],
    round_number: int,
    fault: Callable[[FaultKind, str], None],
) -> dict[int, PartialAggregate]:
    """The good answers by node, in the order of the instructions; every fault is counted once.

    Args:
        replies: to the messages of a round.
        instructions: what each node was to do.
        sent: the messages.
        round_number: from 1.
        fault: called for each fault.
    """
    parts: dict[int, PartialAggregate] = {}
    # An in-process grid numbers copies.
    asked = {about.message_id: about.dst_node_id for about in sent if about.message_id}
    heard: set[int] = set()
    for reply in replies:
        # A SuperLink answers in the name of a node that died, under its own id.
        about, group = reply.metadata, reply.metadata.group_id
        node = asked.get(about.reply_to_message_id, about.src_node_id)
        if group and group != str(round_number):
            fault(
                FaultKind.ANSWER_OF_ANOTHER_ROUND,
                f"node {node}: this is its answer of round {group}",
            )
            continue
        heard.add(node)
        if node in parts:
            fault(FaultKind.ANSWERED_TWICE, f"node {node}: it answered twice")
            continue
        try:
            if node not in instructions:
                raise RefusedError("nobody asked it")
            part = PartialAggregate.decode(content := content_of(reply))
            content.clear()  # the sums end with what is made of them, not with the message
            part.check(instructions[node])
        except RefusedError as error:
            fault(error.kind, f"node {node}: {error}")
            continue
        parts[node] = part
        for each in part.faults:
            fault(*each)
    for node in instructions.keys() - heard:
        fault(FaultKind.NO_ANSWER, f"node {node}: no answer in time")
    return {node: parts[node] for node in instructions if node in parts}


def add_up(
    parts: Collection[PartialAggregate], dim: int, *, separate: bool
) -> PartialAggregate:
    """All parts of a round in one; the sum of the clients alone too if it is ``separate``.

    The parts keep their numbers, and no sums.
    """
    found = {name: sum(getattr(part, name) for part in parts) for name in _NUMBERS}
    for name in _SUMS if separate else _SUMS[:1]:
        sums = [vars(part).pop(name) for part in parts] or [np.zeros(dim)]
        found[name] = sums.pop(0)
        while sums:
            found[name] = found[name] + sums.pop(0)
    return PartialAggregate(**found)
