"""Whether the noisy gradient is what moves the model.

Each step is replayed: a copy of the optimizer takes it from the noisy gradient alone. Where a model
ends elsewhere, its movement is compared with noise and canaries, which are random directions. By
Stein's lemma whatever is computed from the noisy gradient responds to both alike.
"""

import math
from collections.abc import Callable

import numpy as np

from fl_epe.checks import Vector

_TOLERANCE = 1e-3  # of a movement: distance of a model that moved as replayed
_KEPT = 0.5  # of the vectors of earlier steps: an optimizer may use a gradient later
_DEVIATIONS = 4  # of a response, within which it is compared
_LEAST_SHARE = 0.1  # of the replay's response to noise: a model with less does not move by it
_LEAST_OF_CANARIES = 0.8  # of the response to canaries: noise with less is too little


class Response:
    """How much movements respond to random directions: the slope of their regression on these.

    Args:
        dim: of the model.
    """

    def __init__(self, dim: int) -> None:
        self._recent: Vector = np.zeros(dim, np.float32)  # direction of this and earlier steps
        self._along = self._square = 0.0

    def turn(self, direction: Vector) -> None:
        """Take in the direction of a step, shape ``(dim,)``."""
        self._recent = direction + _KEPT * self._recent

    def add(self, movement: Vector) -> None:
        """Take in the movement of that step, shape ``(dim,)``."""
        if length := _norm(movement):
            self._along += float(np.dot(movement, self._recent)) / length
            self._square += _norm(self._recent) ** 2

    def size(self, deviations: float = 0.0) -> float:
        """The slope without its sign, and so many standard deviations of an independent one."""
        if not self._square:
            return 0.0
        deviation = math.sqrt(self._square / len(self._recent))
        return (abs(self._along) + deviations * deviation) / self._square


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
        self._canaries, self._noise, self._replayed = (Response(dim) for _ in range(3))

    def begin(
        self, model: Vector, noise: Vector, canaries: Vector, replay: Callable[[], Vector]
    ) -> None:
        """Note the model before it moves.

        Args:
            model: of shape ``(dim,)``.
            noise: of this step, shape ``(dim,)``.
            canaries: the sum of their gradients, shape ``(dim,)``.
            replay: the model after the step; an error means that it cannot be replayed.
        """
        self._count_change(model)
        self._start, self._replay = model, None
        self._canaries.turn(canaries)
        self._noise.turn(noise)
        self._replayed.turn(noise)
        try:
            self._replay = replay()
        except Exception as error:  # noqa: BLE001 - somebody's optimizer: named as unseen
            text = f"a step cannot be replayed ({type(error).__name__}: {error})"
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
            if _norm(movement - replayed) <= _TOLERANCE * _norm(replayed) < math.inf:
                self.unexplained -= 1
                return
            self._canaries.add(movement)
            self._noise.add(movement)
            self._replayed.add(replayed)
        self.reason = self.reason or "they do not end where the noisy gradient alone takes them"

    def finish(self, model: Vector) -> None:
        """Compare the model at the end of the run, shape ``(dim,)``, with that of the last step."""
        self._count_change(model)

    def _count_change(self, model: Vector) -> None:
        if self._start is not None:  # nobody saw the end of a step
            self._end = self._start if self._replay is None else self._replay
            self._start = None
        if self._end is not None and not np.array_equal(model, self._end, equal_nan=True):
            self.changes += 1

    @property
    def noise_share(self) -> float:
        """Share of the noise that moves the model in the unexplained steps; 1 if not known.

        It is 0 where nothing of the noise is seen to move the model, though much of it should.
        """
        least, most = self._noise.size(-_DEVIATIONS), self._noise.size(_DEVIATIONS)
        if not most:  # without noise, or without a movement
            return 1.0
        if least <= 0 and most < _LEAST_SHARE * self._replayed.size():
            return 0.0
        if most < _LEAST_OF_CANARIES * self._canaries.size(-_DEVIATIONS):
            return self._noise.size() / self._canaries.size()
        return 1.0


def _norm(vector: Vector) -> float:
    return float(np.linalg.norm(vector))
