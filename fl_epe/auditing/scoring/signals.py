"""`Signals`: the contributions of a client's or canary's participations to its expected scores.

Notation: a participant adds a vector of norm ``C_t/n`` to the mean of round t (clip norm over
cohort size), among the residual ``h_t``: the noise and the other clients' updates. Its expected
score in this round is ``a_t = √d·C_t / (n·‖h_t‖)``. The signals of canary i are ``f_it = a_t``
in its rounds and 0 in other rounds. If the residuals of rounds are correlated, signals are
whitened like scores, to ``L⁻¹f_i`` (`fl_epe.auditing.record.round_correlation`). In the rounds
after a client's participation, training may react to it (`fl_epe.auditing.scoring.reaction`).
"""

import dataclasses
import functools
import math

import numpy as np

from fl_epe.auditing.record import AuditRecord, ServerStep, quotients
from fl_epe.auditing.scoring.leave_one_out import leave_one_out
from fl_epe.auditing.scoring.reaction import Moves, Reaction, pulled_back
from fl_epe.auditing.scoring.scores import residual_norm
from fl_epe.checks import Floats, raise_invalid


@dataclasses.dataclass(frozen=True, eq=False)
class Signals:
    """The contributions of participations to expected scores.

    A participation is given by its share: the norm of its contribution to the round's mean,
    divided by `Mechanism.contribution_norms` of the round. It is 1 for a client of median weight.

    Attributes:
        record: the audit record of a run.
        reaction: the reaction of later rounds to a contribution; ``None`` if the canaries'
            scores include a client's reaction already.
    """

    record: AuditRecord
    reaction: Reaction | None = None

    @property
    def leave_one_out(self) -> AuditRecord:
        """The record with the other canaries projected out.

        See `fl_epe.auditing.scoring.leave_one_out`. It is computed once for all adversaries, and
        stored in the record's ``__dict__``, so that both are freed together.
        """
        stored: dict[str, AuditRecord] = vars(self.record)
        if "_leave_one_out" not in stored:
            stored["_leave_one_out"] = leave_one_out(self.record)
        return stored["_leave_one_out"]

    @functools.cached_property
    def contributions(self) -> Floats:
        """The norm of a participant's contribution to each round's mean, ``(T,)``.

        It may be unknown in a round without canaries. It is then estimated by the mean's norm,
        times the median ratio of contribution to mean in the other rounds.

        Raises:
            ValueError: if the canaries' contributions are not known.
        """
        added = self.record.mechanism.contribution_norms
        norms = self.record.norms.means
        if not self.record.signal_known():
            raise_invalid(
                "clip_norms",
                added,
                "(or contributions) to be known in every round",
            )
        is_known = np.isfinite(added)
        if is_known.all():
            return added
        is_measured = is_known & (norms > 0)
        ratio = 0.0
        if is_measured.any():
            ratio = float(np.median(added[is_measured] / norms[is_measured]))
        return np.where(is_known, added, ratio * norms)

    @functools.cached_property
    def residual_norms(self) -> Floats:
        """The norm ``‖h_t‖`` of each round's residual for one canary, ``(T,)``."""
        has_canaries = self.record.presence.any(axis=1)
        canary_norms = np.where(has_canaries, self.contributions, 0.0)
        return residual_norm(self.leave_one_out.norms.means, canary_norms)

    @functools.cached_property
    def by_round(self) -> Floats:
        """The expected score ``a_t`` of a participant of each round, ``(T,)``.

        Raises:
            ValueError: if the canaries' contributions are not known.
        """
        root = np.sqrt(self.record.dim)
        return quotients(root * self.contributions, self.residual_norms)

    @property
    def client_share(self) -> float:
        """One client's share of a round's real clients, on average; 0 if it is not known."""
        canaries = float(self.record.presence.sum(axis=1).mean())
        clients = self.record.mechanism.cohort_size - canaries
        if math.isfinite(clients):
            return 1 / max(clients, 1.0)
        return 0.0

    def of(
        self,
        shares: Floats,
        reaction: Reaction | None = None,
        *,
        of_clients: bool = False,
    ) -> Floats:
        """The expected whitened scores of clients or canaries, ``(T, m)``.

        If the canaries' contributions are not known, they are correct up to a factor.

        Args:
            shares: the shares of m clients or canaries in each round, ``(T, m)``.
            reaction: a reaction in place of that of this object.
            of_clients: whether they are real clients. A client's update is part of the measured
                residual, which the client's own score must not count as noise. Canaries are
                projected out of the residual.
        """
        reaction = reaction or self.reaction
        correlation = self.record.correlation
        if reaction is None or reaction.rate is None:
            signals = shares
            if self.record.signal_known():
                signals = self.by_round[:, None] * shares
            if reaction is None:
                return correlation.whiten(signals)
            # The new part of a round has the whole contribution, see `reaction`.
            return signals / correlation.innovations[:, None]
        norms, _ = self._norms_and_contributions
        if of_clients:
            # The residual without the client's own update, with at least half of its energy.
            norms = norms * math.sqrt(1 - min(self.client_share, 1 / 2))
        updates = self._moves(shares, reaction.rate).updates
        scores = np.sqrt(self.record.dim) * updates
        return correlation.whiten(quotients(scores, norms[:, None]))

    def in_final_model(self, shares: Floats, rate: float) -> Floats:
        """The expected scores of real clients in the final model, with a reaction, ``(m,)``.

        Args:
            shares: the shares of m clients in each round, ``(T, m)``.
            rate: the rate ρ of the reaction.
        """
        # A client does not react to itself, so in its rounds fewer clients react.
        reacting = 1 - np.minimum(shares, 1.0) * self.client_share
        positions = self._moves(shares, rate * reacting).positions
        _, norm = self.final_model
        return np.asarray(np.sqrt(self.record.dim) * positions / norm)

    @functools.cached_property
    def final_model(self) -> tuple[Floats, float]:
        """The signals of the final model, for participants of one round each.

        Returns:
            The norm of their contributions to θ_T − θ_0, ``(T,)``, and the norm of the residual
            in θ_T − θ_0 for a typical canary.
        """
        added = self.record.round_weights() * self.contributions
        if self.reaction is not None and self.reaction.rate is not None:
            single_rounds = np.eye(self.record.rounds)
            added = self._moves(single_rounds, self.reaction.rate).positions
        canary_norms = added @ self.record.shares()
        typical_norm = np.sqrt(np.mean(canary_norms**2))
        displacement = self.leave_one_out.norms.displacement
        return added, float(residual_norm(displacement, typical_norm))

    def _moves(self, shares: Floats, rate: float | Floats) -> Moves:
        """The moves of the model by participations, ``(T, m)``, if clients react with rate ρ."""
        _, contributions = self._norms_and_contributions
        server = self.record.mechanism.server
        # With another server, scores are of model updates, whose sum is the displacement.
        if not server.is_linear:
            server = ServerStep("sgd", np.ones(self.record.rounds))
        rates = np.broadcast_to(rate, shares.shape)
        return pulled_back(contributions[:, None] * shares, rates, server)

    @property
    def _norms_and_contributions(self) -> tuple[Floats, Floats]:
        """The norms of the rounds' residuals and of a participant's contributions, each ``(T,)``.

        If the canaries' contributions are not known, an expected score of 1 is assumed in every
        round.
        """
        if self.record.signal_known():
            return self.residual_norms, self.contributions
        norms = self.leave_one_out.norms.means
        return norms, norms / np.sqrt(self.record.dim)
