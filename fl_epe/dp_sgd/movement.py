"""Whether the noisy gradient is what moves the model.

Each step is replayed: a copy of the optimizer takes it from the noisy gradient alone. Where a model
ends elsewhere, its movement is compared with noise and canaries, which are random directions. By
Stein's lemma whatever is computed from the noisy gradient responds to both alike.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from fl_epe.checks import Vector

_TOLERANCE = 1e-3  # of a movement: distance of a model that moved as replayed
_KEPT = 0.5  # of the noise of earlier steps: an optimizer may use a gradient later
_DEVIATIONS = 4  # of a response, within which it is compared
_LEAST_SHARE = 0.1  # of the replay's response to noise: a model with less does not move by it
_LEAST_OF_CANARIES = 0.8  # of the response to canaries: noise with less is too little


@dataclasses.dataclass
class Response:
    """How much movements respond to vectors of random direction: their regression on these.

    Attributes:
        dim: of the vectors.
        along: sum of the inner products with the movements, each of length 1.
        square: sum of the squared norms of the vectors.
    """

    dim: int
    along: float = 0.0
    square: float = 0.0

    def add(self, movement: Vector, vector: Vector) -> None:
        """Take in a step."""
        if length := _norm(movement):
            self.along += float(np.dot(movement, vector)) / length
        self.square += _norm(vector) ** 2

    @property
    def size(self) -> float:
        """The regression's slope, without its sign."""
        return abs(self.along) / self.square if self.square > 0 else 0.0

    @property
    def error(self) -> float:
        """So many standard deviations of the slope of movements that are independent."""
        return _DEVIATIONS / math.sqrt(self.square * self.dim) if self.square > 0 else math.inf


@dataclasses.dataclass(frozen=True)
class Step:
    """A step that is going on.

    Attributes:
        model: before the step, shape ``(dim,)``.
        noise: that was added to the sum, shape ``(dim,)``.
        canaries: the sum of their gradients, shape ``(dim,)``.
        replay: the model after the step from the noisy gradient alone; ``None`` if it cannot be
            replayed.
    """

    model: Vector
    noise: Vector
    canaries: Vector
    replay: Vector | None


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
        self._step: Step | None = None
        self._end: Vector | None = None  # the model after the last step
        self._recent: Vector = np.zeros(dim, np.float32)  # noise of this and earlier steps
        self._of_canaries, self._of_noise = Response(dim), Response(dim)
        self._of_recent, self._of_replay = Response(dim), Response(dim)

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
        if self._step is not None:
            self.end(model, is_seen=False)
        self._count_change(model)
        self._recent = noise + _KEPT * self._recent
        self._step = Step(model, noise, canaries, None)
        try:
            self._step = Step(model, noise, canaries, replay())
        except Exception as error:  # noqa: BLE001 - somebody's optimizer: named as unseen
            text = f"the step cannot be replayed ({type(error).__name__}: {error})"
            self.reason = self.reason or text

    def skip(self) -> None:
        """Pass over a step whose noisy gradient is not finite."""
        self._step = self._end = None

    def end(self, model: Vector, *, is_seen: bool = True) -> None:
        """Compare the model after a step; nothing where none has begun.

        Args:
            model: of shape ``(dim,)``.
            is_seen: whether the step has just ended, so that nothing else can have moved it.
        """
        step = self._step
        if step is None:
            return
        self._step, self._end = None, model
        self.steps += 1
        if step.replay is not None and _is_at(model, step.replay, step.model):
            return
        self.unexplained += 1
        if not is_seen:
            self.reason = self.reason or "the optimizer's method `step` was not called"
            return
        self.reason = self.reason or "they do not end where the noisy gradient alone takes them"
        movement = model - step.model
        if 0 < _norm(movement) < math.inf:
            self._of_canaries.add(movement, step.canaries)
            self._of_noise.add(movement, step.noise)
            self._of_recent.add(movement, self._recent)
            if step.replay is not None:
                self._of_replay.add(step.replay - step.model, self._recent)

    def finish(self, model: Vector) -> None:
        """Compare the model at the end of the run with that after the last step."""
        self.end(model, is_seen=False)
        self._count_change(model)

    def _count_change(self, model: Vector) -> None:
        if self._end is not None and not np.array_equal(model, self._end, equal_nan=True):
            self.changes += 1

    @property
    def has_no_noise(self) -> bool:
        """Whether the model moves independently of the noise, in the unexplained steps."""
        recent = self._of_recent
        share = recent.size + recent.error
        return recent.size <= recent.error and share < _LEAST_SHARE * self._of_replay.size

    @property
    def noise_share(self) -> float:
        """Share of the noise that moves the model in the unexplained steps; 1 if it is not less."""
        noise, canaries = self._of_noise, self._of_canaries
        at_least = canaries.size - canaries.error
        if noise.size + noise.error < _LEAST_OF_CANARIES * at_least:
            return noise.size / canaries.size
        return 1.0


def _is_at(model: Vector, replay: Vector, start: Vector) -> bool:
    if np.array_equal(model, replay, equal_nan=True):
        return True
    distance, length = _norm(model - replay), _norm(replay - start)
    rounding = float(np.finfo(np.float32).eps) * _norm(model)
    return distance <= _TOLERANCE * length + min(rounding, length / 2)


def _norm(vector: Vector) -> float:
    return float(np.linalg.norm(vector))
