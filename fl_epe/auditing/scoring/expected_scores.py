"""`Sizes`: the expected scores of a view's canaries, of clients, and of typical participations."""

import dataclasses
import math

import numpy as np

from fl_epe.auditing.scoring.signals import Signals
from fl_epe.checks import Floats
from fl_epe.seeding import generator

_DRAWS = 10  # of a client's rounds


@dataclasses.dataclass(frozen=True, eq=False)
class Sizes:
    """Expected scores, up to one factor if a record does not say what a canary adds.

    Attributes:
        observed: means of the scores, ``(k',)``, of the canaries that have any.
        parts: what each round contributes to them, ``(T, k')``; they add up to ``observed``.
        unit: μ of a client is this times the root of its energy, or its sum of ``weights``.
        weights: of one participation in each round, ``(T,)``.
        known: whether the factor is 1.
        signals: what shares of the rounds' contributions add to scores.
        sees_final: whether the scores are of the final model; otherwise of every round.
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

        In a small cohort a client's own updates are a large part of the measured residual, in just
        its rounds. With a fitted reaction, its rounds are therefore drawn anew, as many as it has.

        Args:
            shares: of each client, ``(T, m)``.

        Returns:
            Shape ``(m,)``.
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
        """Expected score of a client with so many rounds, which are not known."""
        if self.sees_final:
            return rounds * float(self.weights.mean())
        energies = self.signals.record.correlation.alone(self.weights)
        return self.unit * math.sqrt(rounds * float(energies.mean()))
