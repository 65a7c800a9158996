"""What a silo says once it has the last model: `final_answer`, and `answer_records` for Flower."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fl_epe.auditing import RECORDS, FederationFacts, SiloAnswer
from fl_epe.checks import Vector, raise_invalid
from fl_epe.silos.lines import answer_of
from fl_epe.silos.memory import SiloMemory
from fl_epe.silos.places import UNMEASURED, place_of
from fl_epe.silos.sent import arrays_of


def final_answer(
    where: Any,
    model: Mapping[str, Any] | Iterable[Any],
    facts: FederationFacts | None = None,
) -> SiloAnswer:
    """What a silo says at the end, with the last model of the federation.

    Args:
        where: as for `audit_records`.
        model: the arrays of the last model by the names that `SiloAudit.sent` knew, or the
            trainable tensors in their order.
        facts: of the federation. By default the silo took part in every round, and the model was
            moved as `audit_records` was told.

    Raises:
        LookupError: if nothing is kept there.
        ValueError: for a model of another shape.
    """
    place = place_of(where)
    state = place.load()
    if state is None:
        kind = type(where).__name__  # what a context holds stays in the silo
        raise LookupError(
            f"Expected a {kind} that holds the audit of a silo, found none in it."
        )
    if "plan" not in state:
        return SiloAnswer.from_json(state[UNMEASURED].tobytes().decode())
    memory = SiloMemory.of_state(state)
    if not (memory.told.unsent and isinstance(model, Mapping)):  # else no name is known
        memory.receive(_flat(memory, model))
    if facts is None:
        plan, averages = memory.plan, memory.told.averages
        seen = sum(average.share > 0 for average in averages)
        facts = FederationFacts(
            rounds=seen,
            taken=tuple(range(1, seen + 1)),
            silos=plan.silos,
            momentum=plan.server.momentum,
            learning_rate=plan.server.learning_rate,
        )
    place.save(memory.state())
    return answer_of(memory, facts)


def _flat(memory: SiloMemory, model: Mapping[str, Any] | Iterable[Any]) -> Vector:
    if isinstance(model, Mapping):
        names = memory.told.names
        if not names or any(name not in model for name in names):
            raise_invalid(
                "model", sorted(model), f"to have the arrays that were sent, {names}"
            )
        model = [model[name] for name in names]
    parts = [_array(part).reshape(-1) for part in model]
    whole = (
        np.concatenate(parts).astype(np.float32) if parts else np.empty(0, np.float32)
    )
    if whole.shape != (memory.plan.dim,):
        raise_invalid("model", whole.shape, f"to have {memory.plan.dim:,} parameters")
    return whole


def _array(part: Any) -> np.ndarray:
    """Of an array, or of a tensor of torch on any device."""
    tensor = (
        part.detach().cpu().float() if hasattr(part, "detach") else part
    )  # NumPy has no bfloat16
    return np.asarray(tensor)


def answer_records(message: Any, context: Any) -> Any:
    """A Flower handler, ``app.query("records")(answer_records)``: the silo's answer at the end.

    `fl_epe.flower.RecordAudit` sends the last model and what a silo cannot know of its federation.

    Args:
        message: from the server.
        context: the handler's, or what else `audit_records` was told as ``where``.
    """
    from flwr.app import ConfigRecord, Message, RecordDict

    facts = FederationFacts.from_json(str(message.content[RECORDS]["facts"]))
    found = final_answer(context, arrays_of(message.content), facts)
    content = RecordDict({RECORDS: ConfigRecord({"answer": found.to_leave()})})
    return Message(content, reply_to=message)
