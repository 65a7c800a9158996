"""DP-SGD of a two-layer network, audited in one run by canaries in random directions.

Every canary is the update of one record: a random direction of the length of the clip norm, which
takes part in one step. It is what `fl_epe.simulation` does for clients with one example and one
local step, without what a federation needs besides.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Container

import numpy as np
from numpy.typing import NDArray

from fl_epe.auditing import (
    AuditRecord,
    ClientLog,
    Mechanism,
    Provenance,
    ServerStep,
    installed_versions,
)
from fl_epe.auditing.recorder.round_scores import record_from_scorer
from fl_epe.canaries import CanaryScorer, CanarySet
from fl_epe.mechanism import gaussian_noise, norm
from fl_epe.schedules import ParticipationLaw
from fl_epe.seeding import Seeds, generator
from simulations.others.images import Images
from simulations.others.two_layer import Floats, TwoLayer


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a run trains.

    Attributes:
        batch: examples in a step; an epoch is one pass over all of them in random order.
        noise_multiplier: z > 0.
        clip_norm: of each gradient.
        learning_rate: of the steps.
        epochs: passes over the data.
        canaries: how many take part, each in one step; as many others never do.
        delta: target δ.
    """

    batch: int = 128
    noise_multiplier: float = 0.2
    clip_norm: float = 1.0
    learning_rate: float = 0.5
    epochs: int = 1
    canaries: int = 1000
    delta: float = 1e-5

    def steps(self, examples: int) -> int:
        """Number of steps T."""
        return self.epochs * math.ceil(examples / self.batch)


@dataclasses.dataclass(frozen=True, eq=False)
class AuditedRun:
    """What a run leaves behind.

    Attributes:
        record: of its canaries.
        models: the model before each step that was asked for, by the step's number from 0.
        final: the final model.
    """

    record: AuditRecord
    models: dict[int, Floats]
    final: Floats


def audited_run(
    network: TwoLayer,
    images: Images,
    plan: Plan,
    seed: int,
    keep: Container[int] = (),
) -> AuditedRun:
    """Train, and score the canaries against the noisy mean of each step and the final model."""
    seeds = Seeds.derive(seed)
    steps = plan.steps(len(images.labels))
    canaries = CanarySet(network.dim, 2 * plan.canaries, seeds.canary)
    scorer = CanaryScorer(canaries)
    presence = _presence(plan.canaries, steps, seeds.participation)
    size = plan.batch + plan.canaries / steps
    batches = _batches(len(images.labels), plan, seeds.local)
    noise = generator(seeds.noise)
    start = network.initial(seeds.initial)
    model, models, moved = start.copy(), {}, []
    for step, batch in enumerate(batches):
        if step in keep:
            models[step] = model.copy()
        gradients = network.gradients(
            model, images.inputs[batch], images.labels[batch]
        )
        total = -gradients.sum(gradients.scales(plan.clip_norm))
        present_canaries = np.flatnonzero(presence[step])
        shares = np.full((1, present_canaries.size), plan.clip_norm)
        total += canaries.combine(shares, numbers=present_canaries.tolist())[0]
        total += gaussian_noise(
            noise, network.dim, plan.noise_multiplier * plan.clip_norm
        )
        scorer.add("mean", total / size)
        model = model + plan.learning_rate * total / size
        moved.append(plan.learning_rate * norm(total / size))
    record = record_from_scorer(
        scorer,
        np.arange(plan.canaries),
        start=start,
        final=model,
        delta_norms=np.array(moved),
        presence=presence,
        delta=plan.delta,
        mechanism=_mechanism(plan, steps, size),
        clients=ClientLog(),
        metrics={},
        provenance=_provenance(plan, seeds, canaries),
    )
    return AuditedRun(record, models, model)


def _presence(count: int, steps: int, seed: int) -> NDArray[np.bool_]:
    """Each canary in one step, spread evenly over them in random order, shape (steps, count)."""
    presence = np.zeros((steps, count), bool)
    places = np.floor(np.arange(count) * steps / count).astype(int)
    presence[generator(seed).permutation(places), np.arange(count)] = True
    return presence


def _batches(examples: int, plan: Plan, seed: int) -> list[NDArray[np.int64]]:
    out: list[NDArray[np.int64]] = []
    for epoch in range(plan.epochs):
        order = generator(seed, epoch).permutation(examples)
        out += [
            order[first : first + plan.batch]
            for first in range(0, examples, plan.batch)
        ]
    return out


def _provenance(plan: Plan, seeds: Seeds, canaries: CanarySet) -> Provenance:
    return Provenance(
        dataclasses.asdict(seeds), canaries.kind, installed_versions()
    )


def _mechanism(plan: Plan, steps: int, size: float) -> Mechanism:
    return Mechanism(
        cohort_size=size,
        noise_multiplier=plan.noise_multiplier,
        sum_noise_multiplier=plan.noise_multiplier,
        participation=ParticipationLaw(steps, 1.0, 1),
        canary_participations=1.0,
        server=ServerStep("sgd", np.full(steps, plan.learning_rate)),
        clip_norms=np.full(steps, plan.clip_norm),
    )
