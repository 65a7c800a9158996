"""Shakespeare by speaker: the next character, with the LSTM of the literature.

It was not run on the published data, see `fl_epe.data`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch

from fl_epe.data.examples import ALPHABET, characters_and_next
from fl_epe.models import CharacterLstm
from fl_epe.tasks.examples import ClientData
from fl_epe.tasks.losses import Classes
from fl_epe.tasks.stored import StoredTask

_HELD_OUT = 2000


@dataclasses.dataclass(frozen=True)
class Shakespeare(Classes, StoredTask):
    """Windows of 80 characters by the speakers of Shakespeare's plays (LEAF, Caldas et al. 2018).

    The hub's set has 4,226,158 windows of 1,129 speakers. Neighbouring windows overlap in 79
    characters, so a speaker's are highly redundant. The defaults are our choice and from no paper.
    Inputs are ids of 80 characters, int64 of shape (n, 80), targets the next one, shape (n,).
    """

    name: ClassVar[str] = "shakespeare"
    defaults: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {
            "rounds": 600,
            "clients_per_round": 20,
            "clip_norm": 0.1,
            "server_learning_rate": 1.0,
            "server_momentum": 0.9,
            "local_epochs": 1,
            "local_batch_size": 16,
            "local_learning_rate": 1.0,
        }
    )
    data_dir: str = "flwrlabs/shakespeare"
    max_examples: int = 256
    _most_held_out: ClassVar[int] = _HELD_OUT

    def model(self) -> torch.nn.Module:
        """A fresh LSTM."""
        return CharacterLstm(len(ALPHABET))

    def _decode(self, examples: np.ndarray) -> ClientData:
        """See `StoredTask._decode`."""
        inputs, targets = characters_and_next(examples)
        return ClientData(torch.from_numpy(inputs), torch.from_numpy(targets))
