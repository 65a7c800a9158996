"""`SeenNoise`: the noise of Flower's DP wrappers, seen apart from the updates, and its checks."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_epe.archive import under
from fl_epe.checks import Vector
from fl_epe.flower.state import RoundState
from fl_epe.noise import NoiseHealth, fault, sentences

_LEVEL = 5e-4  # of all checks together
_FINEST = 2.0**-12  # of the noise, to which the model's numbers are rounded


class SeenNoise:
    """What a wrapper released, less what the strategy inside had made: round by round."""

    def __init__(self) -> None:
        self._health = NoiseHealth(level=_LEVEL)

    def note(self, state: RoundState, theta: Vector) -> None:
        """Take in a round, where its noise was seen; ``theta`` is the model ``(dim,)`` after it."""
        made = state.seen.arrays if state.seen else None
        if not state.noise_std or not made:
            return
        before = state.layout.flatten(made)
        eps = max(np.finfo(array.dtype).eps for array in made.values() if "float" in array.dtype)
        if eps * np.abs(before).max() > _FINEST * state.noise_std:
            self._health.skip("the noise is hardly larger than the rounding of the model's numbers")
            return
        noise = np.subtract(theta, before, out=before)
        self._health.add(state.layout.split(noise), state.noise_std)

    def findings(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What the checks say, in sentences, and the fault that they found, if any."""
        checks = self._health.checks()
        return sentences(checks), tuple(filter(None, [fault(checks)]))

    def state(self) -> dict[str, NDArray[Any]]:
        """What an audit that goes on needs, as named arrays."""
        return {f"noise.{name}": values for name, values in self._health.state().items()}

    def restore(self, saved: Mapping[str, NDArray[Any]]) -> None:
        """Go on from arrays with those of `state` among them."""
        self._health = NoiseHealth(level=_LEVEL)
        self._health.restore(under(saved, "noise."))
