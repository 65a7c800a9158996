"""`LocalRound`: a silo's round of DP-SGD, in which canary records take part.

In each step, every canary record is sampled independently, as Poisson sampling draws records.
Its gradient is a random direction whose norm is the clip norm, and is added to the clipped
gradients before the noise. Random directions are expensive to compute in large models. So with
plain SGD, the canaries that were sampled in 16 steps join the last of these steps together; they
move the model as if each had joined its own step.
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
from fl_epe.silos.memory import RoundSteps, SiloPlan
from fl_epe.silos.upload import Upload

# Number of steps of plain SGD whose canaries join together.
_STEPS_PER_JOIN = 16

_CHECK_EVERY = 128  # the first of this many steps is checked closely


class LocalRound:
    """A round of an optimizer whose steps canaries join, from `begin` to `end`.

    The model is linear in the gradients, as the optimizer is SGD. A `Response` is the part of the
    model that is due to some of the gradients.

    Args:
        optimizer: the optimizer of the round.
        seen: the results of checks of earlier steps.
        plan: the settings of the audit.
        rng: the generator that samples the canaries.
        stand_back: called with an error of the audit, after which the round goes on without it.

    Attributes:
        seen: the results of checks of steps, including those of this round.
        steps: number of steps of this round so far.
        reason: why the upload cannot be scored, such as that it is no sum of noisy gradients; empty
            without a reason.
    """

    def __init__(
        self,
        optimizer: Steps,
        seen: SeenSteps,
        plan: SiloPlan,
        rng: np.random.Generator,
        stand_back: Callable[[Exception], None],
    ) -> None:
        self._optimizer = optimizer
        self.seen = seen
        self._plan = plan
        self._rng = rng
        self._canaries = CanarySet(
            plan.dim, plan.num_canaries + plan.unobserved, plan.seed
        )
        self._stand_back = stand_back
        self.steps = 0
        self.reason = ""
        self._active = True
        self._hooks = contextlib.ExitStack()
        self._facts: list[StepFacts] = []
        # The amount of each canary that was sampled and has not joined a step yet, (count,).
        self._pending: Floats = np.zeros(plan.num_canaries)
        # The amount of each canary in the model, (count,).
        self._canary_response = Response(np.zeros(plan.num_canaries))
        # The factor of the initial model, which weight decay reduces.
        self._start_response = Response(np.ones(1))
        # How far a unit vector in the clipped sum of each step has moved the model, (S,).
        self._step_response = Response(np.empty(0))

    def begin(self) -> Self:
        """Note the initial model, and let canaries join from the next step on."""
        self._start = self._optimizer.model()
        # The part of the model that is due to the silo's own records, by tensor.
        self._record_responses = [
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
        # `_add_noise` has counted this step already.
        was_checked = (self.steps - 1) % _CHECK_EVERY == 0
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
                gradient = self._next_gradient(facts)
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
        """If an error is raised in this context, the round goes on without the audit."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - training goes on
            self._active = False
            self._stand_back(error)

    def _next_gradient(self, facts: StepFacts) -> Vector | None:
        """Sample the canaries of a step, and follow the model through it.

        Returns:
            The gradient of the canaries that join the step, ``(dim,)``; ``None`` if none joins.
        """
        optimizer = self._optimizer
        self._facts.append(facts)
        linear_step = optimizer.linear_step
        fault = ""
        if linear_step is None:
            name = type(optimizer.inner).__name__
            cause = f"{name} moves the model"
            if name == "SGD":
                cause = "SGD moves tensors differently"
            fault = f"{cause}, so that an upload is no sum of noisy gradients"
        elif not linear_step.is_plain and self._pending.any():
            fault = "the optimizer became another one during the round"
        if linear_step is None or fault:
            self.reason = self.reason or fault
            return None
        scale = facts.scale / optimizer.batch_size
        for response, p in zip(
            self._record_responses, optimizer.parameters, strict=True
        ):
            response.step(linear_step, p.summed_grad, scale)
        plan = self._plan
        # With 0 records a canary is never sampled.
        records = 0 if plan.too_small else plan.records
        probability = min(1.0, facts.batches * plan.rate)
        times = self._rng.binomial(records, probability, plan.num_canaries)
        drawn = times * facts.clip_norm
        self._start_response.step(linear_step, np.zeros(1))
        self._step_response.append_zero()
        impulse = np.zeros(len(self._step_response.position))
        impulse[-1] = -scale
        self._step_response.step(linear_step, impulse)
        if not linear_step.is_plain:
            self._canary_response.step(linear_step, -scale * drawn)
            return self._gradient(np.asarray(drawn, np.float64))
        moved = linear_step.learning_rate * scale
        self._pending = self._pending + moved * drawn
        is_last_of_join = (self.steps + 1) % _STEPS_PER_JOIN == 0
        # Without a learning rate, no gradient moves the model.
        if not is_last_of_join or not moved:
            return None
        return self._gradient(self._take_pending() / moved)

    def accounted(self) -> RoundSteps:
        """The steps of this round, as the privacy accounting describes them."""
        if not self._facts:
            return RoundSteps(0, 0.0, math.inf)
        batches = max(facts.batches for facts in self._facts)
        return RoundSteps(
            num_steps=len(self._facts),
            sampling_rate=min(1.0, batches * self._plan.rate),
            noise_multiplier=min(
                facts.noise_multiplier for facts in self._facts
            ),
        )

    def _take_pending(self) -> Floats:
        """Return the amounts of the pending canaries, which are pending no longer."""
        amounts = self._pending
        self._pending = np.zeros_like(amounts)
        self._canary_response.position = (
            self._canary_response.position + amounts
        )
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

        Pending canaries are added to the model first.
        """
        if not self._active or self.reason or not self._facts:
            return None
        gradient = self._gradient(self._take_pending())
        if gradient is not None:
            self._optimizer.shift(-gradient)
        model = self._optimizer.model()
        real = flat(response.position for response in self._record_responses)
        decay = np.float32(self._start_response.position[0] - 1)
        real = real + decay * self._start
        clip_norms = np.array([facts.clip_norm for facts in self._facts])
        multipliers = np.array(
            [facts.sum_noise_multiplier for facts in self._facts]
        )
        moved = self._step_response.position * clip_norms
        unit = float(moved.mean())
        if not unit > 0:
            self.reason = "the learning rate was 0"
            return None
        return Upload(
            hidden=model - self._start - real,
            real=real,
            times=self._canary_response.position / unit,
            unit=unit,
            weights=moved / unit,
            rate=self.accounted().sampling_rate,
            variance=math.fsum((moved * multipliers) ** 2),
        )
