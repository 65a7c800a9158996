"""The server: federated averaging of the hospitals' models.

Three lines gather what the hospitals measured: the import of ``RecordAudit``, its call, and
``report``.
"""

from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

from fl_epe.flower import RecordAudit
from three_hospitals.task import HOSPITALS, Net, public_accuracy

app = ServerApp()


def public_evaluation(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Loss and accuracy of the global model on the public records."""
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = public_accuracy(net)
    return MetricRecord({"loss": loss, "accuracy": accuracy})


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, save the model, print the report."""
    config = context.run_config
    hospitals = len(HOSPITALS)
    strategy: Strategy = FedAvg(
        fraction_evaluate=0.0, min_train_nodes=hospitals, min_available_nodes=hospitals
    )
    strategy = RecordAudit(strategy, delta=1e-5)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=public_evaluation,
    )
    output = Path(str(config["output"]))
    output.mkdir(parents=True, exist_ok=True)
    torch.save(result.arrays.to_torch_state_dict(), output / "final_model.pt")
    print(strategy.report(output))
