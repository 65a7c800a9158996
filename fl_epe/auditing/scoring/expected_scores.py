"""`Sizes`: the expected scores of a view's canaries, of clients, and of typical participations."""

import dataclasses
import math

import numpy as np

from fl_epe.auditing.scoring.signals import Signals
from fl_epe.checks import Floats
from fl_epe.seeding import generator

_DRAWS = 10  # draws of a client's rounds


@dataclasses.dataclass(frozen=True, eq=False)
class Sizes:
    """Expected scores, up to a factor if a record lacks the contribution of a canary.

    Attributes:
        observed: means of the scores, ``(k',)``, of the canaries that have scores.
        parts: contributions of each round to them, ``(T, k')``; their sum is ``observed``.
        unit: μ of a client over the root of its energy, for every round's model; for the final
            model μ is the client's sum of ``weights``.
        weights: the weight of one participation in each round, ``(T,)``.
        known: whether the factor is 1.
        signals: the expected contributions of clients to the scores of rounds.
        sees_final: whether the scores are of the final model; otherwise of every round's model.
    """

    observed: Floats
    parts: Floats
    unit: float
    weights: Floats
    known: bool
    signals: Signals
    sees_final: bool

    def of(self, shares: np.ndarray) -> Floats:
        """Expected scores of clients by their shares of the rounds' contributions.

        In a small cohort a client's updates are a large part of the measured residual of its
        rounds. With a fitted reaction, its rounds are therefore redrawn at random, as many as
        it has.

        Args:
            shares: shares of each client, ``(T, m)``.

        Returns:
            The expected scores, shape ``(m,)``.
        """
        reaction = self.signals.reaction
        rate = None if reaction is None else reaction.rate
        if self.sees_final:
            if rate is not None and self.known:
                return self.signals.in_final_model(shares, rate)
            return np.asarray(self.weights @ shares)
        if rate is None:
            energies = np.sum(self.signals.of(shares) ** 2, axis=0)
        else:
            rng = generator(0, len(shares))
            draws = [rng.permuted(shares, axis=0) for _ in range(_DRAWS)]
            signals = [self.signals.of(draw, of_clients=True) for draw in draws]
            energies = np.mean([np.sum(s**2, axis=0) for s in signals], axis=0)
        return np.asarray(self.unit * np.sqrt(energies))

    def of_rounds(self, rounds: float) -> float:
        """The expected score of a client with a known number of unknown rounds."""
        if self.sees_final:
            return rounds * float(self.weights.mean())
        energies = self.signals.record.correlation.alone(self.weights)
        return self.unit * math.sqrt(rounds * float(energies.mean()))
