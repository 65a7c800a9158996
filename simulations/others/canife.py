"""Section 5.4 of Andrew et al. (2024): CANIFE beside random directions, on Fashion-MNIST.

    python simulations/others/canife.py --data-dir DIR   # the four IDX files; minutes a seed
    python simulations/others/canife.py --quick          # the digits of scikit-learn: half a minute

One epoch of DP-SGD of a two-layer network: batch 128, clip norm 1, z = 0.2. CANIFE crafts a sample
every 100 rounds (pool of 512, 2,500 steps on pixels and shares of classes) and attacks that round
with 100 scores; 1,000 canaries in random directions take part in the same run, each in one round.
Both audit the same run, which is repeated over seeds beside what the paper says.

Of the paper's numbers the text at hand has lost all but the analytical ε = 34.5. What is left of
the others is their order: CANIFE's ε below a lower bound by random directions, that below their
estimate, and that below 34.5. With the matched filter the
whole order holds here:

- 34.5 is that of one participation by Rényi divergences at δ = 1/n. Exactly it is 32.5.
- CANIFE says what 100 scores can say, whatever the run leaks: no guess was wrong in any of its
  rounds, and its ε is the most that its limits and composition can give.
- Its crafted gradients see all there is: Gaussians fitted to the same scores find 35 ± 2 a round,
  where theory allows 32.5. So it is its limits, not its canaries, that are weak.
- The paper's statistic, the maximum over rounds, is not Gaussian, and its ε above every bound. How
  the paper's estimate from it is below 34.5 is not known; its network and learning rate are not
  published, and its server may have had momentum.

Expected (2026-11-23, two cores of a Xeon shared with other work, about six minutes a seed;
crafted with Adam of torch; with ours in its place seed 1 gives the same)::

    fashion-mnist: 60,000 examples, δ = 1/n = 1.67e-05, z = 0.2
    one round, by Rényi divergences 34.51 (the paper: 34.5), exactly 32.52
    held-out accuracy                                             0.787 ± 0.002
    CANIFE: lower limits, Rényi composition (as published)        0.255 ± 0.000
    CANIFE: the most it can say with so many scores               0.255 ± 0.000
    CANIFE: lower limits, exact composition                       0.126 ± 0.000
    CANIFE: fitted Gaussians, mean ε of a round                  34.871 ± 1.888
    CANIFE: fitted Gaussians, Rényi composition                  98.167 ± 13.491
    random directions: every round, matched filter               31.847 ± 0.272
      lower bound, Clopper–Pearson: every round, matched filter   23.323 ± 0.656
      Jeffreys, no bound: every round, matched filter            28.696 ± 2.423
    random directions: every round, the paper's maximum         111.424 ± 9.411
      lower bound, Clopper–Pearson: every round, the paper's maximum    3.425 ± 0.798
      Jeffreys, no bound: every round, the paper's maximum        5.712 ± 0.040
    random directions: final model                                0.595 ± 0.093
      lower bound, Clopper–Pearson: final model                   0.084 ± 0.145
      Jeffreys, no bound: final model                             1.059 ± 0.864
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable

import numpy as np

from fl_epe.accounting import gaussian_epsilon
from fl_epe.auditing import (
    EVERY_ROUND,
    FINAL_MODEL,
    Adversary,
    epsilon_from_record,
    scores_of,
    seen_by,
)
from fl_epe.auditing.bounds import lower_bound
from simulations.others.audited_sgd import AuditedRun, Plan, audited_run
from simulations.others.canife_attack import (
    Attack,
    RoundAudit,
    audit_rounds,
    largest,
    whole_run,
)
from simulations.others.images import CLASSES, Images, read_images
from simulations.others.two_layer import TwoLayer
from simulations.shared.composed import composed_epsilon

_PAPER = 34.5
_HIDDEN = 128
_SEEN: tuple[tuple[str, Adversary, str], ...] = (
    ("every round, matched filter", EVERY_ROUND, "matched-filter"),
    ("every round, the paper's maximum", EVERY_ROUND, "maximum"),
    ("final model", FINAL_MODEL, "displacement"),
)


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """Both audits of one run.

    Attributes:
        plan: of the run.
        attack: of CANIFE.
        run: with its random directions.
        rounds: CANIFE's.
        rate: share of the examples in a batch.
        accuracy: of the final model on held-out images.
    """

    plan: Plan
    attack: Attack
    run: AuditedRun
    rounds: list[RoundAudit]
    rate: float
    accuracy: float

    def canife(self, by: str, *, fitted: bool = False) -> float:
        """CANIFE's ε of the run."""
        epsilons = [
            audit.fitted if fitted else audit.epsilon for audit in self.rounds
        ]
        return whole_run(
            epsilons, self._lasts(), self.rate, self.plan.delta, by
        )

    def ceiling(self, by: str) -> float:
        """The largest ε that CANIFE can give with so many scores."""
        largest_epsilon = largest(self.attack.scores, self.plan.delta)
        return whole_run(
            [largest_epsilon] * len(self.rounds),
            self._lasts(),
            self.rate,
            self.plan.delta,
            by,
        )

    def _lasts(self) -> list[int]:
        return [audit.lasts for audit in self.rounds]


def compare(
    images: Images, plan: Plan, attack: Attack, seed: int
) -> Comparison:
    """Train once with random directions, and let CANIFE audit the same run's models."""
    network = TwoLayer(images.inputs.shape[1], _HIDDEN, CLASSES)
    at = attack.rounds(plan.steps(len(images.labels)))
    run = audited_run(network, images, plan, seed, keep=at)
    rounds = audit_rounds(network, images, run.models, plan, attack, seed)
    accuracy = network.accuracy(
        run.final, images.test_inputs, images.test_labels
    )
    return Comparison(
        plan, attack, run, rounds, plan.batch / len(images.labels), accuracy
    )


def main(
    data_dir: str | None = None,
    seeds: int = 3,
    *,
    quick: bool = False,
    say: Callable[[str], object] = print,
) -> dict[str, list[float]]:
    """Print the table; returns every row's values, one of each seed."""
    if quick:
        images = read_images("digits")
        plan, attack = Plan(batch=64, canaries=200), Attack(128, 30, 40, 12)
    else:
        images = read_images(
            "fashion-mnist", **({"data_dir": data_dir} if data_dir else {})
        )
        plan, attack = Plan(), Attack()
    plan = Plan(
        plan.batch, canaries=plan.canaries, delta=1 / len(images.labels)
    )
    say(
        f"{images.name}: {len(images.labels):,} examples, δ = 1/n = {plan.delta:.3g}, z = 0.2"
    )
    renyi = composed_epsilon(
        [(plan.noise_multiplier, 1)], 1.0, plan.delta, by="rdp"
    )
    exact = gaussian_epsilon(plan.noise_multiplier, plan.delta)
    say(
        f"one round, by Rényi divergences {renyi:.2f} (the paper: {_PAPER}), exactly {exact:.2f}"
    )
    rows: dict[str, list[float]] = {}
    for seed in range(1, seeds + 1):
        for name, value in _values(compare(images, plan, attack, seed)).items():
            rows.setdefault(name, []).append(value)
        say(
            f"seed {seed}: "
            + ", ".join(f"{values[-1]:.3g}" for values in rows.values())
        )
    for name, values in rows.items():
        spread = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
        say(f"{name:58} {np.mean(values):8.3f}{spread}")
    return rows


def _values(comparison: Comparison) -> dict[str, float]:
    record, delta = comparison.run.record, comparison.plan.delta
    out = {
        "held-out accuracy": comparison.accuracy,
        "CANIFE: lower limits, Rényi composition (as published)": comparison.canife(
            "rdp"
        ),
        "CANIFE: the most it can say with so many scores": comparison.ceiling(
            "rdp"
        ),
        "CANIFE: lower limits, exact composition": comparison.canife("pld"),
        "CANIFE: fitted Gaussians, mean ε of a round": float(
            np.mean([audit.fitted for audit in comparison.rounds])
        ),
        "CANIFE: fitted Gaussians, Rényi composition": comparison.canife(
            "rdp", fitted=True
        ),
    }
    for name, adversary, statistic in _SEEN:
        scores = scores_of(seen_by(record, adversary), statistic)
        epsilon = epsilon_from_record(
            record, adversary=adversary, statistic=statistic
        ).epsilon
        out[f"random directions: {name}"] = epsilon
        out[f"  lower bound, Clopper–Pearson: {name}"] = lower_bound(
            scores, delta
        )
        jeffreys = lower_bound(scores, delta, method="jeffreys")
        out[f"  Jeffreys, no bound: {name}"] = jeffreys
    return out


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data-dir", help="folder of the four IDX files of Fashion-MNIST"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    main(
        options.data_dir,
        1 if options.quick else options.seeds,
        quick=options.quick,
    )
