"""Messages of a round: a `TrainInstruction` to a node, and its reply, a `PartialAggregate`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
import pydantic
from flwr.app import ArrayRecord, ConfigRecord, Message, Metadata, RecordDict

from fl_epe.archive import UNREADABLE, error_text, one_line
from fl_epe.auditing import Fault, FaultKind
from fl_epe.canaries import CanaryKind
from fl_epe.checks import Floats32
from fl_epe.mechanism import norm
from fl_epe.messages import error_kind, read_only, records_of, share
from fl_epe.simulation.dp_fedavg import ClippedSums

# The fields of a `TrainInstruction` that are seeds.
_SEED_FIELDS = ("canary_seed", "local_seed")
# The fields of a `PartialAggregate` that are arrays, and those that are numbers.
_ARRAY_FIELDS = ("total", "clients_total")
_NUMBER_FIELDS = (
    "clients",
    "canaries",
    "unclipped",
    "examples",
    "loss_sum",
    "correct",
)
# The relative tolerance for rounding in the norm of a sum of clipped updates.
_ROUNDING = 1e-6


class RefusedError(ValueError):
    """Raised for a reply that cannot be used.

    Attributes:
        kind: the kind of the fault.
    """

    def __init__(
        self, text: str, kind: FaultKind = FaultKind.ANSWER_REFUSED
    ) -> None:
        super().__init__(text)
        self.kind = kind


def content_of(reply: Message) -> RecordDict:
    """The content of a reply; raises a `RefusedError` if the reply is an error."""
    if reply.has_error():
        raise RefusedError(str(reply.error.reason), error_kind(reply.error))
    return reply.content


@dataclasses.dataclass(frozen=True)
class TrainInstruction:
    """A node's instruction for a round: its clients, its canaries and the settings.

    The node learns nothing about the clients and canaries of other nodes, nor about the noise.
    With ``separate``, the node also returns ``clients_total``, the sum over its real clients alone.
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
        """The content of a message.

        Args:
            model: ``theta`` in encoded form, which messages to many nodes can share; by default
                it is encoded here.
        """
        values = dict(vars(self))
        theta = values.pop("theta")
        # An integer in a message has only 64 bits.
        for name in _SEED_FIELDS:
            values[name] = str(values[name])
        return RecordDict(
            {
                "model": model or share(theta=theta),
                # The name of this record, as of all others, is part of the protocol.
                "order": ConfigRecord(values),
            }
        )

    @classmethod
    def decode(cls, content: RecordDict) -> TrainInstruction:
        """The inverse of `encode`."""
        values: dict[str, Any] = dict(
            records_of(content, ConfigRecord)["order"]
        )
        for name in _SEED_FIELDS:
            values[name] = int(values[name])
        theta = records_of(content, ArrayRecord)["model"]["theta"]
        return cls(theta=read_only(theta), **values)


@dataclasses.dataclass(eq=False)
class PartialAggregate(ClippedSums):
    """A node's reply: sums over the clipped updates of its clients and canaries.

    Attributes:
        examples: number of predictions that the clients made while they trained. For text,
            these are the tokens that are not masked, and not the examples.
        loss_sum: sum of the losses of these predictions.
        correct: sum of the task's metric over these predictions: for accuracy, the number of
            correct ones.
        faults: a fault for each lost update.
    """

    __pydantic_config__: ClassVar = pydantic.ConfigDict(
        arbitrary_types_allowed=True
    )

    examples: int = 0
    loss_sum: float = 0.0
    correct: float = 0
    faults: list[Fault] = dataclasses.field(default_factory=list)

    def encode(self) -> RecordDict:
        """The content of a reply."""
        counts = dict(vars(self))
        sums = {name: counts.pop(name) for name in _ARRAY_FIELDS}
        counts["faults"] = [fault.text for fault in self.faults]
        counts["kinds"] = [str(fault.kind) for fault in self.faults]
        if self.clients_total is None:
            del sums["clients_total"]
        return RecordDict(
            {"sums": share(**sums), "counts": ConfigRecord(counts)}
        )

    @classmethod
    def decode(cls, content: RecordDict) -> PartialAggregate:
        """The inverse of `encode`.

        Raises:
            RefusedError: if a part is missing or cannot be read.
        """
        try:
            sums = records_of(content, ArrayRecord)["sums"]
            values: dict[str, Any] = dict(
                records_of(content, ConfigRecord)["counts"]
            )
            kinds = values.pop("kinds")
            texts = values.pop("faults")
            # A pair is read as the first two fields of a `Fault`, its kind and text.
            values["faults"] = list(zip(kinds, texts, strict=True))
            values |= {name: read_only(array) for name, array in sums.items()}
            return _AGGREGATE.validate_python(values)
        except pydantic.ValidationError as error:
            detail = error.errors()[0]
            value = f"{detail['loc'][0]}={detail['input']!r:.40}"
            raise RefusedError(
                f"Expected {value} to have the right type: {detail['msg']}."
            ) from error
        except UNREADABLE as error:
            raise RefusedError(
                f"Expected a readable reply: {one_line(error_text(error))}."
            ) from error

    def check(self, instruction: TrainInstruction) -> None:
        """Refuse a reply that does not fit its instruction.

        Raises:
            RefusedError: for a wrong shape or type, or for a sum that is not finite or whose
                norm is larger than its number of clipped updates allows.
        """
        limits = {
            "clients": len(instruction.clients),
            "canaries": len(instruction.canary_ids),
            "unclipped": self.clients,
        }
        for name, limit in limits.items():
            count = getattr(self, name)
            if not 0 <= count <= limit:
                raise RefusedError(f"Expected {name}={count} in [0, {limit}].")
        if self.clients_total is not None and not instruction.separate:
            raise RefusedError(
                "Expected no clients_total, as the instruction did not ask for it."
            )
        self._check_sum("total", self.clients + self.canaries, instruction)
        if instruction.separate:
            self._check_sum("clients_total", self.clients, instruction)

    def _check_sum(
        self, name: str, count: int, instruction: TrainInstruction
    ) -> None:
        """Refuse a sum of ``count`` clipped updates that has another type, shape or norm."""
        total = getattr(self, name)
        expected = f"float64 {instruction.theta.shape}"
        actual = "nothing" if total is None else f"{total.dtype} {total.shape}"
        if actual != expected:
            raise RefusedError(
                f"Expected {name} to be {expected}, got {actual}.",
                FaultKind.ANSWER_OF_WRONG_SHAPE,
            )
        total_norm = norm(total)
        clip_norm = instruction.clip_norm
        if total_norm <= count * clip_norm * (1 + _ROUNDING):
            return
        kind = FaultKind.ANSWER_REFUSED
        if not math.isfinite(total_norm):
            kind = FaultKind.ANSWER_NOT_FINITE
        raise RefusedError(
            f"Expected the norm={total_norm} of {name}, a sum of {count} updates, to be at most "
            f"{count} times clip_norm={clip_norm}.",
            kind,
        )


_AGGREGATE = pydantic.TypeAdapter(PartialAggregate)


def collect(
    replies: Iterable[Message],
    instructions: Mapping[int, TrainInstruction],
    sent: Iterable[Metadata],
    round_number: int,
    add_fault: Callable[[FaultKind, str], None],
) -> dict[int, PartialAggregate]:
    """The valid replies by node, in the order of the instructions.

    The contents of ``replies`` that can be decoded are emptied, to save memory.

    Args:
        replies: the replies to the messages of a round.
        instructions: the instruction of each node.
        sent: the metadata of the messages.
        round_number: number of the round, from 1.
        add_fault: called once for each fault.
    """
    parts: dict[int, PartialAggregate] = {}
    # If a node dies, the SuperLink replies in its place, with its own node id, so a reply belongs
    # to the node whose message it answers. An in-process grid sets no ids on these messages. There
    # the node id of the reply is right, as no node dies.
    node_of = {
        metadata.message_id: metadata.dst_node_id
        for metadata in sent
        if metadata.message_id
    }
    replied: set[int] = set()
    for reply in replies:
        metadata = reply.metadata
        node = node_of.get(metadata.reply_to_message_id, metadata.src_node_id)
        round_text = metadata.group_id  # the number of the round as text
        if round_text and round_text != str(round_number):
            text = f"node {node}: this is its answer of round {round_text}"
            add_fault(FaultKind.ANSWER_OF_ANOTHER_ROUND, text)
            continue
        replied.add(node)
        if node in parts:
            text = f"node {node}: it answered twice"
            add_fault(FaultKind.ANSWERED_TWICE, text)
            continue
        try:
            if node not in instructions:
                raise RefusedError("it was not asked")
            content = content_of(reply)
            part = PartialAggregate.decode(content)
            # The message must not keep the sums in memory when `add_up_and_free` has freed them.
            content.clear()
            part.check(instructions[node])
        except RefusedError as error:
            add_fault(error.kind, f"node {node}: {error}")
            continue
        parts[node] = part
        for fault in part.faults:
            add_fault(fault.kind, fault.text)
    for node in instructions.keys() - replied:
        add_fault(FaultKind.NO_ANSWER, f"node {node}: no answer in time")
    return {node: parts[node] for node in instructions if node in parts}


def add_up_and_free(
    parts: Collection[PartialAggregate], dim: int, *, separate: bool
) -> PartialAggregate:
    """Add up all parts of a round, and remove the added arrays from the parts.

    Each array is freed as soon as it is added, so that less memory is needed. The result has no
    faults: `collect` has reported those of the parts.

    Args:
        parts: the parts.
        dim: number of parameters of the model.
        separate: whether to add up ``clients_total``, too.
    """
    values = {
        name: sum(getattr(part, name) for part in parts)
        for name in _NUMBER_FIELDS
    }
    names = _ARRAY_FIELDS if separate else ("total",)
    for name in names:
        sums = []
        for part in parts:
            sums.append(getattr(part, name))
            setattr(part, name, None)
        total = sums.pop(0) if sums else np.zeros(dim)
        while sums:
            # `pop` leaves no reference to the array, which is then freed.
            total = total + sums.pop(0)
        values[name] = total
    return PartialAggregate(**values)
