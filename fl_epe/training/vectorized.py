"""Local training of many clients at once: a model for each, and `torch.func.vmap` over them.

This is meant for GPUs, on which it has not been timed yet; `benchmarks/gpu.py` does it. On a CPU it
is slower than one client after another. On one thread of a Xeon (torch 2.13, medians of interleaved
runs) the EMNIST CNN took 1.96 times as long in chunks of 4 clients and 2.06 in chunks of 12, and
the StackOverflow LSTM 1.65 in chunks of 2 and 1.9 in chunks of 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from fl_epe.models import Inputs, SeededDropout, call_model, prepared
from fl_epe.tasks import ClientData, LossSum, Task
from fl_epe.training.execution import Execution
from fl_epe.training.local import LocalTraining, batches

__all__ = ["Member", "Together", "batch_sizes", "waves"]

_LEAST_SHARE = 0.8  # of a wave's longest batch


class Member:
    """A client in training: its next batches and masks, and what is counted.

    Args:
        client: its id.
        data: its examples.
        local: how it trains.
        random: its random stream, as fresh as when it trains alone.
    """

    def __init__(
        self, client: int, data: ClientData, local: LocalTraining, random: np.random.Generator
    ) -> None:
        self.client = client
        self.example = data.map(lambda part: part[:1])
        self.sizes = batch_sizes(len(data), local)
        self._batches = batches(data, local, random)
        self._random = random
        self._results: list[LossSum] = []

    def batch(self, masked: Sequence[Masked]) -> tuple[ClientData, list[torch.Tensor]]:
        """The next batch and a mask for each call of a dropout, drawn as if it trained alone."""
        data, masks = next(self._batches), []
        for dropout, shape in masked:
            dropout.random = self._random
            masks.append(dropout.mask((len(data), *shape)))
        return data, masks

    def note(self, result: LossSum) -> None:
        """Count the predictions of a step."""
        self._results.append(LossSum(result.loss.detach(), result.correct, result.examples))

    @property
    def examples(self) -> int:
        """Number of predictions made."""
        return sum(result.examples for result in self._results)

    @property
    def loss_sum(self) -> float:
        """Sum of the losses of all predictions."""
        return float(sum(result.loss.item() for result in self._results))

    @property
    def correct(self) -> float:
        """Number of predictions that were right, or the sum of another metric."""
        return sum(result.correct for result in self._results)


Masked = tuple[SeededDropout, tuple[int, ...]]
"""A dropout that is called in a forward pass, and the shape of an example there."""


def batch_sizes(examples: int, local: LocalTraining) -> list[int]:
    """Examples in each step of a client that has ``examples`` of them."""
    full, rest = divmod(examples, local.batch_size)
    return ([local.batch_size] * full + [rest] * (rest > 0)) * local.epochs


def waves(sizes: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Who takes the next step together, until everybody has taken all steps.

    The batches of a wave are padded to its longest. Whoever's next one has less than 4/5 of that
    waits, so that less than a fifth of all rows is padding.

    Args:
        sizes: examples in each step of each client.

    Yields:
        Positions in ``sizes``, ascending.
    """
    done = [0] * len(sizes)
    while following := {i: own[done[i]] for i, own in enumerate(sizes) if done[i] < len(own)}:
        least = _LEAST_SHARE * max(following.values())
        wave = [i for i, size in following.items() if size >= least]
        yield wave
        for i in wave:
            done[i] += 1


class Together:
    """Trains clients at once, each with a model of its own.

    Their memory: parameters and gradients in float32, and what a forward pass leaves for the
    backward one. A model may have parameters, `SeededDropout` and buffers that do not change; those
    of its modules that have an attribute ``unrolled`` are told to use plain operations.

    Args:
        task: its clients are trained.
        execution: on which device and how exactly.
    """

    def __init__(self, task: Task, execution: Execution) -> None:
        self._task, self._execution = task, execution
        self._device = execution.torch_device()
        self._model = prepared(task.model).to(self._device).train()
        for module in self._model.modules():
            if hasattr(module, "unrolled"):
                setattr(module, "unrolled", True)  # noqa: B010 - not a tensor, as mypy thinks
        named = [(name, p) for name, p in self._model.named_parameters() if p.requires_grad]
        self._shapes = {name: tuple(parameter.shape) for name, parameter in named}
        self._sizes = [parameter.numel() for _, parameter in named]
        self._masked: list[Masked] | None = None

    def train(
        self, theta: np.ndarray, members: Sequence[Member], learning_rate: float
    ) -> torch.Tensor:
        """Start from the global model ``theta`` and train all members.

        Returns:
            Local minus global models, float32 of shape (members, dim), on the device.

        Raises:
            RuntimeError: if torch cannot vectorise the model, or memory ends.
        """
        start = torch.tensor(theta, device=self._device)
        values = start.repeat(len(members), 1)
        for wave in waves([member.sizes for member in members]):
            own = values[wave[0] : wave[-1] + 1]
            gap = len(own) > len(wave)  # somebody between them waits
            if gap:
                own = values[wave]
            self._step(own, [members[i] for i in wave], learning_rate)
            if gap:
                values[wave] = own
        return values.sub_(start)

    def _step(self, values: torch.Tensor, members: Sequence[Member], learning_rate: float) -> None:
        """One step of each member; changes ``values``, of shape (members, dim), in place."""
        leaves = [
            part.view(-1, *shape).detach().requires_grad_()
            for part, shape in zip(
                torch.split(values, self._sizes, 1), self._shapes.values(), strict=True
            )
        ]
        if self._masked is None:
            self._masked = self._find_masked(members[0].example)
        data, masks = zip(*(member.batch(self._masked) for member in members), strict=True)
        inputs = _stack_inputs([part.inputs for part in data], self._device)
        stacked = [_stack(list(calls), self._device) for calls in zip(*masks, strict=True)]
        outputs = self._outputs(leaves, inputs, stacked).unbind()
        means = []
        for member, batch, output in zip(members, data, outputs, strict=True):
            targets = batch.targets.to(self._device)
            result = self._task.loss(output[: len(batch)], targets)
            member.note(result)
            means.append(result.loss / max(1, result.examples))
        gradients = torch.autograd.grad(
            torch.stack(means).sum(), leaves, allow_unused=True, materialize_grads=True
        )
        with torch.no_grad():
            torch._foreach_add_(leaves, gradients, alpha=-learning_rate)

    def _outputs(
        self, leaves: list[torch.Tensor], inputs: Inputs, masks: list[torch.Tensor]
    ) -> torch.Tensor:
        """Outputs of shape (members, n, …)."""

        def forward(
            parameters: list[torch.Tensor], inputs: Inputs, masks: list[torch.Tensor]
        ) -> torch.Tensor:
            self._set_masks(masks)
            named = dict(zip(self._shapes, parameters, strict=True))

            def model(*plain: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
                own: torch.Tensor = torch.func.functional_call(self._model, named, plain, more)
                return own

            outputs: torch.Tensor = call_model(model, inputs)
            return outputs

        try:
            with self._execution.autocast():
                outputs: torch.Tensor = torch.func.vmap(forward)(leaves, inputs, masks)
        finally:
            self._set_masks([])
        return self._execution.widen(outputs)

    def _set_masks(self, masks: list[torch.Tensor]) -> None:
        """Let each dropout take its masks in the order of the calls."""
        assert self._masked is not None  # noqa: S101 - found before
        for dropout in {dropout for dropout, _ in self._masked}:
            calls = [i for i, (other, _) in enumerate(self._masked) if other is dropout]
            dropout.drawn = iter([masks[i] for i in calls]) if masks else None

    def _find_masked(self, example: ClientData) -> list[Masked]:
        """The calls of dropouts in a forward pass, found by one pass of a single example."""
        calls: list[Masked] = []

        def see(dropout: SeededDropout, inputs: tuple[torch.Tensor], _: torch.Tensor) -> None:
            calls.append((dropout, tuple(inputs[0].shape[1:])))

        dropouts = [m for m in self._model.modules() if isinstance(m, SeededDropout) and m.rate]
        hooks = [dropout.register_forward_hook(see) for dropout in dropouts]
        for dropout in dropouts:
            dropout.random = np.random.default_rng(0)
        with torch.no_grad():
            call_model(self._model, example.map(lambda part: part.to(self._device)).inputs)
        for hook in hooks:
            hook.remove()
        return calls


def _stack_inputs(parts: Sequence[Inputs], device: torch.device) -> Inputs:
    """`_stack` of each tensor of the inputs."""
    if not isinstance(parts[0], Mapping):
        return _stack([part for part in parts if isinstance(part, torch.Tensor)], device)
    named = [part for part in parts if isinstance(part, Mapping)]
    return {name: _stack([part[name] for part in named], device) for name in parts[0]}


def _stack(parts: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Tensors of different lengths as one, padded with zeros, shape (parts, longest, …)."""
    longest = max(len(part) for part in parts)
    out = parts[0].new_zeros((len(parts), longest, *parts[0].shape[1:]))
    for row, part in zip(out, parts, strict=True):
        row[: len(part)] = part
    return out.to(device)
