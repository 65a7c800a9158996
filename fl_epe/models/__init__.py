"""The models of the built-in tasks, as plain PyTorch modules.

A model knows nothing of clients, privacy or Flower; `fl_epe.tasks` says what it is trained on.
"""

from fl_epe.models.cnn import (
    Cnn,
    cross_entropy,
)
from fl_epe.models.dropout import (
    SeededDropout,
)
from fl_epe.models.lstm import (
    Lstm,
    token_cross_entropy,
)

__all__ = [
    "Cnn",
    "Lstm",
    "SeededDropout",
    "cross_entropy",
    "token_cross_entropy",
]
