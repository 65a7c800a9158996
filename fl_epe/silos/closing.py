"""`final_answer` and, for Flower, `answer_records`: a silo's answer after the last model."""

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
    """A silo's answer at the end, with the last model of the federation.

    Args:
        where: where the audit is stored, as for `audit_records`.
        model: the arrays of the last model under the names of `SiloAudit.sent`, or the
            trainable tensors in their order.
        facts: facts about the federation. By default the silo took part in every round, and the
            server is that of `audit_records`.

    Raises:
        LookupError: if no audit is stored there.
        ValueError: for a model of another shape.
    """
    place = place_of(where)
    state = place.load()
    if state is None:
        # The message names only the type, as the content must stay in the silo.
        kind = type(where).__name__
        raise LookupError(
            f"Expected a {kind} that holds the audit of a silo, found none in it."
        )
    if "plan" not in state:
        return SiloAnswer.from_json(state[UNMEASURED].tobytes().decode())
    memory = SiloMemory.of_state(state)
    # Without the names of the sent tensors, a mapping cannot be read, and ε is not measured.
    is_unreadable = memory.history.unsent and isinstance(model, Mapping)
    if not is_unreadable:
        memory.receive(_flat(memory, model))
    if facts is None:
        server = memory.plan.server
        # An average with an upload stands for a round.
        rounds = sum(average.share > 0 for average in memory.history.averages)
        facts = FederationFacts(
            rounds=rounds,
            upload_rounds=tuple(range(1, rounds + 1)),
            silos=memory.plan.silos,
            momentum=server.momentum,
            learning_rate=server.learning_rate,
        )
    place.save(memory.state())
    return answer_of(memory, facts)


def _flat(
    memory: SiloMemory, model: Mapping[str, Any] | Iterable[Any]
) -> Vector:
    """The trainable parameters of the last model, ``(dim,)``, see `final_answer`."""
    tensors: Iterable[Any] = model
    if isinstance(model, Mapping):
        names = memory.history.names
        if not names or any(name not in model for name in names):
            raise_invalid(
                "model",
                sorted(model),
                f"to have the arrays that were sent, {names}",
            )
        tensors = [model[name] for name in names]
    parts = [np.empty(0, np.float32)]
    for array in tensors:
        if hasattr(array, "detach"):
            # A torch tensor is converted to float32, as NumPy has no bfloat16.
            array = array.detach().cpu().float()
        parts.append(np.asarray(array).reshape(-1))
    vector = np.concatenate(parts).astype(np.float32)
    if vector.shape != (memory.plan.dim,):
        raise_invalid(
            "model", vector.shape, f"to have {memory.plan.dim:,} parameters"
        )
    return vector


def answer_records(message: Any, context: Any) -> Any:
    """A Flower handler that replies with the silo's answer after the last model.

    Register it by ``app.query("records")(answer_records)``. `fl_epe.flower.RecordAudit` sends
    the last model, and the facts about the federation that a silo cannot know.

    Args:
        message: the message of the server.
        context: the context of the handler, or another ``where`` of `audit_records`.
    """
    from flwr.app import ConfigRecord, Message, RecordDict

    facts = FederationFacts.from_json(str(message.content[RECORDS]["facts"]))
    answer = final_answer(context, arrays_of(message.content), facts)
    content = RecordDict({RECORDS: ConfigRecord({"answer": answer.to_leave()})})
    return Message(content, reply_to=message)
