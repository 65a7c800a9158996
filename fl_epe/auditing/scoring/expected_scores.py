"""`ExpectedScores`: the expected scores of an adversary's canaries and of clients."""

import dataclasses
import math

import numpy as np

from fl_epe.auditing.scoring.signals import Signals
from fl_epe.checks import ArgumentError, Floats
from fl_epe.seeding import generator

# Random choices of a client's rounds over which its squared expected score is averaged.
_DRAWS = 10


@dataclasses.dataclass(frozen=True, eq=False)
class ExpectedScores:
    """Expected scores of canaries and clients, for κ = 1.

    For the final model an expected score is a sum over the client's rounds. For every round's
    model it is the root of the sum of the squared whitened signals, which is called the energy.

    Attributes:
        observed: expected scores of the canaries that have scores, ``(k',)``.
        parts: the contribution of each round to ``observed``, ``(T, k')``; their sum over rounds is
            ``observed``.
        unit: factor on the root of the energy, see `Precision`; 1 for the final model.
        weights: the expected score of one participation in each round, before whitening,
            ``(T,)``.
        scale_is_known: whether the canaries' contributions are known; otherwise all expected
            scores are correct up to a common factor.
        signals: the expected whitened scores of participations.
        sees_final: whether the scores are of the final model; otherwise of every round's model.
    """

    observed: Floats
    parts: Floats
    unit: float
    weights: Floats
    scale_is_known: bool
    signals: Signals
    sees_final: bool

    @property
    def by_round(self) -> Floats:
        """The contribution of one participation in each round, ``(T,)``.

        It is a contribution to the expected score for the final model, and to the squared
        expected score for every round's model: ``fᵀG⁻¹f`` of a client in this round only.

        Raises:
            ArgumentError: if the canaries' contributions are not known, or for the final model
                if the server is not SGD.
        """
        if not self.scale_is_known:
            raise ArgumentError(
                "Expected clip norms to be known, and for the final model a server with SGD."
            )
        if self.sees_final:
            return self.weights
        correlation = self.signals.record.correlation
        return self.unit**2 * correlation.single_round_energies(self.weights)

    def of(self, relative_norms: np.ndarray) -> Floats:
        """The expected scores of clients.

        With a fitted reaction, every round's model is scored at random rounds instead of the
        client's, as many as it has: in a small cohort, the client's own updates are a large part
        of the measured residuals of its rounds.

        Args:
            relative_norms: those of m clients in each round, ``(T, m)``, see `Signals`.

        Returns:
            The expected scores, shape ``(m,)``.
        """
        reaction = self.signals.reaction
        rate = None if reaction is None else reaction.rate
        if self.sees_final:
            if rate is not None and self.scale_is_known:
                return self.signals.in_final_model(relative_norms, rate)
            return np.asarray(self.weights @ relative_norms)
        if rate is None:
            signals = self.signals.whitened(relative_norms)
            energies = np.sum(signals**2, axis=0)
        else:
            rng = generator(0, len(relative_norms))
            draws = [
                rng.permuted(relative_norms, axis=0) for _ in range(_DRAWS)
            ]
            signals_of_draws = [
                self.signals.whitened(draw, of_clients=True) for draw in draws
            ]
            energies = np.mean(
                [np.sum(signals**2, axis=0) for signals in signals_of_draws],
                axis=0,
            )
        return np.asarray(self.unit * np.sqrt(energies))

    def of_rounds(self, rounds: float) -> float:
        """The expected score of a client in this number of unknown rounds."""
        if self.sees_final:
            return rounds * float(self.weights.mean())
        correlation = self.signals.record.correlation
        energies = correlation.single_round_energies(self.weights)
        return self.unit * math.sqrt(rounds * float(energies.mean()))
