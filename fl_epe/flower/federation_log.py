"""What a server knows of a federation of silos: who was in which round, and what each answered.

Texts from silos are not trusted: `read_answer` takes those alone that are answers.

Examples:
    >>> log = FederationLog(rounds=[FederationRound({1: 4.0, 2: 3.0, 3: 1.0}, "a")])
    >>> log.facts([1], allies=1)
    FederationFacts(rounds=1, taken=(1,), silos=3, others=(0.25,), allies=1, server='sgd', momentum=0.0, learning_rate=1.0)
"""  # noqa: E501 - a result

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Collection
from typing import Any

from flwr.app import ArrayRecord

from fl_epe.archive import one_line
from fl_epe.auditing import FederationFacts, SiloAnswer, SiloLine
from fl_epe.checks import check_probability, check_types, checked_type, raise_invalid

_LONGEST = 1 << 26  # characters of an answer
_MOST_TEXTS = 20  # sentences of one kind in an answer
_MOST_FAULTS = 100
_LONGEST_NAME = 40
_MEASURED = ("epsilon", "low", "high", "theory", "linear_limit")


def fingerprint(arrays: ArrayRecord) -> str:
    """By which a model is known again."""
    found = hashlib.blake2b(digest_size=16)
    for array in arrays.values():
        found.update(array.data)
    return found.hexdigest()


def read_answer(text: object, node: int) -> SiloAnswer:
    """The answer in a text that a node sent, with short printable texts and a name.

    Raises:
        ValueError, ArithmeticError: if it is no answer.
    """
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise ValueError("Expected the answer of a silo, as a text.")
    answer = SiloAnswer.from_json(text)
    check_types(answer)
    check_probability("delta", answer.delta)
    check_probability("confidence", answer.confidence)
    design = answer.design or {}
    for name, value in design.items():
        checked_type(name, value, float)
    lines = {line.adversary: _checked(line) for line in answer.lines}
    name = one_line(answer.silo.replace("(", "["), _LONGEST_NAME)
    return dataclasses.replace(
        answer,
        silo=f"node {node}" if answer.silo in ("", str(node)) else name,
        unit=one_line(answer.unit, _LONGEST_NAME),
        lines=tuple(lines.values()),
        faults=_short(answer.faults),
        notes=_short(answer.notes),
    )


def _checked(line: SiloLine) -> SiloLine:
    checked_type("releases", line.releases, int)
    for name in (*_MEASURED, "proved"):
        value = getattr(line, name)
        if value is not None and not value >= 0:
            raise_invalid(name, value, ">= 0")
    reason = one_line(line.reason) if line.reason else ""
    return dataclasses.replace(line, reason=reason, doubts=_short(line.doubts))


def _short(texts: Collection[str]) -> tuple[str, ...]:
    return tuple(map(one_line, [*texts][:_MOST_TEXTS]))


@dataclasses.dataclass
class FederationRound:
    """A round as the server saw it.

    Attributes:
        energies: of each node's weighted update, for those whose reply arrived; ``None`` if they
            cannot be seen.
        model: fingerprint of the newest model after the round.
        released: whether the round released it.
        averaged: whether it is the average of the replies.
    """

    energies: dict[int, float | None]
    model: str
    released: bool = True
    averaged: bool = True

    def left_of_others(self, silo: Collection[int], allies: int) -> float | None:
        """Share of the energy of all but a silo that is left without the largest ``allies``."""
        others = [energy for node, energy in self.energies.items() if node not in silo]
        known = sorted(energy for energy in others if energy is not None)
        if len(known) < len(others):
            return None
        total = sum(known)
        return sum(known[: max(0, len(known) - allies)]) / total if total else 0.0


@dataclasses.dataclass
class HeardAnswer:
    """An answer that a silo sent.

    Attributes:
        rounds: of the federation when it came, that one included.
        text: as it came.
        saw_last: whether the silo had seen the last model.
    """

    rounds: int
    text: str
    saw_last: bool = False


@dataclasses.dataclass
class FederationLog:
    """A federation after some rounds, which a folder keeps.

    Attributes:
        start: fingerprint of the initial model.
        rounds: all of them, in order.
        heard: the newest answer of each node.
        faults: what went wrong, in sentences without a full stop, each once.
    """

    start: str = ""
    rounds: list[FederationRound] = dataclasses.field(default_factory=list)
    heard: dict[int, HeardAnswer] = dataclasses.field(default_factory=dict)
    faults: list[str] = dataclasses.field(default_factory=list)

    def note(self, fault: str) -> bool:
        """Keep a fault; returns whether it is new."""
        is_new = fault not in self.faults and len(self.faults) < _MOST_FAULTS
        if is_new:
            self.faults.append(fault)
        return is_new

    def rounds_until(self, model: str) -> int:
        """After how many rounds this was the newest model; 0 if it never was."""
        return max((t for t, one in enumerate(self.rounds, 1) if one.model == model), default=0)

    def go_back(self, done: int) -> None:
        """Forget all but the first rounds, and what silos answered after them."""
        del self.rounds[done:]
        self.heard = {node: one for node, one in self.heard.items() if one.rounds <= done}

    def silos(self) -> dict[str, list[int]]:
        """The nodes of each silo by its name.

        A node that was started again may have another id. Nodes of one name are one silo unless
        they were in the same round.
        """
        named: dict[str, list[int]] = {}
        for node in dict.fromkeys(node for one in self.rounds for node in one.energies):
            answer = self.answer([node])
            named.setdefault(answer.silo if answer else f"node {node}", []).append(node)
        silos: dict[str, list[int]] = {}
        for name, nodes in named.items():
            if any(len(one.energies.keys() & set(nodes)) > 1 for one in self.rounds):
                silos |= {f"{name} (node {node})": [node] for node in nodes}
            else:
                silos[name] = nodes
        return silos

    def last_heard(self, silo: Collection[int]) -> HeardAnswer | None:
        """The newest answer of a silo as it came; ``None`` if there was none."""
        heard = [self.heard[node] for node in silo if node in self.heard]
        return max(heard, key=lambda one: one.rounds, default=None)

    def answer(self, silo: Collection[int]) -> SiloAnswer | None:
        """The newest answer of the silo with these nodes; ``None`` if there was none.

        Where it covers less than the server saw of the silo nothing counts as measured, but what
        is proved stays.
        """
        heard = self.last_heard(silo)
        if heard is None:
            return None
        answer = read_answer(heard.text, max(silo))
        if reason := self._uncovered(answer, heard, silo):
            nothing: dict[str, Any] = dict.fromkeys(_MEASURED)
            lines = (dataclasses.replace(one, **nothing, reason=reason) for one in answer.lines)
            return dataclasses.replace(answer, lines=tuple(lines))
        return answer

    def _uncovered(self, answer: SiloAnswer, heard: HeardAnswer, silo: Collection[int]) -> str:
        """What of a silo's uploads its answer does not cover; empty if it covers all."""
        uploads = [t for t, one in enumerate(self.rounds, 1) if one.energies.keys() & set(silo)]
        if later := sum(t > heard.rounds for t in uploads):
            return f"its last {later} of {len(uploads)} uploads came without an answer"
        if answer.rounds < len(uploads):
            return (
                f"its audit covers {answer.rounds} of {len(uploads)} rounds: its state was lost in"
                " a restart (name a folder on the silo that outlives it)"
            )
        return ""

    def facts(self, silo: Collection[int], allies: int, **server: Any) -> FederationFacts:
        """What a silo is told.

        A round in which no upload can be seen counts as the worst of the others.

        Args:
            silo: its nodes.
            allies: see `FederationFacts`.
            server: the fields that tell what moves the model.
        """
        released = [one for one in self.rounds if one.released]
        nodes = set(silo)
        taken = {t: one for t, one in enumerate(released, 1) if one.energies.keys() & nodes}
        shares = [one.left_of_others(nodes, allies) for one in taken.values()]
        worst = min((share for share in shares if share is not None), default=None)
        others = () if worst is None else [worst if one is None else one for one in shares]
        count = len(self.silos())
        return FederationFacts(
            len(released), tuple(taken), count, tuple(others), allies=allies, **server
        )
