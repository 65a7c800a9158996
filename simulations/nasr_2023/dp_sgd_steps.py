"""What `audit_dp_sgd` says of each step: are right ones acquitted, and are broken ones named?

    python simulations/nasr_2023/dp_sgd_steps.py              # ten seeds of each right kind
    python simulations/nasr_2023/dp_sgd_steps.py --seeds 1    # a minute
    python simulations/nasr_2023/dp_sgd_steps.py --part 2     # the broken steps alone

1. Right runs of Opacus on digits: how many have a fault, and what of their steps is not seen.
2. One run of each broken kind: the faults, or what is not seen.

Measured (2026-11-27, one thread on two cores that other work used as well; torch 2.13.0, Opacus
1.6.0; long lines are shortened)::

    1. Right runs: how many have a fault; what is not seen
      SGD                  0 of 10
      momentum             0 of 10
      Nesterov, decay      0 of 10
      Adam                 0 of 10
      AdamW                0 of 10
      RMSprop              0 of 10
      Adagrad              0 of 10
      schedule             0 of 10
      dead units           0 of 10
      embedding            0 of 10
      embedding, Adam      0 of 10
      frozen layer         0 of 10
      LoRA                 0 of 10
      BatchMemoryManager   0 of 10
      two accumulated      0 of 10
      ExpandedWeights      0 of 10
      functorch            0 of 10
      ghost clipping       0 of 10  clipping of 46 of 46 batches: ghost clipping keeps …
      batches of 4         0 of 10
      smoothed             0 of 10  what moves the model in 46 of 46 steps: …
      smoothed, Adam       0 of 10  what moves the model in 46 of 46 steps: …
      signs                0 of 10  what moves the model in 46 of 46 steps: …
    2. Broken runs: the faults, or what is not seen
      moves by the clipped sum the model moves by a gradient without noise, in 46 of 46 steps
      the same, Adam           the model moves by a gradient without noise, in 46 of 46 steps
      moves by the exact mean  the model moves by a gradient without noise, in 46 of 46 steps
      the exact mean, Adam     the model moves by a gradient without noise, in 46 of 46 steps
      by hand, by the mean     the model moves by a gradient without noise, in 46 of 46 steps
      by the mean as well      not seen: what changed the model between steps, 45 times
      by a tenth of the noise  not seen: what moves the model in 46 of 46 steps: the model …
      noise on touched rows    …; the noise has 0 times its scale in 2,492 entries where no gradi …
      norm of biases only      clipped gradients are up to 3.38 times as long as the clip norm, i …
      each tensor clipped      clipped gradients are up to 2 times as long as the clip norm, in 4 …
      the mean clipped         clipped gradients are up to 9.05 times as long as the clip norm, i …
      weights after clipping   clipped gradients are up to 1.5 times as long as the clip norm, in …
      accounted 2, drawn 4     a batch has 3.981 examples on average, where a sampling rate of 0. …
      PlainDPSGD, exact mean   the model moves by a gradient without noise, in 20 of 20 steps
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import logging
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager

from fl_epe import audit_dp_sgd
from fl_epe.dp_sgd import DPSGDAudit, PlainDPSGD
from simulations.nasr_2023.dp_sgd import DELTA, data

PIXELS = 98  # of 784: every eighth

Tensors = list[torch.Tensor]
Break = Callable[[Any], None]


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of run: 46 steps with batches of 65 examples on average.

    Attributes:
        model: "dense", "relu", "embedding", "frozen" (its first layer) or "lora".
        inner: torch's optimizer.
        options: of the optimizer.
        mode: of Opacus's gradients: "hooks", "ew", "functorch" or "ghost".
        batch: size of a batch, nominally.
        epochs: passes over the data, on average.
        physical: examples of a physical batch, with a `BatchMemoryManager`; 0 without.
        schedule: whether the learning rate is scheduled.
        accumulate: batches of a shuffled loader that are accumulated for a step.
        wrong: what is done to Opacus's optimizer.
    """

    model: str = "dense"
    inner: type[torch.optim.Optimizer] = torch.optim.SGD
    options: tuple[tuple[str, float], ...] = (("lr", 0.3),)
    mode: str = "hooks"
    batch: int = 64
    epochs: int = 2
    physical: int = 0
    schedule: bool = False
    accumulate: int = 1
    wrong: Break | None = None


def optimizer(inner: str, **options: float) -> dict[str, Any]:
    """The part of a `Kind` that names torch's optimizer."""
    return {
        "inner": getattr(torch.optim, inner),
        "options": tuple(options.items()),
    }


RIGHT = {
    "SGD": Kind(),
    "momentum": Kind(**optimizer("SGD", lr=0.1, momentum=0.9)),
    "Nesterov, decay": Kind(
        **optimizer(
            "SGD", lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3
        )
    ),
    "Adam": Kind(**optimizer("Adam", lr=0.01)),
    "AdamW": Kind(**optimizer("AdamW", lr=1e-3, weight_decay=0.1)),
    "RMSprop": Kind(**optimizer("RMSprop", lr=1e-3)),
    "Adagrad": Kind(**optimizer("Adagrad", lr=0.01)),
    "schedule": Kind(schedule=True),
    "dead units": Kind("relu"),
    "embedding": Kind("embedding"),
    "embedding, Adam": Kind("embedding", **optimizer("Adam", lr=0.01)),
    "frozen layer": Kind("frozen"),
    "LoRA": Kind("lora"),
    "BatchMemoryManager": Kind(physical=20),
    "two accumulated": Kind(accumulate=2),
    "ExpandedWeights": Kind(mode="ew"),
    "functorch": Kind(mode="functorch"),
    "ghost clipping": Kind(mode="ghost"),
    "batches of 4": Kind(batch=4, epochs=1),
}
"""Right runs by name; those that process the noisy gradient follow below."""


class LoRA(torch.nn.Module):
    """A frozen layer and its update of rank 4 (Hu et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.base = torch.nn.Linear(PIXELS, 10)
        self.base.requires_grad_(False)
        self.down = torch.nn.Linear(PIXELS, 4, bias=False)
        self.up = torch.nn.Linear(4, 10, bias=False)
        torch.nn.init.zeros_(self.up.weight)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The sum of both."""
        update: torch.Tensor = self.base(inputs) + self.up(self.down(inputs))
        return update


def network(name: str) -> torch.nn.Module:
    """The model of a `Kind`."""
    if name == "lora":
        return LoRA()
    if name == "embedding":  # of the 17 values of each pixel
        return torch.nn.Sequential(
            torch.nn.Embedding(17 * PIXELS, 4),
            torch.nn.Flatten(),
            torch.nn.Linear(4 * PIXELS, 10),
        )
    between = torch.nn.Tanh() if name == "dense" else torch.nn.ReLU()
    model = torch.nn.Sequential(
        torch.nn.Linear(PIXELS, 50), between, torch.nn.Linear(50, 10)
    )
    if name == "frozen":
        model[0].requires_grad_(False)
    return model


def audited(kind: Kind, seed: int, canaries: int = 150) -> DPSGDAudit:
    """The audit of a run."""
    torch.manual_seed(seed)
    train, _ = data("digits")
    inputs = train.inputs.reshape(len(train.inputs), -1)[:, ::8]
    if kind.model == "embedding":
        values = (inputs / inputs.max() * 16).long()
        inputs = values + 17 * torch.arange(PIXELS)
    model = network(kind.model)
    criterion: Any = torch.nn.CrossEntropyLoss()
    examples = torch.utils.data.TensorDataset(inputs, train.targets)
    options: dict[str, Any] = dict(kind.options)
    private_parts = PrivacyEngine().make_private(
        module=model,
        optimizer=kind.inner(model.parameters(), **options),
        data_loader=torch.utils.data.DataLoader(
            examples, kind.batch, shuffle=True
        ),
        criterion=criterion,
        noise_multiplier=1.0,
        max_grad_norm=0.2,  # so that gradients are clipped
        grad_sample_mode=kind.mode,
        poisson_sampling=kind.accumulate == 1,
    )
    model, dp_optimizer, loader = (
        private_parts[0],
        private_parts[1],
        private_parts[-1],
    )
    if len(private_parts) == 4:
        criterion = private_parts[2]
    if kind.wrong is not None:
        kind.wrong(dp_optimizer)
    steps = kind.epochs * len(loader) if kind.accumulate > 1 else None
    with audit_dp_sgd(
        dp_optimizer, delta=DELTA, num_canaries=canaries, steps=steps, seed=seed
    ) as audit:
        _train(kind, model, dp_optimizer, loader, criterion)
    return audit


def _train(
    kind: Kind, model: Any, dp_optimizer: Any, loader: Any, criterion: Any
) -> None:
    schedule = None
    if kind.schedule:
        schedule = torch.optim.lr_scheduler.StepLR(dp_optimizer, 5, 0.9)
    physical: Any = contextlib.nullcontext(loader)
    if kind.physical:
        physical = BatchMemoryManager(
            data_loader=loader,
            max_physical_batch_size=kind.physical,
            optimizer=dp_optimizer,
        )
    with physical as batches:
        for _ in range(kind.epochs):
            for number, (inputs, targets) in enumerate(batches, 1):
                criterion(model(inputs), targets).backward()
                if number % kind.accumulate == 0:
                    dp_optimizer.step()
                    dp_optimizer.zero_grad()
                    if schedule is not None:
                        schedule.step()


def instead(name: str, change: Callable[..., Any]) -> Break:
    """Puts ``change`` in the place of a method: it gets the optimizer and that method."""

    def wrong(dp_optimizer: Any) -> None:
        method = getattr(dp_optimizer, name)
        replaced = types.MethodType(
            lambda self: change(self, method), dp_optimizer
        )
        setattr(dp_optimizer, name, replaced)

    return wrong


def _clipped_sum(self: Any, method: Callable[[], None]) -> None:
    method()
    for parameter in self.params:
        parameter.grad = (
            parameter.summed_grad.view_as(parameter) / self.expected_batch_size
        )


def _exact_mean(self: Any, method: Callable[[], None]) -> None:
    method()
    for parameter in self.params:
        parameter.grad = parameter.grad_sample.mean(dim=0)


def _by_hand(self: Any, _: Callable[[], None]) -> None:
    self.pre_step()
    with torch.no_grad():
        for parameter in self.params:
            parameter -= 0.3 * parameter.grad_sample.mean(dim=0)


def _before_the_step(self: Any, method: Callable[[], None]) -> None:
    with torch.no_grad():
        for parameter in self.params:
            parameter -= 0.3 * parameter.grad_sample.mean(dim=0)
    method()


def _a_tenth_of_the_noise(self: Any, method: Callable[[], None]) -> None:
    method()
    for parameter in self.params:
        exact = (
            parameter.summed_grad.view_as(parameter) / self.expected_batch_size
        )
        parameter.grad = 0.9 * exact + 0.1 * parameter.grad


def _smoothed(self: Any, method: Callable[[], None]) -> None:
    method()
    for parameter in self.params:
        older = getattr(parameter, "smoothed", 0)
        parameter.smoothed = 0.95 * older + 0.05 * parameter.grad
        parameter.grad = parameter.smoothed.clone()


def _signs(self: Any, method: Callable[[], None]) -> None:
    method()
    for parameter in self.params:
        parameter.grad = 0.01 * parameter.grad.sign()


def _noise_on_touched_rows(self: Any, method: Callable[[], None]) -> None:
    sums = [parameter.summed_grad.clone() for parameter in self.params]
    method()
    for parameter, total in zip(self.params, sums, strict=True):
        touched = total.reshape(len(total), -1).any(dim=1)
        rows = touched.reshape(-1, *[1] * (total.ndim - 1))
        parameter.grad = torch.where(rows, parameter.grad, total)


def clipped_by(rule: Callable[[Tensors, float], Tensors]) -> Break:
    """Clips by a rule: from gradients ``(n, entries)`` of each tensor and C to their sums."""

    def change(self: Any, method: Callable[[], None]) -> None:
        pairs = zip(self.grad_samples, self.params, strict=True)
        samples = [part.reshape(len(part), p.numel()) for part, p in pairs]
        sums = rule(samples, self.max_grad_norm)
        method()  # so that Opacus notes that they were clipped
        for parameter, total in zip(self.params, sums, strict=True):
            parameter.summed_grad = total.reshape(parameter.shape)

    return instead("clip_and_accumulate", change)


def _factors(parts: Tensors, clip_norm: float) -> torch.Tensor:
    norms = torch.stack([part.norm(dim=1) for part in parts]).norm(dim=0)
    factors: torch.Tensor = clip_norm / (norms + 1e-6)
    return factors.clamp(max=1)


def _norm_of_biases(parts: Tensors, clip_norm: float) -> Tensors:
    factors = _factors(parts[1::2], clip_norm)
    return [factors @ part for part in parts]


def _each_tensor(parts: Tensors, clip_norm: float) -> Tensors:
    return [_factors([part], clip_norm) @ part for part in parts]


def _the_mean(parts: Tensors, clip_norm: float) -> Tensors:
    means = [part.mean(dim=0, keepdim=True) for part in parts]
    factor = _factors(means, clip_norm)
    return [len(parts[0]) * (factor @ mean) for mean in means]


def _weights_after(parts: Tensors, clip_norm: float) -> Tensors:
    weights = torch.linspace(0.5, 1.5, len(parts[0]))
    return [(weights * _factors(parts, clip_norm)) @ part for part in parts]


def _expects_two(dp_optimizer: Any) -> None:
    dp_optimizer.expected_batch_size = 2


ADAM = optimizer("Adam", lr=0.01)
RIGHT |= {
    "smoothed": Kind(wrong=instead("scale_grad", _smoothed)),
    "smoothed, Adam": Kind(wrong=instead("scale_grad", _smoothed), **ADAM),
    "signs": Kind(wrong=instead("scale_grad", _signs)),
}
BROKEN = {
    "moves by the clipped sum": Kind(wrong=instead("scale_grad", _clipped_sum)),
    "the same, Adam": Kind(wrong=instead("scale_grad", _clipped_sum), **ADAM),
    "moves by the exact mean": Kind(wrong=instead("scale_grad", _exact_mean)),
    "the exact mean, Adam": Kind(
        wrong=instead("scale_grad", _exact_mean), **ADAM
    ),
    "by hand, by the mean": Kind(wrong=instead("step", _by_hand)),
    "by the mean as well": Kind(wrong=instead("step", _before_the_step)),
    "by a tenth of the noise": Kind(
        wrong=instead("scale_grad", _a_tenth_of_the_noise)
    ),
    "noise on touched rows": Kind(
        "embedding", wrong=instead("add_noise", _noise_on_touched_rows)
    ),
    "norm of biases only": Kind(wrong=clipped_by(_norm_of_biases)),
    "each tensor clipped": Kind(wrong=clipped_by(_each_tensor)),
    "the mean clipped": Kind(wrong=clipped_by(_the_mean)),
    "weights after clipping": Kind(wrong=clipped_by(_weights_after)),
    "accounted 2, drawn 4": Kind(batch=4, epochs=1, wrong=_expects_two),
}
"""Broken runs by name."""


class ExactMean(PlainDPSGD):
    """Draws noise, and moves by the mean of the batch without it."""

    def step(self, gradients: np.ndarray) -> np.ndarray:
        """One step, from gradients of shape ``(batch, dim)``."""
        start = self.theta.copy()
        super().step(gradients)
        self._model.data = torch.from_numpy(
            start - self.learning_rate * gradients.mean(axis=0)
        )
        return self.theta


def plain(steps: int = 20, dim: int = 5000) -> DPSGDAudit:
    """The audit of `ExactMean`."""
    optimizer = ExactMean(
        np.zeros(dim),
        learning_rate=0.1,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=8,
    )
    rng = np.random.default_rng(0)
    with audit_dp_sgd(
        optimizer, delta=DELTA, num_canaries=100, steps=steps, seed=0
    ) as audit:
        for _ in range(steps):
            optimizer.step(rng.normal(size=(8, dim)))
    return audit


def said(audit: DPSGDAudit) -> str:
    """Faults, or else what was not seen."""
    findings = audit.findings
    return (
        "; ".join(
            findings.faults or [f"not seen: {text}" for text in findings.unseen]
        )
        or "nothing"
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seeds", type=int, default=10, help="of each right kind"
    )
    parser.add_argument(
        "--part", type=int, choices=(1, 2), help="one table only"
    )
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    warnings.simplefilter(
        "ignore"
    )  # of hooks on a first layer, and noise not for production
    logging.getLogger("fl_epe.dp_sgd").setLevel(
        logging.ERROR
    )  # of the canaries' share
    if options.part in (None, 1):
        print("1. Right runs: how many have a fault; what is not seen")
        for name, kind in RIGHT.items():
            audits = [audited(kind, seed) for seed in range(options.seeds)]
            faulty = sum(bool(audit.findings.faults) for audit in audits)
            unseen = {
                text for audit in audits for text in audit.findings.unseen
            }
            print(
                f"  {name:20} {faulty} of {len(audits)}  {'; '.join(sorted(unseen))}".rstrip()
            )
    if options.part in (None, 2):
        print("2. Broken runs: the faults, or what is not seen")
        for name, kind in BROKEN.items():
            print(f"  {name:24} {said(audited(kind, 0))}")
        print(f"  {'PlainDPSGD, exact mean':24} {said(plain())}")


if __name__ == "__main__":
    main()
