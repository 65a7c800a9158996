"""Opacus's own ε as a claim: are right runs acquitted, and are broken ones found?

    python simulations/nasr_2023/dp_sgd_claims.py            # all tables: five minutes on one core
    python simulations/nasr_2023/dp_sgd_claims.py --quick    # fewer runs
    python simulations/nasr_2023/dp_sgd_claims.py --part 2

1. Correct runs of Opacus on digits, with Poisson sampling: 1,000 canaries, `assert_private` at its
   default 99% for the ε of Opacus's accountant at δ = 10⁻⁵. Four settings of 10 seeds each, and
   two of 5 seeds that were trained with half of the noise that is claimed.
2. The same training with something wrong behind Opacus's back: what the audit finds.
3. Right steps drawn from their laws: how often `check_steps` finds fault with a run.

Measured (the first table 2026-11-27, the second 2026-11-26, one thread on two cores that other work
used as well; torch 2.13.0, Opacus 1.6.0; 2,410 parameters)::

    1. Right runs: claim of Opacus, largest bound, mean estimate, verdicts
      z = 1, batches of  64,  5 epochs   3.240   1.072   3.224  10 not violated
      z = 0.8, batches of  16,  2 epochs   1.922   0.252   1.908  10 not violated
      z = 1.5, batches of 256, 10 epochs   4.759   2.543   4.777  10 not violated
      z = 3, batches of 128,  3 epochs   0.685   0.124   0.672  10 not violated
       Trained with z = 0.5, claimed z = 1
      z = 0.5, batches of  72,  3 epochs   2.857   7.057  14.847  5 violated
      z = 0.5, batches of  16,  1 epochs   0.773   0.991   6.643  5 violated
    2. Broken runs: claim, ε of unknown steps, what is found
      nothing              3.24  3.2 (3.02 – 3.39)
      clip norm doubled    3.24  3.2 (3.02 – 3.39); clipped gradients are up to 2 times as long …
      no clipping          3.24  3.2 (3.02 – 3.39); clipped gradients are up to 108 times as long …
      shuffled loader      3.24  3.44 (3.25 – 3.65); 110 of 115 batches have 64 examples: …
      the same noise       3.24  not measured: rounds 1 and 75 have the same noise …
      no noise              inf  not measured: 115 of 115 steps had no noise …
      noise removed        3.24  not measured: the noise: 4 of 4 without any …
      half of the noise    3.24  17.3 (16.7 – 17.9); the noise is not as claimed (scale): 0.5 …
      two accumulated      4.77  4.71 (4.45 – 4.97); 53 of 57 batches have 128 examples: …
      z = 0.2               174  174 (171 – 176)
    3. Right steps: fault is found with 0 of 3,000 runs
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from fl_epe import audit_dp_sgd
from fl_epe.accounting import poisson_epsilon
from fl_epe.auditing import Evidence, NotMeasured, find_evidence
from fl_epe.dp_sgd import DPSGDAudit
from fl_epe.dp_sgd.clipping import BatchSeen
from fl_epe.dp_sgd.movement import Movement
from fl_epe.dp_sgd.step_checks import StepSeen, check_steps
from fl_epe.noise import NoiseHealth
from simulations.nasr_2023.dp_sgd import DELTA, data


@dataclasses.dataclass(frozen=True)
class Setting:
    """A run of DP-SGD with Poisson sampling, unless ``shuffled``.

    Attributes:
        batch: expected batch size.
        epochs: passes over the data, on average.
        z: noise multiplier.
        clip: clip norm.
        shuffled: whether batches are those of a shuffled loader.
        accumulate: batches whose gradients are accumulated for a step.
    """

    batch: int = 64
    epochs: int = 5
    z: float = 1.0
    clip: float = 1.0
    shuffled: bool = False
    accumulate: int = 1

    @property
    def name(self) -> str:
        """In a line of a table."""
        return (
            f"z = {self.z:g}, batches of {self.batch:3}, {self.epochs:2} epochs"
        )


SETTINGS = (
    Setting(),
    Setting(batch=16, epochs=2, z=0.8),
    Setting(batch=256, epochs=10, z=1.5),
    Setting(batch=128, epochs=3, z=3.0),
)

TOO_LITTLE = (
    Setting(batch=72, epochs=3, z=0.5),
    Setting(batch=16, epochs=1, z=0.5),
)

Break = Callable[[Any], None]


def audited(
    setting: Setting,
    seed: int,
    canaries: int = 1000,
    wrong: Break | None = None,
) -> tuple[DPSGDAudit, float]:
    """The audit of a run, and the ε of Opacus's accountant; ``wrong`` changes the optimizer."""
    from opacus import PrivacyEngine

    torch.manual_seed(seed)
    train, _ = data("digits")
    inputs = train.inputs.reshape(len(train.inputs), -1)
    model = torch.nn.Sequential(
        torch.nn.Linear(inputs.shape[1], 32),
        torch.nn.Tanh(),
        torch.nn.Linear(32, 10),
    )
    engine = PrivacyEngine(accountant="prv")
    examples = torch.utils.data.TensorDataset(inputs, train.targets)
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        data_loader=torch.utils.data.DataLoader(
            examples, setting.batch, shuffle=True
        ),
        noise_multiplier=setting.z,
        max_grad_norm=setting.clip,
        poisson_sampling=not setting.shuffled,
    )
    if wrong is not None:
        wrong(optimizer)
    with audit_dp_sgd(
        optimizer, num_canaries=canaries, delta=DELTA, seed=seed
    ) as audit:
        batches = (pair for _ in range(setting.epochs) for pair in loader)
        for number, (images, targets) in enumerate(batches, 1):
            loss = torch.nn.functional.cross_entropy(model(images), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            if number % setting.accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
    return audit, engine.get_epsilon(DELTA) if setting.z > 0 else np.inf


def verdicts(
    setting: Setting, seeds: int, claimed: float | None = None
) -> list[Evidence]:
    """What so many runs say of the ε of Opacus's accountant, or of another noise multiplier's."""
    evidence = []
    for seed in range(seeds):
        audit, claim = audited(setting, seed)
        if claimed is not None:
            mechanism, design = audit.record().mechanism, audit.record().design
            rate = float(design.settings["sample_rate"])
            claim = poisson_epsilon(
                claimed, rate, len(mechanism.clip_norms), DELTA
            )
        evidence.append(find_evidence(audit, claim, DELTA))
    return evidence


def row(runs: list[Evidence]) -> str:
    """The first claim, the largest bound, the mean estimate, and how often each verdict came."""
    estimates = [
        run.estimate.epsilon for run in runs if run.estimate is not None
    ]
    counts = collections.Counter(run.verdict for run in runs)
    verdict_counts = ", ".join(
        f"{count} {verdict}" for verdict, count in counts.items()
    )
    bound = max(run.lower_bound for run in runs)
    return f"{runs[0].claimed:6.3f}  {bound:6.3f}  {np.mean(estimates):6.3f}  {verdict_counts}"


def _around(
    name: str, change: Callable[[Any, Callable[[], None]], None]
) -> Break:
    """What puts ``change`` in the place of a method, with the latter as its argument."""

    def wrong(optimizer: Any) -> None:
        method = getattr(optimizer, name)
        setattr(optimizer, name, lambda: change(optimizer, method))

    return wrong


@contextlib.contextmanager
def _times(optimizer: Any, name: str, factor: float) -> Iterator[None]:
    before = getattr(optimizer, name)
    setattr(optimizer, name, before * factor)
    yield
    setattr(optimizer, name, before)


def _scaled(name: str, attribute: str, factor: float) -> Break:
    def change(optimizer: Any, method: Callable[[], None]) -> None:
        with _times(optimizer, attribute, factor):
            method()

    return _around(name, change)


def _same_noise(_: Any, method: Callable[[], None]) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        method()


SMALL = Setting(clip=0.2)  # so that gradients are clipped
BROKEN: dict[str, tuple[Setting, Break | None]] = {
    "nothing": (SMALL, None),
    "clip norm doubled": (
        SMALL,
        _scaled("clip_and_accumulate", "max_grad_norm", 2.0),
    ),
    "no clipping": (
        SMALL,
        _scaled("clip_and_accumulate", "max_grad_norm", 1e9),
    ),
    "shuffled loader": (dataclasses.replace(SMALL, shuffled=True), None),
    "the same noise": (SMALL, _around("add_noise", _same_noise)),
    "no noise": (dataclasses.replace(SMALL, z=0.0), None),
    "noise removed": (SMALL, _scaled("add_noise", "noise_multiplier", 0.0)),
    "half of the noise": (SMALL, _scaled("add_noise", "noise_multiplier", 0.5)),
    "two accumulated": (
        dataclasses.replace(SMALL, shuffled=True, accumulate=2),
        None,
    ),
    "z = 0.2": (dataclasses.replace(SMALL, z=0.2), None),
}
"""What is wrong, by name."""


def told(audit: DPSGDAudit) -> tuple[str, ...]:
    """The ε of unknown steps or why there is none, and what is wrong with the steps."""
    try:
        estimate = audit.epsilon()
        epsilon = (
            f"{estimate.epsilon:.3g} ({estimate.low:.3g} – {estimate.high:.3g})"
        )
    except NotMeasured as error:
        epsilon = f"not measured: {error}"
    return epsilon, *audit.findings.faults


def right_steps(
    runs: int, steps: int = 100, rate: float = 1 / 24
) -> dict[str, int]:
    """How many of so many right runs are found fault with; batches of 62.5 on average."""
    rng, fault_counts = (
        np.random.default_rng(5**20),
        dict[str, int](),
    )  # no seed that is looked for
    sizes = {"weight": 2000, "bias": 10, "head": 400}
    for _ in range(runs):
        health = NoiseHealth(sizes, 1.0, level=5e-4)
        for _ in range(steps):
            health.add(rng.standard_normal(sum(sizes.values())))
        examples = rng.binomial(1500, rate, steps)
        observed_steps = [
            StepSeen(1, (BatchSeen(float(count), 1.0),)) for count in examples
        ]
        findings = check_steps(
            observed_steps,
            health.checks(),
            Movement(1),
            rate=rate,
            batch_size=62,
        )
        for fault in findings.faults:
            fault_counts[fault] = fault_counts.get(fault, 0) + 1
    return fault_counts


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer runs")
    parser.add_argument(
        "--part", type=int, choices=(1, 2, 3), help="one table only"
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
        print(
            "1. Right runs: claim of Opacus, largest bound, mean estimate, verdicts"
        )
        for setting in SETTINGS:
            evidence = verdicts(setting, 1 if options.quick else 10)
            print(f"  {setting.name}  {row(evidence)}", flush=True)
        print("   Trained with z = 0.5, claimed z = 1")
        for setting in TOO_LITTLE:
            print(
                f"  {setting.name}  {row(verdicts(setting, 1 if options.quick else 5, 1.0))}"
            )
    if options.part in (None, 2):
        print("2. Broken runs: claim, ε of unknown steps, what is found")
        for name, (setting, wrong) in BROKEN.items():
            audit, claim = audited(setting, 0, wrong=wrong)
            print(f"  {name:18} {claim:6.3g}  " + "; ".join(told(audit)))
    if options.part in (None, 3):
        runs = 200 if options.quick else 3_000
        faults = right_steps(runs)
        count = sum(faults.values())
        print(
            f"3. Right steps: fault is found with {count} of {runs:,} runs",
            faults,
        )


if __name__ == "__main__":
    main()
