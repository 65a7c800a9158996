"""`AuditState`: the state of an audit between two rounds, which a checkpoint saves."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

from fl_epe.flower.client_canaries import Acknowledgement
from fl_epe.flower.layout import Layout, ReplyKind
from fl_epe.flower.plan import AuditPlan
from fl_epe.flower.wrapped import Wrapped


@dataclasses.dataclass
class RoundNotes:
    """Notes on one round.

    Attributes:
        loss: the loss of the clients' training; ``None`` if it is not reported.
        seconds: the time of the audit, without the strategy's own calls.
        canary_bytes: the memory of the canaries' updates and replies.
        averaged: the strategy's way of averaging, see `shares_of`; "" if it is not known,
            ``None`` if no canary took part.
        noisy: whether clients' updates look like noise; ``None`` if they were not tested.
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
        seed: the seed of the canaries.
        rounds: the number of rounds of the run, over which the canaries are spread; ``None`` if
            it is not known.
        kind: the kind of the replies; ``None`` until it is known.
        inject: "auto" if canaries fill up to the number of replies for which the strategy adds
            noise, and replace real clients beyond it; "replace" if they only replace clients,
            after the strategy has failed on more replies; and "none" after it has failed again.
        clients: the canary's number of each client that has a canary.
        ordered: the numbers of canaries that were ordered from clients.
        answered: the numbers of canaries with which clients answered.
        refused: the reasons why some clients sent their own update instead of a canary.
        arguments: the arguments of the saved audit, see `fixed_arguments`.
        index: the number of completed rounds.
        layout: the layout of the model; ``None`` before the first round.
        unmoved: the names of arrays that canaries did not move in some rounds, see
            `RoundState`.
        settled: whether replies have shown which arrays canaries never move in the run.
        whole: the layout that includes those arrays, in which models are recognized.
        models: the hash of the model after each number of rounds, if there is a checkpoint.
        blocks: the names of the checkpoint's files with the scores of earlier rounds, in order.
        kept_rows: the number of rows of each array in these files.
        notes: the notes on each round, by its index.
        plan: the plan of the audit, which is empty before the first round.
        resumed: the number of rounds after which the audit was continued, for each restart.
    """

    # A loss may be NaN.
    __pydantic_config__: ClassVar = {"ser_json_inf_nan": "constants"}

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

    def notes_on(self, index: int) -> RoundNotes:
        """The notes on the round with this index, which are empty at first."""
        return self.notes.setdefault(index, RoundNotes())

    def averages(self, wrapped: Wrapped) -> bool:
        """Whether an unknown strategy was observed to average in every round with canaries."""
        ways = {note.averaged for note in self.notes.values()} - {None}
        return not wrapped.averages and bool(ways) and "" not in ways

    def after(self, rounds_done: int) -> AuditState:
        """The state in which a saved audit continues after its first ``rounds_done`` rounds."""
        # Files with rows of removed rounds are not used any more.
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
