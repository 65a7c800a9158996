"""Local training of many clients at once: a model for each, and `torch.func.vmap` over them.

This is the default on a GPU. On a CPU it is faster for small models, whose steps take more time
in Python than in arithmetic (`benchmarks/throughput.py`), but not for large models or
convolutions: on one thread of a Xeon (torch 2.13, medians of interleaved runs), the EMNIST CNN
took 1.96 times as long in chunks of 4 clients, and the StackOverflow LSTM 1.65 times in chunks
of 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch

from fl_epe.models import (
    Inputs,
    SeededDropout,
    call_model,
    prepared,
    sent,
    staging,
)
from fl_epe.tasks import ClientData, Task
from fl_epe.training.local import Execution, LocalTraining, batches

# The parameters of each client begin at a multiple of this number of float32 values: the alignment
# of memory may change the last bits of results.
_ALIGNMENT = 16


def padded_size(examples: int, batch_size: int) -> int:
    """Number of rows to which a client's batches are padded.

    It is the next power of two, or ``batch_size`` if that is smaller. It does not depend on
    other clients.
    """
    next_power_of_two = 1 << max(0, examples - 1).bit_length()
    return min(batch_size, next_power_of_two)


class Member:
    """A client in training, with its next batches and masks.

    Args:
        data: the client's examples.
        local: the settings of the training.
        random: the client's random stream, in the state that `Trainer.train` would get.

    Attributes:
        steps: number of batches of all epochs.
        rows: number of rows of each batch, with padding.
    """

    def __init__(
        self,
        data: ClientData,
        local: LocalTraining,
        random: np.random.Generator,
    ) -> None:
        self.data = data
        self.random = random
        self.steps = math.ceil(len(data) / local.batch_size) * local.epochs
        self.rows = padded_size(len(data), local.batch_size)
        self._batches = batches(len(data), local, random)

    def draw_batch(
        self, calls: Sequence[DropoutCall], masks: Sequence[torch.Tensor]
    ) -> tuple[int, torch.Tensor]:
        """Draw the next batch, and the masks of dropouts that the client would draw alone.

        Args:
            calls: the calls of dropouts.
            masks: a tensor for the mask of each call, bool of shape (rows, …), which is filled.

        Returns:
            The number of examples, and their positions, shape (rows,), padded with the first
            one.
        """
        order = next(self._batches)
        size = len(order)
        positions = torch.cat([order, order[:1].expand(self.rows - size)])
        for (dropout, shape), tensor in zip(calls, masks, strict=True):
            dropout.random = self.random
            mask = tensor.numpy()
            mask[:size] = dropout.keep((size, *shape))
            mask[size:] = mask[0]
        return size, positions


DropoutCall = tuple[SeededDropout, tuple[int, ...]]
"""A dropout layer that is called in a forward pass, and the shape of an example there."""


class ChunkTrainer:
    """Trains the clients of a chunk at once, each with its own model.

    Each client needs memory for parameters and gradients in float32, and for the intermediate
    results of a forward pass. A model may have parameters, `SeededDropout`, random numbers and
    buffers that do not change. A module with an attribute ``unrolled`` gets it as ``True``, and
    should then use only operations that torch can vectorise.

    Args:
        task: the task whose clients are trained, by `Task.by_example` or else `Task.loss`.
        execution: the device and the precision.
    """

    def __init__(self, task: Task, execution: Execution) -> None:
        self._task = task
        self._execution = execution
        self._device = execution.torch_device()
        self._model = prepared(task.model).to(self._device).train()
        for module in self._model.modules():
            if hasattr(module, "unrolled"):
                setattr(module, "unrolled", True)  # noqa: B010 - not a tensor, as mypy thinks
        self._shapes = {
            name: tuple(parameter.shape)
            for name, parameter in self._model.named_parameters()
            if parameter.requires_grad
        }
        self._sizes = [math.prod(shape) for shape in self._shapes.values()]
        # The calls of dropouts in a forward pass; `None` before the first one.
        self._calls: list[DropoutCall] | None = None

    def train(
        self,
        theta: torch.Tensor,
        members: Sequence[Member],
        learning_rate: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Train all members, starting from the global model ``theta``.

        Args:
            theta: the global model, shape (dim,), on the device.
            members: clients with the same ``rows``, those with the most steps first.
            learning_rate: step size for the mean loss of a batch.

        Returns:
            The local minus the global models, of shape (members, dim); and the summed loss,
            summed metric and number of predictions of each member, float64 of shape (members,
            3). Both are on the device.

        Raises:
            RuntimeError: if torch cannot vectorise the model, or memory is exhausted.
        """
        dim = len(theta)
        width = math.ceil(dim / _ALIGNMENT) * _ALIGNMENT
        rows = torch.empty(
            (len(members), width), dtype=theta.dtype, device=self._device
        )
        values = rows[:, :dim].copy_(theta)
        sums = torch.zeros(
            (len(members), 3), dtype=torch.float64, device=self._device
        )
        if self._calls is None and members[0].steps:
            self._calls = self._dropout_calls(members[0].data)
        for step in range(members[0].steps):
            active = [member for member in members if member.steps > step]
            count = len(active)
            self._step(values[:count], active, sums[:count], learning_rate)
        return values.sub_(theta), sums

    def _step(
        self,
        values: torch.Tensor,
        members: Sequence[Member],
        sums: torch.Tensor,
        learning_rate: float,
    ) -> None:
        """Take one step for each member, and change ``values`` and ``sums`` in place."""
        parts = torch.split(values, self._sizes, 1)
        # These parameters share the memory of ``values``.
        parameters = [
            part.view(-1, *shape).detach().requires_grad_()
            for part, shape in zip(parts, self._shapes.values(), strict=True)
        ]
        calls = self._calls or []
        count = len(members)
        rows = members[0].rows
        host_masks = [
            staging((count, rows, *shape), torch.bool, self._device)
            for _, shape in calls
        ]
        sizes = []
        positions = []
        for i, member in enumerate(members):
            masks_of_member = [mask[i] for mask in host_masks]
            size, member_positions = member.draw_batch(calls, masks_of_member)
            sizes.append(size)
            positions.append(member_positions)
        batch = _gather(
            [member.data for member in members], positions, self._device
        )
        masks = [sent(mask, self._device) for mask in host_masks]
        with self._execution.on_device():
            outputs = self._outputs(parameters, batch.inputs, masks)
            loss, batch_sums = self._losses(outputs, batch.targets, sizes)
            gradients = torch.autograd.grad(
                loss, parameters, allow_unused=True, materialize_grads=True
            )
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients, alpha=-learning_rate)
            sums += batch_sums

    def _losses(
        self, outputs: torch.Tensor, targets: torch.Tensor, sizes: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum of the members' mean losses, and sums of the batch as in `train`.

        The gradient of this sum with respect to a member's parameters is that of its own loss.

        Args:
            outputs: the outputs of each member's model, shape (members, rows, …).
            targets: the targets, shape (members, rows, …).
            sizes: each member's number of rows that are not padding.
        """
        parts = self._task.by_example(
            outputs.flatten(0, 1), targets.flatten(0, 1)
        )
        if parts is None:
            # The loss of the task is called for each member.
            results = [
                self._task.loss(output[:size], target[:size])
                for output, target, size in zip(
                    outputs.unbind(), targets, sizes, strict=True
                )
            ]
            means = torch.stack([result.mean() for result in results])
            sums = [result.sums(self._device) for result in results]
            return means.sum(), torch.stack(sums)
        rows = targets.shape[1]
        # Loss, metric and number of predictions of each row, shape (members, rows, 3).
        by_row = torch.stack(
            [part.view(-1, rows).to(outputs.dtype) for part in parts], 2
        )
        if min(sizes) < rows:
            is_example = np.arange(rows) < np.array(sizes)[:, np.newaxis]
            mask = torch.from_numpy(is_example[:, :, np.newaxis])
            by_row = by_row * sent(mask, self._device)
        totals = by_row.sum(1)
        means = totals[:, 0] / totals[:, 2].detach().clamp(min=1)
        return means.sum(), totals.detach().double()

    def _outputs(
        self,
        parameters: list[torch.Tensor],
        inputs: Inputs,
        masks: list[torch.Tensor],
    ) -> torch.Tensor:
        """The outputs of each member's model for its batch, shape (members, rows, …)."""
        vectorized = torch.func.vmap(self._forward, randomness="different")
        try:
            return cast(
                torch.Tensor,
                self._execution.call(vectorized, parameters, inputs, masks),
            )
        finally:
            # From now on the dropouts draw their masks again.
            for dropout, _ in self._calls or []:
                dropout.drawn = None

    def _forward(
        self,
        parameters: list[torch.Tensor],
        inputs: Inputs,
        masks: list[torch.Tensor],
    ) -> Any:
        """The outputs of one member's model, with a mask for each call of a dropout."""
        masks_of: dict[SeededDropout, list[torch.Tensor]] = {}
        for (dropout, _), mask in zip(self._calls or [], masks, strict=True):
            masks_of.setdefault(dropout, []).append(mask)
        for dropout, call_masks in masks_of.items():
            dropout.drawn = iter(call_masks)
        named = dict(zip(self._shapes, parameters, strict=True))
        if isinstance(inputs, Mapping):
            return torch.func.functional_call(
                self._model, named, (), dict(inputs)
            )
        return torch.func.functional_call(self._model, named, inputs)

    def _dropout_calls(self, data: ClientData) -> list[DropoutCall]:
        """The calls of dropouts in a forward pass of a single example."""
        calls: list[DropoutCall] = []

        def add_call(
            dropout: SeededDropout, inputs: tuple[torch.Tensor], _: torch.Tensor
        ) -> None:
            calls.append((dropout, tuple(inputs[0].shape[1:])))

        modules = self._model.modules()
        dropouts = [m for m in modules if isinstance(m, SeededDropout) and m.p]
        if not dropouts:
            # No forward pass is needed. It could draw from torch's generator.
            return calls
        hooks = [
            dropout.register_forward_hook(add_call) for dropout in dropouts
        ]
        for dropout in dropouts:
            dropout.random = np.random.default_rng(0)
        example = data.map(lambda part: part[:1].to(self._device))
        with torch.no_grad(), self._execution.on_device():
            call_model(self._model, example.inputs)
        for hook in hooks:
            hook.remove()
        return calls


def _gather(
    parts: Sequence[ClientData],
    positions: Sequence[torch.Tensor],
    device: torch.device,
) -> ClientData:
    """The rows at these positions of each client's examples, shape (clients, rows, …)."""

    def take(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        first = tensors[0]
        shape = (len(tensors), len(positions[0]), *first.shape[1:])
        out = staging(shape, first.dtype, device)
        for rows, tensor, index in zip(out, tensors, positions, strict=True):
            torch.index_select(tensor, 0, index, out=rows)
        return sent(out, device)

    inputs = [part.inputs for part in parts]
    stacked: Inputs
    if isinstance(inputs[0], Mapping):
        stacked = {
            name: take([part[name] for part in inputs]) for name in inputs[0]
        }
    else:
        stacked = take(inputs)
    return ClientData(stacked, take([part.targets for part in parts]))
