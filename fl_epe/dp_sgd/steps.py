"""Where canaries join a step of DP-SGD: after clipping, before the noise.

`steps_of` finds out what an optimizer is. Both kinds sum clipped gradients, and then call their own
``add_noise``; the audit takes the place of that method, and of Opacus's ``clip_and_accumulate``,
while it lasts, and calls them.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import inspect
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fl_epe.dp_sgd.plain import PlainDPSGD
from fl_epe.dp_sgd.step_checks import largest_clipped

if TYPE_CHECKING:
    import torch

Vector = NDArray[np.floating]
Around = Callable[[Callable[[], None]], None]

_PER_LAYER = {"DPPerLayerOptimizer", "SimpleDistributedPerLayerOptimizer"}
_DISTRIBUTED = {
    "DistributedDPOptimizer",
    "DistributedDPOptimizerFastGradientClipping",
    "FSDPOptimizerFastGradientClipping",
}


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


class PlainSteps(Steps):
    """The steps of `PlainDPSGD`."""

    clips_in_step = True

    def __init__(self, optimizer: PlainDPSGD) -> None:
        super().__init__(optimizer)
        self.description = type(optimizer).__name__
        self.dim = len(optimizer.theta)
        self.batch_size = optimizer.expected_batch_size
        self.momentum = 0.0

    def facts(self) -> StepFacts:
        """See `Steps.facts`."""
        z = self._optimizer.noise_multiplier
        return StepFacts(self._optimizer.max_grad_norm, z, z, self._optimizer.learning_rate)

    def summed(self) -> Vector:
        """See `Steps.summed`."""
        return np.array(self._optimizer.summed_grad)

    def clipped(self, before: Any) -> tuple[int, float]:
        """See `Steps.clipped`."""
        gradients, total = self._optimizer.grad_sample, self._optimizer.summed_grad
        longest = largest_clipped(
            np.linalg.norm(gradients, axis=1),
            self._optimizer.max_grad_norm,
            lambda factors: float(np.linalg.norm(total - factors @ gradients)),
            lambda: (gradients @ total, float(total @ total)),
        )
        return len(gradients), longest

    def join(self, vector: Vector) -> Callable[[], None]:
        """See `Steps.join`."""
        before = self._optimizer.summed_grad
        self._optimizer.summed_grad = before + vector
        return lambda: setattr(self._optimizer, "summed_grad", before)

    def noisy(self) -> Vector:
        """See `Steps.noisy`."""
        return np.asarray(self._optimizer.grad)

    def model(self) -> Vector:
        """See `Steps.model`."""
        return np.array(self._optimizer.theta)


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
