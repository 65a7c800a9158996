"""Samples crafted so that their gradient points where no other example's does (CANIFE).

Maddock, Sablayrolles and Stock (2022, section 3): from a random image, gradient descent on its
pixels and on the shares of its classes makes the gradient of the example orthogonal to those of a
pool of held-out examples, and at least as long as the clip norm.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from fl_epe.models import one_thread
from fl_epe.seeding import generator
from simulations.others.two_layer import Floats, Gradients, TwoLayer

_STEP_SIZE = 0.05  # of Adam
_STREAM = 2


@dataclasses.dataclass(frozen=True, eq=False)
class CraftedSample:
    """A crafted canary.

    Attributes:
        gradient: of the one example, as `TwoLayer.gradients` gives it.
        before: mean squared cosine with the clipped gradients of the pool at the start, times
            their squared length.
        after: the same at the end.
    """

    gradient: Gradients
    before: float
    after: float

    def alignment(self, others: Gradients, clip_norm: float) -> Floats:
        """Inner products of its direction with others' clipped gradients, shape (n,)."""
        unit = self.gradient.products(others)[0] / self.gradient.norms[0]
        return np.asarray(unit * others.scales(clip_norm))


def craft_sample(
    network: TwoLayer,
    model: Floats,
    pool: Gradients,
    clip_norm: float,
    *,
    steps: int,
    seed: int,
) -> CraftedSample:
    """Craft a sample against ``model``.

    Args:
        network: what is trained.
        model: the model that the canary will be sent to, shape (dim,).
        pool: gradients of held-out examples at this model.
        clip_norm: C; a gradient shorter than that is made longer.
        steps: of Adam, at least 1.
        seed: of the image and classes to begin with.

    Raises:
        ValueError: if ``steps`` < 1.
    """
    if steps < 1:
        raise ValueError(f"Expected steps={steps} >= 1.")
    rng = generator(seed, _STREAM)
    pixels = torch.tensor(rng.random((1, network.inputs)), requires_grad=True)
    shares = torch.tensor(
        rng.standard_normal((1, network.classes)), requires_grad=True
    )
    adam = _Adam([pixels, shares])
    objective = _Objective(network, model, pool, clip_norm)
    before = float("nan")
    with one_thread():
        for step in range(steps):
            aligned, short = objective(pixels, shares)
            before = aligned.item() if step == 0 else before
            adam.step(torch.autograd.grad(aligned + short, [pixels, shares]))
    with torch.no_grad():
        after = objective(pixels, shares)[0].item()
        wanted = torch.softmax(shares, dim=1).numpy()
    gradient = network.gradients(model, pixels.detach().numpy(), wanted)
    return CraftedSample(gradient, before, after)


class _Adam:
    """Adam with its usual constants; that of torch takes seconds to import."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._tensors = tensors
        self._moments = [
            (part.detach() * 0, part.detach() * 0) for part in tensors
        ]
        self._steps = 0

    def step(self, gradients: Sequence[torch.Tensor]) -> None:
        """Move the tensors down their ``gradients``."""
        self._steps += 1
        for i, (tensor, gradient) in enumerate(
            zip(self._tensors, gradients, strict=True)
        ):
            first, second = self._moments[i]
            first, second = (
                0.9 * first + 0.1 * gradient,
                0.999 * second + 0.001 * gradient**2,
            )
            self._moments[i] = first, second
            size = (second / (1 - 0.999**self._steps)) ** 0.5 + 1e-8
            tensor.data -= _STEP_SIZE * first / (1 - 0.9**self._steps) / size


class _Objective:
    """Mean squared inner product with the pool, and how far the gradient is too short, squared."""

    def __init__(
        self,
        network: TwoLayer,
        model: Floats,
        pool: Gradients,
        clip_norm: float,
    ) -> None:
        self._layers = [
            torch.from_numpy(part.copy()) for part in network.layers(model)
        ]
        scales = pool.scales(clip_norm)[:, None]
        parts = (
            pool.through * scales,
            pool.inputs,
            pool.back * scales,
            pool.hidden,
        )
        self._pool = [
            torch.from_numpy(np.ascontiguousarray(part)) for part in parts
        ]
        self._clip_norm = clip_norm

    def __call__(
        self, pixels: torch.Tensor, shares: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        first, bias, second, last = self._layers
        hidden = torch.relu(pixels @ first.T + bias)
        back = torch.softmax(hidden @ second.T + last, dim=1) - torch.softmax(
            shares, dim=1
        )
        through = (back @ second) * (hidden > 0)
        squares = (through**2).sum() * ((pixels**2).sum() + 1)
        squares = squares + (back**2).sum() * ((hidden**2).sum() + 1)
        length = torch.sqrt(squares + 1e-24)
        pool_through, pool_inputs, pool_back, pool_hidden = self._pool
        products = (through @ pool_through.T) * (pixels @ pool_inputs.T + 1)
        products = products + (back @ pool_back.T) * (
            hidden @ pool_hidden.T + 1
        )
        aligned = torch.mean((products / length) ** 2)
        return aligned, torch.relu(self._clip_norm - length) ** 2
