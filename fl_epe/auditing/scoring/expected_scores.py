"""`ExpectedScores`: the expected scores of an adversary's canaries and of clients."""

import dataclasses
import math

import numpy as np

from fl_epe.auditing.scoring.signals import Signals
from fl_epe.checks import ArgumentError, Floats
from fl_epe.seeding import generator

# With a fitted reaction, a client's energy is the mean over this many random schedules. The seed is
# fixed, so that a record always has the same expected scores.
_NUM_SCHEDULES = 10
_SEED = 0


@dataclasses.dataclass(frozen=True, eq=False)
class ExpectedScores:
    """Expected scores of canaries and clients, for κ = 1.

    For the final model an expected score is a sum over the participations. For every round's model
    the energy is the sum over rounds of the squared whitened signals, and an expected score is
    proportional to its root.

    Attributes:
        observed: expected scores of the canaries that have scores, ``(k',)``.
        parts: the part of each round in ``observed``, ``(T, k')``; the parts of a canary add up to
            its expected score. For every round's model, a round's part is its energy divided by
            the expected score.
        unit: a client's expected score, divided by the root of its energy. Every round's model: it
            corrects for estimated correlations of rounds (`fl_epe.auditing.record.Precision`).
            Final model: 1, not used.
        weights: the expected score of one participation in each round, before whitening,
            ``(T,)``; 1 in every round if ``scale_is_known`` is ``False``.
        scale_is_known: whether clip norms (or contributions) are known and, for the final model,
            the server is SGD; otherwise all expected scores are correct up to a common factor.
        signals: computes the signals of participations, which are expected scores round by round,
            and whitens them.
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

        For the final model it is a contribution to the expected score. For every round's model it
        is the squared expected score of a client in this round only, ``unit² · fᵀG⁻¹f``: f is the
        vector of the client's signals, and G the correlation matrix of the rounds.

        Raises:
            ArgumentError: if ``scale_is_known`` is ``False``.
        """
        if not self.scale_is_known:
            requirement = "clip norms (or contributions) to be known"
            if self.sees_final:
                requirement += ", and a server with SGD"
            raise ArgumentError(f"Expected {requirement}.")
        if self.sees_final:
            return self.weights
        correlation = self.signals.record.correlation
        return self.unit**2 * correlation.single_round_energies(self.weights)

    def of(self, relative_norms: np.ndarray) -> Floats:
        """The expected scores of clients.

        If a reaction was fitted, the energy for every round's model is the mean over random
        schedules, in each of which the client's participations are in random rounds: in a small
        cohort, the client's own updates are a large part of the measured residuals of its rounds.

        Args:
            relative_norms: the relative norms of m clients' participations in each round, see
                `Signals`; 0 in rounds without them, ``(T, m)``.

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
            energies = self._energies(relative_norms)
        else:
            num_rounds = len(relative_norms)
            rng = generator(_SEED, num_rounds)
            schedules = [
                rng.permuted(relative_norms, axis=0)
                for _ in range(_NUM_SCHEDULES)
            ]
            energies = np.mean(
                [self._energies(schedule) for schedule in schedules], axis=0
            )
        return np.asarray(self.unit * np.sqrt(energies))

    def _energies(self, relative_norms: np.ndarray) -> Floats:
        """The energies of clients for every round's model, shape ``(m,)``."""
        # `of_clients` has an effect only if a reaction was fitted.
        signals = self.signals.whitened(relative_norms, of_clients=True)
        return np.asarray(np.sum(signals**2, axis=0))

    def of_rounds(self, rounds: float) -> float:
        """The expected score of a client in this number of unknown rounds.

        It is that of average rounds; every round's model is scored as if rounds were independent.
        """
        if self.sees_final:
            return rounds * float(self.weights.mean())
        correlation = self.signals.record.correlation
        energies = correlation.single_round_energies(self.weights)
        return self.unit * math.sqrt(rounds * float(energies.mean()))
