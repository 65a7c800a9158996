"""How fast `PromisedNoise` finds one node of 20 that breaks its promise, and how often it is wrong.

Clients promise ε for δ = 10⁻⁵ by clipping to 1 and noise for a sensitivity of 2. Real vectors are
drawn; updates are dense and as long as clipping allows, which hides the most. Each run ends with
the round in which the node is named, or after ten rounds. Then sound runs of 5,000 parameters and
ten rounds, looked at after each: updates of any norm up to the clip norm, sparse ones, a single
layer, always the same one, nodes that join late and that drop out. At last the interval for ε of
the client whose noise is the median, over rounds of 20 nodes, beside the exact ε.

    python simulations/studies/client_noise_tripwire.py [--runs 20] [--sound 1000] [--held 200]

Expected output, about a quarter of an hour on one core: at 5,000 parameters with ε = 1, 10 and 100,
and at 1.2 million with ε = 10, "20 of 20" for each defect, in round 2 at the latest for the same
seed in each round and in round 1 for all others; ``2 of 1000 sound runs name a node: {'any norm':
0, 'norm 1': 0, 'sparse': 0, 'a single layer': 1, 'always the same': 1}``; and ε in 200 of 200
intervals for each of 1, 10 and 100, as they hold for updates of any norm.
"""

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fl_epe.noise import LocalDp, PromisedNoise

Vector = NDArray[np.float32]
Draw = Callable[[np.random.Generator, int], Vector]

NODES, ODD, OTHER, ROUNDS, SMALL = 20, 7, 3, 10, 5000
LAYERS = {"first": 0.8, "second": 0.17, "last": 0.03}  # of the parameters


def sizes_of(dim: int) -> dict[str, int]:
    """Entries of each layer."""
    sizes = {name: int(dim * share) for name, share in LAYERS.items()}
    sizes["last"] += dim - sum(sizes.values())
    return sizes


def normal(rng: np.random.Generator, dim: int) -> Vector:
    """Noise of standard deviation 1, ``(dim,)``."""
    return rng.standard_normal(dim, dtype=np.float32)


def dense(rng: np.random.Generator, dim: int) -> Vector:
    """An update of norm 1 in all entries."""
    direction = normal(rng, dim)
    return direction / np.float32(np.linalg.norm(direction))


def on_one_layer(rng: np.random.Generator, dim: int) -> Vector:
    """Noise on the largest layer alone."""
    noise = normal(rng, dim)
    noise[sizes_of(dim)["first"] :] = 0
    return noise


def laplace(rng: np.random.Generator, dim: int) -> Vector:
    """Laplace noise of standard deviation 1."""
    return rng.laplace(0, np.sqrt(0.5), dim).astype(np.float32)


DEFECTS: dict[str, Draw] = {
    "noise off": lambda rng, dim: np.zeros(dim, np.float32),
    "σ × 0.5": lambda rng, dim: np.float32(0.5) * normal(rng, dim),
    "σ × 0.9": lambda rng, dim: np.float32(0.9) * normal(rng, dim),
    "the same seed in each round": lambda rng, dim: normal(
        np.random.default_rng(99), dim
    ),
    "the noise of another node": lambda rng, dim: normal(
        rng, dim
    ),  # which that node gets too
    "noise on one layer alone": on_one_layer,
    "Laplace for Gaussian": laplace,
}


def rounds_until_named(defect: str, epsilon: float, dim: int, seed: int) -> int:
    """In which round the odd node is named, from 1; 0 if it is not, −1 if a sound one is."""
    promise = LocalDp(epsilon=epsilon, delta=1e-5, clip_norm=1.0)
    rng, noise = (
        np.random.default_rng(seed),
        PromisedNoise(promise, sizes_of(dim), seed=seed),
    )
    std = np.float32(promise.std)
    for index in range(ROUNDS):
        odd = DEFECTS[defect](rng, dim)
        for node in range(NODES):
            client_noise = odd if node == ODD else normal(rng, dim)
            if defect == "the noise of another node" and node == OTHER:
                client_noise = odd
            noise.add(node, std * client_noise + dense(rng, dim))
        if set(noise.faults) - {ODD, OTHER}:
            return -1
        if ODD in noise.faults:
            return index + 1
    return 0


def power(epsilon: float, dim: int, runs: int) -> None:
    """Print how many runs name the node, and in which round at the latest."""
    for defect in DEFECTS:
        rounds_needed = [
            rounds_until_named(defect, epsilon, dim, seed)
            for seed in range(runs)
        ]
        named = [index for index in rounds_needed if index > 0]
        wrong = (
            f"; {rounds_needed.count(-1)} name a sound one"
            if -1 in rounds_needed
            else ""
        )
        when = f"in round {max(named)} at the latest" if named else "never"
        print(
            f"{dim:>9,}  ε = {epsilon:<4g} {defect:<28} {len(named)} of {runs}, {when}{wrong}",
            flush=True,
        )


def sparse(rng: np.random.Generator, dim: int) -> Vector:
    """An update of norm 1 in three entries."""
    update = np.zeros(dim, np.float32)
    update[rng.choice(dim, 3, replace=False)] = np.sqrt(np.float32(1 / 3))
    return update


def single_layer(rng: np.random.Generator, dim: int) -> Vector:
    """An update of norm 1 in the last layer."""
    update = dense(rng, dim)
    update[: -sizes_of(dim)["last"]] = 0
    return update / np.float32(np.linalg.norm(update))


SOUND: dict[str, Draw] = {
    "any norm": lambda rng, dim: np.float32(rng.random()) * dense(rng, dim),
    "norm 1": dense,
    "sparse": sparse,
    "a single layer": single_layer,
    "always the same": lambda rng, dim: dense(np.random.default_rng(1), dim),
}


def accuses(kind: str, epsilon: float, seed: int) -> bool:
    """Whether any node of a sound run is named after any round."""
    promise = LocalDp(epsilon=epsilon, delta=1e-5, clip_norm=1.0)
    rng, noise = (
        np.random.default_rng(seed),
        PromisedNoise(promise, sizes_of(SMALL), seed=seed),
    )
    joins = rng.integers(0, ROUNDS // 2, NODES)
    joins[0] = 0
    for index in range(ROUNDS):
        for node in np.flatnonzero(
            (joins <= index) & (rng.random(NODES) > 0.2)
        ):
            update = SOUND[kind](rng, SMALL)
            noise.add(
                int(node), update + np.float32(promise.std) * normal(rng, SMALL)
            )
        if noise.faults:
            return True
    return False


def false_alarms(runs: int) -> None:
    """Print how many sound runs name a node; up to 16 of 1,000 may at level 1%."""
    settings = [
        (kind, epsilon) for kind in SOUND for epsilon in (1.0, 10.0, 100.0)
    ]
    counts = dict.fromkeys(SOUND, 0)
    for seed in range(runs):
        kind, epsilon = settings[seed % len(settings)]
        counts[kind] += accuses(kind, epsilon, 10_000 + seed)
    print(f"{sum(counts.values())} of {runs} sound runs name a node: {counts}")


def holds(epsilon: float, seed: int) -> bool:
    """Whether the interval for ε of the median client holds the exact one, after ten rounds."""
    promise = LocalDp(epsilon=epsilon, delta=1e-5, clip_norm=1.0)
    rng, noise = (
        np.random.default_rng(seed),
        PromisedNoise(promise, sizes_of(SMALL), seed=seed),
    )
    kinds = list(SOUND.values())
    for index in range(ROUNDS):
        for node in range(NODES):
            update = kinds[(seed + node + index) % len(kinds)](rng, SMALL)
            noise.add(
                node, update + np.float32(promise.std) * normal(rng, SMALL)
            )
    client = noise.epsilon()
    if client is None:
        return False
    exact = promise.epsilon_of(replies=client.replies)
    return client.low <= exact <= client.high


def intervals(runs: int) -> None:
    """Print how many intervals hold the exact ε."""
    for epsilon in (1.0, 10.0, 100.0):
        held = sum(holds(epsilon, 50_000 + seed) for seed in range(runs))
        print(f"ε = {epsilon:<4g} in {held} of {runs} intervals", flush=True)


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--sound", type=int, default=1000)
    parser.add_argument("--held", type=int, default=200)
    parser.add_argument("--large", type=int, default=1_200_000)
    args = parser.parse_args()
    for epsilon in (1.0, 10.0, 100.0):
        power(epsilon, SMALL, args.runs)
    power(10.0, args.large, args.runs)
    false_alarms(args.sound)
    intervals(args.held)


if __name__ == "__main__":
    main()
