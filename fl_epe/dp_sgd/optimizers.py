"""The optimizers that can be audited: Opacus's, and `PlainDPSGD`, a short reference.

`Steps` is an audit's interface to both. It reads the clipped sum, adds canaries to it before the
optimizer's ``add_noise``, and reads the noisy sum afterwards.
"""

import contextlib
import copy
import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from fl_epe.archive import error_text
from fl_epe.checks import (
    Floats,
    Reals,
    Vector,
    check_noise_multiplier,
    check_positive,
    raise_invalid,
)
from fl_epe.dp_sgd.clipping import BatchSeen, clipping
from fl_epe.dp_sgd.linear import LinearStep
from fl_epe.seeding import noise_generator

# Parts of the names of Opacus optimizers that cannot be audited, and what is expected instead.
_EXPECTED_INSTEAD = {
    "PerLayer": "one clip norm for all layers",
    "Distributed": "an optimizer of one process",
    "FSDP": "an optimizer of one process",
}

# Added to a norm, it avoids a division by 0.
_TINY = 1e-12


class PlainDPSGD:
    """DP-SGD (Abadi et al. 2016) on a model that is one vector.

    Guarantee: with batches by Poisson sampling each step is a subsampled Gaussian mechanism with
    noise multiplier ``noise_multiplier`` under add-or-remove adjacency.

    It has the attributes of an Opacus ``DPOptimizer`` that an audit uses; its one parameter is the
    model.

    Args:
        theta: the initial model, shape ``(dim,)``.
        learning_rate: the learning rate, > 0.
        noise_multiplier: z ≥ 0; the noise's standard deviation is z times the clip norm.
        max_grad_norm: the clip norm C of an example's gradient, > 0.
        expected_batch_size: the divisor of the noisy sum, > 0.
        seed: the seed of the noise (default: the operating system's entropy).

    Raises:
        ValueError: for an argument out of range.
    """

    accumulated_iterations = 1
    loss_reduction = "mean"

    def __init__(
        self,
        theta: Reals,
        *,
        learning_rate: float,
        noise_multiplier: float,
        max_grad_norm: float,
        expected_batch_size: float,
        seed: int | None = None,
    ) -> None:
        check_positive("learning_rate", learning_rate)
        check_noise_multiplier("noise_multiplier", noise_multiplier)
        check_positive("max_grad_norm", max_grad_norm)
        check_positive("expected_batch_size", expected_batch_size)
        self.learning_rate = learning_rate
        self.noise_multiplier = noise_multiplier
        self.max_grad_norm = max_grad_norm
        self.expected_batch_size = expected_batch_size
        if theta.ndim != 1 or not len(theta):
            raise_invalid("theta.shape", theta.shape, "to be (dim,)")
        initial = torch.from_numpy(np.array(theta, np.float64))
        self._model: Any = torch.nn.Parameter(initial)
        self.params = [self._model]
        self.grad_samples = [torch.zeros(0, len(theta))]
        self._noise = noise_generator(seed)

    @property
    def theta(self) -> Floats:
        """The model, shape ``(dim,)``."""
        return np.asarray(self._model.detach().numpy())

    @property
    def param_groups(self) -> list[dict[str, float]]:
        """The options of the step, in the form of a torch optimizer."""
        return [{"lr": self.learning_rate}]

    def step(self, gradients: Reals) -> Floats:
        """Take one step by the gradients of the batch's examples, shape ``(batch, dim)``.

        Returns:
            The new model.

        Raises:
            ValueError: for gradients of another shape.
        """
        theta = self.theta
        if gradients.ndim != 2 or gradients.shape[1] != len(theta):
            raise_invalid(
                "gradients.shape",
                gradients.shape,
                f"to be (batch, {len(theta)})",
            )
        dtype = np.float32 if gradients.dtype == np.float32 else np.float64
        self.grad_samples = [torch.from_numpy(np.array(gradients, dtype))]
        self._model.summed_grad = None
        self.clip_and_accumulate()
        self.add_noise()
        noisy_sum = self._model.grad.numpy()
        movement = self.learning_rate * noisy_sum / self.expected_batch_size
        self._model.data = torch.from_numpy(theta - movement)
        return self.theta

    def clip_and_accumulate(self) -> None:
        """Set the ``summed_grad`` of the parameter: the sum of the clipped gradients."""
        gradients = self.grad_samples[0].numpy()
        norms = np.linalg.norm(gradients, axis=1)
        factors = np.minimum(1.0, self.max_grad_norm / (norms + _TINY))
        self._model.summed_grad = torch.from_numpy(factors @ gradients)

    def add_noise(self) -> None:
        """Set the ``grad`` of the parameter, which is its ``summed_grad`` with noise."""
        deviation = self.noise_multiplier * self.max_grad_norm
        noise = torch.from_numpy(self._noise.standard_normal(len(self._model)))
        self._model.grad = self._model.summed_grad + deviation * noise


@dataclasses.dataclass(frozen=True)
class StepFacts:
    """The parameters of a step.

    Attributes:
        clip_norm: the clip norm C.
        noise_multiplier: the noise multiplier z of the privacy accounting.
        sum_noise_multiplier: the noise multiplier of the sum. It is larger than z if a count of
            clipped gradients is released as well (adaptive clipping).
        learning_rate: the norm of the model's movement if the mean gradient has norm 1; NaN if
            parameters have different learning rates.
        batches: the number of batches that are accumulated for the step. Opacus multiplies the
            sampling rate by it.
        scale: the factor by which the optimizer multiplies a mean gradient before it applies the
            learning rate.
    """

    clip_norm: float
    noise_multiplier: float
    sum_noise_multiplier: float
    learning_rate: float
    batches: int
    scale: float


class Steps:
    """The steps of a `PlainDPSGD` or an Opacus ``DPOptimizer``, with any clipping but per layer.

    Attributes:
        optimizer: the optimizer that takes the steps.
        inner: the optimizer that moves the model by noisy gradients. It is that which Opacus's
            optimizer wraps, or `optimizer` itself.
        description: a description of the optimizer, for reports.
        parameters: the trainable tensors, in their order in vectors of shape ``(dim,)``.
        tensor_sizes: the number of entries of each trainable tensor.
        batch_size: the divisor of a noisy sum; 1 if the optimizer has none.

    Raises:
        TypeError: if the optimizer is neither of the two.
        ValueError: with per-layer clipping, or over several processes.
    """

    def __init__(self, optimizer: Any) -> None:
        name = type(optimizer).__name__
        names = [kind.__name__ for kind in type(optimizer).__mro__]
        if not {"PlainDPSGD", "DPOptimizer"} & set(names):
            raise TypeError(
                f"Expected optimizer of type {name} to be an Opacus DPOptimizer or a"
                " PlainDPSGD. With Opacus, pass the optimizer that PrivacyEngine().make_private"
                " returns."
            )
        for part, expected in _EXPECTED_INSTEAD.items():
            if any(part in kind for kind in names):
                raise ValueError(f"Expected {expected}, got optimizer={name}.")
        self.optimizer = optimizer
        self.inner = getattr(optimizer, "original_optimizer", optimizer)
        self.parameters: list[Any] = list(optimizer.params)
        self.tensor_sizes = np.array([p.numel() for p in self.parameters])
        if not self.tensor_sizes.sum():
            raise ValueError(
                f"Expected an optimizer with trainable parameters, got {name}."
            )
        self.batch_size = float(optimizer.expected_batch_size or 1)
        self.description = name
        if self.inner is not optimizer:
            self.description += f" around {type(self.inner).__name__}"

    @property
    def momentum(self) -> float | None:
        """The momentum of SGD with no other options; ``None`` for any other optimizer."""
        step = self.linear_step
        if step is None or step.dampening or step.nesterov or step.weight_decay:
            return None
        return step.momentum

    @property
    def linear_step(self) -> LinearStep | None:
        """The next step of SGD; ``None`` for other optimizers or differing parameter groups."""
        if type(self.inner) not in (torch.optim.SGD, PlainDPSGD):
            return None
        return LinearStep.of(self.optimizer.param_groups)

    @property
    def _engine_variables(self) -> dict[str, Any]:
        """The variables of ``PrivacyEngine``'s hook after each step; empty without that hook."""
        hook: Any = getattr(self.optimizer, "step_hook", None)
        # The hook may be missing, or be no Python function.
        with contextlib.suppress(TypeError, ValueError):
            return dict(inspect.getclosurevars(hook).nonlocals)
        return {}

    @property
    def sample_rate(self) -> float | None:
        """The sampling rate of ``PrivacyEngine``'s accountant; ``None`` without one."""
        # A custom hook has no such variable.
        with contextlib.suppress(TypeError, ValueError, KeyError):
            return float(self._engine_variables["sample_rate"])
        return None

    def facts(self) -> StepFacts:
        """The parameters of the present step."""
        optimizer = self.optimizer
        z = float(optimizer.noise_multiplier)
        sum_z = float(getattr(optimizer, "_adjusted_noise_multiplier", z))
        count_std = getattr(optimizer, "unclipped_num_std", None)
        if count_std and sum_z == z > 0:
            # Adaptive clipping spends a part of the privacy of z on the count of clipped gradients
            # (Andrew et al. 2021, theorem 1), so the sum needs more noise. This optimizer has not
            # adjusted z itself.
            sum_z = (z**-2 - (2 * float(count_std)) ** -2) ** -0.5
        learning_rates = {
            float(group["lr"]) for group in optimizer.param_groups
        }
        learning_rate = math.nan
        if len(learning_rates) == 1:
            learning_rate = learning_rates.pop()
        batches = int(optimizer.accumulated_iterations)
        # Opacus divides the sum of the gradients only if the loss is a mean.
        if optimizer.loss_reduction == "mean":
            scale = 1 / batches
        else:
            scale = self.batch_size
        return StepFacts(
            clip_norm=float(optimizer.max_grad_norm),
            noise_multiplier=z,
            sum_noise_multiplier=sum_z,
            learning_rate=learning_rate * scale,
            batches=batches,
            scale=scale,
        )

    def clip(self, clip: Callable[[], None], *, look: bool = True) -> BatchSeen:
        """Let the optimizer clip a batch, and observe the clipping as far as it can be read.

        Args:
            clip: the optimizer's method, which adds the clipped gradients to its sums.
            look: whether to observe more than the number of examples.
        """
        sums_before: dict[Any, Any] | None = None
        if look:
            # There may be too little memory for a copy, for example.
            with contextlib.suppress(Exception):
                sums_before = self._copies_of_sums()
        clip()
        examples = math.nan
        try:
            examples = self._examples()
            if not look:
                return BatchSeen(examples)
            if sums_before is not None:
                return self._clipped(examples, sums_before)
        # A third party's optimizer may raise any error.
        except Exception as error:  # noqa: BLE001
            return BatchSeen(examples, unseen=error_text(error))
        return BatchSeen(
            examples, unseen="the sums before the batch could not be read"
        )

    def _copies_of_sums(self) -> dict[Any, Any]:
        """Copies of the sums of the clipped gradients so far, by parameter."""
        sums = {p: getattr(p, "summed_grad", None) for p in self.parameters}
        return {p: s.clone() for p, s in sums.items() if s is not None}

    def _examples(self) -> float:
        """The number of examples of the batch that was just clipped; NaN if it is not known."""
        gradients = self.optimizer.grad_samples[0]
        if gradients is None:
            # Ghost clipping has no gradients of single examples. It stores their norms.
            gradients = getattr(self.parameters[0], "_norm_sample", None)
        if gradients is None:
            return math.nan
        return float(len(gradients))

    def _clipped(
        self, examples: float, sums_before: dict[Any, Any]
    ) -> BatchSeen:
        """Observe how a batch was clipped, given the sums before it by parameter."""
        gradients = self.optimizer.grad_samples
        if gradients[0] is None:
            return BatchSeen(
                examples,
                unseen="ghost clipping keeps no gradients of single examples",
            )
        samples = [
            gradient.reshape(len(gradient), p.numel())
            for gradient, p in zip(gradients, self.parameters, strict=True)
        ]
        totals = [
            (p.summed_grad - sums_before.get(p, 0)).reshape(-1)
            for p in self.parameters
        ]
        return clipping(samples, totals, float(self.optimizer.max_grad_norm))

    def replay(self) -> Vector:
        """The model after the present step, if the noisy sum alone moves it.

        A copy of the optimizer takes the step. Call this after the noise was added to the sum, and
        before the optimizer divides the sum.

        Raises:
            Exception: any error of an optimizer that cannot be copied.
        """
        optimizer = self.optimizer
        inner = self.inner
        if inner is optimizer:  # PlainDPSGD
            movement = optimizer.learning_rate * self.noisy() / self.batch_size
            return np.asarray(self.model() - movement)
        divisor = 1.0
        if optimizer.loss_reduction == "mean":
            divisor = (
                optimizer.expected_batch_size * optimizer.accumulated_iterations
            )
        # `deepcopy` uses these copies in place of the parameters. A parameter that is not trained
        # has no gradient, and gets an empty copy.
        copies: dict[int, Any] = {
            id(p): torch.nn.Parameter(torch.empty(0))
            for group in inner.param_groups
            for p in group["params"]
        }
        for p in self.parameters:
            replica = torch.nn.Parameter(p.detach().clone())
            replica.grad = p.grad / divisor
            copies[id(p)] = replica
        inner_copy = copy.deepcopy(inner, dict(copies))
        # The unwrapped step does not call the optimizer's hooks, which are not for copies.
        step = type(inner).step
        step = getattr(step, "__wrapped__", step)
        devices = {
            p.device.index for p in self.parameters if p.device.type == "cuda"
        }
        with torch.no_grad(), torch.random.fork_rng(devices):
            step(inner_copy)
        return flat(copies[id(p)] for p in self.parameters)

    def _split(self, vector: Vector) -> tuple[torch.Tensor, ...]:
        """A vector of shape ``(dim,)``, split into parts for the trainable tensors."""
        return torch.split(torch.from_numpy(vector), self.tensor_sizes.tolist())

    def join(self, vector: Vector) -> tuple[Vector, Callable[[], None]]:
        """Add a vector of shape ``(dim,)`` to the clipped sum.

        Returns:
            The new sum, shape ``(dim,)``, and a function that restores the old sum, bit for
            bit.

        Raises:
            ValueError: if other parameters are trained than at the beginning.
        """
        trained_ids = [id(p) for p in self.optimizer.params]
        if trained_ids != [id(p) for p in self.parameters]:
            raise ValueError(
                f"Expected the same {len(self.parameters)} trainable tensors as at the start of the"
                " audit."
            )
        sums = [p.summed_grad for p in self.parameters]
        joined = [
            total + part.view_as(total).to(total)
            for total, part in zip(sums, self._split(vector), strict=True)
        ]
        old_values = [total.data for total in sums]
        undo = functools.partial(_set_values, sums, old_values)
        joined_sum = flat(joined)  # before any value changes, as it may fail
        _set_values(sums, joined)
        return joined_sum, undo

    def shift(self, vector: Vector) -> None:
        """Add a vector of shape ``(dim,)`` to the model."""
        with torch.no_grad():
            for p, part in zip(
                self.parameters, self._split(vector), strict=True
            ):
                p.add_(part.view_as(p).to(p))

    @property
    def has_velocity(self) -> bool:
        """Whether the optimizer has momentum from earlier steps."""
        states = getattr(self.inner, "state", {}).values()
        return any(state.get("momentum_buffer") is not None for state in states)

    @property
    def accounted_steps(self) -> int | None:
        """The number of steps of ``PrivacyEngine``'s accountant; ``None`` without one."""
        with contextlib.suppress(
            TypeError, ValueError, KeyError, AttributeError
        ):
            return sum(
                int(steps)
                for _, _, steps in self._engine_variables["self"].history
            )
        return None

    def clipped(self) -> Vector:
        """The clipped sum, shape ``(dim,)``."""
        return flat(p.summed_grad for p in self.parameters)

    def noisy(self) -> Vector:
        """The noisy sum before the optimizer divides it, shape ``(dim,)``."""
        return flat(p.grad for p in self.parameters)

    def model(self) -> Vector:
        """A copy of the trainable parameters, shape ``(dim,)``."""
        return flat(self.parameters)


def _set_values(
    tensors: list[torch.Tensor], values: list[torch.Tensor]
) -> None:
    """Replace the values of tensors, but none of their other attributes."""
    for tensor, value in zip(tensors, values, strict=True):
        tensor.data = value


def flat(tensors: Iterable[Any]) -> Vector:
    """A copy of tensors as one vector, in float64 if one tensor has it, else in float32."""
    parts = [t.detach().reshape(-1).cpu() for t in tensors]
    return np.asarray(
        torch.cat(
            [p.to(torch.promote_types(p.dtype, torch.float32)) for p in parts]
        )
    )
