"""A server's knowledge of a federation of silos: the silos of each round, and their answers.

Texts from silos are not trusted: `read_answer` validates them.

Examples:
    >>> energies = {"north": 4.0, "south": 3.0, "west": 1.0}
    >>> FederationLog(rounds=[FederationRound(energies, "a")]).facts("north", allies=1)
    FederationFacts(rounds=1, upload_rounds=(1,), silos=3, remaining_energies=(0.25,), allies=1, server='sgd', momentum=0.0, learning_rate=1.0)
"""  # noqa: E501 - a result

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Collection, Sequence
from typing import Any

import pydantic
from flwr.app import ArrayRecord

from fl_epe.archive import one_line
from fl_epe.auditing import FederationFacts, SiloAnswer, SiloLine
from fl_epe.checks import check_probability, raise_invalid

_MAX_TEXTS = 20  # of one kind in an answer
_MAX_NAME_LENGTH = 40
# The names of numbers in a `SiloLine`, which are at least 0.
_INTERVAL = ("epsilon", "low", "high")
_NUMBERS = (*_INTERVAL, "proved", "theory", "linear_limit")
_ANSWER_TYPE = pydantic.TypeAdapter(SiloAnswer)


def model_hash(arrays: ArrayRecord) -> str:
    """The hash by which a model is recognized."""
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays.values():
        digest.update(array.data)
    return digest.hexdigest()


def read_answer(text: Any, node: int) -> SiloAnswer:
    """The answer in a text that a node sent, with a name and with short printable texts.

    Raises:
        ValueError: if the text is not a valid answer.
    """
    answer = _ANSWER_TYPE.validate_json(text)
    check_probability("delta", answer.delta)
    check_probability("confidence", answer.confidence)
    lines = {line.adversary: _checked(line) for line in answer.lines}
    # A silo without a name sends the id of its node, see `SiloAnswer`.
    name = answer.silo if answer.silo not in ("", str(node)) else f"node {node}"
    return dataclasses.replace(
        answer,
        silo=one_line(name, _MAX_NAME_LENGTH),
        unit=one_line(answer.unit, _MAX_NAME_LENGTH),
        lines=tuple(lines.values()),
        faults=_short(answer.faults),
        notes=_short(answer.notes),
    )


def _unmeasured(line: SiloLine, reason: str) -> SiloLine:
    """The line without the results that do not hold for rounds that the audit did not cover.

    A proved bound is kept, and so is an infinite theoretical ε.
    """
    fields = (*_INTERVAL, "scale", "linear_limit")
    no_results: dict[str, Any] = dict.fromkeys(fields)
    theory = math.inf if line.theory == math.inf else None
    return dataclasses.replace(line, **no_results, theory=theory, reason=reason)


def _checked(line: SiloLine) -> SiloLine:
    """The line with short texts, and with a reason if it has no complete interval."""
    for name in _NUMBERS:
        value = getattr(line, name)
        if value is not None and not value >= 0:
            raise_invalid(name, value, ">= 0")
    reason = line.reason
    if line.epsilon is None or line.low is None or line.high is None:
        no_interval: dict[str, Any] = dict.fromkeys(_INTERVAL)
        line = dataclasses.replace(line, **no_interval)
        reason = one_line(reason or "no reason was given")
    return dataclasses.replace(line, reason=reason, doubts=_short(line.doubts))


def _short(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(map(one_line, texts[:_MAX_TEXTS]))


@dataclasses.dataclass
class FederationRound:
    """A round as the server saw it.

    Attributes:
        energies: the energy of each silo's weighted update, by the names of the silos whose
            reply arrived; ``None`` if the update cannot be seen.
        model: the hash of the newest model after the round.
        released: whether the round released this model.
        averaged: whether the model is the average of the replies.
    """

    energies: dict[str, float | None]
    model: str
    released: bool = True
    averaged: bool = True

    def share_without_allies(self, silo: str, allies: int) -> float | None:
        """The share of the other silos' energy that remains without the ``allies`` largest of them.

        ``None`` if the energy of another silo is not known.
        """
        energies = list[float]()
        for name, energy in self.energies.items():
            if name != silo:
                if energy is None:
                    return None
                energies.append(energy)
        energies.sort()
        total = sum(energies)
        if not total:
            return 0.0
        num_remaining = max(0, len(energies) - allies)
        return sum(energies[:num_remaining]) / total


@dataclasses.dataclass
class HeardAnswer:
    """An answer that a silo sent.

    Attributes:
        node: the node that sent it.
        rounds: the number of the federation's round in which it arrived, from 1.
        answer: the answer as it arrived.
        saw_last: whether the silo had seen the last model.
    """

    node: int
    rounds: int
    answer: SiloAnswer
    saw_last: bool = False


@dataclasses.dataclass
class FederationLog:
    """A federation after some rounds, which is saved in a folder.

    Attributes:
        start: the hash of the initial model.
        rounds: all rounds, in order.
        names: the name of each node's silo.
        heard: the newest answer of each silo.
        faults: the distinct faults, in sentences without a full stop.
    """

    start: str = ""
    rounds: list[FederationRound] = dataclasses.field(default_factory=list)
    names: dict[int, str] = dataclasses.field(default_factory=dict)
    heard: dict[str, HeardAnswer] = dataclasses.field(default_factory=dict)
    faults: list[str] = dataclasses.field(default_factory=list)

    @property
    def model(self) -> str:
        """The hash of the newest model."""
        if self.rounds:
            return self.rounds[-1].model
        return self.start

    @property
    def silos(self) -> list[str]:
        """All silos that ever replied, in the order of their names."""
        return sorted({name for past in self.rounds for name in past.energies})

    def name_silo(
        self, node: int, answer: SiloAnswer | None, present: Collection[str]
    ) -> str:
        """Name the silo of a node that replies in the coming round, and note the name.

        The name is that in the node's first reply, or "node …" if that has no answer. A silo that
        was restarted may have another node. If two silos of a round have the same name, the
        second gets the id of its node.

        Args:
            node: the node's id.
            answer: the answer in the reply; ``None`` without a readable one.
            present: the silos whose replies are earlier in the round.
        """
        first_name = answer.silo if answer else f"node {node}"
        name = self.names.setdefault(node, first_name)
        if name in present:
            name = f"{name} (node {node})"
            self.names[node] = name
        return name

    def up_to(self, model: str) -> FederationLog:
        """The log without the rounds after a model; empty if no round ended with the model."""
        rounds = [
            t for t, past in enumerate(self.rounds, 1) if past.model == model
        ]
        if not rounds:
            # Faults of another run do not count, but those before the first round do.
            return FederationLog(
                model, faults=[] if self.rounds else self.faults
            )
        last = max(rounds)
        if last == len(self.rounds):
            return self
        heard = {
            silo: heard
            for silo, heard in self.heard.items()
            if heard.rounds <= last
        }
        fault = f"the rounds after round {last} were removed, as they are not in the model"
        return dataclasses.replace(
            self,
            rounds=self.rounds[:last],
            heard=heard,
            faults=[*self.faults, fault],
        )

    def answer(self, silo: str) -> SiloAnswer:
        """The newest answer of a silo.

        If the answer covers fewer rounds than the server saw of the silo, nothing counts as
        measured. Proved bounds stay, and so does an infinite theoretical ε.
        """
        heard = self.heard[silo]
        answer = dataclasses.replace(heard.answer, silo=silo)
        uploads = [
            t for t, past in enumerate(self.rounds, 1) if silo in past.energies
        ]
        unanswered = sum(t > heard.rounds for t in uploads)
        if unanswered:
            reason = f"its last {unanswered} of {len(uploads)} uploads came without an answer"
        elif answer.rounds < len(uploads):
            reason = (
                f"its audit covers {answer.rounds} of {len(uploads)} rounds, as its state was lost"
                " in a restart (name a folder on the silo that outlives it)"
            )
        else:
            return answer
        lines = tuple(
            _unmeasured(line, line.reason or reason) for line in answer.lines
        )
        return dataclasses.replace(answer, lines=lines)

    def facts(self, silo: str, allies: int, **server: Any) -> FederationFacts:
        """The facts that a silo gets with the last model.

        If some rounds have no visible uploads, the smallest share of the others counts for them.

        Args:
            silo: the name of the silo.
            allies: the number of colluding silos, see `FederationFacts`.
            server: the fields that describe the server's update of the model.
        """
        released = [past for past in self.rounds if past.released]
        numbers = [
            t for t, past in enumerate(released, 1) if silo in past.energies
        ]
        shares = [
            released[t - 1].share_without_allies(silo, allies) for t in numbers
        ]
        visible = [share for share in shares if share is not None]
        if not visible:
            shares = []
        return FederationFacts(
            rounds=len(released),
            upload_rounds=tuple(numbers),
            silos=len(self.silos),
            remaining_energies=tuple(
                min(visible) if share is None else share for share in shares
            ),
            allies=allies,
            **server,
        )
