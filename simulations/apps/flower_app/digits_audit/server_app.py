"""The server: DP-FedAvg with canaries, then the record and the report.

`flwr run simulations/apps/flower_app` writes record.npz, report.json and report.html to ``output``.
A server app that was killed goes on from its checkpoint there when it is started again.
Expected with the settings in pyproject.toml: ε about 130 for every round, as theory allows a client
who takes part in 12 rounds, ε about 30 for the final model, and an accuracy of about 90%.
"""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fl_epe.config import RunConfig
from fl_epe.reporting import summarize, write_report
from fl_epe.seeding import Seeds
from fl_epe.simulation import Job, remove_checkpoint, run_on_grid
from fl_epe.tasks import load_task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, audit, write."""
    settings = context.run_config
    task = load_task(str(settings["task"]), num_clients=int(settings["num-clients"]))
    config = RunConfig(
        clients=task.num_clients,
        rounds=int(settings["rounds"]),
        clients_per_round=int(settings["clients-per-round"]),
        noise_multiplier=float(settings["noise-multiplier"]),
    )
    seeds = Seeds.derive(int(settings["seed"]))
    job = Job(task, config, seeds, int(settings["evaluate-every"]))
    output = Path(str(settings["output"]))
    checkpoint, every = output / "checkpoint.npz", int(settings["checkpoint-every"])
    record = run_on_grid(grid, job, checkpoint=checkpoint, checkpoint_every=every)
    record.save(output / "record.npz")
    remove_checkpoint(checkpoint)
    write_report(summarize(record), output)
    print(f"report: {output / 'report.html'}")
