"""Does ε depend on how many canaries look for it? One app, audited with 4 to 1,000 canaries.

    python simulations/audits/count_of_canaries.py           # all tables: three minutes
    python simulations/audits/count_of_canaries.py --quick   # plain FedAvg only: half a minute

Ten clients train on scikit-learn's digits for ten rounds without any noise. A canary takes part
once. With 1,000 canaries a round has 100 of them beside the ten clients, and "raw" ε, with all of
them left in, falls as they hide each other. ε for one canary among real clients ("alone") takes the
other canaries out of what hides one. Each ε stands with its 95% interval, at δ = 10⁻⁵; "share" is
the other canaries' share of the energy of the rounds' mean updates.

The apps:

- "softmax" and "network": plain FedAvg under `CanaryAudit`; clients of the first agree far more;
- "momentum": the network under FedAvgM with momentum 0.9. Canaries dilute the real clients in the
  mean, so that training goes slower, and their updates, which canaries are as long as, differ;
- "five rounds": the network, and each canary takes part five times;
- "DPFedAvg": a cohort of ten digits clients, clipped; "limit" is what `limit_record` predicts from
  the run's norms.

Expected (2026-11-22, two cores shared with other work)::

EXPECTED
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from flower_federation import Digits, Model, client_app, to_record
from flwr.serverapp.strategy import FedAvg, FedAvgM
from sklearn.datasets import load_digits

from fl_epe import AuditRecord, EpsilonEstimate, epsilon_from_record
from fl_epe.asymptotics import limit_record
from fl_epe.asymptotics.expected_scores import limit_like
from fl_epe.auditing import others_share
from fl_epe.config import RunConfig
from fl_epe.flower import CanaryAudit, InProcessGrid
from fl_epe.seeding import Seeds
from fl_epe.simulation import Job, quiet_flower, simulate
from fl_epe.tasks import load_task

COUNTS = (4, 20, 60, 200, 1000)
CLIENTS, ROUNDS, DELTA, SEED = 10, 10, 1e-5, 1


def softmax(model: Model, node: int, server_round: int) -> Model:
    """Softmax regression on every tenth digit; 650 parameters."""
    images, labels = load_digits(return_X_y=True)
    inputs, targets = images[node::CLIENTS] / 16, np.eye(10)[labels[node::CLIENTS]]
    weight, bias = (np.array(values, np.float64) for values in model.values())
    for _ in range(5):
        scores = np.exp(inputs @ weight + bias)
        wrong = 0.5 * (scores / scores.sum(axis=1, keepdims=True) - targets) / len(inputs)
        weight, bias = weight - inputs.T @ wrong, bias - wrong.sum(axis=0)
    return {"weight": weight.astype("f4"), "bias": bias.astype("f4")}


def plug_in(app: str, count: int) -> AuditRecord:
    """A FedAvg app under `CanaryAudit`."""
    settings: dict[str, Any] = {
        "fraction_evaluate": 0.0,
        "min_train_nodes": 2,
        "min_available_nodes": CLIENTS,
    }
    strategy = FedAvg(**settings)
    if app == "momentum":
        strategy = FedAvgM(**settings, server_learning_rate=1.0, server_momentum=0.9)
    times = 5 if app == "five rounds" else 1
    audit = CanaryAudit(strategy, num_canaries=count, seed=SEED, delta=DELTA, participations=times)
    network = Digits(CLIENTS)
    initial: Model = {name: values.astype("f4") for name, values in network.initial().items()}
    if app == "softmax":
        initial = {"weight": np.zeros((64, 10), "f4"), "bias": np.zeros(10, "f4")}
    with InProcessGrid(client_app(softmax if app == "softmax" else network), CLIENTS) as grid:
        audit.start(grid, to_record(initial), num_rounds=ROUNDS)
    return audit.record()


def dp_fed_avg(count: int) -> tuple[AuditRecord, EpsilonEstimate]:
    """A run of `DPFedAvg`, and the limit's ε for an adversary who sees every round."""
    config = RunConfig(
        clients=60,
        rounds=ROUNDS,
        clients_per_round=CLIENTS,
        num_canaries=count,
        unobserved=20,
        noise_multiplier=0.0,
        clipping="fixed",
        clip_norm=0.5,
        server_learning_rate=1 + count / ROUNDS / CLIENTS,  # as if the mean were over clients
        server_momentum=0.0,
        delta=DELTA,
    )
    job = Job(load_task("digits", num_clients=60), config, Seeds.derive(SEED), ROUNDS)
    record = simulate(job, workers=1)
    limit = limit_record(
        config.canary_schedule(), 0.0, DELTA, num_canaries=20_000, **limit_like(record)
    )
    return record, epsilon_from_record(limit, threat="all")


def row(name: str, count: int, record: AuditRecord) -> str:
    """Every round raw and alone, final model raw and alone."""
    share = float(np.mean(others_share(record)[record.presence.any(axis=1)]))
    cells = [
        _cell(epsilon_from_record(record, threat=threat, raw=raw))
        for threat in ("all", "final")
        for raw in (True, False)
    ]
    return f"{name:<11} {count:>5} {share:>4.0%} " + " ".join(cells)


def _cell(found: EpsilonEstimate) -> str:
    return f"{found.epsilon:>6.1f} {f'({found.low:.1f} – {found.high:.1f})':<15}"


def main(quick: bool, say: Callable[[str], object] = print) -> None:
    """Print the tables."""
    quiet_flower()
    say(f"{'':<23}{'every round: raw':<23}{'alone':<23}{'final model: raw':<23}alone")
    for app in (
        ("softmax", "network") if quick else ("softmax", "network", "momentum", "five rounds")
    ):
        for count in COUNTS:
            say(row(app, count, plug_in(app, count)).rstrip())
    for count in () if quick else COUNTS:
        record, limit = dp_fed_avg(count)
        say(row("DPFedAvg", count, record).rstrip() + f"  limit {limit.epsilon:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="plain FedAvg only")
    main(parser.parse_args().quick)
