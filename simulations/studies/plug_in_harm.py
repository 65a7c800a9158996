"""Does `CanaryAudit` harm the training that it is put around? Flower's quickstart with and without.

    python simulations/studies/plug_in_harm.py  # seven minutes

Real digits are dealt to clients, all of whom train a softmax regression in each round, and FedAvg
averages their replies; with noise, in Flower's wrapper for fixed clipping. A seed deals the digits,
of which a fifth is held out. Each seed is trained twice, as it is and with ``CanaryAudit(strategy,
delta=1e-5)``. Printed are means over seeds: both accuracies, their difference with its standard
error, and the share of canaries among the replies.

Ten seeds, 30 rounds::

                            plain  audited   difference      canaries
    10 clients             90.64%   90.53%  -0.11% ± 0.06%     9.1%
    100 clients            90.61%   90.56%  -0.06% ± 0.12%     9.9%
    10 clients, z = 0.1    90.69%   90.36%  -0.33% ± 0.28%    10.0%
    100 clients, z = 0.1   90.61%   90.64%  +0.03% ± 0.05%     2.0%

FedAvg divides by all replies, so that with 10% more of them a round moves the model 9% less.
"""

from __future__ import annotations

import argparse
import logging

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
from sklearn.datasets import load_digits

from fl_epe.checks import Floats
from fl_epe.flower import CanaryAudit, InProcessGrid
from fl_epe.seeding import generator

RATE, STEPS = 0.2, 3


class Digits:
    """The digits, dealt to clients; the last fifth of a random order is held out."""

    def __init__(self, clients: int, seed: int) -> None:
        data = load_digits()
        order = generator(seed, 0).permutation(len(data.target))
        self._inputs, self._targets = data.data[order] / 16, data.target[order]
        self._clients, self._train = clients, len(order) * 4 // 5

    def app(self) -> ClientApp:
        """A client that takes three steps of gradient descent on its digits."""
        app = ClientApp()

        @app.train()
        def train(message: Message, context: Context) -> Message:
            client = int(context.node_config["partition-id"])
            received = message.content.array_records["arrays"]["weight"].numpy()
            weight, count = self.train(client, received.astype(float))
            content = RecordDict(
                {
                    "arrays": as_record(weight),
                    "metrics": MetricRecord({"num-examples": count}),
                }
            )
            return Message(content, reply_to=message)

        return app

    def train(self, client: int, weight: Floats) -> tuple[Floats, int]:
        """The model after a client's local training, and its number of digits."""
        part = slice(client, self._train, self._clients)
        inputs = self._inputs[part]
        targets = self._targets[part]
        for _ in range(STEPS):
            slope = chances(weight, inputs)
            slope[np.arange(len(targets)), targets] -= 1
            weight = weight - RATE * inputs.T @ slope / len(targets)
        return weight, len(targets)

    def accuracy(self, weight: Floats) -> float:
        """Share of the digits held out that the model names rightly."""
        held = slice(self._train, None)
        guessed = chances(weight, self._inputs[held]).argmax(axis=1)
        return float(np.mean(guessed == self._targets[held]))


def as_record(weight: Floats) -> ArrayRecord:
    """A matrix as Flower sends it."""
    return ArrayRecord({"weight": Array(weight.astype(np.float32))})


def chances(weight: Floats, inputs: Floats) -> Floats:
    """Probability of each digit, shape ``(rows, 10)``."""
    scores = inputs @ weight
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), np.float64)


def strategy_for(clients: int, noise: float) -> Strategy:
    """FedAvg on all nodes, in a DP wrapper if there is noise."""
    everyone = FedAvg(
        min_train_nodes=clients,
        min_available_nodes=clients,
        fraction_evaluate=0.0,
    )
    if not noise:
        return everyone
    return DifferentialPrivacyServerSideFixedClipping(
        everyone, noise, 0.5, clients
    )


def trained(
    digits: Digits, clients: int, noise: float, rounds: int, seed: int | None
) -> tuple[float, float]:
    """Accuracy, and the canaries' share; audited if there is a seed."""
    strategy = strategy_for(clients, noise)
    if seed is not None:
        strategy = CanaryAudit(strategy, delta=1e-5, seed=seed)
    with InProcessGrid(digits.app(), clients) as grid:
        result = strategy.start(
            grid, as_record(np.zeros((64, 10))), num_rounds=rounds
        )
    share = 0.0
    if isinstance(strategy, CanaryAudit):
        record = strategy.record()
        canaries = record.presence.sum(axis=1).mean()
        share = canaries / record.mechanism.cohort_size
    weight = result.arrays["weight"].numpy()
    return digits.accuracy(weight), float(share)


def main() -> None:
    """Print a row for each number of clients, with noise and without."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    print("                        plain  audited   difference       canaries")
    for clients, noise in ((10, 0.0), (100, 0.0), (10, 0.1), (100, 0.1)):
        rows = []
        for seed in range(options.seeds):
            digits = Digits(clients, seed)
            plain, _ = trained(digits, clients, noise, options.rounds, None)
            audited, share = trained(
                digits, clients, noise, options.rounds, seed
            )
            rows.append((plain, audited, audited - plain, share))
        plain, audited, difference, share = np.mean(rows, axis=0)
        error = np.std(rows, axis=0, ddof=1)[2] / np.sqrt(len(rows))
        name = f"{clients} clients" + (f", z = {noise:g}" if noise else "")
        harm = f"{difference:+6.2%} ± {error:.2%}"
        print(
            f"{name:22}{plain:7.2%}  {audited:7.2%}  {harm}  {share:7.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
