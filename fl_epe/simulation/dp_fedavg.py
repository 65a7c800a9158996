"""DP-FedAvg with canaries (McMahan et al. 2018; adaptive clipping: Andrew et al. 2021).

The algorithm without Flower, state in and state out. `draw_plan` chooses the cohort of every
round. Nodes train clients and sum their clipped updates (`fl_epe.simulation.worker`).
`next_round` adds noise, takes the server optimizer's step and updates the clip norm. `DPFedAvg`
runs this over Flower, with a `RunAuditor` that scores the canaries. The same in plain NumPy:
docs/notes/dp_fedavg.md.

Examples:
    >>> config = RunConfig(
    ...     clients=4, rounds=3, clients_per_round=2, clipping="fixed", clip_norm=1.0)
    >>> seeds = Seeds.derive(1)
    >>> plan = draw_plan(config, seeds)
    >>> state = initial_state(config, np.zeros(5, np.float32))
    >>> for cohort in plan.cohorts:
    ...     sums = ClippedSums(total=np.full(5, 0.1 * len(cohort)), clients=len(cohort))
    ...     state, released = next_round(config, seeds, state, sums)
    >>> state.rounds_done, state.clip_norm, list(released)
    (3, 1.0, ['mean'])
"""

import copy
import dataclasses
from typing import Self

import numpy as np

from fl_epe import schedules
from fl_epe.checks import Booleans, Floats, Floats32, Integers
from fl_epe.config import RunConfig
from fl_epe.mechanism import ServerSGD, advance, blocks, gaussian_noise
from fl_epe.noise import NoiseHealth
from fl_epe.schedules import Cohort
from fl_epe.seeding import Seeds, generator, noise_generator


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """The participation schedule of a run.

    Attributes:
        cohorts: the clients of each round.
        presence: whether each observed canary takes part in each round, ``(T, k)``.
        observed_ids: the canary of each column of ``presence``; all others are only scored.
        canaries: number of all canaries.
    """

    cohorts: list[Cohort]
    presence: Booleans
    observed_ids: Integers
    canaries: int


@dataclasses.dataclass(frozen=True, eq=False)
class ServerState:
    """The server's state after a round.

    Attributes:
        theta: the model, float32 of shape ``(dim,)``.
        clip_norm: clip norm of the next round.
        optimizer: state of the server optimizer.
        noise: the state of correlated noise, float32 vectors.
        rounds_done: number of rounds so far.
    """

    theta: Floats32
    clip_norm: float
    optimizer: dict[str, Floats]
    noise: tuple[Floats32, ...]
    rounds_done: int = 0


@dataclasses.dataclass(eq=False)
class ClippedSums:
    """Sums of the clipped updates of a round's clients and canaries, and counts.

    Attributes:
        total: sum of all clipped updates, float64 of shape ``(dim,)``; an absent client adds 0.
        clients_total: with full knowledge, the sum over clients without canaries; else
            ``None``.
        clients: number of clients in the sum.
        unclipped: number of clients whose update had at most the clip norm.
        canaries: number of canaries in the sum; all are clipped.
    """

    total: Floats
    clients_total: Floats | None = None
    clients: int = 0
    unclipped: int = 0
    canaries: int = 0

    def take(self) -> Self:
        """A copy that takes ``total`` away from this object, and shares everything else.

        The memory of the total is thus freed with the copy.
        """
        sums = copy.copy(self)
        self.total = np.empty(0)
        return sums


def draw_plan(config: RunConfig, seeds: Seeds) -> Plan:
    """Draw the cohorts and the canaries of all rounds, before the first one."""
    client_rng = generator(seeds.participation, 0)
    canary_rng = generator(seeds.participation, 1)
    coin_rng = generator(seeds.participation, 2)
    cohorts = list(config.client_schedule().cohorts(config.clients, client_rng))
    unobserved = config.unobserved or 0
    if config.on_ladder:
        presence = _ladder_presence(config, canary_rng)
        count = presence.shape[1]
        return Plan(cohorts, presence, np.arange(count), count + unobserved)
    count = config.num_canaries or 0
    observed = np.arange(count)
    if config.by_coin:
        # A fair coin for each canary decides whether it takes part.
        observed = np.flatnonzero(coin_rng.random(count + unobserved) < 0.5)
    schedule = config.canary_schedule()
    presence = schedules.presence(schedule, len(observed), canary_rng)
    return Plan(cohorts, presence, observed, count + unobserved)


def _ladder_presence(config: RunConfig, rng: np.random.Generator) -> Booleans:
    """Whether each canary on the ladder takes part in each round, ``(T, k)``.

    Canaries share places, each of which takes part in the rounds of a further client.
    """
    load = config.load
    schedule = load.place_schedule(config.client_schedule())
    if not load.places:
        return np.zeros((config.rounds, 0), bool)
    # If rounds are secret, the places are drawn together with the clients. In cohorts of a fixed
    # size, places alone would depend on each other, which would leak information about the rounds.
    clients = config.clients if load.secret else 0
    places = schedules.presence(
        schedule, load.places + clients, rng, load.places
    )
    return load.presence(places, rng)


def initial_state(config: RunConfig, theta: Floats32) -> ServerState:
    """The state before the first round.

    Raises:
        ValueError: if the model is not a float32 vector.
    """
    if theta.ndim != 1 or theta.dtype != np.float32:
        raise ValueError(
            f"Expected a flat float32 model, got {theta.dtype} {theta.shape}."
        )
    dim = len(theta)
    strategy = config.strategy()
    buffers = 0 if strategy is None else strategy.buffers
    return ServerState(
        theta=theta,
        clip_norm=config.clip_rule().init(),
        optimizer=config.optimizer().init(dim),
        noise=(np.zeros(dim, np.float32),) * buffers,
    )


def next_round(
    config: RunConfig,
    seeds: Seeds,
    state: ServerState,
    sums: ClippedSums,
    health: NoiseHealth | None = None,
) -> tuple[ServerState, dict[str, Floats]]:
    """Add noise, divide by the *expected* cohort size, step, and update the clip norm.

    No vector of the state or the sums is changed: the same state and sums give the same next
    state.

    Args:
        config: the settings of the run.
        seeds: the seeds of the random streams.
        state: the state after the previous round.
        sums: the sums of this round.
        health: gets the noise before it is correlated, to check its distribution.

    Returns:
        The next state, and the vectors that an adversary may see, see `RunAuditor`.
    """
    t = state.rounds_done
    n = config.cohort_size
    mean, noise_state = _sum_noise(config, seeds, state, health)
    mean += sums.total
    mean /= n
    released = {"mean": mean}
    if sums.clients_total is not None:
        released["residual"] = mean - sums.clients_total / n

    voters = sums.clients
    if config.canaries_vote:
        voters += sums.canaries
    rng = noise_generator(seeds.noise, t, 1, kind=config.noise_generator)
    clip_norm = config.clip_rule().update(
        state.clip_norm, sums.unclipped, voters, rng
    )
    # If the caller does not keep the sums, the next model can use their memory.
    del sums

    optimizer = config.optimizer()
    if not isinstance(optimizer, ServerSGD):
        # The model's update does not follow from the mean, so `advance` writes it here.
        released["delta"] = np.empty(len(state.theta))
    moments, theta = advance(
        optimizer, state.optimizer, state.theta, mean, t, released.get("delta")
    )
    return ServerState(theta, clip_norm, moments, noise_state, t + 1), released


def _sum_noise(
    config: RunConfig,
    seeds: Seeds,
    state: ServerState,
    health: NoiseHealth | None,
) -> tuple[Floats, tuple[Floats32, ...]]:
    """The noise of a round's sum, and the next state of correlated noise."""
    t = state.rounds_done
    dim = len(state.theta)
    rng = noise_generator(seeds.noise, t, 0, kind=config.noise_generator)
    deviation = config.sum_noise_multiplier()
    strategy = config.strategy()
    if strategy is None:
        deviation *= state.clip_norm
    noise = gaussian_noise(rng, dim, deviation)
    if health is not None:
        health.add(noise, deviation)
    if strategy is None:
        return noise, state.noise
    # Noise in units of the clip norm is correlated over rounds.
    for block in blocks(dim):
        earlier = tuple(vector[block] for vector in state.noise)
        noise[block] = strategy.correlate(t, earlier, noise[block])
    noise_state = strategy.next_state(state.noise, noise)
    noise *= state.clip_norm
    return noise, noise_state


def released_series(config: RunConfig) -> tuple[str, ...]:
    """Names of the vectors that `next_round` returns."""
    names = ["mean"]
    if config.full_knowledge:
        names.append("residual")
    if not isinstance(config.optimizer(), ServerSGD):
        names.append("delta")
    return tuple(names)
