"""`AuditState`: what an audit knows between two rounds, which a checkpoint keeps."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

from fl_epe.flower.client_canaries import Acknowledgement
from fl_epe.flower.layout import Layout, ReplyKind
from fl_epe.flower.plan import AuditPlan
from fl_epe.flower.wrapped import Wrapped


@dataclasses.dataclass
class RoundNotes:
    """What is known of one round.

    Attributes:
        loss: of the clients' training; ``None`` if nobody says.
        seconds: that the audit took, the strategy's own calls left out.
        canary_bytes: of memory for the canaries' updates and replies.
        averaged: how the strategy averaged; "" if that is not known, ``None`` if no canary took
            part.
        noisy: whether clients' updates look like noise; ``None`` if they were not looked at.
    """

    loss: float | None = None
    seconds: float = 0.0
    canary_bytes: int = 0
    averaged: str | None = None
    noisy: bool | None = None


@dataclasses.dataclass(eq=False, repr=False)  # the seed is a secret
class AuditState:
    """An audit after some rounds.

    Attributes:
        seed: of the canaries.
        rounds: of the run, over which the canaries are spread; ``None`` if not known.
        kind: what replies are; ``None`` until it is found out.
        inject: "auto": canaries fill up to the number of replies that the strategy's noise is
            meant for, and replace real clients beyond that; after the strategy has failed on that
            "replace", and then "none".
        clients: number of the canary of each client that has one.
        ordered: numbers of canaries that clients were to answer with.
        answered: those that they did answer with.
        refused: why clients answered for themselves.
        arguments: of the audit that is kept, see `fingerprint`.
        index: how many rounds are done.
        layout: of the model; ``None`` before the first round.
        unmoved: names of arrays that canaries left alone in some later rounds, see `RoundState`.
        settled: whether replies have shown which arrays of it canaries leave alone for good.
        whole: the layout before that, in which models are known again.
        models: hash of the model after so many rounds, where there is a checkpoint.
        blocks: names of the checkpoint's files with the scores of earlier rounds, in order.
        kept_rows: how many rows of each array are in them.
        notes: of each round, by its index.
        plan: what the audit does to the run; nothing before the first round.
        resumed: after how many rounds the audit went on, each time that it was started again.
    """

    __pydantic_config__: ClassVar = {
        "ser_json_inf_nan": "constants"
    }  # a loss may be NaN

    seed: int
    rounds: int | None
    kind: ReplyKind | None
    inject: Literal["auto", "replace", "none"] = "auto"
    clients: dict[int, int] = dataclasses.field(default_factory=dict)
    ordered: set[int] = dataclasses.field(default_factory=set)
    answered: set[int] = dataclasses.field(default_factory=set)
    refused: set[Acknowledgement] = dataclasses.field(default_factory=set)
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    index: int = 0
    layout: Layout | None = None
    settled: bool = False
    unmoved: set[str] = dataclasses.field(default_factory=set)
    whole: Layout | None = None
    models: dict[int, str] = dataclasses.field(default_factory=dict)
    blocks: list[str] = dataclasses.field(default_factory=list)
    kept_rows: dict[str, int] = dataclasses.field(default_factory=dict)
    notes: dict[int, RoundNotes] = dataclasses.field(default_factory=dict)
    plan: AuditPlan = dataclasses.field(default_factory=AuditPlan)
    resumed: tuple[int, ...] = ()

    def note(self, index: int) -> RoundNotes:
        """What is known of the round with this index."""
        return self.notes.setdefault(index, RoundNotes())

    def averages(self, wrapped: Wrapped) -> bool:
        """Whether a strategy that need not average did so in every round with canaries."""
        ways = {note.averaged for note in self.notes.values()} - {None}
        return not wrapped.averages and bool(ways) and "" not in ways

    def after(self, rounds_done: int) -> AuditState:
        """The state with which a saved audit goes on after its first ``rounds_done`` rounds."""
        is_cut = rounds_done < self.index
        return dataclasses.replace(
            self,
            index=rounds_done,
            resumed=(*self.resumed, rounds_done),
            models={
                t: model for t, model in self.models.items() if t <= rounds_done
            },
            notes={
                t: note for t, note in self.notes.items() if t < rounds_done
            },
            blocks=[] if is_cut else self.blocks,
            kept_rows={} if is_cut else self.kept_rows,
        )
