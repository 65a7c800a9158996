"""Local training of many clients at once: a model for each, and `torch.func.vmap` over them.

On a GPU this is how clients train. On a CPU it pays for small models, whose steps cost more Python
than arithmetic (`benchmarks/throughput.py`), and not for large ones or convolutions: on one thread
of a Xeon (torch 2.13, medians of interleaved runs) the EMNIST CNN took 1.96 times as long in chunks
of 4 clients, and the StackOverflow LSTM 1.65 in chunks of 2.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch

from fl_epe.models import Inputs, SeededDropout, call_model, prepared, sent, staging
from fl_epe.tasks import ClientData, Task
from fl_epe.training.local import Execution, LocalTraining, batches

_ALIGNED = (
    16  # float32 values; a row begins at a multiple, so that its place changes no bit
)


def padded_size(examples: int, batch_size: int) -> int:
    """Rows to which every batch of a client is padded; it depends on that client alone."""
    return min(batch_size, 1 << max(0, examples - 1).bit_length())


class Member:
    """A client in training: its next batches and masks.

    Args:
        data: its examples.
        local: how it trains.
        random: its random stream, as fresh as when it trains alone.
    """

    def __init__(
        self, data: ClientData, local: LocalTraining, random: np.random.Generator
    ) -> None:
        self.data, self.random = data, random
        self.steps = -(-len(data) // local.batch_size) * local.epochs
        self.rows = padded_size(len(data), local.batch_size)
        self._batches = batches(len(data), local, random)

    def batch(
        self, masked: Sequence[Masked], kept: Sequence[torch.Tensor]
    ) -> tuple[int, torch.Tensor]:
        """The next batch, with masks for each call of a dropout drawn as if it trained alone.

        Args:
            masked: the calls.
            kept: takes which entries each of them keeps, bool of shape (rows, …).

        Returns:
            Number of examples; their positions, shape (rows,), padded with the first.
        """
        order = next(self._batches)
        size = len(order)
        places = torch.cat([order, order[:1].expand(self.rows - size)])
        for (dropout, shape), rows in zip(masked, kept, strict=True):
            dropout.random, own = self.random, rows.numpy()
            own[:size] = dropout.keep((size, *shape))
            own[size:] = own[0]
        return size, places


Masked = tuple[SeededDropout, tuple[int, ...]]
"""A dropout that is called in a forward pass, and the shape of an example there."""


class Together:
    """Trains clients at once, each with a model of its own.

    Their memory: parameters and gradients in float32, and what a forward pass leaves for the
    backward one. A model may have parameters, `SeededDropout`, random numbers of its own and
    buffers that do not change; those of its modules that have an attribute ``unrolled`` are told to
    use plain operations.

    Args:
        task: its clients are trained, on `Task.by_example` or else `Task.loss`.
        execution: on which device and how exactly.
    """

    def __init__(self, task: Task, execution: Execution) -> None:
        self._task, self._execution = task, execution
        self._device = execution.torch_device()
        self._model = prepared(task.model).to(self._device).train()
        for module in self._model.modules():
            if hasattr(module, "unrolled"):
                setattr(module, "unrolled", True)  # noqa: B010 - not a tensor, as mypy thinks
        named = [
            (name, p) for name, p in self._model.named_parameters() if p.requires_grad
        ]
        self._shapes = {name: tuple(parameter.shape) for name, parameter in named}
        self._sizes = [parameter.numel() for _, parameter in named]
        self._masked: list[Masked] | None = None

    def train(
        self, theta: torch.Tensor, members: Sequence[Member], learning_rate: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Start from the global model ``theta`` and train all members.

        Args:
            theta: shape (dim,), on the device.
            members: all with the same ``rows``, those with the most steps first.
            learning_rate: step size on the mean loss of a batch.

        Returns:
            Local minus global models of shape (members, dim); and float64 of shape (members, 3),
            the sum of the losses of each, its metric and the number of its predictions. Both on the
            device.

        Raises:
            RuntimeError: if torch cannot vectorise the model, or memory ends.
        """
        dim, count = len(theta), len(members)
        width = -(-dim // _ALIGNED) * _ALIGNED
        values = torch.empty((count, width), dtype=theta.dtype, device=self._device)[
            :, :dim
        ]
        values.copy_(theta)
        sums = torch.zeros((count, 3), dtype=torch.float64, device=self._device)
        if self._masked is None and any(member.steps for member in members):
            self._masked = self._find_masked(members[0].data)
        for step in range(members[0].steps):
            active = [member for member in members if member.steps > step]
            self._step(
                values[: len(active)], active, sums[: len(active)], learning_rate
            )
        return values.sub_(theta), sums

    def _step(
        self,
        values: torch.Tensor,
        members: Sequence[Member],
        sums: torch.Tensor,
        learning_rate: float,
    ) -> None:
        """One step of each member; changes ``values`` and ``sums`` in place."""
        leaves = [
            part.view(-1, *shape).detach().requires_grad_()
            for part, shape in zip(
                torch.split(values, self._sizes, 1), self._shapes.values(), strict=True
            )
        ]
        masked, grid = self._masked or (), (len(members), members[0].rows)
        kept = [
            staging((*grid, *shape), torch.bool, self._device) for _, shape in masked
        ]
        drawn = (
            member.batch(masked, [k[i] for k in kept])
            for i, member in enumerate(members)
        )
        sizes, places = zip(*drawn, strict=True)
        batch = _gather([member.data for member in members], places, self._device)
        masks = [sent(keep, self._device) for keep in kept]
        with self._execution.on_device():
            means, parts = self._losses(
                self._outputs(leaves, batch.inputs, masks), batch.targets, sizes
            )
            gradients = torch.autograd.grad(
                means, leaves, allow_unused=True, materialize_grads=True
            )
        with torch.no_grad():
            torch._foreach_add_(leaves, gradients, alpha=-learning_rate)
            sums += parts

    def _losses(
        self, outputs: torch.Tensor, targets: torch.Tensor, sizes: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum of the members' mean losses, and what `train` counts, shape (members, 3)."""
        found = self._task.by_example(outputs.flatten(0, 1), targets.flatten(0, 1))
        if found is None:  # the task's own loss for each member
            results = [
                self._task.loss(output[:size], own[:size])
                for output, own, size in zip(
                    outputs.unbind(), targets, sizes, strict=True
                )
            ]
            means = torch.stack([result.mean() for result in results]).sum()
            return means, torch.stack([result.sums(self._device) for result in results])
        rows = targets.shape[1]
        grid = torch.stack([part.view(-1, rows).to(outputs.dtype) for part in found], 2)
        if min(sizes) < rows:
            real = np.arange(rows) < np.array(sizes)[:, np.newaxis]
            grid = grid * sent(torch.from_numpy(real[:, :, np.newaxis]), self._device)
        totals = grid.sum(1)
        means = (totals[:, 0] / totals[:, 2].detach().clamp(min=1)).sum()
        return means, totals.detach().double()

    def _outputs(
        self, leaves: list[torch.Tensor], inputs: Inputs, masks: list[torch.Tensor]
    ) -> torch.Tensor:
        """Outputs of shape (members, n, …)."""

        def forward(
            parameters: list[torch.Tensor], inputs: Inputs, masks: list[torch.Tensor]
        ) -> Any:
            self._set_masks(masks)
            named = dict(zip(self._shapes, parameters, strict=True))
            call = functools.partial(torch.func.functional_call, self._model, named)
            return (
                call((), dict(inputs)) if isinstance(inputs, Mapping) else call(inputs)
            )

        try:
            vectorized = torch.func.vmap(forward, randomness="different")
            return cast(
                torch.Tensor, self._execution.call(vectorized, leaves, inputs, masks)
            )
        finally:
            self._set_masks([])

    def _set_masks(self, masks: list[torch.Tensor]) -> None:
        masked = self._masked or []
        for dropout in {dropout for dropout, _ in masked}:
            calls = [i for i, (other, _) in enumerate(masked) if other is dropout]
            dropout.drawn = iter([masks[i] for i in calls]) if masks else None

    def _find_masked(self, data: ClientData) -> list[Masked]:
        """The calls of dropouts in a forward pass, found by one pass of a single example."""
        calls: list[Masked] = []

        def see(
            dropout: SeededDropout, inputs: tuple[torch.Tensor], _: torch.Tensor
        ) -> None:
            calls.append((dropout, tuple(inputs[0].shape[1:])))

        dropouts = [
            m for m in self._model.modules() if isinstance(m, SeededDropout) and m.p
        ]
        if not dropouts:
            return calls
        hooks = [dropout.register_forward_hook(see) for dropout in dropouts]
        for dropout in dropouts:
            dropout.random = np.random.default_rng(0)
        with torch.no_grad(), self._execution.on_device():
            call_model(
                self._model, data.map(lambda part: part[:1].to(self._device)).inputs
            )
        for hook in hooks:
            hook.remove()
        return calls


def _gather(
    parts: Sequence[ClientData], places: Sequence[torch.Tensor], device: torch.device
) -> ClientData:
    """Rows of each client's examples, shape (clients, rows, …), on the device."""

    def take(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        first = tensors[0]
        out = staging(
            (len(tensors), len(places[0]), *first.shape[1:]), first.dtype, device
        )
        for row, tensor, own in zip(out, tensors, places, strict=True):
            torch.index_select(tensor, 0, own, out=row)
        return sent(out, device)

    inputs = [part.inputs for part in parts]
    if isinstance(inputs[0], Mapping):
        stacked: Inputs = {
            name: take([own[name] for own in inputs]) for name in inputs[0]
        }
    else:
        stacked = take(inputs)
    return ClientData(stacked, take([part.targets for part in parts]))
