"""The server: federated averaging, audited, behind a guard, from the last model that was kept.

Three lines are the audit's: the import of ``CanaryAudit``, its call, and ``report``.
"""

import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fl_epe.flower import CanaryAudit
from hardened.task import as_arrays, as_weights, new_model, test, test_images

app = ServerApp()
_UNUSABLE = 200  # Flower's own error codes are below


class GuardedGrid:
    """The nodes' answers; one that no honest node gives becomes an error.

    One reply with NaN would be the end of the model, and one that claims to have all examples would
    be the model. Strategies leave errors out, and the audit counts them and says whose they are.

    Args:
        grid: by which nodes are asked.
        most_examples: that a node may have.
    """

    def __init__(self, grid: Grid, most_examples: int) -> None:
        self._grid, self._most = grid, most_examples

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(
        self,
        messages: Iterable[Message],
        *,
        timeout: float | None = None,
        **newer: Any,
    ) -> list[Message]:
        """As the grid does, with whatever a newer Flower asks besides."""
        sent = list(messages)
        replies = list(
            self._grid.send_and_receive(sent, timeout=timeout, **newer)
        )
        asked = {message.metadata.message_id: message for message in sent}
        for i, reply in enumerate(replies):
            if not reply.has_error() and (wrong := self._wrong(reply)):
                order = asked[reply.metadata.reply_to_message_id]
                replies[i] = Message(Error(_UNUSABLE, wrong), reply_to=order)
        return replies

    def _wrong(self, reply: Message) -> str:
        """What is wrong with an answer; "" if nothing is."""
        arrays = [
            a
            for record in reply.content.array_records.values()
            for a in record.values()
        ]
        if not all(np.isfinite(array.numpy()).all() for array in arrays):
            return "It answered NaN or infinite entries."
        for metrics in reply.content.metric_records.values():
            examples: Any = metrics["num-examples"]
            if not 0 < examples <= self._most:
                return f"Expected num-examples={examples} in (0, {self._most}]."
        return ""


class Kept:
    """The models of an unfinished run: who starts again goes on from the last one.

    Args:
        folder: has ``model-3.npz`` after three rounds.

    Attributes:
        rounds: how many are done.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.rounds = max(
            (int(path.stem[6:]) for path in folder.glob("model-*.npz")),
            default=0,
        )
        self._before, self._images = self.rounds, test_images()

    def arrays(self) -> ArrayRecord:
        """The last model, or a new one."""
        if self.rounds == 0:
            return as_arrays(new_model())
        with np.load(self._folder / f"model-{self.rounds}.npz") as kept:
            return as_arrays(dict(kept))

    def evaluate(self, server_round: int, arrays: ArrayRecord) -> MetricRecord:
        """Keep the model after a round; returns its loss and accuracy."""
        weights: Any = as_weights(arrays)
        if server_round:
            self.rounds = self._before + server_round
            part = self._folder / "part.npz"
            np.savez(part, **weights)
            part.replace(self._folder / f"model-{self.rounds}.npz")
        return MetricRecord(dict(test(weights, self._images)))


def wait_for_nodes(grid: Grid, wanted: int, seconds: float = 300.0) -> None:
    """Wait for the nodes; Flower itself would wait for ever.

    Raises:
        RuntimeError: if fewer are connected by then.
    """
    end = time.monotonic() + seconds
    while (connected := len(list(grid.get_node_ids()))) < wanted:
        if time.monotonic() > end:
            raise RuntimeError(
                f"Expected min-nodes={wanted} nodes, {connected} are connected: see flwr supernode"
                " list, or say --run-config min-nodes=…"
            )
        time.sleep(1)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, save the model, print the report."""
    config = context.run_config
    output, nodes = Path(str(config["output"])), int(config["min-nodes"])
    wait_for_nodes(grid, nodes)
    unfinished = output / "unfinished"
    unfinished.mkdir(parents=True, exist_ok=True)
    kept = Kept(unfinished)

    strategy = FedAvg(
        fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes
    )
    audit = CanaryAudit(
        strategy,
        delta=1e-5,
        max_share=float(config["max-share"]),
        checkpoint=unfinished / "audit",
    )
    guarded: Any = GuardedGrid(grid, int(config["most-examples"]))
    result = audit.start(
        grid=guarded,
        initial_arrays=kept.arrays(),
        num_rounds=int(config["num-server-rounds"]) - kept.rounds,
        timeout=float(config["round-timeout"]),
        evaluate_fn=kept.evaluate,
    )

    final: Any = as_weights(result.arrays)
    np.savez(output / "final_model.npz", **final)
    print(audit.report(output))
    shutil.rmtree(unfinished)  # it has the canaries' seed
