"""Checks whether the noisy gradient is what moves the model.

Each step is replayed: a copy of the optimizer takes it from the noisy gradient alone. If the
model ends elsewhere, its movement is tested for independence of the noise. A movement that is
neither replayed nor independent may be computed from the noisy gradient, or from other data as
well.
"""

import json
import math
from collections.abc import Callable

import numpy as np

from fl_epe.archive import error_text
from fl_epe.checks import Vector
from fl_epe.mechanism import norm

# The largest distance from the replayed model, as a share of the movement.
_TOLERANCE = 1e-3
# The noise of earlier steps has this weight, as an optimizer may use a gradient later.
_DECAY = 0.5
# The factor by which such correlations increase the variance of a sum, at most.
_MAX_CORRELATED = (1 - _DECAY**2) / (1 - _DECAY) ** 2
_DEVIATIONS = 3

# If a model responds to the noise by less than this share of the replay's response, the noise
# does not move it.
_MIN_SHARE = 0.1

# The attributes that are stored for a later round, in their order in the file.
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
        dim: the dimension of the model.

    Attributes:
        steps: the number of steps so far.
        unexplained: the number of steps that did not end where the noisy gradient alone leads.
        changes: the number of changes of the model between steps, or after the last one.
        reason: the reason for the first unexplained step.
    """

    def __init__(self, dim: int) -> None:
        self.steps = 0
        self.unexplained = 0
        self.changes = 0
        self.reason = ""
        self._start: Vector | None = None  # the model of the present step
        self._end: Vector | None = None  # the model after the last step
        self._replay: Vector | None = None
        # The noise of this step and, with smaller weights, of earlier steps.
        self._noise: Vector = np.zeros(dim, np.float32)
        self._moved_by_noise = 0.0
        self._replayed_by_noise = 0.0
        self._variance = 0.0

    def begin(
        self, model: Vector, noise: Vector, replay: Callable[[], Vector]
    ) -> None:
        """Store the model before it moves.

        Args:
            model: the model, shape ``(dim,)``.
            noise: the noise of this step, shape ``(dim,)``.
            replay: a function that returns the model after the step; an error means that the
                step cannot be replayed.
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
        """Compare the model after a step, shape ``(dim,)``, if a step has begun."""
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
            distance = norm(movement - replayed)
            if distance <= _TOLERANCE * norm(replayed) < math.inf:
                return
            self._add_responses(movement, replayed)
        self.unexplained += 1
        self.reason = (
            self.reason
            or "they do not end where the noisy gradient alone takes them"
        )

    def _add_responses(self, movement: Vector, replayed: Vector) -> None:
        """Add each movement's inner product with the noise, over its norm, to its sum."""
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
        """Count a change if the model, shape ``(dim,)``, differs from that of the last step."""
        if self._start is not None:  # `end` was not called for the step
            self._end = self._start if self._replay is None else self._replay
            self._start = None
        end = self._end
        if end is not None and not np.array_equal(model, end, equal_nan=True):
            self.changes += 1

    def forget(self) -> None:
        """Forget this step, as unchecked steps or another round follow."""
        self._start = None
        self._end = None
        self._replay = None
        self._noise = np.zeros_like(self._noise)

    def state(self) -> np.ndarray:
        """The state that a later round needs, as a JSON text."""
        return np.array(json.dumps([getattr(self, name) for name in _STORED]))

    def restore(self, state: np.ndarray) -> None:
        """Continue from the state that `state` returned."""
        for name, value in zip(_STORED, json.loads(str(state)), strict=True):
            setattr(self, name, value)

    @property
    def has_no_noise(self) -> bool:
        """Whether the unexplained movements are independent of the noise.

        If so, the sum of their inner products with the noise has mean 0. The noise of a step is
        in later sums with weights 1, 1/2, 1/4, …, so the variance is at most 4 / (4/3) times
        that of independent movements.
        """
        limit = _DEVIATIONS * math.sqrt(_MAX_CORRELATED * self._variance)
        response = abs(self._moved_by_noise)
        min_response = _MIN_SHARE * abs(self._replayed_by_noise)
        return (
            limit > 0 and response <= limit and response + limit < min_response
        )
