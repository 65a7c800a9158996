"""The models of the built-in tasks, as plain PyTorch modules, and their parameters as one vector.

A model knows nothing of clients, privacy or Flower; `fl_epe.tasks` says what it is trained on.
"""

from fl_epe.models.character_lstm import CharacterLstm
from fl_epe.models.cnn import Cnn
from fl_epe.models.dropout import SeededDropout
from fl_epe.models.lstm import Lstm
from fl_epe.models.parameters import bind_parameters, glorot_uniform, one_thread

__all__ = [
    "CharacterLstm",
    "Cnn",
    "Lstm",
    "SeededDropout",
    "bind_parameters",
    "glorot_uniform",
    "one_thread",
]
