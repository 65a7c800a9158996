"""Losses of one mislabelled example, and the claim that they refute (Tramèr et al. 2022, figure 1).

    python simulations/tramer_2022/debugging.py    # minutes on one core; --quick: seconds

The paper trains networks on MNIST with an example and without it, by code that takes a batch's mean
gradient to be B times less sensitive than it is; figure 1 has the losses of the example, and the
threshold between them. Here networks of one hidden layer, each from random weights of its own,
learn scikit-learn's digits by DP-SGD with the same mistake, and without it. As in the paper the
threshold is chosen by models of their own, and the bound is Clopper-Pearson's. The paper clips
signals of layers ("backpropagation clipping"), here whole gradients are clipped; and it tries many
examples, here the first that is drawn is taken.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from fl_epe.auditing.bounds.error_rates import (
    clopper_pearson_upper,
    epsilon_from_rates,
)
from fl_epe.models import one_thread
from simulations.nasr_2023.input_canaries import fixed_examples
from simulations.shared.audit_script import Result, Settings, Table, run
from simulations.shared.composed import noise_of_epsilon
from simulations.shared.small_networks import Networks, digits

Floats = NDArray[np.float64]

_CLAIM = 0.21  # ε, at δ = 1e-5
_CLIP, _LEARNING_RATE = 1.0, 2.0
_HIDDEN, _EXAMPLES, _STEPS = 16, 200, 40
_QUICK_EXAMPLES, _QUICK_STEPS = 20, 10
_AT_ONCE = 200  # models
_SHARE_FOR_CHOICE = 0.2  # of the models, which choose the threshold
_BINS = 8  # of the losses


def audit(settings: Settings) -> Result:
    """The broken version must be found out, and the correct one must not."""
    models = settings.count(2000, 200)
    with one_thread():
        losses_of = {
            name: _played(broken, models, settings)
            for name, broken in _VERSIONS.items()
        }
    rows = [
        (name, _CLAIM, *_attack(losses, models, settings))
        for name, losses in losses_of.items()
    ]
    columns = ("noise", "claimed ε", "threshold", "FPR", "TPR", "ε ≥")
    tables = [Table(f"{models:,} models in each world", columns, rows)]
    tables += [_histogram(name, losses) for name, losses in losses_of.items()]
    broken, correct = (row[-1] for row in rows)
    summary = (
        f"The claim ε = {_CLAIM:g} of the broken version is refuted by ε ≥ {broken:.2f}; of the "
        f"correct one ε ≥ {correct:.2f} is proved."
    )
    return Result(summary, tables, (), broken > _CLAIM >= correct)


_VERSIONS = {"over batch size (broken)": True, "correct": False}


def _played(
    broken: bool, models: int, settings: Settings
) -> tuple[Floats, Floats]:
    """Losses of the example in models trained with it and without it, each of shape (models,)."""
    size, steps = (
        (_QUICK_EXAMPLES, _QUICK_STEPS)
        if settings.quick
        else (_EXAMPLES, _STEPS)
    )
    train, auxiliary = digits(settings.seed)
    shared_examples = train.take(torch.arange(size))
    example = fixed_examples(auxiliary, settings.seed)["mislabelled"]
    noise = noise_of_epsilon(_CLAIM, settings.delta) * math.sqrt(steps) * _CLIP
    if broken:
        noise /= size
    worlds = []
    for stream, examples in enumerate(
        (shared_examples.beside(example), shared_examples)
    ):
        random = torch.Generator().manual_seed(
            10 * settings.seed + 2 * broken + stream
        )
        losses = []
        for first in range(0, models, _AT_ONCE):
            start = int(torch.randint(2**31, (1,), generator=random))
            count = min(_AT_ONCE, models - first)
            networks = Networks.drawn(count, _HIDDEN, start, alike=False)
            networks.train(
                examples,
                steps,
                clip_norm=_CLIP,
                noise=noise,
                rate=_LEARNING_RATE / size,
                random=random,
            )
            odds = networks.log_odds(example)[:, 0]
            losses.append(torch.nn.functional.softplus(-odds))
        worlds.append(torch.cat(losses).double().numpy())
    trained_with, trained_without = worlds
    return trained_with, trained_without


def _attack(
    losses: tuple[Floats, Floats], models: int, settings: Settings
) -> tuple[float, float, float, float]:
    """Threshold, FPR and TPR of "trained with it if the loss is below", and the bound on ε."""
    choosing = round(_SHARE_FOR_CHOICE * models)
    first_with, first_without = (side[:choosing] for side in losses)
    candidates = np.sort(np.concatenate([first_with, first_without]))
    bounds = _bounds(first_with, first_without, candidates, settings)
    threshold = candidates[int(np.argmax(bounds))]
    rest_with, rest_without = (side[choosing:] for side in losses)
    (bound,) = _bounds(rest_with, rest_without, np.array([threshold]), settings)
    fpr, tpr = (
        float(np.mean(side < threshold)) for side in (rest_without, rest_with)
    )
    return float(threshold), fpr, tpr, float(bound)


def _bounds(
    trained_with: Floats,
    trained_without: Floats,
    thresholds: Floats,
    settings: Settings,
) -> Floats:
    """The bound on ε at each threshold, from limits of both rates that hold together."""
    level = (1 - settings.confidence) / 2
    missed = np.array(
        [np.sum(trained_with >= place) for place in thresholds], np.float64
    )
    alarms = np.array(
        [np.sum(trained_without < place) for place in thresholds], np.float64
    )
    fnr = clopper_pearson_upper(missed, trained_with.size, level)
    fpr = clopper_pearson_upper(alarms, trained_without.size, level)
    return epsilon_from_rates(np.log(fpr), fnr, settings.delta)


def _histogram(name: str, losses: tuple[Floats, Floats]) -> Table:
    """Figure 1 in numbers: how many models have a loss in each bin."""
    edges = np.quantile(np.concatenate(losses), np.linspace(0, 1, _BINS + 1))
    trained_with, trained_without = (
        np.histogram(side, edges)[0] for side in losses
    )
    rows = [
        (
            f"{edges[place]:.3g} to {edges[place + 1]:.3g}",
            int(trained_with[place]),
            int(trained_without[place]),
        )
        for place in range(_BINS)
    ]
    return Table(
        f"Losses, noise {name}",
        ("loss", "with the example", "without it"),
        rows,
    )


if __name__ == "__main__":
    run(audit, __doc__)
