"""The steps of an Opacus ``DPOptimizer``, as an audit sees them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fl_epe.dp_sgd.step_checks import largest_clipped
from fl_epe.dp_sgd.steps import StepFacts, Steps, Vector

if TYPE_CHECKING:
    import torch

_PER_LAYER = {"DPPerLayerOptimizer", "SimpleDistributedPerLayerOptimizer"}
_DISTRIBUTED = {
    "DistributedDPOptimizer",
    "DistributedDPOptimizerFastGradientClipping",
    "FSDPOptimizerFastGradientClipping",
}


class OpacusSteps(Steps):
    """The steps of an Opacus ``DPOptimizer``: flat or adaptive clipping, also ghost clipping.

    Raises:
        ValueError: with per-layer clipping, or over several processes.
    """

    def __init__(self, optimizer: Any) -> None:
        names = {kind.__name__ for kind in type(optimizer).__mro__}
        name = type(optimizer).__name__
        if names & _PER_LAYER:
            raise ValueError(
                f"Expected one clip norm for all layers, got optimizer={name}: a random direction"
                " would exceed the norm of some layer. Use clipping='flat' or 'adaptive'."
            )
        if names & _DISTRIBUTED:
            raise ValueError(
                f"Expected an optimizer of one process, got optimizer={name}: the noisy sum is in"
                " no single process before it is reduced. Audit a run with distributed=False."
            )
        super().__init__(optimizer)
        self._params: list[torch.nn.Parameter] = list(optimizer.params)
        self.dim = sum(p.numel() for p in self._params)
        if not self.dim:
            raise ValueError(f"Expected an optimizer with trainable parameters, got {name}.")
        self.batch_size = float(optimizer.expected_batch_size or 1)
        self.momentum = _plain_momentum(optimizer.original_optimizer)
        self.description = f"{name} around {type(optimizer.original_optimizer).__name__}"

    @property
    def sample_rate(self) -> float | None:
        """See `Steps.sample_rate`: what ``PrivacyEngine`` told its accountant."""
        hook = getattr(self._optimizer, "step_hook", None)
        if not inspect.isfunction(hook) or hook.__closure__ is None:
            return None
        try:
            rate = inspect.getclosurevars(hook).nonlocals.get("sample_rate")
        except ValueError:  # a name that has no value yet
            return None
        return float(rate) if isinstance(rate, int | float) and 0 < rate <= 1 else None

    def facts(self) -> StepFacts:
        """See `Steps.facts`."""
        optimizer = self._optimizer
        z = float(optimizer.noise_multiplier)
        of_sum = float(getattr(optimizer, "_adjusted_noise_multiplier", z))
        if (deviation := getattr(optimizer, "unclipped_num_std", None)) and of_sum == z > 0:
            of_sum = (z**-2 - (2 * float(deviation)) ** -2) ** -0.5
        rates = {float(group["lr"]) for group in optimizer.param_groups}
        rate = rates.pop() if len(rates) == 1 else math.nan
        mean = optimizer.loss_reduction == "mean"
        batches = int(optimizer.accumulated_iterations)
        scale = 1 / batches if mean else self.batch_size
        return StepFacts(float(optimizer.max_grad_norm), z, of_sum, rate * scale, batches)

    @property
    def tensor_sizes(self) -> NDArray[np.int64]:
        """See `Steps.tensor_sizes`."""
        return np.array([p.numel() for p in self._params])

    def so_far(self) -> Any:
        """See `Steps.so_far`; ``None`` in the first batch of a step."""
        sums = [p.summed_grad for p in self._params]  # type: ignore[attr-defined]
        return None if any(part is None for part in sums) else [part.clone() for part in sums]

    def clipped(self, before: Any) -> tuple[int, float]:
        """See `Steps.clipped`."""
        import torch

        with torch.no_grad():
            sums = self._grads("summed_grad")
            if before is not None:
                sums = [part - old for part, old in zip(sums, before, strict=True)]
            totals = [part.reshape(-1) for part in sums]
            samples = [part.reshape(len(part), -1) for part in self._optimizer.grad_samples]
            if not (count := len(samples[0])):
                return 0, 0.0
            each = torch.stack([part.norm(dim=1).to(totals[0].device) for part in samples])
            norms = each.norm(dim=0)

            def error(factors: Vector) -> float:
                scales = torch.from_numpy(factors)
                rests = (
                    total - scales.to(part.device, total.dtype) @ part.to(total.dtype)
                    for total, part in zip(totals, samples, strict=True)
                )
                return math.hypot(*(float(rest.norm()) for rest in rests))

            def products() -> tuple[NDArray[np.float64], float]:
                along = [
                    (part.to(total.dtype) @ total).cpu().to(torch.float64)
                    for total, part in zip(totals, samples, strict=True)
                ]
                square = sum(float(total.norm()) ** 2 for total in totals)
                return torch.stack(along).sum(dim=0).numpy(), square

            longest = largest_clipped(
                norms.cpu().to(torch.float64).numpy(),
                float(self._optimizer.max_grad_norm),
                error,
                products,
                max(1e-3, 10 * torch.finfo(samples[0].dtype).eps),
            )
        return count, longest

    def _grads(self, name: str) -> list[torch.Tensor]:
        """The tensors of this name, one for each parameter.

        Raises:
            ValueError: if one is missing, or other parameters are trained than at the beginning.
        """
        now = list(self._optimizer.params)
        if [id(p) for p in now] != [id(p) for p in self._params]:
            raise ValueError(f"Expected the {len(self._params)} trainable tensors of the start.")
        found = [getattr(p, name) for p in now]
        if any(tensor is None for tensor in found):
            raise ValueError(f"Expected {name} of every parameter, got None.")
        return found

    def summed(self) -> Vector:
        """See `Steps.summed`."""
        return _flat(self._grads("summed_grad"))

    def join(self, vector: Vector) -> Callable[[], None]:
        """See `Steps.join`."""
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
        """See `Steps.noisy`."""
        return _flat(self._grads("grad"))

    def model(self) -> Vector:
        """See `Steps.model`."""
        return _flat([p.data for p in self._params])


def _flat(tensors: list[torch.Tensor]) -> Vector:
    import torch

    flat = torch.cat([t.detach().reshape(-1).to("cpu", torch.float32) for t in tensors])
    return np.asarray(flat.numpy())


def _plain_momentum(optimizer: Any) -> float | None:
    """The momentum of SGD whose model is a weighted sum of gradients; ``None`` for any other."""
    import torch

    if type(optimizer) is not torch.optim.SGD:
        return None
    for group in optimizer.param_groups:
        if any(group.get(name) for name in ("dampening", "nesterov", "weight_decay", "maximize")):
            return None
    momenta = {float(group["momentum"]) for group in optimizer.param_groups}
    return momenta.pop() if len(momenta) == 1 else None
