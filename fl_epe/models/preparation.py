"""Makes any torch module ready for federated training, and says what of it is left alone.

What clients train, clip and share is the vector of the trainable parameters, and nothing else.

Examples:
    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    >>> for note in model_notes(net):
    ...     print(note)  # doctest: +ELLIPSIS
    BatchNorm: its weights, if any, are trained and audited like all others. ...
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from fl_epe.models.dropout import SeededDropout
from fl_epe.models.parameters import trainable
from fl_epe.seeding import generator

Inputs = torch.Tensor | Mapping[str, torch.Tensor]
"""What a model is called with: one tensor, or several as keyword arguments."""

_SEEDS = 8  # a mask of few entries may be the same with two
_BUILDING = threading.Lock()  # torch has one generator for all threads
_BATCH_NORM_NOTE = (
    "BatchNorm: its weights, if any, are trained and audited like all others. Its running averages "
    "are not shared: clients normalise with their own batches (a last batch of one example is left "
    "out), and an evaluation with averages over the held-out inputs."
)
_DRAWS_NOTE = (
    "The model draws random numbers from torch's own generator while it trains (other dropout than "
    "torch.nn.Dropout, noise). A run with a seed repeats exactly with --workers 1 only."
)


def prepared(build: Callable[[], torch.nn.Module], seed: int = 0) -> torch.nn.Module:
    """The model that ``build`` makes, with whatever it draws drawn from ``seed``.

    Every `torch.nn.Dropout` becomes a `SeededDropout`, so that masks come from the client's own
    generator. torch's generator is afterwards as it was before.

    Raises:
        ValueError: if ``build`` makes no `torch.nn.Module`.
    """
    with _BUILDING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(generator(seed).integers(2**63)))
        model = build()
    if not isinstance(model, torch.nn.Module):
        raise ValueError(f"Expected a torch.nn.Module as model, got {type(model).__name__}.")
    _seed_dropouts(model)
    return model


def _seed_dropouts(module: torch.nn.Module) -> None:
    for name, child in module._modules.items():  # also one that has two names
        if child is None:
            continue
        if type(child) is torch.nn.Dropout and child.p < 1:
            setattr(module, name, SeededDropout(child.p).train(child.training))
        else:
            _seed_dropouts(child)


def call_model(model: Callable[..., Any], inputs: Inputs) -> Any:
    """The outputs of ``model`` for one tensor, or for a mapping of keyword arguments."""
    return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)


def batch_norms(model: torch.nn.Module) -> list[_BatchNorm]:
    """The layers that normalise with the statistics of a batch."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def model_notes(model: torch.nn.Module) -> list[str]:
    """What of a model is not trained or not audited, in sentences; empty for most models.

    Raises:
        ValueError: if there is nothing to train, or the parameters cannot be a float32 vector: one
            has no values yet, is not float32, or is sparse; the message names it.
    """
    if not trainable(model):
        raise ValueError("Expected a model with parameters that have requires_grad=True.")
    for name, parameter in model.named_parameters():
        if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
            text = "call the lazy model with an example once, before it is handed over"
            raise ValueError(f"Expected the parameter {name!r} to have a shape: {text}.")
        dense = parameter.dtype == torch.float32 and parameter.layout == torch.strided
        if parameter.requires_grad and not dense:
            kind = f"{parameter.dtype}, {parameter.layout}".replace("torch.", "")
            raise ValueError(
                f"Expected the parameter {name!r} to be dense float32, got {kind}: convert the "
                "model with model.float(), or freeze it with requires_grad_(False)."
            )
    notes = []
    if count := sum(p.numel() for p in model.parameters() if not p.requires_grad):
        notes.append(
            f"{count:,} frozen parameters (requires_grad=False) are neither trained nor audited: "
            "they stay as they are on every client."
        )
    return [*notes, _BATCH_NORM_NOTE] if batch_norms(model) else notes


def draws_by_itself(model: torch.nn.Module, step: Callable[[], torch.Tensor]) -> bool:
    """Whether training draws from torch's own generator.

    Args:
        model: in training mode.
        step: computes a loss with it; called with several seeds of torch's generator, until two of
            them differ.
    """
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    losses = set()
    for seed in range(_SEEDS):
        for buffer, before in buffers:  # one that counts the calls is not random
            buffer.copy_(before)
        for module in model.modules():
            if isinstance(module, SeededDropout):
                module.random = np.random.default_rng(0)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            losses.add(step().cpu().numpy().tobytes())
        if len(losses) > 1:
            return True
    return False


def training_notes(model: torch.nn.Module, step: Callable[[], torch.Tensor]) -> list[str]:
    """What a step of training does beside moving parameters; arguments as `draws_by_itself`."""
    before = {name: buffer.clone() for name, buffer in _own_buffers(model).items()}
    notes = [_DRAWS_NOTE] if draws_by_itself(model, step) else []
    after = _own_buffers(model)
    if changed := [name for name in before if not torch.equal(before[name], after[name])]:
        notes.append(
            f"Buffers that change while a client trains ({', '.join(changed)}) are not shared: "
            "every client starts with their initial values."
        )
    return notes


def _own_buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """All buffers by name, but those of BatchNorm."""
    return {
        f"{path}.{name}" if path else name: buffer
        for path, module in model.named_modules()
        if not isinstance(module, _BatchNorm)
        for name, buffer in module.named_buffers(recurse=False)
    }
