"""Does ε depend on how many canaries look for it? One app, audited with 4 to 1,000 canaries.

    python simulations/studies/count_of_canaries.py           # all tables: ten minutes
    python simulations/studies/count_of_canaries.py --quick   # plain FedAvg only: one minute

Ten clients train on scikit-learn's digits for ten rounds without any noise. A canary takes part
once. With 1,000 canaries a round has 100 of them beside the ten clients. "raw" ε takes rounds as
independent and leaves all canaries in, so it falls as they are noise to each other. ε for one
canary among real clients ("alone") takes the others out and is whitened by how rounds are
correlated. Each ε stands with its 95% interval, at δ = 10⁻⁵; "share" is the other canaries' share
of the energy of the rounds' mean updates.

The apps:

- "softmax" and "network": plain FedAvg under `CanaryAudit`, in 650 and 4,810 dimensions. Without
  noise a round's mean can be told from the rounds before it up to 3% of its length. In what is left
  a canary stands hundreds of deviations high, and its score is as expected to within one. How high
  depends on the rounds that the canaries are in, and canaries change the training, so that ε is
  not the same for each number of them;
- "momentum": the network under FedAvgM with momentum 0.9;
- "five rounds": the network, and each canary takes part five times;
- "DPFedAvg": a cohort of ten digits clients, clipped, with 1.2 million parameters; "limit" is what
  `limit_record` predicts from the run's norms for rounds that are independent. Intervals do not
  cover which rounds canaries were drawn into, which matters for the first row.

Expected (2026-11-24, two cores shared with other work)::

                            every round: raw        alone                    final  alone  limit
    softmax         4   0%  23.0 (15.6 – 31.3)      16069 (15218 – 16944)      3.9    3.9
    softmax        20   2%  20.5 (17.3 – 24.0)      9447 (9086 – 9815)         2.8    2.5
    softmax        60   7%  16.5 (14.7 – 18.4)      3670 (3587 – 3753)         1.3    1.3
    softmax       200  19%  13.6 (12.7 – 14.6)      4526 (4429 – 4624)         0.9    0.9
    softmax      1000  56%  9.5 (9.1 – 9.9)         8330 (8108 – 8555)         0.8    0.9
    network         4   0%  50.5 (40.3 – 61.8)      222027 (217568 – 226531)    0.0    0.0
    network        20   1%  51.5 (46.7 – 56.4)      50527 (49856 – 51203)      0.3    0.3
    network        60   5%  53.5 (50.7 – 56.4)      50992 (50521 – 51465)      2.2    2.2
    network       200  17%  49.4 (48.0 – 51.0)      63528 (62955 – 64104)      2.9    2.9
    network      1000  52%  33.5 (33.0 – 34.1)      123231 (122209 – 124258)    2.7    2.8
    momentum        4   0%  96.9 (83.1 – 111.7)     29848 (29266 – 30436)      0.0    0.0
    momentum       20   2%  74.0 (68.4 – 79.8)      14892 (14640 – 15147)      0.8    0.8
    momentum       60   8%  70.5 (67.4 – 73.8)      47983 (47089 – 48887)      2.7    2.8
    momentum      200  19%  53.8 (52.3 – 55.4)      63194 (62273 – 64121)      3.1    3.1
    momentum     1000  52%  33.6 (33.0 – 34.2)      167582 (165608 – 169567)    2.8    2.9
    five rounds     4   1%  168.1 (150.1 – 187.0)   1031726 (226678 – inf)    15.3   15.5
    five rounds    20   8%  161.8 (153.8 – 170.0)   69340 (68439 – 70246)     16.6   17.1
    five rounds    60  23%  153.8 (149.3 – 158.4)   221741 (218844 – 224658)   18.1   20.4
    five rounds   200  53%  111.6 (109.5 – 113.8)   742709 (733401 – 752074)   16.2   21.5
    five rounds  1000  85%  47.1 (46.4 – 47.7)      518174 (509732 – 526684)    9.3   21.4
    DPFedAvg        4   0%  37576 (37308 – 37845)   56085 (55653 – 56518)     1323   1328  35322
    DPFedAvg       20   5%  33947 (33833 – 34061)   56933 (56686 – 57180)     1311   1352  33878
    DPFedAvg       60  22%  28119 (28059 – 28179)   57723 (57504 – 57942)     1214   1336  34314
    DPFedAvg      200  51%  17290 (17264 – 17316)   57047 (56844 – 57251)     1001   1345  34143
    DPFedAvg     1000  84%  5595 (5589 – 5602)      56504 (56309 – 56699)    511.3   1327  33862
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.serverapp.strategy import FedAvg, FedAvgM
from sklearn.datasets import load_digits

from fl_epe import AuditRecord, EpsilonEstimate, epsilon_from_record
from fl_epe.auditing import others_share
from fl_epe.config import RunConfig
from fl_epe.flower import CanaryAudit, InProcessGrid
from fl_epe.limit import limit_like, limit_record
from fl_epe.seeding import Seeds
from fl_epe.simulation import Job, simulate
from fl_epe.simulation.flower_internals import quiet_flower
from fl_epe.tasks import load_task
from simulations.shared.flower_federation import (
    Digits,
    Model,
    client_app,
    to_record,
)

COUNTS = (4, 20, 60, 200, 1000)
CLIENTS, ROUNDS, DELTA, SEED = 10, 10, 1e-5, 1


def softmax(model: Model, node: int, server_round: int) -> Model:
    """Softmax regression on every tenth digit; 650 parameters."""
    images, labels = load_digits(return_X_y=True)
    inputs, targets = (
        images[node::CLIENTS] / 16,
        np.eye(10)[labels[node::CLIENTS]],
    )
    weight, bias = (np.array(values, np.float64) for values in model.values())
    for _ in range(5):
        scores = np.exp(inputs @ weight + bias)
        wrong = (
            0.5
            * (scores / scores.sum(axis=1, keepdims=True) - targets)
            / len(inputs)
        )
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
        strategy = FedAvgM(
            **settings, server_learning_rate=1.0, server_momentum=0.9
        )
    times = 5 if app == "five rounds" else 1
    audit = CanaryAudit(
        strategy,
        num_canaries=count,
        seed=SEED,
        delta=DELTA,
        participations=times,
        unobserved=None
        if times == 1
        else max(count, 200),  # to measure their null
        max_share=1.0,  # too many canaries are what is shown
    )
    network = Digits(CLIENTS)
    initial: Model = {
        name: values.astype("f4") for name, values in network.initial().items()
    }
    if app == "softmax":
        initial = {
            "weight": np.zeros((64, 10), "f4"),
            "bias": np.zeros(10, "f4"),
        }
    with InProcessGrid(
        client_app(softmax if app == "softmax" else network), CLIENTS
    ) as grid:
        audit.start(grid, to_record(initial), num_rounds=ROUNDS)
    return audit.record()


def dp_fed_avg(count: int) -> tuple[AuditRecord, EpsilonEstimate]:
    """A run of `DPFedAvg`, and the limit's ε for an adversary who sees every round."""
    config = RunConfig(
        clients=60,
        rounds=ROUNDS,
        clients_per_round=CLIENTS,
        num_canaries=count,
        canary_participations=1,
        unobserved=20,
        noise_multiplier=0.0,
        clipping="fixed",
        clip_norm=0.5,
        server_learning_rate=1
        + count / ROUNDS / CLIENTS,  # as if the mean were over clients
        server_momentum=0.0,
        delta=DELTA,
    )
    job = Job(
        load_task("digits", num_clients=60), config, Seeds.derive(SEED), ROUNDS
    )
    record = simulate(job, workers=1)
    limit = limit_record(
        config.canary_schedule(),
        0.0,
        DELTA,
        num_canaries=20_000,
        **limit_like(record),
    )
    return record, epsilon_from_record(limit, statistic="matched-filter")


def row(name: str, count: int, record: AuditRecord) -> str:
    """Every round raw and alone, with intervals; final model raw and alone."""
    share = float(np.mean(others_share(record)[record.presence.any(axis=1)]))
    raw, projected, final, final_projected = (
        epsilon_from_record(record, statistic=statistic, leave_one_out=not raw)
        for statistic in ("matched-filter", "displacement")
        for raw in (True, False)
    )
    ends = f"{_number(final.epsilon):>6} {_number(final_projected.epsilon):>6}"
    return f"{name:<11} {count:>5} {share:>4.0%}  {_cell(raw):<23} {_cell(projected):<23} {ends}"


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
        ("softmax", "network")
        if quick
        else ("softmax", "network", "momentum", "five rounds")
    ):
        for count in COUNTS:
            record = plug_in(app, count)
            say(row(app, count, record))
    for count in () if quick else COUNTS:
        record, limit = dp_fed_avg(count)
        say(f"{row('DPFedAvg', count, record)} {_number(limit.epsilon):>6}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--quick", action="store_true", help="plain FedAvg only"
    )
    main(parser.parse_args().quick)
