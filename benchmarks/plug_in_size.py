"""What does the plug-in audit cost a large model? Processor time beside clients that take none.

    python benchmarks/plug_in_size.py                  # 5 and 20 million parameters: a minute
    python benchmarks/plug_in_size.py 50000000

Ten clients answer with the model and a step of their own; nobody trains, so that what is left is
the server's work and the copies of messages. Each row is a process of its own with three rounds.

Two cores that had other work to do, NumPy's and the transforms' own threads, 2026-11-27::

    parameters   strategy          plain   audited   a round and million parameters
       5000000   FedAvg            0.5 s    2.1 s    0.11 s
       5000000   fixed clipping    1.1 s    3.4 s    0.16 s
      20000000   FedAvg            5.9 s   11.3 s    0.09 s
      20000000   fixed clipping    7.8 s   20.6 s    0.21 s

The last column is the difference. In it is the final scoring, once, and for fixed clipping the
check of the noise, which imports parts of SciPy (two seconds, once).
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import time

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Strategy,
)

from fl_epe.flower import CanaryAudit, InProcessGrid

CLIENTS, ROUNDS = 10, 3
STRATEGIES = {"fed-avg": "FedAvg", "fixed": "fixed clipping"}


def quick_app(dim: int) -> ClientApp:
    """Clients that answer with the model plus one of ten fixed steps."""
    step = (1e-3 * np.random.default_rng(0).standard_normal(dim)).astype(
        np.float32
    )
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = message.content.array_records["arrays"]["w"].numpy()
        model = model + np.roll(
            step, 1000 * int(context.node_config["partition-id"])
        )
        content = RecordDict(
            {
                "arrays": ArrayRecord({"w": Array(model)}),
                "metrics": MetricRecord({"num-examples": 10}),
            }
        )
        return Message(content, reply_to=message)

    return app


def seconds_of(dim: int, name: str, *, audited: bool) -> float:
    """Processor time of three rounds in this process."""
    strategy: Strategy = FedAvg(
        fraction_evaluate=0.0, min_available_nodes=CLIENTS
    )
    if name == "fixed":
        strategy = DifferentialPrivacyServerSideFixedClipping(
            strategy, 1.0, 1.0, CLIENTS
        )
    if audited:
        strategy = CanaryAudit(strategy, delta=1e-5, seed=1)
    began = time.process_time()
    with InProcessGrid(quick_app(dim), CLIENTS) as grid:
        model = ArrayRecord({"w": Array(np.zeros(dim, np.float32))})
        strategy.start(grid, model, num_rounds=ROUNDS)
    return time.process_time() - began


def _in_a_process(dim: int, name: str, *, audited: bool) -> float:
    command = [sys.executable, __file__, str(dim), "--only", name]
    command += ["--audited"] if audited else []
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    """Print a row for each size and strategy."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "sizes", type=int, nargs="*", default=[5_000_000, 20_000_000]
    )
    parser.add_argument("--only", choices=STRATEGIES, help=argparse.SUPPRESS)
    parser.add_argument(
        "--audited", action="store_true", help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    if options.only:
        print(
            seconds_of(options.sizes[0], options.only, audited=options.audited)
        )
        return
    print(
        "parameters   strategy          plain   audited   a round and million parameters"
    )
    for dim in options.sizes:
        for name, words in STRATEGIES.items():
            plain, audited = (
                _in_a_process(dim, name, audited=flag) for flag in (False, True)
            )
            each = (audited - plain) / ROUNDS / (dim / 1e6)
            print(
                f"{dim:10}   {words:15}{plain:6.1f} s{audited:7.1f} s    {each:.2f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
