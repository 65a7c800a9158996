"""`SeenSteps`: an audit's observations of a run's steps.

Within the context `hooked`, an audit's functions replace the methods of the optimizer.
"""

import contextlib
import dataclasses
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np

from fl_epe.archive import add_prefix, packed_json, select_prefix, unpacked_json
from fl_epe.checks import Booleans, Integers, NamedArrays, Vector
from fl_epe.dp_sgd.clipping import BatchSeen
from fl_epe.dp_sgd.movement import Movement
from fl_epe.dp_sgd.optimizers import StepFacts, Steps
from fl_epe.dp_sgd.step_checks import StepFindings, StepSeen, check_steps
from fl_epe.hooks import stand_in
from fl_epe.noise import RUN_LEVEL, Check, NoiseHealth

# The approximate number of coordinates of a step's noise that are stored.
_NOISE_COORDINATES = 1024
_NOT_CLIPPED = BatchSeen(
    unseen="the optimizer does not clip by its method clip_and_accumulate"
)


@contextlib.contextmanager
def hooked(
    optimizer: Any,
    *,
    clip: Callable[..., Any],
    add_noise: Callable[..., Any],
    step: Callable[..., Any],
) -> Iterator[None]:
    """Within this context, an audit's functions replace an optimizer's methods.

    Each of these functions is called with the replaced method and the arguments of the call.
    """
    functions = {
        "add_noise": add_noise,
        "clip_and_accumulate": clip,
        "accumulate": clip,  # the method's name with ghost clipping
        "step": step,
    }
    with contextlib.ExitStack() as hooks:
        for name, function in functions.items():
            if hasattr(optimizer, name):
                method = _replaced_method(
                    optimizer, getattr(optimizer, name), function
                )
                hooks.enter_context(stand_in(optimizer, name, method))
        yield


def call_or_undo(
    call: Callable[[], None], undo: Callable[[], None] | None
) -> None:
    """Call a function. If it raises an error, call ``undo``, and raise the error again."""
    try:
        call()
    except BaseException:
        if undo is not None:
            undo()
        raise


def _replaced_method(
    optimizer: Any, method: Callable[..., Any], function: Callable[..., Any]
) -> types.MethodType:
    """The method that replaces an optimizer's ``method``; it calls ``function`` with that method.

    It is a bound method, as learning rate schedulers expect one.
    """

    @functools.wraps(method)
    def replaced(_: Any, *args: Any, **options: Any) -> Any:
        return function(method, *args, **options)

    return types.MethodType(replaced, optimizer)


class SeenSteps:
    """The observations of a run's steps, which `check_steps` checks.

    Args:
        tensor_sizes: the number of entries of each trainable tensor.
        coordinates: the approximate number of coordinates of a step's noise that are stored.

    Attributes:
        movement: the comparison of the model's movement with that by the noisy gradients.
    """

    def __init__(
        self, tensor_sizes: Integers, coordinates: int = _NOISE_COORDINATES
    ) -> None:
        self.movement = Movement(int(tensor_sizes.sum()))
        self._sizes = tensor_sizes
        self._coordinates = coordinates
        self._batches: list[BatchSeen] = []  # the batches of the present step
        self._steps: list[StepSeen] = []
        sizes = {
            f"tensor {i}": size
            for i, size in enumerate(tensor_sizes.tolist(), 1)
        }
        self._noise = NoiseHealth(
            sizes, level=RUN_LEVEL, coordinates=coordinates
        )

    def clip(
        self, steps: Steps, clip: Callable[[], None], *, look: bool = True
    ) -> None:
        """Let the optimizer clip a batch, and observe it as `Steps.clip` does."""
        self._batches.append(steps.clip(clip, look=look))

    def take_batches(self) -> list[BatchSeen]:
        """Remove and return the batches that were clipped for this step."""
        batches = self._batches
        self._batches = []
        return batches

    def count(self, facts: StepFacts, batches: list[BatchSeen]) -> None:
        """Add a step of which only the batch sizes are checked."""
        self._steps.append(
            StepSeen(facts.batches, tuple(batches), looked_at=False)
        )

    def add(
        self,
        steps: Steps,
        facts: StepFacts,
        batches: list[BatchSeen],
        noise: Vector,
        untouched: Booleans,
    ) -> None:
        """Add a step, after the noise and before the model moves.

        Args:
            steps: the interface to the optimizer.
            facts: the parameters of this step.
            batches: the batches that were clipped for it.
            noise: the noise on their sum, shape ``(dim,)``.
            untouched: for each entry, whether neither an example nor a canary had a gradient there.
        """
        deviation = facts.sum_noise_multiplier * facts.clip_norm
        self._noise.add(noise, deviation)
        untouched_noise: Vector = np.empty(0)
        if deviation > 0:
            untouched_noise = noise[untouched] / deviation
        self._steps.append(
            StepSeen(
                batches=facts.batches,
                parts=tuple(batches) or (_NOT_CLIPPED,),
                silent=deviation == 0 and not noise.any(),
                untouched=len(untouched_noise),
                untouched_square=float(
                    np.dot(untouched_noise, untouched_noise)
                ),
            )
        )
        self.movement.begin(steps.model(), noise, steps.replay)

    @property
    def noise(self) -> list[Check]:
        """The checks of the noise so far."""
        return self._noise.checks()

    def findings(
        self,
        rate: float | None,
        batch_size: float,
        *,
        is_sampled: bool = True,
        tells_sizes: bool = True,
        noise: list[Check] | None = None,
    ) -> StepFindings:
        """The result of `check_steps` for the steps so far.

        Args:
            rate: the sampling rate; ``None`` if it is not known.
            batch_size: the expected number of examples of a batch; NaN if it is not known.
            is_sampled: whether the accounting is for Poisson sampling.
            tells_sizes: whether the text of a fault may contain batch sizes and the rate.
            noise: the value of the property `noise`, if it has been computed before.
        """
        return check_steps(
            self._steps,
            self.noise if noise is None else noise,
            self.movement,
            rate=rate,
            batch_size=batch_size,
            is_sampled=is_sampled,
            tells_sizes=tells_sizes,
        )

    def state(self) -> NamedArrays:
        """The state as named arrays, for `of_state`."""
        return {
            "tensor_sizes": self._sizes,
            "kept": np.array(self._coordinates),
            "steps": packed_json(
                [dataclasses.asdict(step) for step in self._steps]
            ),
            "movement": self.movement.state(),
            **add_prefix(self._noise.state(), "noise."),
        }

    @classmethod
    def of_state(cls, state: NamedArrays) -> Self:
        """The observations in a `state`."""
        steps = cls(state["tensor_sizes"], int(state["kept"]))
        for row in unpacked_json(state["steps"]):
            row["parts"] = tuple(BatchSeen(**part) for part in row["parts"])
            steps._steps.append(StepSeen(**row))
        steps.movement.restore(state["movement"])
        steps._noise.restore(select_prefix(state, "noise."))
        return steps
