"""Whether the noisy gradient is what moves the model.

Each step is replayed: a copy of the optimizer takes it from the noisy gradient alone. Where a model
ends elsewhere, it is tested whether its movement is independent of the noise. A movement that is
neither replayed nor independent may be computed from the noisy gradient, or from more.
"""

import json
import math
from collections.abc import Callable

import numpy as np

from fl_epe.archive import error_text
from fl_epe.checks import Vector
from fl_epe.mechanism import norm

_TOLERANCE = 1e-3  # of a movement: distance of a model that moved as replayed
_DECAY = (
    0.5  # of the noise of earlier steps: an optimizer may use a gradient later
)
_MAX_CORRELATED = (1 - _DECAY**2) / (
    1 - _DECAY
) ** 2  # variance of sums over such noise
_DEVIATIONS = 3

# Of the replay's response to noise: a model with a smaller one does not move by the noise.
_MIN_SHARE = 0.1

# The attributes that a later round needs, in the order in which they are stored.
_STORED = (
    "steps",
    "unexplained",
    "changes",
    "reason",
    "_moved_by_noise",
    "_replayed_by_noise",
    "_variance",
)


class Movement:
    """Compares the movement of a run's steps with that by their noisy gradients.

    Args:
        dim: of the model.

    Attributes:
        steps: number of steps so far.
        unexplained: number of steps that did not end where the noisy gradient alone takes them.
        changes: how often the model changed between steps, or after the last one.
        reason: why the first of the unexplained steps is.
    """

    def __init__(self, dim: int) -> None:
        self.steps = 0
        self.unexplained = 0
        self.changes = 0
        self.reason = ""
        self._start: Vector | None = None  # the model of the present step
        self._end: Vector | None = None  # the model after the last step
        self._replay: Vector | None = None
        self._noise: Vector = np.zeros(
            dim, np.float32
        )  # of this and earlier steps
        self._moved_by_noise = 0.0
        self._replayed_by_noise = 0.0
        self._variance = 0.0

    def begin(
        self, model: Vector, noise: Vector, replay: Callable[[], Vector]
    ) -> None:
        """Note the model before it moves.

        Args:
            model: of shape ``(dim,)``.
            noise: of this step, shape ``(dim,)``.
            replay: returns the model after the step; an error means that it cannot be replayed.
        """
        self.count_change(model)
        self._start = model
        self._replay = None
        self._noise = noise + _DECAY * self._noise
        try:
            self._replay = replay()
        except Exception as error:  # noqa: BLE001 - somebody's optimizer: named as unseen
            text = f"a step cannot be replayed ({error_text(error)})"
            self.reason = self.reason or text

    def end(self, model: Vector) -> None:
        """Compare the model after a step, shape ``(dim,)``; nothing if no step has begun."""
        start = self._start
        replay = self._replay
        if start is None:
            return
        self._start = None
        self._end = model
        self.steps += 1
        if replay is not None and np.isfinite(model).all():
            movement = model - start
            replayed = replay - start
            if (
                norm(movement - replayed)
                <= _TOLERANCE * norm(replayed)
                < math.inf
            ):
                return
            self._compare(movement, replayed)
        self.unexplained += 1
        self.reason = (
            self.reason
            or "they do not end where the noisy gradient alone takes them"
        )

    def _compare(self, movement: Vector, replayed: Vector) -> None:
        """Add how two movements respond to the noise, in units of their lengths."""
        length = norm(movement)
        replayed_length = norm(replayed)
        if length > 0 and replayed_length > 0:
            self._moved_by_noise += (
                float(np.dot(movement, self._noise)) / length
            )
            self._replayed_by_noise += (
                float(np.dot(replayed, self._noise)) / replayed_length
            )
            self._variance += norm(self._noise) ** 2 / len(self._noise)

    def count_change(self, model: Vector) -> None:
        """Compare a model after the last step, shape ``(dim,)``, with that of the step."""
        if self._start is not None:  # `end` was not called for the step
            self._end = self._start if self._replay is None else self._replay
            self._start = None
        end = self._end
        if end is not None and not np.array_equal(model, end, equal_nan=True):
            self.changes += 1

    def forget(self) -> None:
        """Compare no later model with this step: unchecked steps follow, or another round."""
        self._start = None
        self._end = None
        self._replay = None
        self._noise = np.zeros_like(self._noise)

    def state(self) -> np.ndarray:
        """What a later round needs, as a JSON text."""
        return np.array(json.dumps([getattr(self, name) for name in _STORED]))

    def restore(self, state: np.ndarray) -> None:
        """Go on from what `state` returned."""
        for name, value in zip(_STORED, json.loads(str(state)), strict=True):
            setattr(self, name, value)

    @property
    def has_no_noise(self) -> bool:
        """Whether the unexplained movements are independent of the noise.

        The sum of their inner products with it then has mean 0. The noise of a step is in later
        sums with weights 1, 1/2, 1/4, …, so their variance is at most 4 / (4/3) times that of
        movements which are independent of each other.
        """
        limit = _DEVIATIONS * math.sqrt(_MAX_CORRELATED * self._variance)
        moved = abs(self._moved_by_noise)
        share = _MIN_SHARE * abs(self._replayed_by_noise)
        return limit > 0 and moved <= limit and moved + limit < share
