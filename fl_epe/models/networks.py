"""The networks of the built-in tasks: the EMNIST CNN and the StackOverflow LSTM."""

from collections.abc import Iterator
from typing import cast

import numpy as np
import torch
from torch.nn import functional

from fl_epe.canaries import one_blas_thread
from fl_epe.models.preparation import SeededDropout


class _Unset:
    """A layer without initial values; `initial_values` of the model has them.

    Torch's initialisation would take time and draw random numbers. The device "meta" would avoid
    both too, but it imports 70 MB of Python modules.
    """

    def reset_parameters(self) -> None:
        """Leave the memory uninitialised."""


class _Conv2d(_Unset, torch.nn.Conv2d):
    """A `torch.nn.Conv2d` without initial values."""


class _Linear(_Unset, torch.nn.Linear):
    """A `torch.nn.Linear` without initial values."""


class _Embedding(_Unset, torch.nn.Embedding):
    """A `torch.nn.Embedding` without initial values."""


class Cnn(torch.nn.Module):
    """Classifies images of 28×28: 1,206,590 parameters (Reddi et al. 2021, Andrew et al. 2024).

    conv 3×3×32, relu, conv 3×3×64, relu, max-pool 2, dropout ¼, dense 128, relu, dropout ½,
    dense 62; no padding. It has 62 outputs, also for data with fewer classes, such as digits.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = _Conv2d(1, 32, 3)
        self.conv2 = _Conv2d(32, 64, 3)
        self.dense1 = _Linear(9216, 128)
        self.dense2 = _Linear(128, 62)
        self.dropout1 = SeededDropout(0.25)
        self.dropout2 = SeededDropout(0.5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits of shape (n, 62) for images of shape (n, 1, 28, 28)."""
        # With channels last, max-pooling is ten times as fast and the convolutions a fifth faster.
        x = inputs.reshape(-1, 28, 28, 1).permute(0, 3, 1, 2)
        x = functional.relu_(self.conv1(x))
        # relu and max-pool commute, and relu is cheaper after the pooling.
        x = functional.relu_(functional.max_pool2d(self.conv2(x), 2))
        x = self.dropout1(x.flatten(1))
        x = self.dropout2(functional.relu_(self.dense1(x)))
        return self.dense2(x)  # type: ignore[no-any-return]

    def initial_values(
        self, random: np.random.Generator
    ) -> Iterator[np.ndarray]:
        """Glorot uniform weights and zero biases, in the order of ``parameters()``."""
        return (
            _glorot_uniform(parameter, random)
            for parameter in self.parameters()
        )


class LstmLayer(torch.nn.Module):
    """An LSTM layer with one bias vector; gates in the order input, forget, cell, output.

    Attributes:
        weight_ih: weights of the inputs, shape (4 hidden, inputs).
        weight_hh: weights of the previous state, shape (4 hidden, hidden).
        bias: the bias vector, shape (4 hidden,); `torch.nn.LSTM` has two of them.
        unrolled: whether to use a loop over the steps, which `torch.func.vmap` needs, instead of
            torch's LSTM.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.weight_ih = torch.nn.Parameter(torch.empty(4 * hidden, inputs))
        self.weight_hh = torch.nn.Parameter(torch.empty(4 * hidden, hidden))
        self.bias = torch.nn.Parameter(torch.empty(4 * hidden))
        self.unrolled = False

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """States of shape (n, steps, hidden) for inputs of shape (n, steps, inputs).

        The state before the first step is zero.
        """
        if self.unrolled or not (inputs.is_cpu or inputs.is_cuda):
            return self._unrolled(inputs)
        start = inputs.new_zeros(1, len(inputs), self.weight_hh.shape[1])
        no_bias = torch.zeros_like(self.bias)
        weights = [self.weight_ih, self.weight_hh, self.bias, no_bias]
        if inputs.is_cuda:
            # cuDNN needs the weights in one block of memory; otherwise it warns and copies them.
            block = torch.cat([weight.flatten() for weight in weights])
            parts = torch.split(block, [weight.numel() for weight in weights])
            weights = [
                part.view_as(weight)
                for part, weight in zip(parts, weights, strict=True)
            ]
        states, _, _ = torch.lstm(
            inputs,
            (start, start),
            weights,
            has_biases=True,
            num_layers=1,
            dropout=0.0,
            train=self.training,
            bidirectional=False,
            batch_first=True,
        )
        return states

    def _unrolled(self, inputs: torch.Tensor) -> torch.Tensor:
        """The states, by a loop over the steps."""
        state = inputs.new_zeros(len(inputs), self.weight_hh.shape[1])
        cell = state
        states = []
        from_inputs = functional.linear(inputs, self.weight_ih, self.bias)
        for from_input in from_inputs.unbind(1):
            gates = from_input + functional.linear(state, self.weight_hh)
            input_gate, forget, candidate, output = gates.chunk(4, 1)
            addition = input_gate.sigmoid() * candidate.tanh()
            cell = forget.sigmoid() * cell + addition
            state = output.sigmoid() * cell.tanh()
            states.append(state)
        return torch.stack(states, 1)


class Lstm(torch.nn.Module):
    """Predicts the next of 10,004 words: 4,050,748 parameters (Reddi et al. 2021).

    Embedding 96, LSTM 670 with one bias vector, dense 96, dense 10,004. Word 0 is padding.

    Args:
        vocabulary: number of words, including padding and the other special tokens.
        embedding: length of a word's vector, and number of inputs of the last layer.
        hidden: length of the LSTM's state.
    """

    def __init__(
        self, vocabulary: int = 10_004, embedding: int = 96, hidden: int = 670
    ) -> None:
        super().__init__()
        self.embedding = _Embedding(vocabulary, embedding)
        self.lstm = LstmLayer(embedding, hidden)
        self.dense1 = _Linear(hidden, embedding)
        self.dense2 = _Linear(embedding, vocabulary)

    def initial_values(
        self, random: np.random.Generator
    ) -> Iterator[np.ndarray]:
        """The initial values as Keras draws them, in the order of ``parameters()``.

        Embeddings are uniform on ±0.05. Weights are Glorot uniform, but those of the LSTM's state
        are orthogonal. Biases are 0, but those of the forget gate are 1.
        """
        layer = self.lstm
        shape = tuple(self.embedding.weight.shape)
        yield (2 * random.random(shape, np.float32) - 1) * np.float32(0.05)
        yield _glorot_uniform(layer.weight_ih, random)
        yield _orthogonal(tuple(layer.weight_hh.shape), random)
        yield np.repeat(
            np.array([0, 1, 0, 0], np.float32), layer.weight_hh.shape[1]
        )
        for dense in (self.dense1, self.dense2):
            yield _glorot_uniform(dense.weight, random)
            yield _glorot_uniform(dense.bias, random)

    def forward(
        self, tokens: torch.Tensor, counted: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Logits of shape (n, length, vocabulary) for int64 words of shape (n, length).

        Args:
            tokens: the words.
            counted: a mask of the positions that count, bool of shape (n, length). With it, only
                the logits of these positions are computed, shape (positions, vocabulary).
        """
        states = self.lstm(self.embedding(tokens))
        if counted is not None:
            states = states[counted]
        return cast(torch.Tensor, self.dense2(self.dense1(states)))


def _glorot_uniform(
    parameter: torch.Tensor, random: np.random.Generator
) -> np.ndarray:
    """Uniform values on ±√(6 / (fan in + fan out)) (Glorot & Bengio 2010); 0 for a bias vector."""
    shape = tuple(parameter.shape)
    if len(shape) < 2:
        return np.zeros(shape, np.float32)
    kernel_size = int(np.prod(shape[2:]))  # of a convolution; else 1
    limit = np.float32(np.sqrt(6 / ((shape[0] + shape[1]) * kernel_size)))
    return (2 * random.random(shape, np.float32) - 1) * limit


def _orthogonal(
    shape: tuple[int, ...], random: np.random.Generator
) -> np.ndarray:
    """A uniform random matrix with orthonormal columns, float32 (Saxe et al. 2014)."""
    # The bits of the result must not depend on the number of threads.
    with one_blas_thread():
        q, r = np.linalg.qr(random.standard_normal(shape))
    return (q * np.sign(np.diag(r))).astype(np.float32)
