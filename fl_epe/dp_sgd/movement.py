"""Checks whether the noisy gradient alone moves the model.

Each step is replayed: a copy of the optimizer takes the step from the noisy gradient alone. If
the model's movement differs from that of the copy, the step is unexplained. The movements of
unexplained steps are tested for independence of the noise. Movements that are independent of it
leak the data without noise. Other unexplained movements may be computed from the noisy gradient
alone, or from other data as well.
"""

import json
import math
from collections.abc import Callable

import numpy as np

from fl_epe.archive import error_text
from fl_epe.checks import Vector
from fl_epe.mechanism import norm

# The largest distance between the model and the replayed one, as a share of the movement.
_TOLERANCE = 1e-3

# An optimizer may use a gradient some steps later. So the movement of a step is compared with a
# weighted sum of the noise of all steps so far. The weights are d⁰, d¹, d², … from the last step
# back, where d is this number.
_DECAY = 0.5

# Sums of noise with these weights are correlated between steps. Correlations increase the
# variance of a sum over steps at most by this factor: (Σ dᵏ)² / Σ d²ᵏ = 3.
_MAX_VARIANCE_FACTOR = (1 - _DECAY**2) / (1 - _DECAY) ** 2

# The response of movements is the sum of their inner products with the noise. If they are
# independent of the noise, it is at most this number of standard deviations.
_STANDARD_DEVIATIONS = 3

# The test is conclusive only if the response plus its limit is below this share of the response of
# the replayed movements.
_MAX_SHARE_OF_REPLAY = 0.1

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
    """Compares the model's movement in each step with that by the noisy gradient alone.

    For each step call `begin` before the model moves, and `end` afterwards. Call `count_change`
    with the model after the last step.

    Args:
        dim: the dimension of the model.

    Attributes:
        steps: the number of steps so far.
        unexplained: the number of steps whose movement is not that by the noisy gradient alone.
        changes: the number of times that the model changed between steps, or after the last one.
        reason: why the first unexplained step is unexplained; empty if there is none.
    """

    def __init__(self, dim: int) -> None:
        self.steps = 0
        self.unexplained = 0
        self.changes = 0
        self.reason = ""
        # The model at the beginning of the present step; `None` between steps.
        self._start: Vector | None = None
        # The model after the last step; `None` if it is not known.
        self._end: Vector | None = None
        # The replayed model of the present step; `None` if it cannot be replayed.
        self._replay: Vector | None = None
        # The noise of all steps so far, with the weights that `_DECAY` explains.
        self._noise: Vector = np.zeros(dim, np.float32)
        # Sums over unexplained steps: of the inner products of the noise with the movement's
        # direction and with that of the replayed movement, and of the variance of such a product
        # for a direction that is independent of the noise.
        self._moved_by_noise = 0.0
        self._replayed_by_noise = 0.0
        self._variance = 0.0

    def begin(
        self, model: Vector, noise: Vector, replay: Callable[[], Vector]
    ) -> None:
        """Store the model before the step moves it, and the replayed model after it.

        Args:
            model: the model, shape ``(dim,)``.
            noise: the noise of this step, shape ``(dim,)``.
            replay: a function that returns the replayed model after the step. If it raises an
                error, the step cannot be replayed.
        """
        self.count_change(model)
        self._start = model
        self._replay = None
        self._noise = noise + _DECAY * self._noise
        try:
            self._replay = replay()
        # An optimizer may raise any error. The step then counts as unexplained.
        except Exception as error:  # noqa: BLE001
            text = f"a step cannot be replayed ({error_text(error)})"
            self.reason = self.reason or text

    def end(self, model: Vector) -> None:
        """Compare the model after a step, shape ``(dim,)``, with the replayed one.

        Nothing happens if no step has begun.
        """
        start = self._start
        if start is None:
            return
        self._start = None
        self._end = model
        self.steps += 1
        if self._replay is not None and np.isfinite(model).all():
            movement = model - start
            replayed = self._replay - start
            distance = norm(movement - replayed)
            if distance <= _TOLERANCE * norm(replayed) < math.inf:
                return
            self._add_responses(movement, replayed)
        self.unexplained += 1
        text = "the model does not move as the noisy gradient alone moves it"
        self.reason = self.reason or text

    def _add_responses(self, movement: Vector, replayed: Vector) -> None:
        """Add the inner product of the noise with each movement's direction to its sum."""
        length = norm(movement)
        replayed_length = norm(replayed)
        if length > 0 and replayed_length > 0:
            moved_by_noise = float(np.dot(movement, self._noise))
            replayed_by_noise = float(np.dot(replayed, self._noise))
            self._moved_by_noise += moved_by_noise / length
            self._replayed_by_noise += replayed_by_noise / replayed_length
            self._variance += norm(self._noise) ** 2 / len(self._noise)

    def count_change(self, model: Vector) -> None:
        """Count a change if the model, shape ``(dim,)``, differs from that after the last step."""
        if self._start is not None:
            # `end` was not called. The step is assumed to have ended as replayed.
            self._end = self._start if self._replay is None else self._replay
            self._start = None
        end = self._end
        if end is not None and not np.array_equal(model, end, equal_nan=True):
            self.changes += 1

    def forget(self) -> None:
        """Forget the last step's model and noise, as unchecked steps or another round follow."""
        self._start = None
        self._end = None
        self._replay = None
        self._noise = np.zeros_like(self._noise)

    def state(self) -> np.ndarray:
        """The sums and counts so far, as a JSON text for a later round."""
        return np.array(json.dumps([getattr(self, name) for name in _STORED]))

    def restore(self, state: np.ndarray) -> None:
        """Set the sums and counts to those of `state`."""
        for name, value in zip(_STORED, json.loads(str(state)), strict=True):
            setattr(self, name, value)

    @property
    def has_no_noise(self) -> bool:
        """Whether the unexplained movements are shown to be independent of the noise.

        The sum of inner products of independent movements with the noise has mean 0, so it is
        within its limit. This is conclusive only if the sum of the replayed movements is far
        above the limit.
        """
        variance = _MAX_VARIANCE_FACTOR * self._variance
        limit = _STANDARD_DEVIATIONS * math.sqrt(variance)
        response = abs(self._moved_by_noise)
        max_response = _MAX_SHARE_OF_REPLAY * abs(self._replayed_by_noise)
        return (
            limit > 0 and response <= limit and response + limit < max_response
        )
