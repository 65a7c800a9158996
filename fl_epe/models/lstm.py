"""The StackOverflow LSTM of the federated-learning literature, and a fast way to train it.

Its own step on 16 sentences of 20 words takes 0.82 of the time of autograd through torch's kernel,
and 0.76 where a third of the words is padding (one thread of a Xeon with AVX-512, torch 2.13, 10
interleaved pairs; 0.89 beside other work); the last layer and the loss alone 0.55. Tried and
dropped: the cell in plain operations under autograd (1.25 of the kernel's time), weights packed by
MKL (0.97 of our step's), fewer rows as sentences end (a product with 8 rows takes as long as with
16). `torch.argmax` over the words took as long as their logits; NumPy's takes a tenth.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch.nn import functional

from fl_epe.tasks import LossSum, glorot_uniform

PAD = 0
_EMBEDDING_LIMIT = 0.05
_ROWS = 160  # words whose logits are in memory at once

_aten: Any = torch.ops.aten


class LstmLayer(torch.nn.Module):
    """An LSTM layer with one bias vector; gates in the order input, forget, cell, output.

    Attributes:
        weight_ih: shape (4 hidden, inputs), for the inputs.
        weight_hh: shape (4 hidden, hidden), for the state before.
        bias: shape (4 hidden,); `torch.nn.LSTM` has two of these.
        unrolled: compute with plain operations, as `torch.func.vmap` needs it.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.weight_ih = torch.nn.Parameter(torch.empty(4 * hidden, inputs))
        self.weight_hh = torch.nn.Parameter(torch.empty(4 * hidden, hidden))
        self.bias = torch.nn.Parameter(torch.empty(4 * hidden))
        self.unrolled = False

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """States of shape (n, steps, hidden) for (n, steps, inputs), beginning with zeros."""
        if self.unrolled:
            return self._unrolled(inputs)
        start = inputs.new_zeros(1, len(inputs), self.weight_hh.shape[1])
        weights = [self.weight_ih, self.weight_hh, self.bias, torch.zeros_like(self.bias)]
        # Biases, one layer, no dropout, training or not, one direction, batch first.
        kernel: Any = torch.lstm
        out = kernel(inputs, (start, start), weights, True, 1, 0.0, self.training, False, True)
        return cast(torch.Tensor, out[0])

    def _unrolled(self, inputs: torch.Tensor) -> torch.Tensor:
        states: list[torch.Tensor] = []
        cell: torch.Tensor | None = None
        for from_input in functional.linear(inputs, self.weight_ih, self.bias).unbind(1):
            before = functional.linear(states[-1], self.weight_hh) if states else 0
            enter, forget, new, out = (from_input + before).chunk(4, 1)
            entering = enter.sigmoid() * new.tanh()
            cell = entering if cell is None else forget.sigmoid() * cell + entering
            states.append(out.sigmoid() * cell.tanh())
        return torch.stack(states, 1)


class Lstm(torch.nn.Module):
    """The next word among 10,004, 4,050,748 parameters (Reddi et al. 2021, Andrew et al. 2024).

    Embedding 96, LSTM 670 with one bias vector, dense 96, dense 10,004. Word 0 is padding.

    It can train itself, `remember` then `descend`: the same step as autograd's, faster. Weights
    move while their gradient is multiplied out, logits exist for `_ROWS` words at a time and never
    for padding, and unused embeddings are not touched.

    Args:
        vocabulary: number of words, with padding and the other marks.
        embedding: length of a word's vector, and of the features that the last layer sees.
        hidden: length of the state.
    """

    def __init__(self, vocabulary: int = 10_004, embedding: int = 96, hidden: int = 670) -> None:
        super().__init__()
        with torch.device("meta"):
            self.embedding = torch.nn.Embedding(vocabulary, embedding)
            self.lstm = LstmLayer(embedding, hidden)
            self.dense1 = torch.nn.Linear(hidden, embedding)
            self.dense2 = torch.nn.Linear(embedding, vocabulary)
        self.to_empty(device="cpu")
        self._memory: _Memory | None = None

    def initial_values(self, random: np.random.Generator) -> Iterator[np.ndarray]:
        """What Keras starts with, in the order of `parameters`: for `Task.initial`.

        Embeddings are uniform on ±0.05, weights Glorot uniform, those of the state orthogonal,
        biases zero but for the forget gate's, which are 1.
        """
        layer = self.lstm
        hidden = layer.weight_hh.shape[1]
        shape = tuple(self.embedding.weight.shape)
        yield (2 * random.random(shape, np.float32) - 1) * np.float32(_EMBEDDING_LIMIT)
        yield glorot_uniform(tuple(layer.weight_ih.shape), random)
        yield _orthogonal(tuple(layer.weight_hh.shape), random)
        yield np.repeat(np.array([0, 1, 0, 0], np.float32), hidden)
        for dense in (self.dense1, self.dense2):
            yield glorot_uniform(tuple(dense.weight.shape), random)
            yield np.zeros(dense.bias.shape, np.float32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of shape (n, length, vocabulary) for int64 words of shape (n, length)."""
        states = self.lstm(self.embedding(tokens))
        return cast(torch.Tensor, self.dense2(self.dense1(states)))

    @torch.no_grad()
    def remember(self, tokens: torch.Tensor) -> WordFeatures:
        """The outputs for `token_cross_entropy`, and what `descend` needs, kept until then.

        Args:
            tokens: int64 of shape (n, length). Steps after the last word of all are left out.
        """
        used = np.flatnonzero((tokens.numpy() != PAD).any(0))
        steps = int(used[-1]) + 1 if len(used) else 1
        words = tokens[:, :steps].t().contiguous()
        run = _Run(self.lstm, functional.embedding(words, self.embedding.weight))
        features = functional.linear(run.states[1:], self.dense1.weight, self.dense1.bias)
        outputs = WordFeatures(features.requires_grad_(), self.dense2, tokens.shape[1])
        self._memory = _Memory(words, run, outputs)
        return outputs

    def descend(self, loss: torch.Tensor, learning_rate: float) -> None:
        """A step of gradient descent, in place.

        Args:
            loss: a multiple of the loss that `token_cross_entropy` made of the last `remember`.
            learning_rate: size of the step.

        Raises:
            RuntimeError: without a `remember` before.
        """
        memory, self._memory = self._memory, None
        if memory is None:
            raise RuntimeError("Expected remember() before descend().")
        (gradient,) = torch.autograd.grad(loss, memory.outputs.features)
        with torch.no_grad():
            memory.outputs.descend(learning_rate)
            self._descend(memory, gradient.flatten(0, 1), -learning_rate)

    def _descend(self, memory: _Memory, gradient: torch.Tensor, step: float) -> None:
        layer, run = self.lstm, memory.run
        states = run.states[1:].flatten(0, 1)
        to_states = gradient @ self.dense1.weight
        self.dense1.weight.addmm_(gradient.t(), states, alpha=step)
        self.dense1.bias.add_(gradient.sum(0), alpha=step)
        gates = run.gate_gradients(to_states.view_as(run.states[1:]))
        to_inputs = gates @ layer.weight_ih
        layer.weight_ih.addmm_(gates.t(), run.inputs.flatten(0, 1), alpha=step)
        batch = len(run.states[0])  # the first states before a step are zero
        layer.weight_hh.addmm_(gates[batch:].t(), states[:-batch], alpha=step)
        layer.bias.add_(gates.sum(0), alpha=step)
        self.embedding.weight.index_add_(0, memory.words.flatten(), to_inputs, alpha=step)


class _Run:
    """An LSTM layer's way through its steps, with what the gradient needs.

    Args:
        layer: its weights are used until `gate_gradients` has returned.
        inputs: shape (steps, n, inputs).
    """

    def __init__(self, layer: LstmLayer, inputs: torch.Tensor) -> None:
        steps, batch, _ = inputs.shape
        hidden = layer.weight_hh.shape[1]
        self.inputs, self._recurrent = inputs, layer.weight_hh
        self._gates = functional.linear(inputs, layer.weight_ih, layer.bias)
        self.states = inputs.new_zeros(steps + 1, batch, hidden)
        self._cells = torch.zeros_like(self.states)
        self._tanh = torch.empty_like(self.states)
        for t in range(steps):
            self._forward(t)

    def _forward(self, t: int) -> None:
        gates, hidden = self._gates[t], self.states.shape[2]
        if t:  # this way round the product is a fifth faster
            gates.add_((self._recurrent @ self.states[t].t()).t())
        enter, forget, new, out = gates.chunk(4, 1)
        gates[:, : 2 * hidden].sigmoid_()
        new.tanh_()
        out.sigmoid_()
        cell = torch.mul(forget, self._cells[t], out=self._cells[t + 1]).addcmul_(enter, new)
        torch.tanh(cell, out=self._tanh[t + 1])
        torch.mul(out, self._tanh[t + 1], out=self.states[t + 1])

    def gate_gradients(self, gradient: torch.Tensor) -> torch.Tensor:
        """Gradient with respect to the gates, shape (steps n, 4 hidden), to be called once.

        Args:
            gradient: of what comes after the layer, with respect to the states, shape
                (steps, n, hidden); overwritten.
        """
        cell = torch.zeros_like(gradient[0])
        for t in reversed(range(len(gradient))):
            if t + 1 < len(gradient):
                gradient[t].add_(self._gates[t + 1] @ self._recurrent)
            self._backward(t, gradient[t], cell)
        return self._gates.flatten(0, 1)

    def _backward(self, t: int, state: torch.Tensor, cell: torch.Tensor) -> None:
        """Put the gates' gradient in their place; ``cell`` becomes that of the cell before."""
        enter, forget, new, out = self._gates[t].chunk(4, 1)
        tanh = self._tanh[t + 1]
        cell.add_(_aten.tanh_backward(state * out, tanh))
        out.copy_(_aten.sigmoid_backward(state.mul_(tanh), out))
        to_new = _aten.tanh_backward(cell * enter, new)
        enter.copy_(_aten.sigmoid_backward(new.mul_(cell), enter))
        new.copy_(to_new)
        to_forget = _aten.sigmoid_backward(cell * self._cells[t], forget)
        cell.mul_(forget)
        forget.copy_(to_forget)


@dataclasses.dataclass(frozen=True)
class _Memory:
    """Between `Lstm.remember` and `Lstm.descend`: words of shape (steps, n) and their way."""

    words: torch.Tensor
    run: _Run
    outputs: WordFeatures


class WordFeatures:
    """Outputs of `Lstm.remember`: what the logits are made of, for the words that count only.

    Attributes:
        features: shape (steps, n, embedding), input of the last layer, differentiable.
    """

    def __init__(self, features: torch.Tensor, last: torch.nn.Linear, length: int) -> None:
        self.features = features
        self._last = last
        self._length = length
        self._gradients: tuple[torch.Tensor, torch.Tensor] | None = None
        self._scale = 0.0

    def cross_entropy(self, targets: torch.Tensor) -> LossSum:
        """See `token_cross_entropy`.

        Raises:
            ValueError: for targets of another shape, or words where all inputs are padding.
        """
        steps, batch, embedding = self.features.shape
        if targets.shape != (batch, self._length):
            raise ValueError(f"Expected targets.shape={tuple(targets.shape)} to be that of words.")
        if targets[:, steps:].any():
            raise ValueError(f"Expected targets after step {steps} to be padding, as all inputs.")
        targets = targets[:, :steps].t().flatten()
        rows = targets.nonzero().flatten()
        loss, correct = _WordLoss.apply(  # type: ignore[no-untyped-call]
            self.features.view(-1, embedding)[rows], targets[rows], self
        )
        return LossSum(loss, correct, len(rows))

    def add_up(
        self, features: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, int, torch.Tensor]:
        """Loss, right words, and the gradient with respect to ``features`` (words, embedding)."""
        weight, bias = self._last.weight, self._last.bias
        to_weight, to_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        loss, correct = features.new_zeros(()), 0
        gradient, memory = torch.empty_like(features), features.new_empty(_ROWS, len(bias))
        for start in range(0, len(targets), _ROWS):
            part, truth = features[start : start + _ROWS], targets[start : start + _ROWS, None]
            logits = torch.mm(part, weight.t(), out=memory[: len(part)]).add_(bias)
            # torch.argmax takes as long as the products.
            best = torch.from_numpy(logits.numpy().argmax(1))[:, None]
            correct += int((best == truth).sum())
            ahead = logits.gather(1, best) - logits.gather(1, truth)
            error = torch.softmax(logits, 1, out=logits)
            loss += (ahead - error.gather(1, best).log()).sum()
            error.scatter_add_(1, truth, error.new_full(truth.shape, -1))
            torch.mm(error, weight, out=gradient[start : start + _ROWS])
            to_weight.addmm_(error.t(), part)
            to_bias.add_(error.sum(0))
        self._gradients = to_weight, to_bias
        return loss, correct, gradient

    def scale(self, factor: float) -> None:
        """What `descend` goes down is ``factor`` times the loss."""
        self._scale = factor

    def descend(self, learning_rate: float) -> None:
        """Move the last layer."""
        assert self._gradients is not None  # noqa: S101 - the loss was differentiated
        for parameter, gradient in zip(self._last.parameters(), self._gradients, strict=True):
            parameter.add_(gradient, alpha=-learning_rate * self._scale)


class _WordLoss(torch.autograd.Function):
    """The loss of `WordFeatures` as a function of the features."""

    @staticmethod
    def forward(
        ctx: Any, features: torch.Tensor, targets: torch.Tensor, outputs: WordFeatures
    ) -> tuple[torch.Tensor, int]:
        loss, correct, ctx.gradient = outputs.add_up(features.detach(), targets)
        ctx.outputs = outputs
        return loss, correct

    @staticmethod
    def backward(ctx: Any, factor: torch.Tensor, _: None) -> tuple[torch.Tensor, None, None]:
        ctx.outputs.scale(factor.item())
        return ctx.gradient * factor, None, None


def token_cross_entropy(logits: torch.Tensor | WordFeatures, targets: torch.Tensor) -> LossSum:
    """Summed cross-entropy and number of right words, without padding (word 0).

    Args:
        logits: shape (n, length, vocabulary), or outputs of `Lstm.remember`.
        targets: int64 of shape (n, length), the next words.

    Returns:
        `LossSum` whose examples are the targets that are not padding.
    """
    if isinstance(logits, WordFeatures):
        return logits.cross_entropy(targets)
    loss = functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=PAD, reduction="sum"
    )
    values, counts = logits.detach(), targets != PAD
    # NumPy's argmax is ten times as fast.
    best = torch.from_numpy(values.numpy().argmax(-1)) if values.is_cpu else values.argmax(-1)
    return LossSum(loss, int(((best == targets) & counts).sum()), int(counts.sum()))


def _orthogonal(shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """A uniform random matrix with orthonormal columns, float32 (Saxe et al. 2014)."""
    with threadpool_limits(1, user_api="blas"):  # the same bits with any number of threads
        q, r = np.linalg.qr(random.standard_normal(shape))
    return (q * np.sign(np.diag(r))).astype(np.float32)
