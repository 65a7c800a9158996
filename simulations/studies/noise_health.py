"""How often `check_noise` finds fault with correct noise, and how much wrong noise it needs.

Correct noise of each law and each set of arrays, drawn anew in every run: at a level of 0.005 for
all checks together, at most 9 of 500 runs may fail (the 99.9% quantile of the binomial law is 9).
Then, for wrong noise, the smallest number of values, by powers of 2, from which on 9 of 10 runs
find it.

    python simulations/studies/noise_health.py [--runs 500]

Expected output of 500 runs, half an hour on one core::

    Correct noise with a failure, of 500 runs; up to 9 may be
    Gaussian                   one release              0
    Gaussian                   one value, 200 rounds    0
    Gaussian                   tiny arrays              1 scale by array
    Gaussian                   a network                1 shape
    Gaussian                   60 arrays                0
    Gaussian                   500 rounds               1 scale by round
    Gaussian                   a large model            1 shape
    Gaussian, torch            one release              0
    Gaussian, torch            one value, 200 rounds    0
    Gaussian, torch            tiny arrays              0
    Gaussian, torch            a network                0
    Gaussian, torch            60 arrays                0
    Gaussian, torch            500 rounds               3 scale by round, shape, tails
    Gaussian, torch            a large model            0
    Gaussian, float32 on sums  one release              0
    Gaussian, float32 on sums  one value, 200 rounds    0
    Gaussian, float32 on sums  tiny arrays              2 scale by array, shape
    Gaussian, float32 on sums  a network                0
    Gaussian, float32 on sums  60 arrays                0
    Gaussian, float32 on sums  500 rounds               1 tails
    Gaussian, float32 on sums  a large model            3 scale by array, scale by round
    Laplace                    one release              1 tails
    Laplace                    one value, 200 rounds    0
    Laplace                    tiny arrays              4 scale by array, scale by round, shape
    Laplace                    a network                0
    Laplace                    60 arrays                2 scale by round, shape
    Laplace                    500 rounds               1 shape
    Laplace                    a large model            1 shape
    Wrong noise is found from so many values on
    half of the scale                64 values, by scale
    0.9 of the scale                 1,024 values, by scale
    equal in two arrays              4 values, by independence of arrays
    equal in two rounds              4 values, by independence of rounds
    rounds correlated by 0.48        512 values, by independence of rounds
    a seed                           8 values, by seed
    uniform                          128 values, by tails
    Laplace for Gaussian             1,024 values, by shape
    truncated at 3                   4,096 values, by tails
    in float16                       8,192 values, by grid
    12 uniforms                      131,072 values, by shape
    rolled in a second round         4 values, by values used once
    a tenth of coordinates without   4 values, by coordinates without noise
"""

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from fl_epe.noise import Check, NoiseHealth, check_noise, faults

SHAPES: dict[str, tuple[int, dict[str, tuple[int, ...]]]] = {
    "one release": (1, {"all": (5000,)}),
    "one value, 200 rounds": (200, {"all": (1,)}),
    "tiny arrays": (20, {"a": (1,), "b": (1,), "c": (2,), "d": (3, 1)}),
    "a network": (
        30,
        {"w": (40, 20), "b": (20,), "v": (20, 10), "c": (10,), "scale": (1,)},
    ),
    "60 arrays": (3, {f"layer {i}": (1 + 7 * i,) for i in range(60)}),
    "500 rounds": (500, {"w": (4, 5), "b": (5,)}),
    "a large model": (2, {"w": (300, 300), "b": (300,)}),
}
"""Rounds, and arrays of a round, by name."""

Draw = Callable[[np.random.Generator, tuple[int, ...]], Any]


def _of_torch(rng: np.random.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
    return torch.normal(0.0, 1.0, shape, generator=generator)


def _on_sums(
    rng: np.random.Generator, shape: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    """Noise in float32 on sums that are 100 times as large, less the sums."""
    sums = rng.normal(0, 100, shape).astype(np.float32)
    return (sums + rng.standard_normal(shape, np.float32)) - sums


LAWS: dict[str, tuple[Any, Draw]] = {
    "Gaussian": ("gaussian", lambda rng, shape: rng.normal(size=shape)),
    "Gaussian, torch": ("gaussian", _of_torch),
    "Gaussian, float32 on sums": ("gaussian", _on_sums),
    "Laplace": (
        "laplace",
        lambda rng, shape: rng.laplace(0, np.sqrt(0.5), shape),
    ),
}

Wrong = Callable[[np.random.Generator, int], Any]


def _repeated(rng: np.random.Generator, count: int) -> list[Any]:
    first = rng.normal(size=count)
    return [first, first]


def _rolled(rng: np.random.Generator, count: int) -> list[Any]:
    first = rng.normal(size=count)
    return [first, np.roll(first, 3)]


def _shared(rng: np.random.Generator, count: int) -> dict[str, Any]:
    first = rng.normal(size=count)
    return {"a": first, "b": first}


def _truncated(rng: np.random.Generator, count: int) -> Any:
    values = rng.normal(size=2 * count)
    return values[np.abs(values) < 3][:count] / 0.9866


def _averaged(rng: np.random.Generator, count: int) -> Any:
    fresh = rng.normal(size=(11, max(count // 10, 1)))
    return 0.8 * fresh[1:] + 0.6 * fresh[:-1]


WRONG: dict[str, Wrong] = {
    "half of the scale": lambda rng, count: 0.5 * rng.normal(size=count),
    "0.9 of the scale": lambda rng, count: 0.9 * rng.normal(size=count),
    "equal in two arrays": _shared,
    "equal in two rounds": _repeated,
    "rounds correlated by 0.48": _averaged,
    "a seed": lambda rng, count: np.random.default_rng(
        int(rng.integers(2000))
    ).normal(size=count),
    "uniform": lambda rng, count: rng.uniform(-np.sqrt(3), np.sqrt(3), count),
    "Laplace for Gaussian": lambda rng, count: rng.laplace(
        0, np.sqrt(0.5), count
    ),
    "truncated at 3": _truncated,
    "in float16": lambda rng, count: rng.normal(size=count).astype(np.float16),
    "12 uniforms": lambda rng, count: rng.random((12, count)).sum(axis=0) - 6,
    "rolled in a second round": _rolled,
    "a tenth of coordinates without": lambda rng, count: (
        rng.normal(size=count) * (np.arange(count) % 10 > 0)
    ),
}


def found_in(law: str, shape: str, rng: np.random.Generator) -> list[Check]:
    """What is found in correct noise; nothing should be."""
    distribution, draw = LAWS[law]
    rounds, arrays = SHAPES[shape]
    health = NoiseHealth(arrays, distribution=distribution)
    for _ in range(rounds):
        std = float(rng.uniform(0.5, 2))  # each round's own
        health.add(
            {name: std * draw(rng, size) for name, size in arrays.items()}, std
        )
    return faults(health.checks())


def smallest(wrong: str, runs: int) -> Iterator[str]:
    """The number of values from which on most runs find it, and by which checks."""
    for power in range(2, 19):
        names: list[str] = []
        detected = 0
        for seed in range(runs):
            rng = np.random.default_rng([3, seed, power])
            checks = faults(check_noise(WRONG[wrong](rng, 2**power), 1.0))
            names += [check.name for check in checks]
            detected += bool(checks)
        if detected >= 0.9 * runs:
            yield f"{2**power:,} values, by {max(names, key=names.count)}"
            return
    yield "never"


def main(runs: int) -> None:
    """Print both tables."""
    print(
        f"Correct noise with a failure, of {runs} runs; up to {9 * runs // 500} may be"
    )
    for law in LAWS:
        for shape in SHAPES:
            rngs = (np.random.default_rng([2, seed]) for seed in range(runs))
            detected = [found_in(law, shape, rng) for rng in rngs]
            names = sorted(
                {check.name for checks in detected for check in checks}
            )
            print(
                f"{law:26} {shape:22} {sum(map(bool, detected)):3} {', '.join(names)}",
                flush=True,
            )
    print("Wrong noise is found from so many values on")
    for wrong in WRONG:
        print(f"{wrong:32} {next(smallest(wrong, 10))}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--runs", type=int, default=500)
    main(parser.parse_args().runs)
