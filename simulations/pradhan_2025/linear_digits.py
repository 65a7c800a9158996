"""Many DP-SGD models of one small real problem at once, and canaries that are made for it.

The model is softmax regression on scikit-learn's digits, as the papers train the last layer of a
network on its features. All models of a world are trained together: a gradient of an example is an
outer product, so that its norm is known without making it.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from fl_epe.seeding import generator

_CLASSES = 10
_LARGEST_PIXEL = 16.0
_AT_ONCE = 200  # models
_AUXILIARY = 300  # examples that nobody trains on
_CRAFTING_STEPS, _CRAFTING_RATE = 300, 0.3


@dataclasses.dataclass(frozen=True)
class Training:
    """How each model is trained.

    Attributes:
        noise_multiplier: z.
        sampling_rate: probability with which an example is in a step's batch.
        steps: number T.
        clip_norm: C, of an example's gradient.
        learning_rate: of the noisy sum over the expected size of a batch.
        examples: how many others are trained on.
    """

    noise_multiplier: float
    sampling_rate: float
    steps: int
    clip_norm: float = 1.0
    learning_rate: float = 0.5
    examples: int = 200


@dataclasses.dataclass(frozen=True, eq=False)
class Example:
    """One example: features with a 1 at the end, shape (f,), and the number of its class."""

    features: torch.Tensor
    label: int


@dataclasses.dataclass(frozen=True)
class GradientCanary:
    """A gradient of ``value`` on one coordinate of the flat model, and 0 elsewhere."""

    coordinate: int
    value: float


Canary = Example | GradientCanary


class LinearDigits:
    """Examples to train on, and others.

    Args:
        training: how.
        seed: of the choice of examples.
    """

    def __init__(self, training: Training, seed: int) -> None:
        pixels, labels = load_digits(return_X_y=True)
        order = generator(seed).permutation(len(labels))
        ones = np.ones((len(labels), 1))
        features = np.concatenate([pixels / _LARGEST_PIXEL, ones], axis=1)[
            order
        ]
        self.features = torch.tensor(features, dtype=torch.float32)
        self.labels = torch.tensor(labels[order])
        self.training = training
        self.shape = (self.features.shape[1], _CLASSES)

    def example(self, number: int) -> Example:
        """Example ``number``, of those trained on first."""
        return Example(self.features[number], int(self.labels[number]))

    def auxiliary(self) -> list[Example]:
        """Examples that nobody trains on."""
        first = self.training.examples
        return [self.example(i) for i in range(first, first + _AUXILIARY)]

    def accuracy(self, weights: torch.Tensor) -> float:
        """Share of right answers of models of shape (r, f, 10) on all examples not used above."""
        held_out = slice(self.training.examples + _AUXILIARY, None)
        guesses = (self.features[held_out] @ weights).argmax(dim=-1)
        return float((guesses == self.labels[held_out]).double().mean())

    def train(
        self, canary: Canary | None, models: int, *seed: int
    ) -> torch.Tensor:
        """Final weights of ``models`` independent models with ``canary``, shape (r, f, 10)."""
        draws, training = generator(*seed), self.training
        rate = training.learning_rate / (
            training.sampling_rate * training.examples
        )
        parts = []
        for first in range(0, models, _AT_ONCE):
            random = torch.Generator().manual_seed(int(draws.integers(2**62)))
            weights = torch.zeros(min(_AT_ONCE, models - first), *self.shape)
            for _ in range(training.steps):
                weights -= rate * self._noisy_sum(weights, canary, random)
            parts.append(weights)
        return torch.cat(parts)

    def _noisy_sum(
        self,
        weights: torch.Tensor,
        canary: Canary | None,
        random: torch.Generator,
    ) -> torch.Tensor:
        training, count = self.training, self.training.examples
        features, labels = self.features[:count], self.labels[:count]
        is_sampled = (
            torch.rand(len(weights), count, generator=random)
            < training.sampling_rate
        )
        total = _clipped_sum(
            weights, features, labels, is_sampled, training.clip_norm
        )
        coins = (
            torch.rand(len(weights), 1, generator=random)
            < training.sampling_rate
        )
        if isinstance(canary, Example):
            label = torch.tensor([canary.label])
            total += _clipped_sum(
                weights, canary.features[None], label, coins, training.clip_norm
            )
        elif canary is not None:
            total.view(len(weights), -1)[:, canary.coordinate] += (
                canary.value * coins[:, 0]
            )
        std = training.noise_multiplier * training.clip_norm
        return total + std * torch.randn(weights.shape, generator=random)

    def reference(self) -> Reference:
        """A model trained on the same examples without noise or sampling."""
        calm = dataclasses.replace(
            self.training, noise_multiplier=0.0, sampling_rate=1.0
        )
        count = calm.examples
        features, labels = self.features[:count], self.labels[:count]
        weights, everyone = (
            torch.zeros(1, *self.shape),
            torch.ones(1, count, dtype=torch.bool),
        )
        moved, confidence = torch.zeros(self.shape), torch.zeros(count)
        for _ in range(calm.steps):
            change = _clipped_sum(
                weights, features, labels, everyone, calm.clip_norm
            )
            weights = weights - calm.learning_rate / count * change
            moved += change[0].abs()
            shares = torch.softmax(features @ weights[0], dim=-1)
            confidence += shares[torch.arange(count), labels]
        return Reference(
            weights[0], moved.flatten().numpy(), int(confidence.argmin())
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Reference:
    """What a canary is crafted with.

    Attributes:
        weights: of the reference model, shape (f, 10).
        moved: sum of the changes of each coordinate in its training, in absolute value.
        hardest: the example of least confidence over its training, by number.
    """

    weights: torch.Tensor
    moved: NDArray[np.float32]
    hardest: int

    def gradient(self, features: torch.Tensor, label: int) -> torch.Tensor:
        """Of the loss of an example, flat."""
        shares = torch.softmax(features @ self.weights, dim=-1)
        wrong = shares - torch.nn.functional.one_hot(
            torch.tensor(label), _CLASSES
        )
        return torch.outer(features, wrong).flatten()

    def cosine(self, one: Example, other: Example) -> float:
        """Of the gradients of two examples."""
        ours, theirs = (
            self.gradient(e.features, e.label) for e in (one, other)
        )
        return float(torch.nn.functional.cosine_similarity(ours, theirs, dim=0))


def crafted_gradient(
    reference: Reference, clip_norm: float
) -> tuple[Canary, Canary]:
    """±C on the coordinate that training moves least (Pradhan et al., Algorithm 2)."""
    least = int(np.argmin(reference.moved))
    return GradientCanary(least, clip_norm), GradientCanary(least, -clip_norm)


def crafted_input(reference: Reference, target: Example) -> Example:
    """Features with the target's label whose gradient is as long and opposed (Algorithm 3)."""
    goal = reference.gradient(target.features, target.label)
    pixels, bias = torch.zeros(len(target.features) - 1), torch.ones(1)
    for _ in range(_CRAFTING_STEPS):
        pixels.requires_grad_()
        gradient = reference.gradient(torch.cat([pixels, bias]), target.label)
        loss = torch.nn.functional.cosine_similarity(goal, gradient, dim=0)
        loss = loss + torch.nn.functional.mse_loss(gradient, goal)
        (slope,) = torch.autograd.grad(loss, pixels)
        pixels = pixels.detach() - _CRAFTING_RATE * slope
    return Example(torch.cat([pixels, bias]), target.label)


def mislabelled(reference: Reference, target: Example) -> Example:
    """The target with the label whose gradient is most opposed to its own (Algorithm 4)."""
    candidates = [Example(target.features, label) for label in range(_CLASSES)]
    return min(
        candidates, key=lambda candidate: reference.cosine(target, candidate)
    )


def natural(
    reference: Reference, target: Example, auxiliary: list[Example]
) -> Example:
    """Of other examples the one whose gradient is most opposed to the target's (Algorithm 5)."""
    return min(
        auxiliary, key=lambda candidate: reference.cosine(target, candidate)
    )


def logit_difference(
    weights: torch.Tensor, target: Example, canary: Example
) -> NDArray[np.float64]:
    """The logit of the target's label at the target, less that of the canary's at the canary."""
    logits = [weights[..., e.label] @ e.features for e in (target, canary)]
    return np.asarray((logits[0] - logits[1]).double().numpy())


def _clipped_sum(
    weights: torch.Tensor,
    features: torch.Tensor,
    labels: torch.Tensor,
    is_sampled: torch.Tensor,
    clip_norm: float,
) -> torch.Tensor:
    """Sum of clipped gradients of the examples that are ``here``, for each model."""
    wrong = torch.softmax(features @ weights, dim=-1)
    wrong[:, torch.arange(len(labels)), labels] -= 1
    norms = wrong.norm(dim=-1) * features.norm(dim=-1)
    scale = is_sampled * (clip_norm / norms.clamp(min=clip_norm))
    total: torch.Tensor = features.T @ (wrong * scale[..., None])
    return total
