"""Prepares a torch module for federated training, and describes the parts that are not trained.

Clients train, clip and send only the vector of the trainable parameters.

Examples:
    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    >>> for note in model_notes(net):
    ...     print(note)  # doctest: +ELLIPSIS
    BatchNorm: its weights, if any, are trained and audited like all others. ...
"""

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from fl_epe.checks import raise_invalid
from fl_epe.seeding import generator

Inputs = torch.Tensor | Mapping[str, torch.Tensor]
"""The inputs of a model: one tensor, or several as keyword arguments."""

# Number of seeds that `draws_by_itself` tries: two seeds may give the same small mask.
_NUM_SEEDS = 8
# Held while a model is built, as torch has one generator for all threads.
_TORCH_GENERATOR = threading.Lock()
_BATCH_NORM_NOTE = (
    "BatchNorm: its weights, if any, are trained and audited like all others. Its running averages "
    "are not shared: clients normalise with their own batches (a last batch of one example is left "
    "out), and an evaluation normalises with averages over the held-out inputs."
)
_DRAWS_NOTE = (
    "The model draws random numbers from torch's own generator while it trains (other dropout than "
    "torch.nn.Dropout, noise). A run with a seed repeats exactly with --workers 1 only."
)


class SeededDropout(torch.nn.Module):
    """Dropout that draws its masks from its own numpy generator, not from torch's global one.

    So several models can train in threads of one process, and each result is reproducible.

    Attributes:
        p: probability that an entry is set to zero, as in torch.nn.Dropout. Multiples of 1/256 are
            drawn fastest.
        random: the generator of the masks. It must be set before a forward pass in training mode,
            unless there are ``drawn`` masks.
        drawn: masks of 0 and 1 for the next forward passes, which are used instead of new draws.
    """

    # Models may read this attribute of torch.nn.Dropout, in the place of which this class is used.
    inplace = False
    random: np.random.Generator | None
    drawn: Iterator[torch.Tensor] | None

    def __init__(self, p: float) -> None:
        """Make a layer without a generator.

        Raises:
            ValueError: for a ``p`` outside [0, 1).
        """
        super().__init__()
        if not 0 <= p < 1:
            raise_invalid("p", p, "in [0, 1)")
        self.p = p
        self.random = self.drawn = None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """``inputs`` times a random mask of 0 and 1/(1 − p); unchanged in evaluation mode.

        Raises:
            RuntimeError: in training mode, if neither ``random`` nor ``drawn`` is set.
        """
        if not self.training or not self.p:
            return inputs
        scale = np.float32(1 / (1 - self.p))
        if self.drawn is not None:
            return inputs * (next(self.drawn) * float(scale))
        kept_entries = self.keep(tuple(inputs.shape))
        if inputs.is_cpu:
            return inputs * torch.from_numpy(kept_entries * scale).to(inputs)
        # A bool mask has a quarter of the bytes of a float32 mask.
        mask = sent(torch.from_numpy(kept_entries), inputs.device)
        return inputs * (mask.to(inputs.dtype) * float(scale))

    def keep(self, shape: tuple[int, ...]) -> np.ndarray:
        """A random mask of this shape, bool; it is false where an entry is set to zero.

        Raises:
            RuntimeError: before ``random`` is set.
        """
        if self.random is None:
            raise RuntimeError(
                "Expected SeededDropout.random to be set before training."
            )
        # An integer of 8 or 32 bits is drawn for each entry, and compared with p. Drawing words of
        # 64 bits takes a third of the time of drawing bytes, or of torch's dropout.
        dtype = np.uint8 if self.p * 256 % 1 == 0 else np.uint32
        entries = math.prod(shape)
        size = entries * np.dtype(dtype).itemsize
        words = self.random.integers(0, 2**64, math.ceil(size / 8), np.uint64)
        values: np.ndarray = words.view(dtype)[:entries].reshape(shape)
        num_values = 2.0 ** (8 * values.itemsize)
        threshold = dtype(int(self.p * num_values))
        return values >= threshold


def sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on a device. To a GPU it is copied asynchronously, from pinned memory."""
    if device.type != "cuda":
        return tensor.to(device)
    if not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def staging(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """An uninitialised tensor on the host, in memory from which `sent` copies it directly."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


def trainable(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The parameters with ``requires_grad``, in the model's order."""
    return [
        parameter for parameter in model.parameters() if parameter.requires_grad
    ]


def bind_parameters(model: torch.nn.Module, flat: torch.Tensor) -> None:
    """Make the trainable parameters of ``model`` views on the vector ``flat``.

    Args:
        model: the model. Its trainable parameters get the values of ``flat``; frozen ones stay.
        flat: the values in the model's order, shape (dim,). Writing to it changes the model, and
            vice versa.

    Raises:
        ValueError: if the length of ``flat`` is not the number of trainable parameters.
    """
    parameters = trainable(model)
    sizes = [parameter.numel() for parameter in parameters]
    if flat.shape != (sum(sizes),):
        raise_invalid("flat.shape", tuple(flat.shape), f"== ({sum(sizes)},)")
    for parameter, part in zip(
        parameters, torch.split(flat, sizes), strict=True
    ):
        parameter.data = part.view(parameter.shape)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """In this context, torch computes in the calling thread only, so results are reproducible.

    The number of threads changes the order of the sums in matrix products and in gradients of
    convolutions, and so the last bits of the results. `torch.set_num_threads` acts on the calling
    thread and on threads that start later. So several threads can be in this context at a time.
    A thread that starts in this context and may use more threads must set its own number.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def prepared(
    build: Callable[[], torch.nn.Module], seed: int = 0
) -> torch.nn.Module:
    """The model that ``build`` returns, with initial values from ``seed``.

    Every `torch.nn.Dropout` becomes a `SeededDropout`, so that masks are drawn from the
    client's generator. The state of torch's generator does not change.

    Raises:
        ValueError: if ``build`` does not return a `torch.nn.Module`.
    """
    with _TORCH_GENERATOR, torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(generator(seed).integers(2**63)))
        model = build()
    if not isinstance(model, torch.nn.Module):
        raise ValueError(
            f"Expected a torch.nn.Module as model, got {type(model).__name__}."
        )
    _seed_dropouts(model)
    return model


def _seed_dropouts(module: torch.nn.Module) -> None:
    """Replace every `torch.nn.Dropout` in a module by a `SeededDropout`."""
    # `named_children` leaves out the second name of a module that has two.
    for name, child in module._modules.items():
        if child is None:
            continue
        # A dropout of all entries stays, as its mask is not random.
        if type(child) is torch.nn.Dropout and child.p < 1:
            setattr(module, name, SeededDropout(child.p).train(child.training))
        else:
            _seed_dropouts(child)


def call_model(model: Callable[..., Any], inputs: Inputs) -> Any:
    """The outputs of ``model`` for one tensor, or for keyword arguments as a mapping."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(inputs)


def batch_norms(model: torch.nn.Module) -> list[_BatchNorm]:
    """The layers that normalise with the statistics of a batch."""
    return [
        module for module in model.modules() if isinstance(module, _BatchNorm)
    ]


def model_notes(model: torch.nn.Module) -> list[str]:
    """Sentences about the parts of a model that are not trained or not audited, if any.

    Raises:
        ValueError: if no parameter is trainable, or if one is sparse or not float32; the
            message names it.
    """
    if not trainable(model):
        raise ValueError(
            "Expected a model with parameters that have requires_grad=True."
        )
    for name, parameter in model.named_parameters():
        is_dense_float32 = (
            parameter.dtype == torch.float32
            and parameter.layout == torch.strided
        )
        if parameter.requires_grad and not is_dense_float32:
            kind = f"{parameter.dtype}, {parameter.layout}".replace(
                "torch.", ""
            )
            raise ValueError(
                f"Expected the parameter {name!r} to be dense float32, got {kind}: convert the "
                "model with model.float(), or freeze it with requires_grad_(False)."
            )
    notes = []
    frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    if frozen:
        notes.append(
            f"{frozen:,} frozen parameters (requires_grad=False) are neither trained nor audited: "
            "they stay as they are on every client."
        )
    if batch_norms(model):
        notes.append(_BATCH_NORM_NOTE)
    return notes


def draws_by_itself(
    model: torch.nn.Module, step: Callable[[], torch.Tensor]
) -> bool:
    """Whether the loss in training mode depends on torch's own generator.

    Args:
        model: the model, in training mode.
        step: a function that computes a loss with the model. It is called with several seeds of
            torch's generator, until two losses differ. The buffers are reset before each call, not
            after the last.
    """
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    losses = set()
    for seed in range(_NUM_SEEDS):
        # Reset the buffers and the masks: a loss that depends on a count of the calls, or on the
        # masks of a `SeededDropout`, would look as if it depended on torch's generator.
        for buffer, initial in buffers:
            buffer.copy_(initial)
        for module in model.modules():
            if isinstance(module, SeededDropout):
                module.random = np.random.default_rng(0)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            losses.add(step().cpu().numpy().tobytes())
        if len(losses) > 1:
            return True
    return False


def training_notes(
    model: torch.nn.Module, step: Callable[[], torch.Tensor]
) -> list[str]:
    """Sentences about a training step that draws random numbers or changes buffers, if it does.

    Args:
        model: the model, in training mode.
        step: a function that computes a loss with the model, see `draws_by_itself`.
    """
    before = {name: buffer.clone() for name, buffer in _buffers(model).items()}
    # This calls `step`, the last time of which leaves the buffers changed.
    uses_torch_generator = draws_by_itself(model, step)
    after = _buffers(model)
    changed = [
        name for name in before if not torch.equal(before[name], after[name])
    ]
    notes = [_DRAWS_NOTE] if uses_torch_generator else []
    if changed:
        notes.append(
            f"Buffers that change while a client trains ({', '.join(changed)}) are not shared: "
            "every client starts with their initial values."
        )
    return notes


def _buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The buffers of a model by name, except BatchNorm's."""
    return {
        f"{path}.{name}" if path else name: buffer
        for path, module in model.named_modules()
        if not isinstance(module, _BatchNorm)
        for name, buffer in module.named_buffers(recurse=False)
    }
