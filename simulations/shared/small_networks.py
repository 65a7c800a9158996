"""Many small networks on digits at once, with the exact clipped sum of their examples' gradients.

A network has one hidden layer of tanh. An example's gradient is an outer product in each layer, so
that its norm, and the sum of clipped gradients, need no gradient of its own (Goodfellow 2015).
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

CLASSES = 10
_HELD_OUT = 360


@dataclasses.dataclass(frozen=True)
class Examples:
    """Images with a column of ones, shape (n, 65), and labels, shape (n,)."""

    images: Tensor
    labels: Tensor

    def take(self, rows: Tensor) -> Examples:
        """These examples, by their places."""
        return Examples(self.images[rows], self.labels[rows])

    def beside(self, examples: Examples) -> Examples:
        """These examples, and then the others."""
        return Examples(
            torch.cat([self.images, examples.images]),
            torch.cat([self.labels, examples.labels]),
        )


def digits(seed: int) -> tuple[Examples, Examples]:
    """Training examples, and 360 held-out ones that an adversary may know."""
    bunch = load_digits()
    order = torch.from_numpy(
        np.random.default_rng(seed).permutation(len(bunch.target))
    )
    images = torch.tensor(bunch.data / 16, dtype=torch.float32)
    images = torch.cat([images, torch.ones(len(images), 1)], dim=1)
    every = Examples(images, torch.tensor(bunch.target))
    return every.take(order[_HELD_OUT:]), every.take(order[:_HELD_OUT])


@dataclasses.dataclass
class Networks:
    """m networks of one shape.

    Attributes:
        first: weights of the hidden layer, shape (m, 65, h).
        second: weights of the output layer, shape (m, h + 1, 10).
    """

    first: Tensor
    second: Tensor

    @classmethod
    def drawn(
        cls, count: int, hidden: int, seed: int, *, alike: bool = True
    ) -> Networks:
        """``count`` networks with random weights, the same for all if ``alike``."""
        rng = torch.Generator().manual_seed(seed)
        draws = 1 if alike else count
        first = torch.randn(draws, 65, hidden, generator=rng) / 65**0.5
        second = (
            torch.randn(draws, hidden + 1, CLASSES, generator=rng)
            / (hidden + 1) ** 0.5
        )
        copies = count // draws
        return cls(first.repeat(copies, 1, 1), second.repeat(copies, 1, 1))

    @property
    def size(self) -> int:
        """Number of weights of one network."""
        return self.first[0].numel() + self.second[0].numel()

    def log_odds(self, examples: Examples) -> Tensor:
        """Log of p/(1 − p) of each example's label, shape (m, n)."""
        logits = self._hidden(examples.images) @ self.second
        label_logit = logits.gather(
            2, examples.labels.expand(len(logits), -1)[..., None]
        )[..., 0]
        rest_logit = logits.scatter(
            2, examples.labels.expand(len(logits), -1)[..., None], -torch.inf
        ).logsumexp(2)
        return label_logit - rest_logit

    def accuracy(self, examples: Examples) -> Tensor:
        """Share of right answers of each network, shape (m,)."""
        guesses = (self._hidden(examples.images) @ self.second).argmax(2)
        return (guesses == examples.labels).double().mean(1)

    def clipped_sum(
        self,
        examples: Examples,
        clip_norm: float,
        sampled: Tensor | None = None,
    ) -> Tensor:
        """The sum of the examples' gradients, each clipped, shape (m, size).

        Args:
            examples: n of them.
            clip_norm: C.
            sampled: which examples are in the batch of each network, shape (m, n) (default: all).
        """
        inputs, hidden, first, second = self._errors(examples)
        squares = (first**2).sum(2) * (inputs**2).sum(-1)
        squares = squares + (second**2).sum(2) * (hidden**2).sum(2)
        scale = (clip_norm / squares.sqrt().clamp(min=1e-12)).clamp(max=1.0)[
            ..., None
        ]
        if sampled is not None:
            scale = scale * sampled[..., None]
        upper = inputs.T @ (scale * first)
        lower = hidden.transpose(1, 2) @ (scale * second)
        return torch.cat([upper.flatten(1), lower.flatten(1)], dim=1)

    def train(
        self,
        examples: Examples,
        steps: int,
        *,
        clip_norm: float,
        noise: float,
        rate: float,
        random: torch.Generator,
    ) -> None:
        """DP-SGD with full batches, in place.

        Args:
            examples: in each batch.
            steps: number of them.
            clip_norm: C.
            noise: standard deviation in each coordinate of a step's sum.
            rate: that the noisy sum is multiplied by.
            random: of the noise.
        """
        for _ in range(steps):
            total = self.clipped_sum(examples, clip_norm)
            total += noise * torch.randn(total.shape, generator=random)
            self.move(-rate * total)

    def move(self, step: Tensor) -> None:
        """Add ``step``, shape (m, size), to the weights."""
        cut = self.first[0].numel()
        self.first = self.first + step[:, :cut].reshape(self.first.shape)
        self.second = self.second + step[:, cut:].reshape(self.second.shape)

    def _hidden(self, images: Tensor) -> Tensor:
        hidden = torch.tanh(images @ self.first)
        return torch.cat([hidden, torch.ones_like(hidden[..., :1])], dim=2)

    def _errors(
        self, examples: Examples
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Inputs of both layers, and what comes back to their outputs."""
        hidden = self._hidden(examples.images)
        right = torch.nn.functional.one_hot(examples.labels, CLASSES)
        second = torch.softmax(hidden @ self.second, dim=2) - right
        back = second @ self.second[:, :-1].transpose(1, 2)
        return (
            examples.images,
            hidden,
            back * (1 - hidden[..., :-1] ** 2),
            second,
        )
