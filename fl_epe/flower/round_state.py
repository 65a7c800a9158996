"""`RoundState`: what an audit holds of a round that is under way."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fl_epe.auditing import RoundFacts
from fl_epe.flower.layout import Layout


@dataclasses.dataclass
class RoundState:
    """A round from the messages that go out to the model that comes back.

    Attributes:
        index: of the round, from 0.
        arrays: the global model that is sent out.
        layout: of the model.
        clip_norm: of the round; NaN where nothing is known to clip.
        grid: by which clients can be asked.
        sent: messages that go out.
        withheld: messages that do not, as a canary answers in their place.
        made_up: replies that the server made up.
        vectors: the canaries in them, shape ``(K, dim)``.
        counted: norm that each canary has after clipping; NaN if not known.
        shares: share of one canary in the average, by how replies are averaged: "weighted" by
            their number of examples, or "equal".
        facts: what the auditor is told.
        unreadable: what is wrong with replies that were looked at.
        sits_out: whether no canary may join, and the round is the strategy's alone.
    """

    index: int
    arrays: ArrayRecord
    layout: Layout
    clip_norm: float
    grid: Grid | None = None
    sent: list[Message] = dataclasses.field(default_factory=list)
    withheld: list[Message] = dataclasses.field(default_factory=list)
    made_up: list[Message] = dataclasses.field(default_factory=list)
    vectors: NDArray[np.float32] | None = None
    counted: float = math.nan
    shares: dict[str, float] = dataclasses.field(default_factory=dict)
    facts: RoundFacts = dataclasses.field(default_factory=RoundFacts)
    unreadable: list[str] = dataclasses.field(default_factory=list)
    sits_out: bool = False

    @functools.cached_property
    def before(self) -> NDArray[np.floating]:
        """The global model as one vector, shape ``(dim,)``."""
        return self.layout.flatten(self.arrays)

    def relaid(self, layout: Layout) -> None:
        """Use another layout from here on."""
        self.layout = layout
        self.__dict__.pop("before", None)

    def without_canaries(self) -> None:
        """Forget the canaries of this round: nobody takes part."""
        self.made_up, self.vectors, self.shares = [], None, {}
        self.facts = dataclasses.replace(self.facts, present=(), contribution=0.0)

    def settle(self, averaging: str | None) -> None:
        """Note how the strategy averaged, which says what a canary adds to the mean."""
        share = self.shares.get(averaging or "", math.nan)
        if self.facts.present:
            self.facts = dataclasses.replace(self.facts, contribution=self.counted * share)
