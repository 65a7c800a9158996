"""Whether clients answer with a model or with the difference that they made to it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

ReplyKind = Literal["model", "delta"]

_NEAR = 0.25


def kind_of_replies(
    answers: Sequence[NDArray[np.floating]], before: NDArray[np.floating]
) -> ReplyKind | None:
    """What the replies are, from how much of the global model is in them; ``None`` if not clear.

    A trained model is the old one and an update: its share of the old one is 1 plus the update's
    own. That of a difference is the update's own, near 0. Where the model is 0 both are the same,
    and "delta" is as good an answer as "model".

    Args:
        answers: the clients' answers, each of shape ``(dim,)``, those that are finite.
        before: the global model that they were sent, of shape ``(dim,)``.
    """
    start = before.astype(np.float64)
    energy = float(start @ start)
    if energy == 0:
        return "delta"
    share = statistics.median(float(answer @ start) / energy for answer in answers)
    if abs(share) < _NEAR:
        return "delta"
    return "model" if abs(share - 1) < _NEAR else None
