"""What do canaries cost a model? Accuracy by their share of the replies.

    python simulations/studies/canary_share.py           # ten seeds: three minutes on one core
    python simulations/studies/canary_share.py --quick   # two seeds of the smallest: a second

Federated averaging on 1,797 handwritten digits, of which each client has about two classes and 397
are held out. A canary is a random direction with the norm of the round's median update, as those of
`CanaryAudit` are without clipping. "lost" is by how many points the accuracy over the last five
rounds is below that of the same run without canaries, with its standard error.

The loss grows with the share, without a threshold: less than a point at a tenth, one or two points
at a fifth, two to four at 30%, six to ten at a half. `CanaryAudit(max_share=…)` is 0.1 by default.

Expected::

    layers            clients  canaries  share  accuracy  lost
    64-10                  10         1     9%     0.904  0.7 ± 0.1
    64-10                  10         2    17%     0.898  1.3 ± 0.1
    64-10                  10         4    29%     0.888  2.3 ± 0.3
    64-10                  10        10    50%     0.843  6.8 ± 1.1
    64-128-10              10         1     9%     0.903  0.6 ± 0.1
    64-128-10              10         2    17%     0.898  1.1 ± 0.1
    64-128-10              10         4    29%     0.887  2.2 ± 0.2
    64-128-10              10        10    50%     0.845  6.3 ± 0.5
    64-64-64-64-10         10         1     9%     0.895  0.8 ± 0.1
    64-64-64-64-10         10         2    17%     0.887  1.6 ± 0.1
    64-64-64-64-10         10         4    29%     0.870  3.3 ± 0.3
    64-64-64-64-10         10        10    50%     0.829  7.4 ± 0.6
    64-128-10              40         4     9%     0.873  0.9 ± 0.1
    64-128-10              40        10    20%     0.860  2.2 ± 0.3
    64-128-10              40        17    30%     0.843  3.9 ± 0.4
    64-128-10              40        40    50%     0.780  10.3 ± 0.9
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

Floats = NDArray[np.float64]
# layers, clients, rounds, learning rate, canaries a round
SETTINGS = [
    ((64, 10), 10, 30, 0.2, (1, 2, 4, 10)),
    ((64, 128, 10), 10, 30, 0.1, (1, 2, 4, 10)),
    ((64, 64, 64, 64, 10), 10, 30, 0.1, (1, 2, 4, 10)),
    ((64, 128, 10), 40, 20, 0.1, (4, 10, 17, 40)),
]
STEPS, BATCH, TRAINING = 5, 32, 1400


def layers_of(
    theta: Floats, sizes: Sequence[int]
) -> list[tuple[Floats, Floats]]:
    """The weights and biases in a vector, layer by layer."""
    shapes = list(itertools.pairwise(sizes))
    parts = np.split(theta, np.cumsum([a * b + b for a, b in shapes])[:-1])
    return [
        (p[:-b].reshape(a, b), p[-b:])
        for p, (a, b) in zip(parts, shapes, strict=True)
    ]


def activations(
    theta: Floats, sizes: Sequence[int], inputs: Floats
) -> list[Floats]:
    """The inputs and every layer's output, ReLU after all but the last."""
    layers = [inputs]
    for weight, bias in layers_of(theta, sizes):
        layers.append(
            np.maximum(layers[-1], 0) @ weight + bias
            if layers[1:]
            else inputs @ weight + bias
        )
    return layers


def gradient(
    theta: Floats,
    sizes: Sequence[int],
    inputs: Floats,
    labels: NDArray[np.int64],
) -> Floats:
    """Of the mean cross-entropy."""
    outputs = activations(theta, sizes, inputs)
    error = np.exp(outputs[-1] - outputs[-1].max(axis=1, keepdims=True))
    error /= error.sum(axis=1, keepdims=True)
    error[np.arange(len(labels)), labels] -= 1
    error /= len(labels)
    parts = []
    for i, (weight, _) in reversed(list(enumerate(layers_of(theta, sizes)))):
        before = np.maximum(outputs[i], 0) if i else inputs
        parts += [error.sum(axis=0), (before.T @ error).ravel()]
        error = (error @ weight.T) * (outputs[i] > 0)
    return np.concatenate(parts[::-1])


def accuracy(
    sizes: Sequence[int],
    clients: int,
    rounds: int,
    rate: float,
    canaries: int,
    seed: int,
) -> float:
    """Held-out accuracy over the last five rounds, with so many canaries in each round."""
    digits = load_digits()
    data, canary = (np.random.default_rng((seed, stream)) for stream in (0, 1))
    order = np.random.default_rng(0).permutation(len(digits.target))
    inputs, labels = digits.data[order] / 16, digits.target[order]
    by_class = np.argsort(labels[:TRAINING], kind="stable")
    parts = np.array_split(by_class, 2 * clients)
    mine = np.split(data.permutation(2 * clients), clients)
    theta = np.concatenate(
        [
            np.append(data.normal(0, np.sqrt(2 / a), a * b), np.zeros(b))
            for a, b in itertools.pairwise(sizes)
        ]
    )
    accuracies = []
    for _ in range(rounds):
        updates = []
        for two in mine:
            examples, local = (
                np.concatenate([parts[i] for i in two]),
                theta.copy(),
            )
            for _ in range(STEPS):
                batch = data.choice(examples, BATCH)
                local -= rate * gradient(
                    local, sizes, inputs[batch], labels[batch]
                )
            updates.append(local - theta)
        length = np.median([np.linalg.norm(update) for update in updates])
        for _ in range(canaries):
            direction = canary.standard_normal(len(theta))
            updates.append(length * direction / np.linalg.norm(direction))
        theta = theta + np.mean(updates, axis=0)
        scores = activations(theta, sizes, inputs[TRAINING:])[-1]
        accuracies.append(
            float(np.mean(scores.argmax(axis=1) == labels[TRAINING:]))
        )
    return float(np.mean(accuracies[-5:]))


def main(*, quick: bool = False, say: Callable[[str], object] = print) -> None:
    """Print the table."""
    seeds = range(2 if quick else 10)
    say("layers            clients  canaries  share  accuracy  lost")
    for sizes, clients, rounds, rate, counts in (
        SETTINGS[:1] if quick else SETTINGS
    ):
        without = np.array(
            [accuracy(sizes, clients, rounds, rate, 0, s) for s in seeds]
        )
        for count in counts:
            with_them = np.array(
                [
                    accuracy(sizes, clients, rounds, rate, count, s)
                    for s in seeds
                ]
            )
            lost = 100 * (without - with_them)
            name, share = "-".join(map(str, sizes)), count / (count + clients)
            error = lost.std(ddof=1) / np.sqrt(len(lost))
            say(
                f"{name:17} {clients:7} {count:9} {share:6.0%}"
                f" {with_them.mean():9.3f}  {lost.mean():.1f} ± {error:.1f}"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="two seeds of the smallest network"
    )
    main(quick=parser.parse_args().quick)
