"""Named random streams: one seed each, so that one choice can change while the others repeat."""

from __future__ import annotations

import dataclasses
import secrets

import numpy as np

_STREAMS = ("canary", "participation", "noise", "local", "initial")


@dataclasses.dataclass(frozen=True)
class Seeds:
    """One seed for each random stream of a run.

    Attributes:
        canary: the canaries' directions. Whoever can guess it can hide from the audit.
        participation: who takes part in which round.
        noise: the DP noise. ``None`` draws fresh entropy for every round and keeps no trace of it.
        local: batch order and dropout on the clients.
        initial: the initial model.
    """

    canary: int
    participation: int
    noise: int | None
    local: int
    initial: int

    @classmethod
    def derive(cls, seed: int | None) -> Seeds:
        """All seeds from one master seed (reproducible), or from the operating system (``None``).

        Raises:
            ValueError: for a negative ``seed``.
        """
        if seed is None:
            drawn = {name: secrets.randbits(128) for name in _STREAMS if name != "noise"}
            return cls(noise=None, **drawn)
        if seed < 0:
            raise ValueError(f"Expected seed={seed} >= 0.")
        children = np.random.SeedSequence(seed).spawn(len(_STREAMS))
        words = [child.generate_state(2, np.uint64) for child in children]
        return cls(*(int(high) << 64 | int(low) for high, low in words))

    def to_dict(self) -> dict[str, int | None]:
        """The seeds by name."""
        return dataclasses.asdict(self)


def generator(seed: int | None, *index: int) -> np.random.Generator:
    """A generator for the item ``index`` of the stream with that ``seed``; same bits everywhere.

    With ``seed=None`` the generator is seeded with 256 bits from the operating system.
    """
    entropy = secrets.randbits(256) if seed is None else seed
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(entropy, spawn_key=index)))
