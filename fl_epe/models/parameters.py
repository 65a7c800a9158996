"""A model's parameters as one vector, their initial values, and a context for one thread."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch

from fl_epe.checks import raise_invalid


def trainable(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The parameters that are trained: those with ``requires_grad``, in their order."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def bind_parameters(model: torch.nn.Module, flat: torch.Tensor) -> None:
    """Make the trainable parameters of ``model`` views on the vector ``flat``, in their order.

    Args:
        model: the model; its trainable parameters take the values of ``flat``, frozen ones stay.
        flat: shape (dim,); writing to it changes the model, and the other way round.

    Raises:
        ValueError: if ``flat`` does not have exactly as many entries as the model trains.
    """
    parameters = trainable(model)
    sizes = [parameter.numel() for parameter in parameters]
    if flat.shape != (sum(sizes),):
        raise_invalid("flat.shape", tuple(flat.shape), f"== ({sum(sizes)},)")
    for parameter, part in zip(parameters, torch.split(flat, sizes), strict=True):
        parameter.data = part.view(parameter.shape)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute each operation in the calling thread alone, so that results repeat.

    With another number of threads, matrix products and gradients of convolutions add up in another
    order, and their last bits differ. `torch.set_num_threads` acts on the thread that calls it and
    on threads that start later. So several threads may be in this context at a time, and a thread
    that is started within it and needs more must set its own number.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def glorot_uniform(shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """Uniform on ±√(6 / (fan in + fan out)) (Glorot & Bengio 2010); a bias vector is zero."""
    if len(shape) < 2:
        return np.zeros(shape, np.float32)
    field = int(np.prod(shape[2:]))
    limit = np.float32(np.sqrt(6 / ((shape[0] + shape[1]) * field)))
    return (2 * random.random(shape, np.float32) - 1) * limit


def glorot_values(model: torch.nn.Module, random: np.random.Generator) -> Iterator[np.ndarray]:
    """`glorot_uniform` values for each parameter of ``model``, in their order."""
    for parameter in model.parameters():
        yield glorot_uniform(tuple(parameter.shape), random)
