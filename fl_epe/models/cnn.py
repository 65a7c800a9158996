"""The EMNIST CNN of the federated-learning literature, and a fast way to train it.

Its own step on 16 images takes 0.88 of autograd's time (one thread of a Xeon with AVX-512, torch
2.13, 100 interleaved pairs; 0.92 beside other work). More than half is in the three products of the
second convolution, at the processor's peak. Tried and dropped: parts of 4 or 8 images that stay in
the cache (1.13 and 1.06 of the time: a convolution costs more a call), dense1 in blocks that are
read once for both its products (0.99), im2col and one product for the second convolution (1.3 of
its time), huge pages (no difference).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch.nn import functional

from fl_epe.models.dropout import SeededDropout
from fl_epe.tasks import LossSum

_aten: Any = torch.ops.aten


class Cnn(torch.nn.Module):
    """28×28×1 to 62 classes, 1,206,590 parameters (Reddi et al. 2021, Andrew et al. 2024).

    conv 3×3×32, relu, conv 3×3×64, relu, max-pool 2, dropout ¼, dense 128, relu, dropout ½,
    dense 62; no padding. The 62 outputs stay also where fewer classes occur.

    It can train itself, `remember` then `descend`: the same step as autograd's, faster. Weights
    move while their gradient is multiplied out, and of what lies between the layers little is kept.
    """

    def __init__(self) -> None:
        super().__init__()
        with torch.device("meta"):
            self.conv1 = torch.nn.Conv2d(1, 32, 3)
            self.conv2 = torch.nn.Conv2d(32, 64, 3)
            self.dense1 = torch.nn.Linear(9216, 128)
            self.dense2 = torch.nn.Linear(128, 62)
        self.dropout1 = SeededDropout(0.25)
        self.dropout2 = SeededDropout(0.5)
        self.to_empty(device="cpu")
        self._memory: _Memory | None = None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits of shape (n, 62) for images of shape (n, 1, 28, 28)."""
        # Strides of channels last: max-pooling is ten times as fast, the convolutions a fifth.
        x = inputs.reshape(-1, 28, 28, 1).permute(0, 3, 1, 2)
        x = functional.relu(self.conv1(x))
        # relu and max-pool commute, and relu is cheaper after the pooling.
        x = functional.relu(functional.max_pool2d(self.conv2(x), 2))
        x = self.dropout1(x.flatten(1))
        x = self.dropout2(functional.relu(self.dense1(x)))
        return self.dense2(x)  # type: ignore[no-any-return]

    @torch.no_grad()
    def remember(self, inputs: torch.Tensor) -> torch.Tensor:
        """The logits of a training step, and what `descend` needs, kept until then.

        Args:
            inputs: images of shape (n, 1, 28, 28).

        Returns:
            Differentiable logits of shape (n, 62).
        """
        n = len(inputs)
        images = inputs.reshape(n, 28, 28, 1).contiguous()
        maps = functional.conv2d(images.permute(0, 3, 1, 2), self.conv1.weight, self.conv1.bias)
        maps.clamp_min_(0)
        conv = functional.conv2d(maps, self.conv2.weight, self.conv2.bias)
        pooled, where = functional.max_pool2d(conv, 2, return_indices=True)
        flat = pooled.new_empty(n, 9216)
        flat.view_as(pooled).copy_(pooled)
        flat.clamp_min_(0).mul_(self.dropout1.mask((n, 9216)))
        # This way round the product is more than twice as fast.
        hidden = (self.dense1.weight @ flat.t()).t().add(self.dense1.bias)
        hidden.clamp_min_(0).mul_(self.dropout2.mask((n, 128)))
        logits = self.dense2(hidden).requires_grad_()
        self._memory = _Memory(images, maps, conv, where, flat, hidden, logits)
        return logits  # type: ignore[no-any-return]

    def descend(self, loss: torch.Tensor, learning_rate: float) -> None:
        """A step of gradient descent, in place.

        Args:
            loss: a function of the logits that the last `remember` returned.
            learning_rate: size of the step.

        Raises:
            RuntimeError: without a `remember` before.
        """
        memory, self._memory = self._memory, None
        if memory is None:
            raise RuntimeError("Expected remember() before descend().")
        (gradient,) = torch.autograd.grad(loss, memory.logits)
        with torch.no_grad():
            gradient = self._descend_dense(memory, gradient, -learning_rate)
            self._descend_convolutions(memory, gradient, -learning_rate)

    def _descend_dense(self, memory: _Memory, gradient: torch.Tensor, step: float) -> torch.Tensor:
        """Move both dense layers; returns the gradient of the pooled maps."""
        before: torch.Tensor = gradient @ self.dense2.weight
        _move(self.dense2, gradient, memory.hidden, step)
        # What dropout or relu set to zero, and only that, is zero.
        hidden = _aten.threshold_backward(before, memory.hidden, 0).div_(1 - self.dropout2.rate)
        before = hidden @ self.dense1.weight
        _move(self.dense1, hidden, memory.flat, step)
        _aten.threshold_backward.grad_input(before, memory.flat, 0, grad_input=before)
        return before.div_(1 - self.dropout1.rate).view(-1, 64, 12, 12)

    def _descend_convolutions(self, memory: _Memory, pooled: torch.Tensor, step: float) -> None:
        conv = _aten.max_pool2d_with_indices_backward(
            pooled.contiguous(memory_format=torch.channels_last),
            *(memory.conv, [2, 2], [2, 2], [0, 0], [1, 1], False, memory.where),
        )
        maps, weight, _ = _aten.convolution_backward(
            *(conv, memory.maps, self.conv2.weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0]),
            *(1, [True, True, False]),
        )
        _move_convolution(self.conv2, weight, _rows(conv), step)
        _aten.threshold_backward.grad_input(maps, memory.maps, 0, grad_input=maps)
        # As a product with the 9 shifted images, half the time of a convolution's gradient.
        n, images = len(memory.images), memory.images
        shifted = images.as_strided((3, 3, n, 26, 26), (28, 1, images.stride(0), 28, 1))
        weight = shifted.reshape(9, -1) @ _rows(maps)
        _move_convolution(self.conv1, weight.t().reshape(32, 1, 3, 3), _rows(maps), step)


@dataclasses.dataclass(frozen=True)
class _Memory:
    """Between `Cnn.remember` and `Cnn.descend`.

    Attributes:
        images: (n, 28, 28, 1).
        maps: (n, 32, 26, 26), after relu.
        conv: (n, 64, 24, 24), what is pooled.
        where: (n, 64, 12, 12), the places of the largest.
        flat: (n, 9216), after dropout.
        hidden: (n, 128), after dropout.
        logits: (n, 62).
    """

    images: torch.Tensor
    maps: torch.Tensor
    conv: torch.Tensor
    where: torch.Tensor
    flat: torch.Tensor
    hidden: torch.Tensor
    logits: torch.Tensor


def _move(
    layer: torch.nn.Linear, gradient: torch.Tensor, inputs: torch.Tensor, step: float
) -> None:
    layer.weight.addmm_(gradient.t(), inputs, alpha=step)
    layer.bias.add_(gradient.sum(0), alpha=step)


def _move_convolution(
    layer: torch.nn.Conv2d, weight: torch.Tensor, outputs: torch.Tensor, step: float
) -> None:
    bias: Any = layer.bias
    layer.weight.add_(weight, alpha=step)
    bias.add_(outputs.sum(0), alpha=step)


def _rows(maps: torch.Tensor) -> torch.Tensor:
    """(n, channels, height, width) in channels last as (n height width, channels)."""
    return maps.permute(0, 2, 3, 1).reshape(-1, maps.shape[1])


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> LossSum:
    """Summed cross-entropy and number of right classes for (n, classes) logits."""
    return LossSum(
        loss=functional.cross_entropy(logits, targets, reduction="sum"),
        correct=int((logits.detach().argmax(1) == targets).sum()),
        examples=len(targets),
    )
