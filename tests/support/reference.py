"""The loop in docs/notes/dp_fedavg.md: what every backend must equal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from alone import Alone

from fl_epe.config import RunConfig
from fl_epe.seeding import Seeds
from fl_epe.tasks import Task
from fl_epe.training import LocalTraining

_NOTE = Path(__file__).parents[2] / "docs/notes/dp_fedavg.md"


def block() -> str:
    """The note's Python."""
    found = re.findall(r"```python\n(.*?)```", _NOTE.read_text(), re.DOTALL)
    assert len(found) == 1
    return str(found[0])


def train(
    task: Task, config: RunConfig, seeds: Seeds
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns the final model, the clients and the canaries of every round, the clip norms."""
    local = LocalTraining(
        config.local_learning_rate, config.local_epochs, config.local_batch_size
    )
    trainer, names = Alone(task), dict[str, Any]()
    exec(compile(block(), str(_NOTE), "exec"), names)  # noqa: S102 - our own

    def local_update(
        theta: np.ndarray, client: int, round_number: int
    ) -> np.ndarray:
        found = trainer.train(
            theta, client, local, seed=seeds.local, round_number=round_number
        )
        return found.values

    found: tuple[np.ndarray, ...] = names["dp_fedavg"](
        config, seeds, task.initial(seeds.initial), local_update
    )
    return found  # type: ignore[return-value]
