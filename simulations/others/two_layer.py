"""A network of two layers whose gradients of single examples need no autograd.

The gradient of one example is an outer product in each layer, so its length and its inner products
with others are those of its two factors, and a sum of clipped gradients is two matrix products.
That makes DP-SGD on it about as fast as SGD.

Examples:
    >>> network = TwoLayer(inputs=3, hidden=4, classes=2)
    >>> model = network.initial(seed=1)
    >>> one = network.gradients(model, np.array([[1.0, 0.0, 2.0]]), np.array([0]))
    >>> bool(np.isclose(one.norms[0], np.linalg.norm(one.sum(np.ones(1)))))
    True
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_epe.seeding import generator

Floats = NDArray[np.float64]
_STREAM = 1


@dataclasses.dataclass(frozen=True)
class TwoLayer:
    """Inputs, a hidden layer of ReLU, and a softmax over classes, with biases in both layers.

    A model is one vector: weights of the hidden layer, shape (hidden, inputs), its biases, then
    those of the output layer.

    Attributes:
        inputs: entries of an input.
        hidden: hidden units.
        classes: outputs.
    """

    inputs: int
    hidden: int
    classes: int

    @property
    def dim(self) -> int:
        """Number of parameters."""
        return self.hidden * (self.inputs + 1) + self.classes * (
            self.hidden + 1
        )

    def initial(self, seed: int) -> Floats:
        """A model: uniform weights as Glorot and Bengio (2010) draw them, biases of 0."""
        rng = generator(seed, _STREAM)
        model = np.zeros(self.dim)
        for weights in self.layers(model)[::2]:
            weights[:] = rng.uniform(-1, 1, weights.shape) * np.sqrt(
                6 / sum(weights.shape)
            )
        return model

    def layers(self, model: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Views of hidden weights, hidden biases, output weights and output biases."""
        ends = np.cumsum(
            [self.hidden * self.inputs, self.hidden, self.classes * self.hidden]
        )
        first, bias, second, last = np.split(model, ends)
        shapes = (self.hidden, self.inputs), (self.classes, self.hidden)
        return first.reshape(shapes[0]), bias, second.reshape(shapes[1]), last

    def hidden_inputs(self, pixels: ArrayLike) -> NDArray[np.int64]:
        """Coordinates of the hidden weights of some inputs, in the model as a vector."""
        chosen = np.asarray(pixels, np.int64)
        return (np.arange(self.hidden)[:, None] * self.inputs + chosen).ravel()

    def outputs(self, model: Floats, inputs: Floats) -> tuple[Floats, Floats]:
        """Hidden activations, shape (n, hidden), and class probabilities, shape (n, classes)."""
        first, bias, second, last = self.layers(model)
        hidden = np.maximum(inputs @ first.T + bias, 0.0)
        logits = hidden @ second.T + last
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return hidden, powers / powers.sum(axis=1, keepdims=True)

    def gradients(
        self, model: Floats, inputs: Floats, targets: ArrayLike
    ) -> Gradients:
        """Gradient of each example's cross-entropy.

        Args:
            model: shape (dim,).
            inputs: shape (n, inputs).
            targets: classes, shape (n,), or shares of classes, shape (n, classes).
        """
        hidden, guesses = self.outputs(model, inputs)
        wanted = np.asarray(targets)
        shares = np.eye(self.classes)[wanted] if wanted.ndim == 1 else wanted
        back = guesses - shares
        through = (back @ self.layers(model)[2]) * (hidden > 0)
        return Gradients(inputs, through, hidden, back)

    def accuracy(
        self, model: Floats, inputs: Floats, labels: NDArray[np.int64]
    ) -> float:
        """Share of examples whose likeliest class is right."""
        return float(
            np.mean(self.outputs(model, inputs)[1].argmax(axis=1) == labels)
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients of n examples, each as the factors of its outer products.

    Attributes:
        inputs: of the hidden layer, shape (n, inputs).
        through: gradient with respect to what the hidden units add up, shape (n, hidden).
        hidden: inputs of the output layer, shape (n, hidden).
        back: gradient with respect to the logits, shape (n, classes).
    """

    inputs: Floats
    through: Floats
    hidden: Floats
    back: Floats

    @property
    def norms(self) -> Floats:
        """Length of each, shape (n,)."""
        first = np.sum(self.through**2, axis=1) * (
            np.sum(self.inputs**2, axis=1) + 1
        )
        second = np.sum(self.back**2, axis=1) * (
            np.sum(self.hidden**2, axis=1) + 1
        )
        return np.asarray(np.sqrt(first + second))

    def scales(self, clip_norm: float) -> Floats:
        """What clipping multiplies each with, shape (n,)."""
        return np.asarray(clip_norm / np.maximum(self.norms, clip_norm))

    def products(self, other: Gradients) -> Floats:
        """Inner products with those of ``other``, shape (n, its n)."""
        first = (self.through @ other.through.T) * (
            self.inputs @ other.inputs.T + 1
        )
        second = (self.back @ other.back.T) * (self.hidden @ other.hidden.T + 1)
        return np.asarray(first + second)

    def sum(self, weights: Floats) -> Floats:
        """Weighted sum, shape (dim,)."""
        through, back = (
            self.through * weights[:, None],
            self.back * weights[:, None],
        )
        parts = (
            through.T @ self.inputs,
            through.sum(0),
            back.T @ self.hidden,
            back.sum(0),
        )
        return np.concatenate([part.ravel() for part in parts])
