"""The server: federated averaging, evaluated on images that no client holds.

Three lines add the audit: the import of ``CanaryAudit``, its call, and ``report``.
"""

import time
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Strategy,
)

from canary_audit.task import Net, test, test_images
from fl_epe.flower import CanaryAudit

app = ServerApp()


def central_evaluation(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Loss and accuracy of the global model on the held-out images."""
    model = Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test(model, test_images())
    return MetricRecord({"loss": loss, "accuracy": accuracy})


def check_nodes(grid: Grid, wanted: int, seconds: float = 60.0) -> None:
    """Wait for the nodes; Flower itself would wait for ever, and a simulation has two by default.

    Raises:
        RuntimeError: if fewer are connected by then.
    """
    end = time.monotonic() + seconds
    while (connected := len(list(grid.get_node_ids()))) < wanted:
        if time.monotonic() > end:
            raise RuntimeError(
                f"Expected min-nodes={wanted} nodes, {connected} are connected. To simulate add "
                f'--federation-config "num-supernodes={wanted} client-resources-num-cpus=1" to '
                "flwr run; elsewhere start SuperNodes, or say --run-config min-nodes=…"
            )
        time.sleep(1)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, save the model, print the report."""
    config = context.run_config
    output = Path(str(config["output"]))
    min_nodes = int(config["min-nodes"])
    fraction = float(config["fraction-train"])
    check_nodes(grid, min_nodes)

    strategy: Strategy = FedAvg(
        fraction_train=fraction,
        fraction_evaluate=float(config["fraction-evaluate"]),
        min_train_nodes=max(1, int(fraction * min_nodes)),
        min_available_nodes=min_nodes,
    )
    if float(config["noise-multiplier"]) > 0:
        strategy = DifferentialPrivacyServerSideFixedClipping(
            strategy,
            noise_multiplier=float(config["noise-multiplier"]),
            clipping_norm=float(config["clipping-norm"]),
            num_sampled_clients=int(config["num-sampled-clients"]),
        )
    strategy = CanaryAudit(strategy, delta=1e-5)

    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        timeout=float(config["round-timeout"]),
        evaluate_fn=central_evaluation,
    )

    output.mkdir(parents=True, exist_ok=True)
    torch.save(result.arrays.to_torch_state_dict(), output / "final_model.pt")
    print(strategy.report(output))
