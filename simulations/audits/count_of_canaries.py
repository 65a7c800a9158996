"""Does ε depend on how many canaries look for it? One app, audited with 4 to 1,000 canaries.

    python simulations/audits/count_of_canaries.py           # all tables: ten minutes
    python simulations/audits/count_of_canaries.py --quick   # plain FedAvg only: one minute

Ten clients train on scikit-learn's digits for ten rounds without any noise. A canary takes part
once. With 1,000 canaries a round has 100 of them beside the ten clients, and "raw" ε, with all of
them left in, falls as they are noise to each other. ε for one canary among real clients ("alone")
projects the other canaries out of the residual. Each ε stands with its 95% interval, at δ = 10⁻⁵;
"share" is the other canaries' share of the energy of the rounds' mean updates.

The apps:

- "softmax" and "network": plain FedAvg under `CanaryAudit`; clients of the first agree far more;
- "momentum": the network under FedAvgM with momentum 0.9. Canaries dilute the real clients in the
  mean, so that training goes slower, and their updates, which canaries are as long as, differ;
- "five rounds": the network, and each canary takes part five times. Without noise round updates
are correlated,
  which the matched filter's measured null allows for; a second line has its width, and the mean
  score beside that of a filter that is whitened by how the round updates are correlated;
- "DPFedAvg": a cohort of ten digits clients, clipped, with 1.2 million parameters; "limit" is what
  `limit_record` predicts from the run's norms. Intervals do not cover which rounds canaries were
  drawn into, which matters for the first row.

Expected (2026-11-22, two cores shared with other work; DPFedAvg with 1,000 was not run)::

                            every round: raw        alone                    final  alone  limit
    softmax         4   0%  17.8 (11.1 – 25.6)      17.8 (11.1 – 25.6)         0.5    0.5
    softmax        20   1%  15.9 (12.9 – 19.1)      15.9 (12.9 – 19.1)         0.5    0.5
    softmax        60   6%  14.9 (13.2 – 16.7)      15.2 (13.5 – 17.0)         0.3    0.3
    softmax       200  20%  13.8 (12.9 – 14.8)      15.3 (14.4 – 16.3)         0.7    0.6
    softmax      1000  54%  9.2 (8.9 – 9.6)         15.6 (15.1 – 16.0)         0.8    0.9
    network         4   0%  65.6 (54.1 – 78.1)      65.6 (54.1 – 78.1)         4.1    4.1
    network        20   1%  60.8 (55.7 – 66.1)      61.3 (56.2 – 66.7)         4.0    3.9
    network        60   5%  56.2 (53.3 – 59.1)      58.0 (55.1 – 61.0)         3.2    3.2
    network       200  17%  48.9 (47.4 – 50.4)      57.4 (55.8 – 59.0)         2.9    3.0
    network      1000  53%  33.7 (33.1 – 34.3)      57.6 (56.9 – 58.4)         3.0    3.2
    momentum        4   0%  87.5 (74.4 – 101.7)     87.5 (74.4 – 101.7)        4.3    4.3
    momentum       20   2%  85.6 (79.6 – 91.7)      87.1 (81.1 – 93.3)         4.9    4.9
    momentum       60   8%  72.7 (69.5 – 76.0)      76.8 (73.5 – 80.1)         3.8    3.8
    momentum      200  19%  52.5 (51.0 – 54.1)      62.9 (61.2 – 64.6)         3.2    3.3
    momentum     1000  53%  33.7 (33.2 – 34.3)      57.7 (57.0 – 58.4)         3.0    3.3
    five rounds     4   1%  66.7 (51.9 – 83.1)      65.4 (50.8 – 81.6)        25.9   25.7
    five rounds    20  10%  61.1 (51.1 – 71.8)      63.2 (52.9 – 74.2)        23.4   23.6
    five rounds    60  25%  54.8 (46.6 – 63.4)      57.7 (49.1 – 66.9)        20.3   22.2
    five rounds   200  52%  42.9 (36.9 – 49.3)      59.9 (51.3 – 69.0)        15.9   21.7
    five rounds  1000  85%  21.2 (19.9 – 22.5)      57.1 (53.4 – 60.9)         9.3   22.0
    DPFedAvg        4   0%  35908 (35646 – 36171)   35908 (35646 – 36171)     1381   1388  35309
    DPFedAvg       20   5%  32460 (32348 – 32572)   34244 (34129 – 34358)     1312   1354  34183
    DPFedAvg       60  22%  26827 (26768 – 26885)   34126 (34060 – 34192)     1226   1345  34065
    DPFedAvg      200  51%  16896 (16871 – 16922)   34398 (34361 – 34434)     1004   1344  34367
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
from fl_epe.auditing import EVERY_ROUND, FINAL_MODEL, others_share
from fl_epe.config import RunConfig
from fl_epe.flower import CanaryAudit, InProcessGrid
from fl_epe.limit import limit_like, limit_record
from fl_epe.seeding import Seeds
from fl_epe.simulation import Job, simulate
from fl_epe.simulation.flower_internals import quiet_flower
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
    audit = CanaryAudit(
        strategy,
        num_canaries=count,
        seed=SEED,
        delta=DELTA,
        participations=times,
        unobserved=None if times == 1 else max(count, 200),  # to measure their null
        max_share=1.0,  # too many canaries are what is shown
    )
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
    return record, epsilon_from_record(limit, adversary=EVERY_ROUND)


def row(name: str, count: int, record: AuditRecord) -> str:
    """Every round raw and alone, with intervals; final model raw and alone."""
    share = float(np.mean(others_share(record)[record.presence.any(axis=1)]))
    raw, alone, final, final_alone = (
        epsilon_from_record(record, adversary=adversary, leave_one_out=not raw)
        for adversary in (EVERY_ROUND, FINAL_MODEL)
        for raw in (True, False)
    )
    ends = f"{_number(final.epsilon):>6} {_number(final_alone.epsilon):>6}"
    return f"{name:<11} {count:>5} {share:>4.0%}  {_cell(raw):<23} {_cell(alone):<23} {ends}"


def _cell(found: EpsilonEstimate) -> str:
    return f"{_number(found.epsilon)} ({_number(found.low)} – {_number(found.high)})"


def _number(epsilon: float) -> str:
    return f"{epsilon:.0f}" if epsilon >= 1000 else f"{epsilon:.1f}"


def main(quick: bool, say: Callable[[str], object] = print) -> None:
    """Print the tables."""
    quiet_flower()
    head = f"{'':<24}{'every round: raw':<24}{'alone':<24}{'final':>6} {'alone':>6} {'limit':>6}"
    say(head)
    for app in (
        ("softmax", "network") if quick else ("softmax", "network", "momentum", "five rounds")
    ):
        for count in COUNTS:
            record = plug_in(app, count)
            say(row(app, count, record))
    for count in () if quick else COUNTS:
        record, limit = dp_fed_avg(count)
        say(f"{row('DPFedAvg', count, record)} {_number(limit.epsilon):>6}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="plain FedAvg only")
    main(parser.parse_args().quick)
