"""The random streams of a run. Each has its own seed, so one can change while the others repeat.

Examples:
    >>> Seeds.derive(1) == Seeds.derive(1)
    True
    >>> bool(generator(7, 0).random() == generator(7, 1).random())
    False
"""

from __future__ import annotations

import dataclasses
import secrets
from typing import Any, Literal

import numpy as np

from fl_epe.checks import check_not_negative, check_types

NoiseGenerator = Literal["chacha20", "sfc64"]
_STREAMS = ("canary", "participation", "noise", "local", "initial")


@dataclasses.dataclass(frozen=True)
class Seeds:
    """One seed for each random stream of a run.

    Attributes:
        canary: seed of the canaries' directions. Anyone who can guess it can subtract the
            canaries.
        participation: seed of the rounds of clients and canaries.
        noise: seed of the DP noise. With ``None``, the noise of every round comes from the
            operating system's entropy, which is not stored.
        local: seed of batch order and dropout on the clients.
        initial: seed of the initial model.
    """

    canary: int
    participation: int
    noise: int | None
    local: int
    initial: int

    def __post_init__(self) -> None:
        check_types(self, largest=2**128)

    @classmethod
    def derive(cls, seed: int | None) -> Seeds:
        """All seeds from one master seed, or with ``None`` from the operating system's entropy.

        Raises:
            ValueError: if ``seed`` is negative.
        """
        if seed is None:
            random_seeds: dict[str, Any] = {
                name: secrets.randbits(128) for name in _STREAMS
            }
            random_seeds["noise"] = None
            return cls(**random_seeds)
        check_not_negative("seed", seed)
        sequences = np.random.SeedSequence(seed).spawn(len(_STREAMS))
        seeds = []
        for sequence in sequences:
            high, low = sequence.generate_state(2, np.uint64)
            seeds.append(int(high) << 64 | int(low))
        return cls(*seeds)


def generator(seed: int | None, *index: int) -> np.random.Generator:
    """A generator for item ``index`` of the stream with this ``seed``.

    The same arguments give the same numbers on all machines. With ``seed=None`` the generator is
    seeded with 256 bits from the operating system. It is not cryptographically secure: use
    `noise_generator` for DP noise.
    """
    entropy = secrets.randbits(256) if seed is None else seed
    sequence = np.random.SeedSequence(entropy, spawn_key=index)
    return np.random.Generator(np.random.SFC64(sequence))


def noise_generator(
    seed: int | None, *index: int, kind: NoiseGenerator = "chacha20"
) -> np.random.Generator:
    """A generator of DP noise for item ``index`` of the stream with this ``seed``.

    Args:
        seed: seed of the stream; the same seed gives the same numbers on all machines. With
            ``None`` the key is 256 bits from the operating system, which are not stored.
        index: index of the item, such as the round.
        kind: 'chacha20', a stream cipher (RFC 8439, with a counter of 64 bits): some of its
            numbers do not reveal others. Or 'sfc64', which takes a third of the time and is not
            secure: its state follows from five outputs.
    """
    if kind == "sfc64":
        return generator(seed, *index)
    from randomgen import ChaCha

    if seed is None:
        key = secrets.randbits(256)
    else:
        sequence = np.random.SeedSequence(seed, spawn_key=index)
        words = sequence.generate_state(4, np.uint64)
        key = int.from_bytes(words.astype("<u8").tobytes(), "little")
    return np.random.Generator(ChaCha(key=key, rounds=20))
