"""CANIFE's audit of single rounds, and what it makes of them for the whole run.

In some rounds a crafted sample (`crafted_sample`) joins fresh batches or not. The score is the
inner product of the noisy sum with the canary's direction, over the clip norm: 1 with the canary
and 0 without it, but for noise and other examples. Scores give ε of the round, that gives a noise
multiplier, and composition gives ε of the run (Maddock et al. 2022, section 3.4).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import scipy

from fl_epe.accounting import gaussian_epsilon
from fl_epe.auditing import Scores
from fl_epe.seeding import generator
from simulations.others.audited_sgd import Plan
from simulations.others.crafted_sample import CraftedSample, craft_sample
from simulations.others.images import Images
from simulations.others.two_layer import Floats, TwoLayer
from simulations.shared.composed import composed_epsilon, noise_of_epsilon

_CONFIDENCE = 0.95  # of its two-sided Clopper–Pearson limits


@dataclasses.dataclass(frozen=True)
class Attack:
    """How CANIFE audits a round.

    Attributes:
        pool: held-out examples that the canary is crafted against.
        steps: of crafting.
        scores: half of them with the canary, half without it.
        every: rounds between two audits.
    """

    pool: int = 512
    steps: int = 2500
    scores: int = 100
    every: int = 100

    def rounds(self, steps: int) -> range:
        """The rounds that are audited, from 0."""
        return range(0, steps, self.every)


@dataclasses.dataclass(frozen=True, eq=False)
class RoundAudit:
    """The audit of one round.

    Attributes:
        step: its number, from 0.
        lasts: rounds that it stands for.
        canary: the sample.
        scores: of the attack.
        epsilon: its lower limit, as CANIFE reports it.
        fitted: ε of two Gaussians with the means of the scores and their common deviation.
    """

    step: int
    lasts: int
    canary: CraftedSample
    scores: Scores
    epsilon: float
    fitted: float


def audit_rounds(
    network: TwoLayer,
    images: Images,
    models: Mapping[int, Floats],
    plan: Plan,
    attack: Attack,
    seed: int,
) -> list[RoundAudit]:
    """Audit the rounds of ``models``; the pool is of the held-out images."""
    total = plan.steps(len(images.labels))
    audits = []
    for step, model in sorted(models.items()):
        rng = generator(seed, 3, step)
        chosen = rng.choice(len(images.test_labels), attack.pool, replace=False)
        pool = network.gradients(
            model, images.test_inputs[chosen], images.test_labels[chosen]
        )
        canary = craft_sample(
            network,
            model,
            pool,
            plan.clip_norm,
            steps=attack.steps,
            seed=seed + step,
        )
        scores = _scores(
            network, images, model, canary, plan, attack.scores // 2, rng
        )
        lasts = min(attack.every, total - step)
        limit, fitted = (
            lower_limit(scores, plan.delta),
            fitted_epsilon(scores, plan.delta),
        )
        audits.append(RoundAudit(step, lasts, canary, scores, limit, fitted))
    return audits


def _scores(
    network: TwoLayer,
    images: Images,
    model: Floats,
    canary: CraftedSample,
    plan: Plan,
    count: int,
    rng: np.random.Generator,
) -> Scores:
    """Of fresh batches. Noise along a direction is one normal draw, so no other one is made."""
    canary_norm = min(float(canary.gradient.norms[0]), plan.clip_norm)
    values = np.empty(2 * count)
    for i in range(2 * count):
        batch = rng.choice(len(images.labels), plan.batch, replace=False)
        gradients = network.gradients(
            model, images.inputs[batch], images.labels[batch]
        )
        values[i] = canary.alignment(gradients, plan.clip_norm).sum()
    values += (
        plan.noise_multiplier * plan.clip_norm * rng.standard_normal(2 * count)
    )
    values[:count] += canary_norm
    values /= plan.clip_norm
    return Scores(
        values[:count], values[count:], statistic="along the crafted gradient"
    )


def lower_limit(scores: Scores, delta: float) -> float:
    """CANIFE's lower limit: at the threshold of most right guesses, by Clopper and Pearson.

    No valid bound: the threshold is chosen on the scores that it is judged by, and each of two
    limits has 97.5% alone.
    """
    members, outsiders = scores.both()
    cuts = np.sort(np.concatenate([members, outsiders]))
    right = [np.mean(members > cut) + np.mean(outsiders <= cut) for cut in cuts]
    cut = cuts[int(np.argmax(right))]
    missed = _upper(int(np.sum(members <= cut)), members.size)
    false = _upper(int(np.sum(outsiders > cut)), outsiders.size)
    ratios = ((1 - delta - false) / missed, (1 - delta - missed) / false)
    return float(np.log(max(*ratios, 1.0)))


def _upper(errors: int, count: int) -> float:
    if errors == count:
        return 1.0
    return float(
        scipy.stats.beta.ppf((1 + _CONFIDENCE) / 2, errors + 1, count - errors)
    )


def fitted_epsilon(scores: Scores, delta: float) -> float:
    """ε of two Gaussians at the scores' means, with their pooled standard deviation."""
    members, outsiders = scores.both()
    variance = (members.var(ddof=1) + outsiders.var(ddof=1)) / 2
    distance = members.mean() - outsiders.mean()
    if distance <= 0:
        return 0.0
    return gaussian_epsilon(float(np.sqrt(variance) / distance), delta)


def whole_run(
    epsilons: Sequence[float],
    lasts: Sequence[int],
    sampling_rate: float,
    delta: float,
    by: str,
) -> float:
    """ε of the run from that of its audited rounds: each to noise, and all noise composed."""
    noise = [noise_of_epsilon(epsilon, delta) for epsilon in epsilons]
    return composed_epsilon(
        list(zip(noise, lasts, strict=True)), sampling_rate, delta, by=by
    )


def largest(scores: int, delta: float) -> float:
    """The largest `lower_limit` that so many scores can give: not one wrong guess."""
    half = scores // 2
    return lower_limit(Scores(np.ones(half), np.zeros(half)), delta)
