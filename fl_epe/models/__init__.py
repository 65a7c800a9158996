"""The models of the built-in tasks, as plain PyTorch modules, and their parameters as one vector.

A model does not depend on clients, privacy or Flower; its training data are in `fl_epe.tasks`.

Examples:
    >>> import torch
    >>> from fl_epe.models import bind_parameters
    >>> model = torch.nn.Linear(2, 1)
    >>> flat = torch.tensor([1.0, 2.0, 3.0])
    >>> bind_parameters(model, flat)
    >>> flat[2] = 10.0  # writing to the vector changes the model
    >>> model(torch.ones(2)).item()
    13.0
"""

from fl_epe.models.networks import Cnn, Lstm
from fl_epe.models.preparation import (
    Inputs,
    SeededDropout,
    batch_norms,
    bind_parameters,
    call_model,
    draws_by_itself,
    model_notes,
    one_thread,
    prepared,
    sent,
    staging,
    trainable,
    training_notes,
)

__all__ = [
    "Cnn",
    "Inputs",
    "Lstm",
    "SeededDropout",
    "batch_norms",
    "bind_parameters",
    "call_model",
    "draws_by_itself",
    "model_notes",
    "one_thread",
    "prepared",
    "sent",
    "staging",
    "trainable",
    "training_notes",
]
