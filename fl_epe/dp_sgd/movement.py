"""Whether the noisy gradient is what moves the model.

Each step is replayed: a copy of the optimizer takes it from the noisy gradient alone. Where the
model ends elsewhere, its movement is compared with the noise. If it is independent of that, its
inner product with it, in standard deviations, has mean 0 and variance 1.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from fl_epe.checks import Vector

_TOLERANCE = 1e-3  # of a movement: distance of a model that moved as replayed
_KEPT = 0.5  # of the noise of earlier steps: an optimizer may use a gradient later


@dataclasses.dataclass(frozen=True)
class Move:
    """How a step moved the model.

    Attributes:
        is_replayed: whether it ended where the noisy gradient alone takes it.
        along_noise: inner product of the movement with the noise of this and, with smaller weights,
            of earlier steps, in standard deviations of a movement that is independent of them; 0
            without movement.
        expected_along_noise: the same of the replay.
        reason: why it is not known what moved the model.
    """

    is_replayed: bool
    along_noise: float = 0.0
    expected_along_noise: float = 0.0
    reason: str = ""


class Movement:
    """Compares the movement of a run's steps with that by their noisy gradients.

    Attributes:
        moves: the steps so far.
        changes: how often the model changed between steps, or after the last one.
    """

    def __init__(self) -> None:
        self.moves: list[Move] = []
        self.changes = 0
        self._start: Vector | None = None  # the model of the step that is going on
        self._end: Vector | None = None  # the model after the last step
        self._replay: Vector | None = None
        self._reason = ""
        self._noise: Vector = np.zeros(1, np.float32)
        self._variance = 0.0

    def begin(
        self, model: Vector, noise: Vector, deviation: float, replay: Callable[[], Vector]
    ) -> None:
        """Note the model before it moves.

        Args:
            model: of shape ``(dim,)``.
            noise: of this step.
            deviation: the noise's standard deviation.
            replay: the model after the step; an error means that it cannot be replayed.
        """
        if self._start is not None:
            self.end(model, is_seen=False)
        self._count_change(model)
        self._noise = noise + _KEPT * self._noise
        self._variance = deviation**2 + _KEPT**2 * self._variance
        self._start, self._replay, self._reason = model, None, ""
        try:
            self._replay = replay()
        except Exception as error:  # noqa: BLE001 - somebody's optimizer: named as unseen
            self._reason = f"the step cannot be replayed ({type(error).__name__}: {error})"

    def skip(self) -> None:
        """Pass over a step whose noisy gradient is not finite."""
        self._start = self._end = None

    def end(self, model: Vector, *, is_seen: bool = True) -> None:
        """Compare the model after a step; nothing where none has begun.

        Args:
            model: of shape ``(dim,)``.
            is_seen: whether the step has just ended, so that nothing else can have moved it.
        """
        if self._start is None:
            return
        start, replay = self._start, self._replay
        self._start, self._end = None, model
        if replay is None:
            self.moves.append(Move(False, reason=self._reason))
            return
        if np.array_equal(model, replay, equal_nan=True):
            self.moves.append(Move(True))
            return
        if not np.isfinite(model).all():
            self.moves.append(Move(False, reason="the model has NaN or infinite entries"))
            return
        distance, length = _norm(model - replay), _norm(replay - start)
        rounding = float(np.finfo(np.float32).eps) * _norm(model)
        if distance <= _TOLERANCE * length + min(rounding, length / 2):
            self.moves.append(Move(True))
        elif not is_seen:
            reason = "the optimizer's method `step` was not called"
            self.moves.append(Move(False, reason=reason))
        else:
            moved, expected = self._along_noise(model - start), self._along_noise(replay - start)
            reason = "it does not end where the noisy gradient alone takes it"
            self.moves.append(Move(False, moved, expected, reason))

    def finish(self, model: Vector) -> None:
        """Compare the model at the end of the run with that after the last step."""
        self.end(model, is_seen=False)
        self._count_change(model)

    def _count_change(self, model: Vector) -> None:
        if self._end is not None and not np.array_equal(model, self._end, equal_nan=True):
            self.changes += 1

    def _along_noise(self, movement: Vector) -> float:
        scale = math.sqrt(self._variance) * _norm(movement)
        return float(np.dot(self._noise, movement)) / scale if scale > 0 else 0.0


def _norm(vector: Vector) -> float:
    return float(np.linalg.norm(vector))
