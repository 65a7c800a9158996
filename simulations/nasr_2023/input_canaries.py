"""Canaries that are examples, in DP-SGD on digits (Nasr et al. 2023, section 6.4, appendices C, D).

    python simulations/nasr_2023/input_canaries.py    # minutes on one core; --quick: seconds

White box: the adversary sees every step of one training, and scores it by the canary's gradient.
Black box: the adversary sees the final model of many trainings, and scores the canary's log odds.

Figures 10 to 12 and 16 of the paper; 17: are early steps more revealing? 18: are larger models?

Measured with seed 1 (2026-11-27, a minute of one core; 1,000 steps, ε = 4.377 of each, f-DP (CP))::

                     all      1 –    251 –    501 –    751 –        8       128 hidden units
                            250th    500th    750th   1,000th
    gradient        3.80     3.36     3.75     3.00     2.77     2.99      3.87
    blank           3.40     2.94     2.89     2.77     2.26     2.76      3.35
    adversarial     2.66     1.30     1.79     2.68     2.41     3.50      2.95
    mislabelled     2.38     1.14     0.68     1.74     1.95     1.43      2.05
    crafted         0        0        0        0        0        0         0

Figure 17: the paper finds early steps more revealing on CIFAR-10, and not on random data. Here no
order is common to the canaries. Figure 18: it finds that the larger network leaks slightly more, as
a gradient canary does here: among more parameters the gradients of others are less along it.
Crafted examples have a gradient of a sixth of the clip norm here, and prove nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl_epe.accounting import gaussian_epsilon
from fl_epe.auditing import Scores
from fl_epe.auditing.bounds import lower_bound
from fl_epe.seeding import generator
from simulations.nasr_2023 import step_bounds
from simulations.shared.audit_script import Result, Settings, Table, run
from simulations.shared.composed import noise_of_epsilon
from simulations.shared.small_networks import (
    CLASSES,
    Examples,
    Networks,
    digits,
)

_NOISE, _CLIP = 1.0, 1.0
_HIDDEN, _BATCH, _STEP_SIZE = 32, 64, 0.5
_SIZES = (8, 128)  # hidden units beside the above: figure 18
_PARTS = 4  # of the training: figure 17
_INNER_STEPS = 10  # of crafting an example
_WHOLE = 8.0  # ε of a black-box training
_METHODS = ("gdp", "bayesian-gdp", "clopper-pearson")
Craft = Callable[[Networks], Examples]


def audit(settings: Settings) -> Result:
    """Both adversaries; a valid bound that is surely above the theorem fails."""
    steps = settings.count(1000, 60)
    train, auxiliary = digits(settings.seed)
    truth = gaussian_epsilon(_NOISE, settings.delta)
    white: list[tuple[Any, ...]] = []
    sure_white = []
    scores_of = _white_box(train, auxiliary, steps, _HIDDEN, settings)
    for name, (scores, norm) in scores_of.items():
        white.append((name, norm, truth, *_bounds(scores, settings)))
        sure_white.append(_surely(scores, settings) <= truth)
    models = settings.count(1000, 40)
    black: list[tuple[Any, ...]] = []
    sure_black = []
    for name, canary in fixed_examples(auxiliary, settings.seed).items():
        scores = _black_box(train, canary, models, settings)
        black.append((name, _WHOLE, *_bounds(scores, settings)))
        sure_black.append(_surely(scores, settings) <= _WHOLE)
    labels = tuple(step_bounds.METHODS[name] for name in _METHODS)
    tables = [
        Table(
            f"Every step seen: {steps:,} steps in each world",
            ("canary", "norm / clip norm", "ε of a step", *labels),
            white,
        ),
        Table(
            f"Only the final model seen: {models:,} trainings in each world",
            ("canary", "ε of the run", *labels),
            black,
        ),
        Table(
            f"Figure 17: each {steps // _PARTS:,} steps of the training, in turn",
            ("canary", "first step", "ε of a step", *labels),
            _by_part(scores_of, steps, truth, settings),
        ),
        Table(
            f"Figure 18: networks of one hidden layer, {steps:,} steps in each world",
            (
                "hidden units",
                "canary",
                "norm / clip norm",
                "ε of a step",
                *labels,
            ),
            _by_size(scores_of, train, auxiliary, steps, truth, settings),
        ),
    ]
    examples = white[1:]
    best, last = (
        max(examples, key=lambda row: row[3]),
        max(black, key=lambda row: row[2]),
    )
    summary = (
        f"Of ε = {truth:.2f} of a step, a canary gradient proves {white[0][3]:.2f} and the best "
        f"example ({best[0]}) {best[3]:.2f}; the final model alone proves {last[2]:.2f} of "
        f"ε = {_WHOLE:g}."
    )
    notes = [
        f"A network of {_HIDDEN} hidden units (black box: {_HIDDEN // 2}) on scikit-learn's digits;"
        " the paper trains wide residual networks on CIFAR-10. Canaries are in every step's batch "
        "(q_c = 1).",
        "White box: examples are scored with the model that they were crafted for, one canary of a "
        "kind in each step, and steps are not alike, so that a bound is on a step's ε where all "
        "have the same noise.",
        "A crafted example's gradient is made orthogonal to the mean one of known examples, as in "
        "the paper's algorithm 3. Nothing keeps it long: see 'norm / clip norm'.",
        "Black box: full batches, and all trainings start from the same weights, which the "
        "adversary knows. The bound assumes a Gaussian curve, which the final model need not have.",
        step_bounds.NOT_VALID,
    ]
    return Result(summary, tables, notes, all(sure_white + sure_black))


def _by_part(
    scores_of: dict[str, tuple[Scores, float]],
    steps: int,
    truth: float,
    settings: Settings,
) -> list[tuple[Any, ...]]:
    """Bounds on ε of a step from equally many early and late steps."""
    rows = []
    length = steps // _PARTS
    for name, (scores, _) in scores_of.items():
        observed, unobserved = scores.both()
        for first in range(0, length * _PARTS, length):
            part = slice(first, first + length)
            some = Scores(
                observed[part], unobserved[part], statistic=scores.statistic
            )
            rows.append((name, first, truth, *_bounds(some, settings)))
    return rows


def _by_size(
    scores_of: dict[str, tuple[Scores, float]],
    train: Examples,
    auxiliary: Examples,
    steps: int,
    truth: float,
    settings: Settings,
) -> list[tuple[Any, ...]]:
    """Bounds on ε of a step of smaller and of larger networks."""
    sizes = {
        hidden: _white_box(train, auxiliary, steps, hidden, settings)
        for hidden in _SIZES
    }
    sizes[_HIDDEN] = scores_of
    return [
        (hidden, name, norm, truth, *_bounds(scores, settings))
        for hidden, canaries in sorted(sizes.items())
        for name, (scores, norm) in canaries.items()
    ]


def _bounds(scores: Scores, settings: Settings) -> tuple[float, ...]:
    every = step_bounds.bounds(scores, settings.delta, settings.confidence)
    return tuple(every[name] for name in _METHODS)


def _surely(scores: Scores, settings: Settings) -> float:
    sure = step_bounds.sure(settings.confidence, 7)
    return lower_bound(scores, settings.delta, confidence=sure, method="gdp")


def _white_box(
    train: Examples,
    auxiliary: Examples,
    steps: int,
    hidden: int,
    settings: Settings,
) -> dict[str, tuple[Scores, float]]:
    """Scores of every step by each kind of canary, and its mean norm over the clip norm."""
    rng = generator(settings.seed, 11)
    network = Networks.drawn(1, hidden, settings.seed)
    kinds = _kinds(auxiliary, settings)
    scores: dict[str, list[tuple[float, float]]] = {
        name: [] for name in ["gradient", *kinds]
    }
    norms: dict[str, list[float]] = {name: [] for name in scores}
    for _ in range(steps):
        without, beside = (_batch_sum(network, train, rng) for _ in range(2))
        for name in scores:
            if name == "gradient":
                canary = torch.zeros(network.size)
                canary[int(rng.integers(network.size))] = _CLIP
            else:
                canary = network.clipped_sum(kinds[name](network), _CLIP)[0]
            norm = float(canary.norm())
            unit = canary / max(norm, 1e-12)
            noise = _NOISE * _CLIP * rng.standard_normal(2)
            scores[name].append(
                (
                    float(beside @ unit) + norm + noise[0],
                    float(without @ unit) + noise[1],
                )
            )
            norms[name].append(norm / _CLIP)
        noisy = without + _NOISE * _CLIP * torch.from_numpy(
            rng.standard_normal(network.size).astype(np.float32)
        )
        network.move(-_STEP_SIZE / _BATCH * noisy[np.newaxis])
    return {
        name: (_of_pairs(pairs), float(np.mean(norms[name])))
        for name, pairs in scores.items()
    }


def _of_pairs(pairs: list[tuple[float, float]]) -> Scores:
    observed, unobserved = np.array(pairs).T
    return Scores(observed, unobserved, statistic="along the canary")


def _batch_sum(
    network: Networks, train: Examples, rng: np.random.Generator
) -> Tensor:
    is_sampled = rng.random(len(train.labels)) < _BATCH / len(train.labels)
    return network.clipped_sum(
        train.take(torch.from_numpy(np.flatnonzero(is_sampled))), _CLIP
    )[0]


def _kinds(auxiliary: Examples, settings: Settings) -> dict[str, Craft]:
    """How each kind of example is made for the model of a step."""
    inner = 2 if settings.quick else _INNER_STEPS
    fixed = fixed_examples(auxiliary, settings.seed)
    start = auxiliary.take(torch.tensor([0]))

    def always(example: Examples) -> Craft:
        return lambda network: example

    return {
        **{name: always(example) for name, example in fixed.items()},
        "adversarial": lambda network: _moved(
            start, inner, 0.1, lambda x: network.log_odds(x).sum()
        ),
        "crafted": lambda network: _moved(
            start, inner, 0.1, _alignment(network, auxiliary)
        ),
    }


def fixed_examples(auxiliary: Examples, seed: int) -> dict[str, Examples]:
    """A held-out image with a wrong label, and an image without any ink."""
    rng = generator(seed, 12)
    place = int(rng.integers(len(auxiliary.labels)))
    wrong = (auxiliary.labels[place] + int(rng.integers(1, CLASSES))) % CLASSES
    blank = torch.zeros(1, auxiliary.images.shape[1])
    blank[0, -1] = 1.0
    return {
        "mislabelled": Examples(auxiliary.images[place][None], wrong[None]),
        "blank": Examples(blank, torch.tensor([0])),
    }


def _alignment(
    network: Networks, auxiliary: Examples
) -> Callable[[Examples], Tensor]:
    """How far an example's gradient is along the mean one, which the adversary's data estimate."""
    mean = network.clipped_sum(auxiliary, math.inf)[0]

    def cosine(example: Examples) -> Tensor:
        gradient = network.clipped_sum(example, math.inf)[0]
        aligned: Tensor = torch.abs(gradient @ mean) / (
            gradient.norm() * mean.norm()
        )
        return aligned

    return cosine


def _moved(
    start: Examples, steps: int, size: float, loss: Callable[[Examples], Tensor]
) -> Examples:
    """The example, its image moved down the loss by steps of signs (projected gradient descent)."""
    image = start.images.clone()
    for _ in range(steps):
        image = image.requires_grad_(True)
        (slope,) = torch.autograd.grad(
            loss(Examples(image, start.labels)), image
        )
        moved = (image - size * slope.sign()).clamp(0.0, 1.0).detach()
        moved[:, -1] = 1.0
        image = moved
    return Examples(image.detach(), start.labels)


def _black_box(
    train: Examples, canary: Examples, models: int, settings: Settings
) -> Scores:
    """Log odds of the canary in the final models, trained with it and without it."""
    size, steps = (60, 10) if settings.quick else (200, 40)
    noise = noise_of_epsilon(_WHOLE, settings.delta) * math.sqrt(steps)
    examples_without = train.take(torch.arange(size))
    sides = []
    for stream, examples in enumerate(
        (examples_without.beside(canary), examples_without)
    ):
        networks = Networks.drawn(models, _HIDDEN // 2, settings.seed)
        networks.train(
            examples,
            steps,
            clip_norm=_CLIP,
            noise=noise * _CLIP,
            rate=_STEP_SIZE * 4 / size,
            random=torch.Generator().manual_seed(2 * settings.seed + stream),
        )
        sides.append(networks.log_odds(canary)[:, 0].numpy().astype(np.float64))
    return Scores(
        sides[0], sides[1], statistic="log odds of the canary's label"
    )


if __name__ == "__main__":
    run(audit, __doc__)
