"""Where canaries join a step of DP-SGD: after clipping, before the noise.

Both kinds of optimizers (`plain_steps`, `opacus_steps`) sum clipped gradients, and then call their
own ``add_noise``; the audit takes the place of that method while it lasts, and of Opacus's
``clip_and_accumulate``, and calls them.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.floating]
Around = Callable[[Callable[[], None]], None]


@dataclasses.dataclass(frozen=True)
class StepFacts:
    """What a step does to the clipped sum.

    Attributes:
        clip_norm: C.
        noise_multiplier: z that the privacy accounting is for.
        sum_noise_multiplier: z of the noise on the sum; smaller than that of the run where a count
            of clipped gradients is released as well (adaptive clipping).
        learning_rate: how far the model moves for a mean of length 1.
        batches: that were accumulated, by which Opacus multiplies the sampling rate.
    """

    clip_norm: float
    noise_multiplier: float
    sum_noise_multiplier: float
    learning_rate: float
    batches: int = 1


class Steps(abc.ABC):
    """The steps of an optimizer, as an audit sees them.

    Attributes:
        description: of the optimizer, for reports.
        dim: number of trainable parameters.
        batch_size: by which a noisy sum is divided; 1 if nothing says.
        momentum: of plain SGD; ``None`` for another optimizer.
        clips_in_step: whether gradients of single examples can be seen when noise is added.
    """

    clips_in_step: bool = False
    description: str
    dim: int
    batch_size: float
    momentum: float | None

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._hooks: dict[str, tuple[Any, Callable[[], None]]] = {}

    def hook(self, name: str, around: Around) -> None:
        """Have ``around`` called in the place of a method, with the latter as its argument."""
        original = getattr(self._optimizer, name, None)
        if original is None:
            return
        mine = functools.partial(around, original)
        self._hooks[name] = vars(self._optimizer).get(name), mine
        setattr(self._optimizer, name, mine)

    def unhook(self) -> None:
        """Put things back, unless somebody else has put a method there since."""
        for name, (before, mine) in self._hooks.items():
            if vars(self._optimizer).get(name) is not mine:
                continue
            if before is None:
                delattr(self._optimizer, name)
            else:
                setattr(self._optimizer, name, before)
        self._hooks.clear()

    @property
    def noise_multiplier(self) -> float:
        """The z of the next step."""
        return float(self._optimizer.noise_multiplier)

    @abc.abstractmethod
    def facts(self) -> StepFacts:
        """Of the step that is going on."""

    @abc.abstractmethod
    def summed(self) -> Vector:
        """The clipped sum before the noise, shape ``(dim,)``; a copy."""

    @abc.abstractmethod
    def join(self, vector: Vector) -> Callable[[], None]:
        """Add a vector to the clipped sum; returns what takes it out again, bit for bit."""

    @abc.abstractmethod
    def noisy(self) -> Vector:
        """The noisy sum, shape ``(dim,)``; not yet divided by anything."""

    @abc.abstractmethod
    def model(self) -> Vector:
        """The trainable parameters, shape ``(dim,)``; a copy."""

    @abc.abstractmethod
    def clipped(self, before: Any) -> tuple[int, float]:
        """Examples whose gradients were clipped, and the norm of the longest clipped one.

        Args:
            before: what `so_far` returned before the clipping.
        """

    def so_far(self) -> Any:
        """The clipped sum of the batches before, in the form that `clipped` needs."""
        return None

    @property
    def tensor_sizes(self) -> NDArray[np.int64]:
        """Number of entries of each tensor."""
        return np.array([self.dim])

    @property
    def sample_rate(self) -> float | None:
        """Probability that an example is in a batch; ``None`` if the optimizer does not know."""
        return None
