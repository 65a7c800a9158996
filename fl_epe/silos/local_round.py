"""`LocalRound`: a silo's round of DP-SGD, in which canary records take part.

In each step every canary record is drawn by a coin of its own, as Poisson sampling draws records.
Its gradient is a random direction as long as the clip norm, and joins the clipped gradients before
noise is added. Where steps are plain SGD those of `JOINED` steps join together, each as if in its
own step: directions of large models are expensive to make.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
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
"""Steps whose canaries join together."""

_LOOKED_AT = 128  # steps, of which one is looked at closely


class LocalRound:
    """A round of an optimizer whose steps canaries join, from `begin` to `end`.

    Args:
        optimizer: whose round.
        seen: the steps so far.
        rate: sampling rate of a step.
        records: of each canary, which are drawn independently.
        rng: of the coins.
        canaries: all of them.
        count: those that may take part.
        stand_back: told an error of the audit, after which the round goes on without it.

    Attributes:
        seen: the steps so far, with those of this round.
        steps: number of steps so far.
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
        self.seen, self._rate, self._records, self._rng = seen, rate, records, rng
        self._canaries, self._count, self._stand_back = canaries, count, stand_back
        self._optimizer = optimizer
        self.steps, self.reason = 0, ""
        self._active = True
        self._hooks = contextlib.ExitStack()
        self._waiting: Floats = np.zeros(
            count
        )  # of plain steps: what canaries will have added
        self._times = Response(np.zeros(count))
        self._base = Response(np.ones(1))  # of the initial model
        self._impulses = Response(np.empty(0))  # of one unit of each step's sum
        self._facts: list[StepFacts] = []

    def begin(self) -> Self:
        """Note the initial model, and let canaries join from the next step on."""
        self._start = self._optimizer.model()
        sums = self._optimizer.parameters()
        self._real = [Response(torch.zeros_like(p, dtype=torch.float32)) for p in sums]
        if self._optimizer.has_velocity:
            self.reason = "momentum is carried over from an earlier round"
        hooks = hooked(
            self._optimizer.optimizer,
            clip=self._clip,
            add_noise=self._add_noise,
            step=self._step,
        )
        self._hooks.enter_context(hooks)
        return self

    def close(self) -> None:
        """Take the hooks off the optimizer."""
        self._active = False
        self._hooks.close()
        self.seen.movement.forget()

    @property
    def _looks(self) -> bool:
        return self.steps % _LOOKED_AT == 0

    def _clip(self, clip: Callable[[], None]) -> None:
        if self._active:
            self.seen.clip(self._optimizer, clip, look=self._looks)
        else:
            clip()

    def _step(self, step: Callable[..., Any], *args: Any, **options: Any) -> Any:
        outcome = step(*args, **options)
        if (
            self._active and self.steps % _LOOKED_AT == 1
        ):  # the one that was looked at is over
            with self._standing_back():
                self.seen.movement.end(self._optimizer.model())
                self.seen.movement.forget()
        return outcome

    def _add_noise(self, add_noise: Callable[[], None]) -> None:
        """In the place of the optimizer's ``add_noise``: canaries join before it."""
        undo, looked = None, False
        summed: Vector = np.empty(0)
        if self._active:
            with self._standing_back():
                facts = self._optimizer.facts()
                batches = self.seen.take_batches()
                looked = self._looks
                if looked:
                    summed = self._optimizer.clipped()
                gradient = self._next(facts)
                if gradient is not None:
                    summed, undo = self._optimizer.join(gradient)
        call_or_undo(add_noise, undo)
        if self._active:
            with self._standing_back():
                if looked:
                    noise = self._optimizer.noisy() - summed
                    self.seen.add(self._optimizer, facts, batches, noise, summed == 0)
                else:
                    self.seen.count(facts, batches)
                self.steps += 1

    @contextlib.contextmanager
    def _standing_back(self) -> Any:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - training goes on
            self._active = False
            self._stand_back(error)

    def _next(self, facts: StepFacts) -> Vector | None:
        """Take in a step before its noise; the gradient of the canaries that join it, if any do."""
        self._facts.append(facts)
        how = self._optimizer.linear_step
        if how is None:
            name = type(self._optimizer.inner).__name__
            what = (
                f"{name} moves the model"
                if name != "SGD"
                else "SGD moves tensors differently"
            )
            self.reason = self.reason or (
                f"{what}, so that an upload is no sum of noisy gradients"
            )
            return None
        if not how.is_plain and self._waiting.any():
            self.reason = (
                self.reason or "the optimizer became another one during the round"
            )
            return None
        of_sum = facts.scale / self._optimizer.batch_size
        for response, p in zip(self._real, self._optimizer.parameters(), strict=True):
            response.step(how, p.summed_grad, of_sum)
        chance = min(1.0, facts.batches * self._rate)
        drawn = self._rng.binomial(self._records, chance, self._count) * facts.clip_norm
        self._base.step(how, np.zeros(1))
        self._impulses.append_zero()
        impulse = np.zeros(len(self._impulses.position))
        impulse[-1] = -of_sum
        self._impulses.step(how, impulse)
        if not how.is_plain:
            self._times.step(how, -of_sum * drawn)
            return self._gradient(np.asarray(drawn, np.float64))
        moved = how.learning_rate * of_sum
        self._waiting = self._waiting + moved * drawn
        if (self.steps + 1) % JOINED or self._looks or not moved:
            return None
        return self._gradient(self._release() / moved)

    def accounted(self) -> tuple[int, float, float]:
        """What an accountant should count: steps, their largest rate, their least noise."""
        if not self._facts:
            return 0, 0.0, math.inf
        batches = max(facts.batches for facts in self._facts)
        least = min(facts.noise_multiplier for facts in self._facts)
        return len(self._facts), min(1.0, batches * self._rate), least

    def _release(self) -> Floats:
        """What waits, which is then among what canaries have added."""
        waiting = self._waiting
        self._waiting = np.zeros(self._count)
        self._times.position = self._times.position + waiting
        return waiting

    def _gradient(self, times: Floats) -> Vector | None:
        """Minus so many times each canary, as a model moves against gradients."""
        chosen = np.flatnonzero(times)
        if not len(chosen):
            return None
        total = self._canaries.combine(-times[None, chosen], numbers=chosen.tolist())
        return np.asarray(total[0])

    def end(self) -> Upload | None:
        """The round's upload, once canaries that wait have joined; ``None`` without one to score.

        Those are in the model as if they were in the last step.
        """
        if not self._active or self.reason or not self._facts:
            return None
        if (last := self._gradient(self._release())) is not None:
            self._optimizer.shift(-last)
        model = self._optimizer.model()
        real = flat(response.position for response in self._real)
        real = real + np.float32(self._base.position[0] - 1) * self._start
        clip_norms = np.array([facts.clip_norm for facts in self._facts])
        moved = self._impulses.position * clip_norms
        unit = float(moved.mean())
        if not unit > 0:
            self.reason = "the learning rate was 0"
            return None
        noise = moved * np.array([facts.sum_noise_multiplier for facts in self._facts])
        return Upload(
            hidden=model - self._start - real,
            real=real,
            times=self._times.position / unit,
            unit=unit,
            weights=moved / unit,
            rate=self.accounted()[1],
            variance=math.fsum(noise**2),
        )
