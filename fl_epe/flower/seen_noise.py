"""`SeenNoise`: the noise of Flower's DP wrappers, seen apart from the updates, and its checks."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_epe.archive import under
from fl_epe.checks import Vector
from fl_epe.flower.state import RoundState
from fl_epe.noise import RUN_LEVEL, NoiseHealth

_FINEST = 2.0**-12  # of the noise, to which the model's numbers are rounded


class SeenNoise:
    """What a wrapper released, less what the strategy inside had made: round by round."""

    def __init__(self) -> None:
        self._health = NoiseHealth(level=RUN_LEVEL)

    def note(self, state: RoundState, theta: Vector) -> None:
        """Take in a round, where its noise was seen; ``theta`` is the model ``(dim,)`` after it."""
        seen = state.seen
        if not state.noise_std or seen is None or not seen.arrays:
            return
        before = state.layout.flatten(seen.arrays)
        if seen.eps * np.abs(before).max() > _FINEST * state.noise_std:
            self._health.skip("the noise is hardly larger than the rounding of the model's numbers")
            return
        noise = np.subtract(theta, before, out=before)
        self._health.add(state.layout.split(noise), state.noise_std)

    def findings(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What the checks say, in sentences, and the fault that they found, if any."""
        return self._health.findings()

    def state(self) -> dict[str, NDArray[Any]]:
        """What an audit that goes on needs, as named arrays."""
        return {f"noise.{name}": values for name, values in self._health.state().items()}

    def restore(self, saved: Mapping[str, NDArray[Any]]) -> None:
        """Go on from arrays with those of `state` among them."""
        self._health = NoiseHealth(level=RUN_LEVEL)
        self._health.restore(under(saved, "noise."))
