"""A single client's training, by its id."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from fl_epe.seeding import generator
from fl_epe.tasks import Task
from fl_epe.training import Execution, LocalTraining
from fl_epe.training.local import Trainer


@dataclasses.dataclass(frozen=True)
class Update:
    """What a client learned in a round, and what it counted."""

    values: np.ndarray
    loss_sum: float
    correct: float
    examples: float


class Alone:
    """`Trainer` for clients by their id, on the CPU by default."""

    def __init__(self, task: Task, execution: Execution | None = None) -> None:
        self._task, self._execution = task, execution or Execution(device="cpu")
        self.trainer = Trainer(task, self._execution)

    def train(
        self,
        theta: np.ndarray,
        client: int,
        local: LocalTraining,
        *,
        seed: int,
        round_number: int,
    ) -> Update:
        """Start from the model ``theta`` and train on the client's examples."""
        start = torch.tensor(theta, device=self._execution.torch_device())
        data, random = (
            self._task.client(client),
            generator(seed, round_number, client),
        )
        update, sums = self.trainer.train(start, data, local, random)
        return Update(update.cpu().numpy(), *sums.tolist())
