"""A server app that keeps its models and goes on from the last one, with an audit.

Run as ``python killed_server.py FOLDER [ROUND]``: in that round its clients never answer, and the
file ``FOLDER/waits`` says that they were asked. Without it the app runs to its end and leaves
``FOLDER/record.npz``.
"""

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
from flower_audits import DELTA, NODES, PLAIN
from flower_clients import drifting_app, model
from flwr.app import Array, ArrayRecord
from flwr.serverapp import strategy as flower

from fl_epe.flower import CanaryAudit, InProcessGrid

ROUNDS, CANARIES = 8, 24


class Later(flower.FedAvgM):
    """Numbers its rounds on from ``done``, so that clients do what they do without an interruption.

    With momentum 0, as by default, it is `FedAvg`; ``vector`` is the momentum that was kept.
    """

    def __init__(
        self, done: int = 0, momentum: float = 0.0, vector: Any = None
    ) -> None:
        rate = 0.5 if momentum else 1.0
        super().__init__(
            **PLAIN, server_learning_rate=rate, server_momentum=momentum
        )
        self.done, self.momentum_vector = done, vector

    def configure_train(self, server_round: int, *given: Any) -> Any:
        return super().configure_train(server_round + self.done, *given)


def main(folder: Path, stops_in: int) -> None:
    def fails(node: int, server_round: int) -> bool:
        if server_round == stops_in:
            (folder / "waits").touch()
            threading.Event().wait()
        return False

    def keep(server_round: int, arrays: ArrayRecord) -> None:
        part = folder / "part.npz"
        values = {name: array.numpy() for name, array in arrays.items()}
        np.savez(part, **values)  # type: ignore[arg-type]
        part.replace(folder / f"model-{done + server_round}.npz")

    done = max(
        (int(path.stem[6:]) for path in folder.glob("model-*.npz")), default=0
    )
    arrays = model()
    if done:
        with np.load(folder / f"model-{done}.npz") as kept:
            arrays = ArrayRecord({name: Array(kept[name]) for name in arrays})
    audit = CanaryAudit(
        Later(done),
        num_canaries=CANARIES,
        delta=DELTA,
        checkpoint=folder / "audit",
        max_share=0.5,
    )
    with InProcessGrid(drifting_app(fails=fails), NODES) as grid:
        audit.start(grid, arrays, num_rounds=ROUNDS - done, evaluate_fn=keep)
    audit.record().save(folder / "record.npz")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
