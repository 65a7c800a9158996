"""The optimizers that can be audited: `PlainDPSGD`, to read or to copy, and Opacus's.

`PlainSteps` and `OpacusSteps` show an audit the same of both: the clipped sum, into which canaries
join before the optimizer's own ``add_noise``, and the noisy sum after it.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fl_epe.checks import check_noise, check_positive
from fl_epe.dp_sgd.step_checks import largest_clipped
from fl_epe.seeding import generator

if TYPE_CHECKING:
    import torch

Vector = NDArray[np.floating]

_REFUSED = {
    "DPPerLayerOptimizer": "one clip norm for all layers",
    "SimpleDistributedPerLayerOptimizer": "one clip norm for all layers",
    "DistributedDPOptimizer": "an optimizer of one process",
    "DistributedDPOptimizerFastGradientClipping": "an optimizer of one process",
    "FSDPOptimizerFastGradientClipping": "an optimizer of one process",
}


class PlainDPSGD:
    """DP-SGD (Abadi et al. 2016) on a model that is one vector.

    Guarantee: with batches by Poisson sampling each step is a subsampled Gaussian mechanism with
    noise multiplier ``noise_multiplier`` under add-or-remove adjacency.

    Args:
        theta: the initial model, shape ``(dim,)``.
        learning_rate: > 0.
        noise_multiplier: z ≥ 0; the noise's deviation is z times the clip norm.
        max_grad_norm: clip norm C of an example's gradient, > 0.
        expected_batch_size: what the noisy sum is divided by, > 0.
        seed: of the noise; the operating system's entropy by default.

    Attributes:
        theta: the model.
        grad_sample: gradients of the batch's examples during a step, else ``None``.
        summed_grad: sum of the last batch's clipped gradients.
        grad: that sum with noise.

    Raises:
        ValueError: for an argument out of range.
    """

    def __init__(
        self,
        theta: NDArray[np.floating],
        *,
        learning_rate: float,
        noise_multiplier: float,
        max_grad_norm: float,
        expected_batch_size: float,
        seed: int | None = None,
    ) -> None:
        check_positive("learning_rate", learning_rate)
        check_positive("max_grad_norm", max_grad_norm)
        check_positive("expected_batch_size", expected_batch_size)
        check_noise("noise_multiplier", noise_multiplier)
        if theta.ndim != 1 or not len(theta):
            raise ValueError(f"Expected theta.shape={theta.shape} to be (dim,).")
        self.theta: NDArray[np.float64] = np.array(theta, np.float64)
        self.learning_rate = learning_rate
        self.noise_multiplier = noise_multiplier
        self.max_grad_norm = max_grad_norm
        self.expected_batch_size = expected_batch_size
        self.grad_sample: Vector | None = None
        self.summed_grad = np.zeros_like(self.theta)
        self.grad = np.zeros_like(self.theta)
        self._noise = generator(seed)

    def step(self, gradients: NDArray[np.floating]) -> NDArray[np.float64]:
        """One step, from the gradients of the batch's examples, shape ``(batch, dim)``.

        Returns:
            The new model.

        Raises:
            ValueError: for gradients of another shape.
        """
        if gradients.ndim != 2 or gradients.shape[1] != len(self.theta):
            raise ValueError(
                f"Expected gradients.shape={gradients.shape} to be (batch, {len(self.theta)})."
            )
        self.grad_sample = gradients
        norms = np.linalg.norm(gradients, axis=1)
        self.summed_grad = np.minimum(1.0, self.max_grad_norm / (norms + 1e-12)) @ gradients
        self.add_noise()
        self.grad_sample = None
        self.theta = self.theta - self.learning_rate * self.grad / self.expected_batch_size
        return self.theta

    def add_noise(self) -> None:
        """Make ``grad`` of ``summed_grad``."""
        deviation = self.noise_multiplier * self.max_grad_norm
        self.grad = self.summed_grad + deviation * self._noise.standard_normal(len(self.theta))


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


class PlainSteps:
    """The steps of `PlainDPSGD`; `OpacusSteps` has the same attributes and methods.

    Attributes:
        optimizer: whose steps these are.
        description: of the optimizer, for reports.
        dim: number of trainable parameters.
        batch_size: by which a noisy sum is divided; 1 if nothing says.
        momentum: of plain SGD; ``None`` for another optimizer.
        sample_rate: probability that an example is in a batch; ``None`` if it is not known.
        tensor_sizes: number of entries of each tensor.
        clips_in_step: whether gradients of single examples can be seen when noise is added.
    """

    momentum = 0.0
    sample_rate = None
    clips_in_step = True

    def __init__(self, optimizer: PlainDPSGD) -> None:
        self.optimizer = optimizer
        self.description = type(optimizer).__name__
        self.dim = len(optimizer.theta)
        self.batch_size = optimizer.expected_batch_size
        self.tensor_sizes = np.array([self.dim])

    def facts(self) -> StepFacts:
        """Of the step that is going on."""
        z = self.optimizer.noise_multiplier
        return StepFacts(self.optimizer.max_grad_norm, z, z, self.optimizer.learning_rate)

    def so_far(self) -> Any:
        """The clipped sum of the batches before, in the form that `clipped` needs."""
        return None

    def clipped(self, before: Any) -> tuple[int, float]:
        """Examples whose gradients were clipped, and the norm of the longest clipped one.

        Args:
            before: what `so_far` returned before the clipping.
        """
        import torch

        gradients = torch.from_numpy(np.asarray(self.optimizer.grad_sample, np.float64))
        total = torch.from_numpy(self.optimizer.summed_grad)
        return len(gradients), largest_clipped([gradients], [total], self.optimizer.max_grad_norm)

    def summed(self) -> Vector:
        """The clipped sum before the noise, shape ``(dim,)``; a copy."""
        return np.array(self.optimizer.summed_grad)

    def join(self, vector: Vector) -> Callable[[], None]:
        """Add a vector to the clipped sum; returns what takes it out again, bit for bit."""
        before = self.optimizer.summed_grad
        self.optimizer.summed_grad = before + vector
        return lambda: setattr(self.optimizer, "summed_grad", before)

    def noisy(self) -> Vector:
        """The noisy sum, shape ``(dim,)``; not yet divided by anything."""
        return self.optimizer.grad

    def model(self) -> Vector:
        """The trainable parameters, shape ``(dim,)``; a copy."""
        return np.array(self.optimizer.theta)


class OpacusSteps:
    """The steps of an Opacus ``DPOptimizer``: flat or adaptive clipping, also ghost clipping.

    Raises:
        ValueError: with per-layer clipping, or over several processes.
    """

    clips_in_step = False

    def __init__(self, optimizer: Any) -> None:
        name = type(optimizer).__name__
        for kind in type(optimizer).__mro__:
            if wanted := _REFUSED.get(kind.__name__):
                raise ValueError(f"Expected {wanted}, got optimizer={name}.")
        self.optimizer = optimizer
        self._params: list[torch.nn.Parameter] = list(optimizer.params)
        self.dim = sum(p.numel() for p in self._params)
        if not self.dim:
            raise ValueError(f"Expected an optimizer with trainable parameters, got {name}.")
        self.batch_size = float(optimizer.expected_batch_size or 1)
        self.momentum = _plain_momentum(optimizer.original_optimizer)
        self.description = f"{name} around {type(optimizer.original_optimizer).__name__}"

    @property
    def sample_rate(self) -> float | None:
        """What ``PrivacyEngine`` told its accountant."""
        hook = getattr(self.optimizer, "step_hook", None)
        if not inspect.isfunction(hook) or hook.__closure__ is None:
            return None
        try:
            rate = inspect.getclosurevars(hook).nonlocals.get("sample_rate")
        except ValueError:  # a name that has no value yet
            return None
        return float(rate) if isinstance(rate, int | float) and 0 < rate <= 1 else None

    @property
    def tensor_sizes(self) -> NDArray[np.int64]:
        """Number of entries of each tensor."""
        return np.array([p.numel() for p in self._params])

    def facts(self) -> StepFacts:
        """See `PlainSteps.facts`."""
        optimizer = self.optimizer
        z = float(optimizer.noise_multiplier)
        of_sum = float(getattr(optimizer, "_adjusted_noise_multiplier", z))
        if (deviation := getattr(optimizer, "unclipped_num_std", None)) and of_sum == z > 0:
            of_sum = (z**-2 - (2 * float(deviation)) ** -2) ** -0.5
        rates = {float(group["lr"]) for group in optimizer.param_groups}
        rate = rates.pop() if len(rates) == 1 else math.nan
        batches = int(optimizer.accumulated_iterations)
        scale = 1 / batches if optimizer.loss_reduction == "mean" else self.batch_size
        return StepFacts(float(optimizer.max_grad_norm), z, of_sum, rate * scale, batches)

    def so_far(self) -> Any:
        """See `PlainSteps.so_far`; ``None`` in the first batch of a step."""
        sums = [p.summed_grad for p in self._params]  # type: ignore[attr-defined]
        return None if any(part is None for part in sums) else [part.clone() for part in sums]

    def clipped(self, before: Any) -> tuple[int, float]:
        """See `PlainSteps.clipped`."""
        sums = self._grads("summed_grad")
        if before is not None:
            sums = [part - old for part, old in zip(sums, before, strict=True)]
        samples = [part.reshape(len(part), -1) for part in self.optimizer.grad_samples]
        totals = [part.reshape(-1) for part in sums]
        clip_norm = float(self.optimizer.max_grad_norm)
        return len(samples[0]), largest_clipped(samples, totals, clip_norm)

    def summed(self) -> Vector:
        """See `PlainSteps.summed`."""
        return _flat(self._grads("summed_grad"))

    def join(self, vector: Vector) -> Callable[[], None]:
        """See `PlainSteps.join`."""
        import torch

        before = self._grads("summed_grad")
        if any(hasattr(tensor, "_processed") for tensor in before):
            raise ValueError("Expected gradients that no step has used, see optimizer.zero_grad().")
        parts = torch.split(torch.from_numpy(vector), [tensor.numel() for tensor in before])
        after = [
            tensor + part.reshape(tensor.shape).to(tensor.device, tensor.dtype)
            for tensor, part in zip(before, parts, strict=True)
        ]

        def put(tensors: list[torch.Tensor]) -> None:
            for parameter, tensor in zip(self._params, tensors, strict=True):
                parameter.summed_grad = tensor  # type: ignore[attr-defined]

        put(after)
        return lambda: put(before)

    def noisy(self) -> Vector:
        """See `PlainSteps.noisy`."""
        return _flat(self._grads("grad"))

    def model(self) -> Vector:
        """See `PlainSteps.model`."""
        return _flat([p.data for p in self._params])

    def _grads(self, name: str) -> list[torch.Tensor]:
        """The tensors of this name, one for each parameter.

        Raises:
            ValueError: if one is missing, or other parameters are trained than at the beginning.
        """
        now = list(self.optimizer.params)
        if [id(p) for p in now] != [id(p) for p in self._params]:
            raise ValueError(f"Expected the {len(self._params)} trainable tensors of the start.")
        found = [getattr(p, name) for p in now]
        if any(tensor is None for tensor in found):
            raise ValueError(f"Expected {name} of every parameter, got None.")
        return found


Steps: TypeAlias = PlainSteps | OpacusSteps


def _flat(tensors: list[torch.Tensor]) -> Vector:
    import torch

    flat = torch.cat([t.detach().reshape(-1).to("cpu", torch.float32) for t in tensors])
    return np.asarray(flat.numpy())


def _plain_momentum(optimizer: Any) -> float | None:
    """The momentum of SGD whose model is a weighted sum of gradients; ``None`` for any other."""
    import torch

    if type(optimizer) is not torch.optim.SGD:
        return None
    others = ("dampening", "nesterov", "weight_decay", "maximize")
    if any(group.get(name) for group in optimizer.param_groups for name in others):
        return None
    momenta = {float(group["momentum"]) for group in optimizer.param_groups}
    return momenta.pop() if len(momenta) == 1 else None


def steps_of(optimizer: object) -> Steps:
    """The steps of an optimizer that can be audited.

    Raises:
        TypeError: if it is neither a `PlainDPSGD` nor an Opacus ``DPOptimizer``.
        ValueError: if it is one that cannot be audited, with the reason.
    """
    if isinstance(optimizer, PlainDPSGD):
        return PlainSteps(optimizer)
    if any(kind.__name__ == "DPOptimizer" for kind in type(optimizer).__mro__):
        return OpacusSteps(optimizer)
    raise TypeError(
        f"Expected optimizer of type {type(optimizer).__name__} to be an Opacus DPOptimizer or a"
        " PlainDPSGD. With Opacus, take the optimizer that PrivacyEngine().make_private returns."
    )
