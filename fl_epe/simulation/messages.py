"""Messages: a `TrainInstruction` to a node, and its `PartialAggregate` back."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, Metadata, MetricRecord, RecordDict
from numpy.typing import NDArray

from fl_epe.archive import UNREADABLE, one_line
from fl_epe.auditing import Fault, FaultKind
from fl_epe.canaries import CanaryKind
from fl_epe.flower import pack, read_only, records_of
from fl_epe.mechanism import norm
from fl_epe.simulation.dp_fedavg import ClippedSums


class RefusedError(ValueError):
    """An answer that cannot be used.

    Attributes:
        kind: of the fault.
    """

    def __init__(self, kind: FaultKind, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclasses.dataclass(frozen=True)
class TrainInstruction:
    """What a worker is to do in a round: which clients and canaries take part there, and how.

    The node learns nothing about the clients and canaries of other nodes, nor about the noise.
    """

    theta: NDArray[np.float32]
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
        config = {
            field.name.replace("_", "-"): getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "theta"
        }
        # Seeds are wider than the 64 bits of an integer on the wire.
        config |= {name: str(config[name]) for name in ("canary-seed", "local-seed")}
        if model is None:
            model = pack(theta=self.theta)
        return RecordDict({"model": model, "order": ConfigRecord(config)})

    @classmethod
    def decode(cls, content: RecordDict) -> TrainInstruction:
        """The inverse of `encode`."""
        config = records_of(content, ConfigRecord)["order"]
        values: dict[str, Any] = {key.replace("-", "_"): value for key, value in config.items()}
        for name in ("canary_seed", "local_seed"):
            values[name] = int(values[name])
        return cls(theta=read_only(records_of(content, ArrayRecord)["model"]["theta"]), **values)


@dataclasses.dataclass
class PartialAggregate:
    """What a worker answers: sums over its clipped updates, never a single one.

    Attributes:
        clients_sum: float64 ``(dim,)``; with the canaries in it, unless they are kept apart.
        canaries_sum: float64 ``(dim,)``, or ``None``.
        clients: clients whose update is in the sum.
        canaries: canaries in the sum.
        unclipped: those of the clients whose norm was at most the clip norm.
        examples: predictions made by the clients while they trained.
        loss_sum: their summed loss.
        correct: how many of them were right, or the sum of the task's metric.
        faults: one for each update that was lost.
    """

    clients_sum: NDArray[np.float64]
    canaries_sum: NDArray[np.float64] | None = None
    clients: int = 0
    canaries: int = 0
    unclipped: int = 0
    examples: int = 0
    loss_sum: float = 0.0
    correct: float = 0
    faults: list[Fault] = dataclasses.field(default_factory=list)

    _COUNTS = ("clients", "canaries", "unclipped", "examples")
    _NUMBERS = (*_COUNTS, "loss_sum", "correct")

    def encode(self) -> RecordDict:
        """As the content of a reply."""
        arrays = {"clients": self.clients_sum}
        if self.canaries_sum is not None:
            arrays["canaries"] = self.canaries_sum
        numbers = {name.replace("_", "-"): getattr(self, name) for name in self._NUMBERS}
        return RecordDict(
            {
                "sums": pack(**arrays),
                "counts": MetricRecord(numbers),
                "faults": ConfigRecord(
                    {
                        "faults": [fault.text for fault in self.faults],
                        "kinds": [str(fault.kind) for fault in self.faults],
                    }
                ),
            }
        )

    @classmethod
    def decode(cls, content: RecordDict) -> PartialAggregate:
        """The inverse of `encode`.

        Raises:
            RefusedError: if something is missing or cannot be read.
        """
        try:
            arrays = records_of(content, ArrayRecord)["sums"]
            counts = records_of(content, MetricRecord)["counts"]
            told: Any = records_of(content, ConfigRecord)["faults"]
            kinds = told.get("kinds", [FaultKind.OTHER] * len(told["faults"]))
            faults = [
                Fault(FaultKind(kind), str(text))
                for kind, text in zip(kinds, told["faults"], strict=True)
            ]
            numbers: dict[str, Any] = {
                name: counts[name.replace("_", "-")] for name in cls._NUMBERS
            }
            for name, value in numbers.items():
                if type(value) is not int and (name in cls._COUNTS or type(value) is not float):
                    raise TypeError(f"{name}={value!r} is no number of its kind")
            canaries = read_only(arrays["canaries"]) if "canaries" in arrays else None
            return cls(read_only(arrays["clients"]), canaries, **numbers, faults=faults)
        except KeyError as error:
            raise RefusedError(FaultKind.REFUSED, f"Expected {error} in the reply.") from error
        except UNREADABLE as error:
            text = f"Expected a reply that can be read: {one_line(error)}."
            raise RefusedError(FaultKind.REFUSED, text) from error

    def check(self, order: TrainInstruction) -> None:
        """Refuse an answer that does not fit its order.

        Raises:
            RefusedError: for a wrong shape or type, a sum that is not finite, or one that is longer
                than its number of clipped updates allows.
        """
        most = {"clients": len(order.clients), "canaries": len(order.canary_ids)}
        for name, largest in (*most.items(), ("unclipped", self.clients)):
            if not 0 <= (count := getattr(self, name)) <= largest:
                text = f"Expected {name}={count} >= 0 and <= {largest}."
                raise RefusedError(FaultKind.REFUSED, text)
        together = self.clients if order.separate else self.clients + self.canaries
        parts = [("clients", self.clients_sum, together)]
        if self.canaries_sum is not None:
            if not order.separate:
                text = "Expected no sum of canaries apart, as none was asked for."
                raise RefusedError(FaultKind.REFUSED, text)
            parts.append(("canaries", self.canaries_sum, self.canaries))
        for name, total, count in parts:
            if total.shape != order.theta.shape or total.dtype != np.float64:
                raise RefusedError(
                    FaultKind.WRONG_SHAPE,
                    f"Expected the {name} sum to be float64 {order.theta.shape}, "
                    f"got {total.dtype} {total.shape}.",
                )
            length = norm(total)
            if not length <= count * order.clip_norm * (1 + 1e-6):  # also refuses NaN
                raise RefusedError(
                    FaultKind.REFUSED if math.isfinite(length) else FaultKind.NOT_FINITE,
                    f"Expected the norm={length} of a sum of {count} {name} to be at most "
                    f"{count} times clip_norm={order.clip_norm}.",
                )

    def total(self) -> NDArray[np.float64]:
        """Clients and canaries together."""
        if self.canaries_sum is None:
            return self.clients_sum
        return self.clients_sum + self.canaries_sum


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
            fault(FaultKind.LATE, f"node {node}: this is its answer of round {group}")
            continue
        heard.add(node)
        try:
            part = _read(reply, instructions.get(node))
        except RefusedError as error:
            fault(error.kind, f"node {node}: {error}")
            continue
        if node in parts:
            fault(FaultKind.TWICE, f"node {node}: it answered twice")
            continue
        parts[node] = part
        for each in part.faults:
            fault(*each)
    for node in instructions.keys() - heard:
        fault(FaultKind.NO_ANSWER, f"node {node}: no answer in time")
    return {node: parts[node] for node in instructions if node in parts}


def _read(reply: Message, instruction: TrainInstruction | None) -> PartialAggregate:
    """What a node answers; raises a `RefusedError` if it cannot be used."""
    if reply.has_error():
        raise RefusedError(FaultKind.of_error(reply.error.code), str(reply.error.reason))
    if instruction is None:
        raise RefusedError(FaultKind.REFUSED, "nobody asked it")
    part = PartialAggregate.decode(reply.content)
    part.check(instruction)
    return part


def add_up(parts: Iterable[PartialAggregate], dim: int, *, separate: bool) -> ClippedSums:
    """The sums of a round; those of the clients alone if they are kept ``separate``."""
    total, clients = np.zeros(dim), np.zeros(dim) if separate else None
    counts = np.zeros(3, np.int64)
    for part in parts:
        total += part.total()
        counts += (part.clients, part.unclipped, part.canaries)
        if clients is not None:
            clients += part.clients_sum
    return ClippedSums(total, clients, *counts.tolist())
