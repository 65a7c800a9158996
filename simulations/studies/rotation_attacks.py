"""What does an adversary learn who knows how rotated canaries are made, but not their seed?

    python simulations/studies/rotation_attacks.py           # a minute on one core
    python simulations/studies/rotation_attacks.py --quick   # seconds

Table 1: without the seed and without a canary. Is a release of noise and 20 rotated canaries
(μ = 8 each) told from one with independent canaries ("r / s"), or from noise of the same length
alone ("r / no", and "s / no" for independent canaries)? The adversary tries statistics that know
the family: the largest value of the transform of the release, of its squares, and of the release
with signs of the adversary's own; and the fourth moment. AUC over the runs: 0.5 is a blind guess,
and its standard error 0.41/√(runs of each).

Table 2: with one canary of the run, as a client would have it to whom a server sent its
direction. Entries of a canary are t_j·g_j in steps of a unit, g = H·s with signs
s. If the product of all s is −1, as in half of the families, g_j/2 is odd everywhere, and whether
it is 1 or 3 modulo 4 is an affine function of the bits of j: the sum of g over j, j^a, j^b and
j^a^b is a multiple of 8. So |g_j| modulo 8 gives the sign of g_j up to an affine function, which is
only another order of the rows and their signs, and hence t, g and all D canaries. "found" is how
many of the other 19 canaries in a release are among the 100 largest |scores| of the D rows that the
adversary computes, "score" their mean |score|. With "noise" the server has added so much, relative
to its length, to the direction.

Measured (2026-11-22, two cores shared with other work): the tables "What an adversary learns" of
docs/notes/rotation.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fl_epe import CanarySet
from fl_epe.canaries import CanaryKind
from fl_epe.canaries.directions import size_for, transform

Floats = NDArray[np.float64]
Vector = NDArray[np.float32]

TOGETHER, SCORE, LARGEST = 20, 8.0, 100


def padded(x: NDArray[np.floating], size: int) -> Vector:
    """``x`` in float32, with zeros up to ``size``."""
    out = np.zeros(size, np.float32)
    out[: len(x)] = x
    return out


def released(dim: int, kind: CanaryKind | None, seed: int) -> Vector:
    """Noise and canaries, of length √d; without a kind the canaries are noise as well."""
    rng = np.random.default_rng((seed, 0 if kind is None else len(kind)))
    out = rng.standard_normal(dim, np.float32)
    if kind is not None:
        canaries = CanarySet(dim, TOGETHER, int(rng.integers(1 << 62)), kind)
        out += SCORE * canaries.combine(np.ones((1, TOGETHER), np.float32))[0]
    return np.asarray(out * np.float32(np.sqrt(dim) / np.linalg.norm(out)))


def blind_statistics(x: Vector, rng: np.random.Generator) -> list[float]:
    """What an adversary computes who knows the family alone."""
    size = size_for(len(x))
    squares = x.astype(np.float64) ** 2
    signs = rng.choice([-1.0, 1.0], len(x))
    return [
        float(np.abs(transform(padded(x, size))).max()),
        float(np.abs(transform(padded(squares - squares.mean(), size))).max()),
        float(np.abs(transform(padded(signs * x, size))).max()),
        float(np.mean(squares**2)),
    ]


def auc(one: Floats, other: Floats) -> float:
    """Probability that a value of ``one`` exceeds one of ``other``."""
    return float(
        np.mean(one[:, None] > other) + np.mean(one[:, None] == other) / 2
    )


def blind(dim: int, runs: int) -> list[str]:
    """The rows of the first table."""
    kinds: tuple[CanaryKind | None, ...] = ("rotation", "sphere", None)
    values_of = {}
    for kind in kinds:
        drawn = (released(dim, kind, seed) for seed in range(runs))
        statistics = [
            blind_statistics(x, np.random.default_rng(seed))
            for seed, x in enumerate(drawn)
        ]
        values_of[kind] = np.array(statistics)
    names = ("transform", "of squares", "own signs", "fourth moment")
    return [
        f"{name:16}{auc(values_of['rotation'][:, i], values_of['sphere'][:, i]):>8.2f}"
        f"{auc(values_of['rotation'][:, i], values_of[None][:, i]):>8.2f}"
        f"{auc(values_of['sphere'][:, i], values_of[None][:, i]):>8.2f}"
        for i, name in enumerate(names)
    ]


def whole_numbers(canary: Vector) -> NDArray[np.int64] | None:
    """Entries of a rotated canary over their smallest step; ``None`` if they have none."""
    sizes = np.sort(np.abs(canary.astype(np.float64)))
    sizes = sizes[sizes > 0]
    unit = float(np.median(sizes[:5]))
    for first in (50, 1000, len(sizes)):
        steps = np.round(sizes[:first] / unit)
        unit = float(sizes[:first] @ steps / (steps @ steps))
    steps_of_entries = canary / unit
    if np.abs(steps_of_entries - np.round(steps_of_entries)).max() > 0.1:
        return None
    return np.round(steps_of_entries).astype(np.int64)


def family_from_one(canary: Vector) -> tuple[Floats, Floats] | None:
    """The signs t, and g, up to an order of the rows; ``None`` if the attack fails."""
    numbers = whole_numbers(canary)
    if numbers is None or not np.all(numbers % 2):
        return None
    size = np.abs(numbers)
    g = np.where(size % 4 == 1, size, -size)
    return np.asarray(np.sign(numbers * g), np.float64), g.astype(np.float64)


def all_scores(x: Vector, signs: Floats, g: Floats) -> Vector:
    """|Score| of ``x`` with every row of the family, by the row's distance from the known one."""
    size = size_for(len(x))
    product = transform(padded(x * signs, size))
    product *= transform(padded(g, size)) / np.float32(size)
    return np.asarray(
        np.abs(transform(product)) / np.float32(np.linalg.norm(g))
    )


def with_one_canary(
    dim: int, seed: int, noise: float
) -> tuple[bool, float, float]:
    """Whether the attack gives a family; which share of the others it finds; its mean score."""
    canaries = CanarySet(dim, TOGETHER, seed)
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(dim, np.float32)
    x += SCORE * canaries.combine(np.ones((1, TOGETHER), np.float32))[0]
    known_canary = canaries.vector(0)
    known_canary += np.float32(noise / np.sqrt(dim)) * rng.standard_normal(
        dim, np.float32
    )
    family = family_from_one(known_canary)
    if family is None:
        return False, 0.0, 0.0
    scores = all_scores(x, *family)
    candidates = np.argsort(scores)[-LARGEST:]
    known_rows = canaries.vectors(range(1, TOGETHER))
    signs, g = family
    detected, canary_scores = 0, []
    padded_family = padded(g, size_for(dim))
    for row in candidates:
        index = np.arange(dim) ^ int(row)
        guess = signs * padded_family[index]
        cosines = np.abs(
            known_rows @ guess.astype(np.float32)
        ) / np.linalg.norm(guess)
        if cosines.max() > 0.5 * np.sqrt(dim / len(padded_family)):
            detected += 1
            canary_scores.append(float(scores[row]))
    return (
        True,
        detected / (TOGETHER - 1),
        float(np.mean(canary_scores)) if canary_scores else 0.0,
    )


def main(quick: bool, say: Callable[[str], object] = print) -> None:
    """Print the tables."""
    runs = 20 if quick else 200
    say(f"Table 1: AUC, {runs} runs of each, d = 65,536")
    say(f"{'statistic':16}{'r / s':>8}{'r / no':>8}{'s / no':>8}")
    for row in blind(1 << 16, runs):
        say(row)
    say(
        "\nTable 2: one canary known, 19 others in the release with score 8; share of families"
    )
    say(f"{'d':>8}{'noise':>7}{'broken':>8}{'found':>8}{'score':>7}")
    for dim in (1 << 16, 40_000) if quick else (1 << 16, 40_000, 1_000_000):
        for noise in (0.0, 0.03):
            seeds = 6 if quick or dim > 1 << 16 else 40
            results = [
                with_one_canary(dim, seed, noise) for seed in range(seeds)
            ]
            broken = [result for result in results if result[0]]
            share = np.mean([result[1] for result in broken]) if broken else 0.0
            score = np.mean([result[2] for result in broken]) if broken else 0.0
            say(
                f"{dim:>8}{noise:>7g}{len(broken) / seeds:>8.0%}{share:>8.0%}{score:>7.2f}"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="few runs")
    main(parser.parse_args().quick)
