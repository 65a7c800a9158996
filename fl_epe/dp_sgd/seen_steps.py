"""`SeenSteps`: what an audit has seen of a run's steps, and `hooked`, by which it sees them."""

import contextlib
import dataclasses
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np

from fl_epe.archive import packed_json, put_under, under, unpacked_json
from fl_epe.checks import Booleans, Integers, NamedArrays, Vector
from fl_epe.dp_sgd.clipping import BatchSeen
from fl_epe.dp_sgd.movement import Movement
from fl_epe.dp_sgd.optimizers import StepFacts, Steps
from fl_epe.dp_sgd.step_checks import StepFindings, StepSeen, check_steps
from fl_epe.hooks import stand_in
from fl_epe.noise import RUN_LEVEL, Check, NoiseHealth

_KEPT = 1024  # coordinates of the noise of a step
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
    """While this lasts, functions of an audit are called in the place of an optimizer's.

    Each is given the optimizer's own function, and its arguments.
    """
    around = {
        "add_noise": add_noise,
        "clip_and_accumulate": clip,
        "accumulate": clip,  # what ghost clipping calls instead
        "step": step,
    }
    with contextlib.ExitStack() as hooks:
        for name, function in around.items():
            if hasattr(optimizer, name):
                mine = _method(optimizer, getattr(optimizer, name), function)
                hooks.enter_context(stand_in(optimizer, name, mine))
        yield


def call_or_undo(call: Callable[[], None], undo: Callable[[], None] | None) -> None:
    """Call a function; if it raises an error, undo first what was done for it."""
    try:
        call()
    except BaseException:
        if undo is not None:
            undo()
        raise


def _method(
    optimizer: Any, method: Callable[..., Any], around: Callable[..., Any]
) -> types.MethodType:
    """A bound method, as schedulers of the learning rate expect: ``around`` in its place."""

    @functools.wraps(method)
    def replaced(_: Any, *args: Any, **options: Any) -> Any:
        return around(method, *args, **options)

    return types.MethodType(replaced, optimizer)


class SeenSteps:
    """The steps of a run, as `check_steps` looks at them.

    Args:
        tensor_sizes: number of entries of each trainable tensor.
        kept: coordinates of the noise of a step that are kept, about.

    Attributes:
        movement: of the model by these steps.
    """

    def __init__(self, tensor_sizes: Integers, kept: int = _KEPT) -> None:
        self.movement = Movement(int(tensor_sizes.sum()))
        self._sizes, self._kept = tensor_sizes, kept
        self._batches: list[BatchSeen] = []  # of the step that is going on
        self._seen: list[StepSeen] = []
        sizes = {f"tensor {i}": size for i, size in enumerate(tensor_sizes.tolist(), 1)}
        self._noise = NoiseHealth(sizes, level=RUN_LEVEL, kept=kept)

    def clip(
        self, steps: Steps, clip: Callable[[], None], *, look: bool = True
    ) -> None:
        """Let the optimizer clip a batch; ``look`` at how it does, or only count its examples."""
        self._batches.append(steps.clip(clip, look=look))

    def take_batches(self) -> list[BatchSeen]:
        """The batches that were clipped for this step; the next one begins with none."""
        taken, self._batches = self._batches, []
        return taken

    def count(self, facts: StepFacts, batches: list[BatchSeen]) -> None:
        """Take in a step of which only the size is looked at."""
        self._seen.append(StepSeen(facts.batches, tuple(batches), looked_at=False))

    def add(
        self,
        steps: Steps,
        facts: StepFacts,
        batches: list[BatchSeen],
        noise: Vector,
        untouched: Booleans,
    ) -> None:
        """Take in a step.

        Args:
            steps: whose.
            facts: of the step.
            batches: that were clipped for it.
            noise: on their sum, ``(dim,)``.
            untouched: entries in which neither an example nor a canary had a gradient.
        """
        deviation = facts.sum_noise_multiplier * facts.clip_norm
        self._noise.add(noise, deviation)
        there = noise[untouched] / deviation if deviation > 0 else noise[:0]
        self._seen.append(
            StepSeen(
                batches=facts.batches,
                parts=tuple(batches) or (_NOT_CLIPPED,),
                silent=deviation == 0 and not noise.any(),
                untouched=len(there),
                untouched_square=float(np.dot(there, there)),
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
        """How the steps so far differ from what the privacy accounting assumes: `check_steps`.

        Args:
            rate: sampling rate; ``None`` if it is not known.
            batch_size: expected number of examples of a batch; NaN if it is not known.
            is_sampled: whether the accounting is for Poisson sampling.
            tells_sizes: whether a fault may tell sizes of batches and the rate.
            noise: `noise`, if it is at hand.
        """
        return check_steps(
            self._seen,
            self.noise if noise is None else noise,
            self.movement,
            rate=rate,
            batch_size=batch_size,
            is_sampled=is_sampled,
            tells_sizes=tells_sizes,
        )

    def state(self) -> NamedArrays:
        """Named arrays, from which `of_state` goes on."""
        return {
            "tensor_sizes": self._sizes,
            "kept": np.array(self._kept),
            "steps": packed_json([dataclasses.asdict(step) for step in self._seen]),
            "movement": self.movement.state(),
            **put_under("noise.", self._noise.state()),
        }

    @classmethod
    def of_state(cls, state: NamedArrays) -> Self:
        """From what `state` returned."""
        found = cls(state["tensor_sizes"], int(state["kept"]))
        rows = unpacked_json(state["steps"])
        for row in rows:
            row["parts"] = tuple(BatchSeen(**part) for part in row["parts"])
        found._seen = [StepSeen(**row) for row in rows]
        found.movement.restore(state["movement"])
        found._noise.restore(under(state, "noise."))
        return found
