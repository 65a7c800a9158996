"""`RoundState`: what an audit holds of a round that is under way."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from flwr.app import ArrayRecord, Message
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
        sent: messages that go out.
        withheld: messages that do not, as a canary answers in their place.
        made_up: replies that the server made up.
        vectors: the canaries in them, shape ``(K, dim)``.
        facts: what the auditor is told.
    """

    index: int
    arrays: ArrayRecord
    layout: Layout
    clip_norm: float
    sent: list[Message] = dataclasses.field(default_factory=list)
    withheld: list[Message] = dataclasses.field(default_factory=list)
    made_up: list[Message] = dataclasses.field(default_factory=list)
    vectors: NDArray[np.float32] | None = None
    facts: RoundFacts = dataclasses.field(default_factory=RoundFacts)

    @functools.cached_property
    def before(self) -> NDArray[np.floating]:
        """The global model as one vector, shape ``(dim,)``."""
        return self.layout.flatten(self.arrays)
