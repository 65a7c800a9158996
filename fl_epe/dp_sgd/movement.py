"""Whether the noisy gradient is what moves the model.

Each step is replayed: a copy of the optimizer takes it from the noisy gradient alone. Where a model
ends elsewhere, it is tested whether its movement is independent of the noise. Movement that is not
replayed and not independent may be computed from the noisy gradient, or from more.
"""

import json
import math
from collections.abc import Callable

import numpy as np

from fl_epe.archive import error_text
from fl_epe.checks import Vector
from fl_epe.mechanism import norm

_TOLERANCE = 1e-3  # of a movement: distance of a model that moved as replayed
_KEPT = 0.5  # of the noise of earlier steps: an optimizer may use a gradient later
_MOST_CORRELATED = (1 - _KEPT**2) / (1 - _KEPT) ** 2  # variance of sums over such noise
_DEVIATIONS = 3
_SUMS = (
    *("steps", "unexplained", "changes", "reason"),
    *("_moved_by_noise", "_replayed_by_noise", "_variance"),
)
_LEAST_SHARE = (
    0.1  # of the replay's response to noise: a model with less does not move by it
)


class Movement:
    """Compares the movement of a run's steps with that by their noisy gradients.

    Args:
        dim: of the model.

    Attributes:
        steps: so far.
        unexplained: those that did not end where the noisy gradient alone takes them.
        changes: how often the model changed between steps, or after the last one.
        reason: why the first of the unexplained ones is.
    """

    def __init__(self, dim: int) -> None:
        self.steps = self.unexplained = self.changes = 0
        self.reason = ""
        self._start: Vector | None = None  # the model of the step that is going on
        self._end: Vector | None = None  # that after the last step
        self._replay: Vector | None = None
        self._noise: Vector = np.zeros(dim, np.float32)  # of this and earlier steps
        self._moved_by_noise = self._replayed_by_noise = self._variance = 0.0

    def begin(self, model: Vector, noise: Vector, replay: Callable[[], Vector]) -> None:
        """Note the model before it moves.

        Args:
            model: of shape ``(dim,)``.
            noise: of this step, shape ``(dim,)``.
            replay: the model after the step; an error means that it cannot be replayed.
        """
        self.count_change(model)
        self._start, self._replay = model, None
        self._noise = noise + _KEPT * self._noise
        try:
            self._replay = replay()
        except Exception as error:  # noqa: BLE001 - somebody's optimizer: named as unseen
            text = f"a step cannot be replayed ({error_text(error)})"
            self.reason = self.reason or text

    def end(self, model: Vector) -> None:
        """Compare the model after a step, shape ``(dim,)``; nothing where none has begun."""
        start, replay = self._start, self._replay
        if start is None:
            return
        self._start, self._end = None, model
        self.steps += 1
        self.unexplained += 1
        if replay is not None and np.isfinite(model).all():
            movement, replayed = model - start, replay - start
            if norm(movement - replayed) <= _TOLERANCE * norm(replayed) < math.inf:
                self.unexplained -= 1
                return
            self._compare(movement, replayed)
        self.reason = (
            self.reason or "they do not end where the noisy gradient alone takes them"
        )

    def _compare(self, movement: Vector, replayed: Vector) -> None:
        """Take in how two movements respond to the noise, in units of their lengths."""
        moved_by, replayed_by = norm(movement), norm(replayed)
        if moved_by > 0 and replayed_by > 0:
            self._moved_by_noise += float(np.dot(movement, self._noise)) / moved_by
            self._replayed_by_noise += (
                float(np.dot(replayed, self._noise)) / replayed_by
            )
            self._variance += norm(self._noise) ** 2 / len(self._noise)

    def count_change(self, model: Vector) -> None:
        """Compare a model after the last step, shape ``(dim,)``, with that of the step."""
        if self._start is not None:  # nobody saw the end of a step
            self._end = self._start if self._replay is None else self._replay
            self._start = None
        if self._end is not None and not np.array_equal(
            model, self._end, equal_nan=True
        ):
            self.changes += 1

    def forget(self) -> None:
        """What follows is not compared: steps that are not looked at, or another round."""
        self._start = self._end = self._replay = None
        self._noise = np.zeros_like(self._noise)

    def state(self) -> np.ndarray:
        """What a later round needs, as a JSON text."""
        return np.array(json.dumps([getattr(self, name) for name in _SUMS]))

    def restore(self, state: np.ndarray) -> None:
        """Go on from what `state` returned."""
        for name, value in zip(_SUMS, json.loads(str(state)), strict=True):
            setattr(self, name, value)

    @property
    def has_no_noise(self) -> bool:
        """Whether the unexplained movements are independent of the noise.

        The sum of their inner products with it then has mean 0. As the noise of a step is kept
        with weights 1, 1/2, 1/4, …, its variance is at most 4 / (4/3) times that of movements
        which are independent of each other.
        """
        most = _DEVIATIONS * math.sqrt(_MOST_CORRELATED * self._variance)
        moved = abs(self._moved_by_noise)
        share = _LEAST_SHARE * abs(self._replayed_by_noise)
        return most > 0 and moved <= most and moved + most < share
