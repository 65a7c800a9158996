"""`LocalRound`: a silo's round of DP-SGD, in which canary records take part.

In each step, every canary record is sampled independently, as Poisson sampling draws records.
Its gradient is a random direction whose norm is the clip norm, and is added to the clipped
gradients before the noise. With plain SGD, the canaries of `JOINED` steps are added together,
with the effect of their own steps: directions in large models are expensive to compute.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np
import torch

from fl_epe.canaries import CanarySet
from fl_epe.checks import Floats, Vector
from fl_epe.dp_sgd import (
    Response,
    SeenSteps,
    StepFacts,
    Steps,
    call_or_undo,
    flat,
    hooked,
)
from fl_epe.silos.upload import Upload

JOINED = 16
"""Number of steps whose canaries join together."""

_CHECK_EVERY = 128  # one of so many steps is checked closely


class LocalRound:
    """A round of an optimizer whose steps canaries join, from `begin` to `end`.

    Args:
        optimizer: the optimizer of the round.
        seen: the results of checks of earlier steps.
        rate: sampling rate of a step.
        records: number of records of each canary, which are sampled independently.
        rng: the generator of the coins.
        canaries: all canaries.
        count: number of canaries that may take part.
        stand_back: called with an error of the audit, after which the round goes on without it.

    Attributes:
        seen: the results of checks of steps, including those of this round.
        steps: number of steps of this round so far.
        reason: why the upload is no sum of noisy gradients; empty if it is.
    """

    def __init__(
        self,
        optimizer: Steps,
        seen: SeenSteps,
        rate: float,
        records: int,
        rng: np.random.Generator,
        canaries: CanarySet,
        count: int,
        stand_back: Callable[[Exception], None],
    ) -> None:
        self._optimizer = optimizer
        self.seen = seen
        self._rate = rate
        self._records = records
        self._rng = rng
        self._canaries = canaries
        self._count = count
        self._stand_back = stand_back
        self.steps = 0
        self.reason = ""
        self._active = True
        self._hooks = contextlib.ExitStack()
        self._facts: list[StepFacts] = []
        # How much of each canary will be added to the model when canaries join, ``(count,)``.
        self._waiting: Floats = np.zeros(count)
        # The model's response to each canary, to its initial value, and to a unit of each
        # step's sum.
        self._times = Response(np.zeros(count))
        self._base = Response(np.ones(1))
        self._impulses = Response(np.empty(0))

    def begin(self) -> Self:
        """Note the initial model, and let canaries join from the next step on."""
        self._start = self._optimizer.model()
        # The model's response to the clipped gradients of the silo's own records, by tensor.
        self._real = [
            Response(torch.zeros_like(p, dtype=torch.float32))
            for p in self._optimizer.parameters
        ]
        if self._optimizer.has_velocity:
            self.reason = "momentum is carried over from an earlier round"
        self._hooks.enter_context(
            hooked(
                self._optimizer.optimizer,
                clip=self._clip,
                add_noise=self._add_noise,
                step=self._step,
            )
        )
        return self

    def close(self) -> None:
        """Take the hooks off the optimizer."""
        self._active = False
        self._hooks.close()
        self.seen.movement.forget()

    @property
    def _is_checked(self) -> bool:
        """Whether the present step is checked closely."""
        return self.steps % _CHECK_EVERY == 0

    def _clip(self, clip: Callable[[], None]) -> None:
        if self._active:
            self.seen.clip(self._optimizer, clip, look=self._is_checked)
        else:
            clip()

    def _step(
        self, step: Callable[..., Any], *args: Any, **options: Any
    ) -> Any:
        outcome = step(*args, **options)
        was_checked = self.steps % _CHECK_EVERY == 1
        if self._active and was_checked:
            with self._standing_back():
                self.seen.movement.end(self._optimizer.model())
                self.seen.movement.forget()
        return outcome

    def _add_noise(self, add_noise: Callable[[], None]) -> None:
        """Add the canaries and then the noise, in place of the optimizer's ``add_noise``."""
        optimizer = self._optimizer
        undo = None
        is_checked = False
        summed: Vector = np.empty(0)
        if self._active:
            with self._standing_back():
                facts = optimizer.facts()
                batches = self.seen.take_batches()
                is_checked = self._is_checked
                if is_checked:
                    summed = optimizer.clipped()
                gradient = self._next(facts)
                if gradient is not None:
                    summed, undo = optimizer.join(gradient)
        call_or_undo(add_noise, undo)
        if self._active:
            with self._standing_back():
                if is_checked:
                    noise = optimizer.noisy() - summed
                    self.seen.add(optimizer, facts, batches, noise, summed == 0)
                else:
                    self.seen.count(facts, batches)
                self.steps += 1

    @contextlib.contextmanager
    def _standing_back(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - training goes on
            self._active = False
            self._stand_back(error)

    def _next(self, facts: StepFacts) -> Vector | None:
        """Account for a step before its noise is added.

        Returns:
            The gradient of the canaries that join the step, ``(dim,)``; ``None`` if none joins.
        """
        optimizer = self._optimizer
        self._facts.append(facts)
        linear_step = optimizer.linear_step
        if linear_step is None:
            name = type(optimizer.inner).__name__
            cause = f"{name} moves the model"
            if name == "SGD":
                cause = "SGD moves tensors differently"
            self.reason = (
                self.reason
                or f"{cause}, so that an upload is no sum of noisy gradients"
            )
            return None
        if not linear_step.is_plain and self._waiting.any():
            self.reason = (
                self.reason
                or "the optimizer became another one during the round"
            )
            return None
        scale = facts.scale / optimizer.batch_size
        for response, p in zip(self._real, optimizer.parameters, strict=True):
            response.step(linear_step, p.summed_grad, scale)
        chance = min(1.0, facts.batches * self._rate)
        drawn = (
            self._rng.binomial(self._records, chance, self._count)
            * facts.clip_norm
        )
        self._base.step(linear_step, np.zeros(1))
        self._impulses.append_zero()
        impulse = np.zeros(len(self._impulses.position))
        impulse[-1] = -scale
        self._impulses.step(linear_step, impulse)
        if not linear_step.is_plain:
            self._times.step(linear_step, -scale * drawn)
            return self._gradient(np.asarray(drawn, np.float64))
        moved = linear_step.learning_rate * scale
        self._waiting = self._waiting + moved * drawn
        if (self.steps + 1) % JOINED or self._is_checked or not moved:
            return None
        return self._gradient(self._release() / moved)

    def accounted(self) -> tuple[int, float, float]:
        """Number of steps, their largest sampling rate and their least noise multiplier."""
        if not self._facts:
            return 0, 0.0, math.inf
        batches = max(facts.batches for facts in self._facts)
        noise = min(facts.noise_multiplier for facts in self._facts)
        return len(self._facts), min(1.0, batches * self._rate), noise

    def _release(self) -> Floats:
        """Take out the amounts of the waiting canaries, which are added to the model now."""
        amounts = self._waiting
        self._waiting = np.zeros(self._count)
        self._times.position = self._times.position + amounts
        return amounts

    def _gradient(self, times: Floats) -> Vector | None:
        """The gradient that adds the canaries to a model, ``times`` each; ``None`` for none.

        It has a minus sign, as a model moves against gradients.
        """
        chosen = np.flatnonzero(times)
        if not len(chosen):
            return None
        total = self._canaries.combine(
            -times[None, chosen], numbers=chosen.tolist()
        )
        return np.asarray(total[0])

    def end(self) -> Upload | None:
        """The round's upload; ``None`` if there is none to score.

        Waiting canaries are added to the model first.
        """
        if not self._active or self.reason or not self._facts:
            return None
        gradient = self._gradient(self._release())
        if gradient is not None:
            self._optimizer.shift(-gradient)
        model = self._optimizer.model()
        real = flat(response.position for response in self._real)
        real = real + np.float32(self._base.position[0] - 1) * self._start
        clip_norms = np.array([facts.clip_norm for facts in self._facts])
        multipliers = np.array(
            [facts.sum_noise_multiplier for facts in self._facts]
        )
        moved = self._impulses.position * clip_norms
        unit = float(moved.mean())
        if not unit > 0:
            self.reason = "the learning rate was 0"
            return None
        _, rate, _ = self.accounted()
        return Upload(
            hidden=model - self._start - real,
            real=real,
            times=self._times.position / unit,
            unit=unit,
            weights=moved / unit,
            rate=rate,
            variance=math.fsum((moved * multipliers) ** 2),
        )
