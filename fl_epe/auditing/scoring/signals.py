"""`Signals`: the expected scores of clients and canaries, round by round.

Notation: a participant adds a vector of norm ``C_t/n`` to the mean of round t (clip norm over
cohort size). The rest of the mean is the residual ``h_t``: the noise and the other clients'
updates. The participant's expected score in this round is ``a_t = √d·C_t / (n·‖h_t‖)``. The
signals of canary i are ``f_it = a_t`` in its rounds and 0 in other rounds. If the residuals of
rounds are correlated, signals are whitened like scores, to ``L⁻¹f_i``
(`fl_epe.auditing.record.round_correlation`). In the rounds after a client's participation, training
may react to it (`fl_epe.auditing.scoring.reaction`).
"""

import dataclasses
import functools
import math

import numpy as np

from fl_epe.auditing.record import AuditRecord, ServerStep, quotients
from fl_epe.auditing.scoring.leave_one_out import leave_one_out
from fl_epe.auditing.scoring.reaction import (
    ModelResponse,
    Reaction,
    model_response,
)
from fl_epe.auditing.scoring.scores import residual_norm
from fl_epe.checks import Floats, raise_invalid


@dataclasses.dataclass(frozen=True, eq=False)
class Signals:
    """The expected scores of participations in each round, which are called signals.

    A participation is given by its relative norm: the norm of its contribution to the round's
    mean, divided by that of a client of median weight (`Mechanism.contribution_norms`).

    Attributes:
        record: the audit record of a run.
        reaction: the reaction of later rounds to a contribution; ``None`` if canaries take part
            about as often as a client, so that their scores include the client's reaction.
    """

    record: AuditRecord
    reaction: Reaction | None = None

    @property
    def leave_one_out(self) -> AuditRecord:
        """The record with the other canaries projected out.

        See `fl_epe.auditing.scoring.leave_one_out`. It is computed once for all adversaries, and
        stored in the record's ``__dict__``, so that both are freed together.
        """
        attributes = vars(self.record)
        if "_leave_one_out" not in attributes:
            attributes["_leave_one_out"] = leave_one_out(self.record)
        stored: AuditRecord = attributes["_leave_one_out"]
        return stored

    @functools.cached_property
    def contribution_norms(self) -> Floats:
        """The norm of a participant's contribution to each round's mean, ``(T,)``.

        It may be unknown in a round without canaries. It is then estimated by the mean's norm,
        times the median ratio of contribution to mean in the other rounds.

        Raises:
            ValueError: if the canaries' contributions are not known.
        """
        added = self.record.mechanism.contribution_norms
        mean_norms = self.record.norms.means
        if not self.record.signal_known():
            raise_invalid(
                "clip_norms",
                added,
                "(or contributions) to be known in every round",
            )
        is_known = np.isfinite(added)
        if is_known.all():
            return added
        is_measured = is_known & (mean_norms > 0)
        ratio = 0.0
        if is_measured.any():
            ratio = float(
                np.median(added[is_measured] / mean_norms[is_measured])
            )
        return np.where(is_known, added, ratio * mean_norms)

    @functools.cached_property
    def residual_norms(self) -> Floats:
        """The norm ``‖h_t‖`` of each round's residual for one canary, ``(T,)``."""
        has_canaries = self.record.presence.any(axis=1)
        canary_norms = np.where(has_canaries, self.contribution_norms, 0.0)
        return residual_norm(self.leave_one_out.norms.means, canary_norms)

    @functools.cached_property
    def participant_scores(self) -> Floats:
        """The expected score ``a_t`` of a participant of each round, ``(T,)``.

        Raises:
            ValueError: if the canaries' contributions are not known.
        """
        root = np.sqrt(self.record.dim)
        return quotients(root * self.contribution_norms, self.residual_norms)

    @property
    def client_share(self) -> float:
        """One client's share of a round's real clients, on average; 0 if it is not known."""
        canaries = float(self.record.presence.sum(axis=1).mean())
        clients = self.record.mechanism.cohort_size - canaries
        if math.isfinite(clients):
            return 1 / max(clients, 1.0)
        return 0.0

    def whitened(
        self,
        relative_norms: Floats,
        reaction: Reaction | None = None,
        *,
        of_clients: bool = False,
    ) -> Floats:
        """The expected whitened scores of clients or canaries, ``(T, m)``.

        If the canaries' contributions are not known, these scores are correct up to a factor.

        Args:
            relative_norms: those of m clients or canaries in each round, ``(T, m)``; 0 in rounds
                without them.
            reaction: the reaction; by default that of this object.
            of_clients: whether they are real clients. A client's update is part of the measured
                residual, which the client's own score must not count as noise. Canaries are
                projected out of the residual.
        """
        reaction = reaction or self.reaction
        correlation = self.record.correlation
        if reaction is None or reaction.rate is None:
            signals = relative_norms
            if self.record.signal_known():
                signals = self.participant_scores[:, None] * relative_norms
            if reaction is None:
                return correlation.whiten(signals)
            # Later rounds react to a contribution as they react to the noise. Whitening removes
            # both, so the whole contribution is in the part of a round's residual that earlier
            # rounds do not predict.
            return signals / correlation.innovations[:, None]
        norms, _ = self._residual_and_contribution_norms
        if of_clients:
            # About 1/n of the residual's energy is the client's own update, and is removed. At
            # most half is, because with a single client nothing would remain.
            norms = norms * math.sqrt(1 - min(self.client_share, 1 / 2))
        updates = self._response(relative_norms, reaction.rate).updates
        inner_products = np.sqrt(self.record.dim) * updates
        return correlation.whiten(quotients(inner_products, norms[:, None]))

    def in_final_model(self, relative_norms: Floats, rate: float) -> Floats:
        """The expected scores of real clients in the final model, with a reaction, ``(m,)``.

        Args:
            relative_norms: those of m clients in each round, ``(T, m)``.
            rate: the rate ρ of the reaction.
        """
        # A client does not react to itself, so in its rounds fewer clients react.
        reacting = 1 - np.minimum(relative_norms, 1.0) * self.client_share
        positions = self._response(relative_norms, rate * reacting).positions
        root = np.sqrt(self.record.dim)
        return np.asarray(root * positions / self.final_residual_norm)

    @functools.cached_property
    def final_contributions(self) -> Floats:
        """For each round, what a participation in only this round adds to θ_T − θ_0, ``(T,)``.

        It is the component along the participant's direction.

        Raises:
            ValueError: if the canaries' contributions are not known, or the server is not SGD.
        """
        # This is computed in every case, as it raises if something is not known.
        without_reaction = self.record.round_weights() * self.contribution_norms
        if self.reaction is None or self.reaction.rate is None:
            return without_reaction
        single_rounds = np.eye(self.record.rounds)
        return self._response(single_rounds, self.reaction.rate).positions

    @functools.cached_property
    def final_residual_norm(self) -> float:
        """The norm of the residual in θ_T − θ_0 for a typical canary."""
        canary_norms = self.final_contributions @ self.record.shares()
        typical_norm = np.sqrt(np.mean(canary_norms**2))
        displacement = self.leave_one_out.norms.displacement
        return float(residual_norm(displacement, typical_norm))

    def _response(
        self, relative_norms: Floats, rate: float | Floats
    ) -> ModelResponse:
        """The response of the model to participations, ``(T, m)``, if clients react with rate ρ."""
        _, norms = self._residual_and_contribution_norms
        server = self.record.mechanism.server
        # If the server's step is not linear, scores are computed from model updates. These add up
        # to θ_T − θ_0, as with SGD of learning rate 1.
        if not server.is_linear:
            server = ServerStep("sgd", np.ones(self.record.rounds))
        rates = np.broadcast_to(rate, relative_norms.shape)
        return model_response(norms[:, None] * relative_norms, rates, server)

    @property
    def _residual_and_contribution_norms(self) -> tuple[Floats, Floats]:
        """The norms of the rounds' residuals and of a participant's contributions, each ``(T,)``.

        If the canaries' contributions are not known, an expected score of 1 is assumed in every
        round.
        """
        if self.record.signal_known():
            return self.residual_norms, self.contribution_norms
        mean_norms = self.leave_one_out.norms.means
        return mean_norms, mean_norms / np.sqrt(self.record.dim)
