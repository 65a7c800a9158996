"""DP-FedAvg with canaries in one plain loop, written for reading: what every backend must equal."""

from __future__ import annotations

import numpy as np

from fl_epe.canaries import CanarySet
from fl_epe.config import RunConfig
from fl_epe.mechanism import clip
from fl_epe.schedules import presence
from fl_epe.seeding import Seeds, generator
from fl_epe.tasks import Task
from fl_epe.training import LocalTraining, Trainer


def train(
    task: Task, config: RunConfig, seeds: Seeds
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns the final model, the clients and the canaries of every round, the clip norms."""
    theta = task.initial(seeds.initial).astype(np.float64)
    canaries = CanarySet(len(theta), config.num_canaries + config.unobserved, seeds.canary)
    clients_rng = generator(seeds.participation, 0)
    clients = presence(config.client_schedule(), config.clients, clients_rng)
    canaries_rng = generator(seeds.participation, 1)
    taking_part = presence(config.canary_schedule(), config.num_canaries, canaries_rng)
    local = LocalTraining(config.local_learning_rate, config.local_epochs, config.local_batch_size)
    trainer = Trainer(task)

    n = (
        config.clients_per_round
        + config.num_canaries * float(config.canary_participations) / config.rounds
    )
    voters = config.clients_per_round
    count_std = voters / 20
    z_sum = (config.noise_multiplier**-2 - (2 * count_std) ** -2) ** -0.5
    C = config.clip_norm
    velocity = np.zeros_like(theta)
    clip_norms = []
    for t in range(config.rounds):
        total = np.zeros_like(theta)
        unclipped = 0
        for i in np.flatnonzero(clients[t]):
            start = theta.astype(np.float32)
            update = trainer.train(start, int(i), local, seed=seeds.local, round_number=t + 1)
            clipped, was_short = clip(update.delta, C)
            assert clipped is not None, "a reference run has no broken update"
            total += clipped
            unclipped += was_short
        for j in np.flatnonzero(taking_part[t]):
            loud, _ = clip(canaries.vector(int(j)) * np.float32(1e3 * C), C)
            assert loud is not None
            total += loud
        noise = generator(seeds.noise, t, 0).standard_normal(len(theta))
        mean = (total + z_sum * C * noise) / n
        velocity = config.server_momentum * velocity + mean
        theta = (theta + config.server_learning_rate * velocity).astype(np.float32)
        theta = theta.astype(np.float64)
        clip_norms.append(C)
        votes = unclipped - clients[t].sum() / 2  # 1/2 for each short update, -1/2 for others
        share = (votes + generator(seeds.noise, t, 1).normal(0, count_std)) / voters + 0.5
        C *= np.exp(-config.clip_rate * (share - config.clip_quantile))
    return theta, clients, taking_part, np.array(clip_norms)
