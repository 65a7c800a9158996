"""`Signals`: the expected contributions of participations to a client's or canary's scores.

Notation: ``a_t = √d·C_t / (n·‖h_t‖)`` is the expected score of a participant of round t (in
general, √d times the norm of its contribution to the mean, over the norm of the residual
``h_t``). Rounds are correlated if their ``h_t`` are: whitened signals are ``L⁻¹f_i``
(`fl_epe.auditing.record.round_correlation`), with ``f_it`` = a_t in the rounds of canary i and
0 in other rounds. After a client's rounds training may react to it
(`fl_epe.auditing.scoring.reaction`).
"""

import dataclasses
import functools
import math

import numpy as np

from fl_epe.auditing.record import AuditRecord, ServerStep, quotients
from fl_epe.auditing.scoring.leave_one_out import leave_one_out
from fl_epe.auditing.scoring.reaction import Moved, Reaction, pulled_back
from fl_epe.auditing.scoring.scores import hidden_norm
from fl_epe.checks import Floats, raise_invalid


@dataclasses.dataclass(frozen=True, eq=False)
class Signals:
    """The expected contributions to scores, by shares of the rounds' contributions.

    Attributes:
        record: the audit record of a run.
        reaction: the reaction of later rounds to a contribution; ``None`` if the canaries'
            scores include a client's reaction already.
    """

    record: AuditRecord
    reaction: Reaction | None = None

    @property
    def alone(self) -> AuditRecord:
        """The record that each canary would have as the only one (`leave_one_out`)."""
        computed: dict[str, AuditRecord] = vars(self.record)
        if "_alone" not in computed:
            computed["_alone"] = leave_one_out(self.record)
        return computed["_alone"]

    @functools.cached_property
    def contributions(self) -> Floats:
        """The norm of a client's contribution to the released mean when it takes part, ``(T,)``.

        In a round without canaries whose contribution is unknown, it is the same share of the
        mean's norm as in the median round with a known contribution.

        Raises:
            ValueError: if the canaries' contributions are not known.
        """
        added = self.record.mechanism.added
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
        measured = is_known & (norms > 0)
        share = 0.0
        if measured.any():
            share = float(np.median(added[measured] / norms[measured]))
        return np.where(is_known, added, share * norms)

    @functools.cached_property
    def residual_norms(self) -> Floats:
        """The norm of one canary's residual in each round's mean, ``‖h_t‖``, ``(T,)``."""
        has_canaries = self.record.presence.any(axis=1)
        canary_norms = np.where(has_canaries, self.contributions, 0.0)
        return hidden_norm(self.alone.norms.means, canary_norms)

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
        """The inverse of the mean number of real clients in a round; 0 if that is not known."""
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
        """The contributions to whitened scores by shares of the rounds' contributions, ``(T, m)``.

        The result is up to a factor if the canaries' contributions are not known.

        Args:
            shares: the shares of each direction, ``(T, m)``.
            reaction: the reaction; by default `reaction`.
            of_clients: whether the shares are real clients', whose own updates are in the
                residuals but are no noise to themselves. Canaries are not in the residuals.
        """
        reaction = reaction or self.reaction
        correlation = self.record.correlation
        if reaction is None or reaction.rate is None:
            signals = shares
            if self.record.signal_known():
                signals = self.by_round[:, None] * shares
            if reaction is None:
                return correlation.whiten(signals)
            return signals / correlation.innovations[:, None]
        norms, _ = self._norms_and_contributions
        if of_clients:
            norms = norms * math.sqrt(1 - min(self.client_share, 1 / 2))
        updates = self._moved(shares, reaction.rate).updates
        scores = np.sqrt(self.record.dim) * updates
        return correlation.whiten(quotients(scores, norms[:, None]))

    def in_final_model(self, shares: Floats, rate: float) -> Floats:
        """Expected scores of real clients in the final model, with a reaction: ``(m,)``.

        In a client's rounds all other clients react.

        Args:
            shares: each client's shares of the rounds' contributions, ``(T, m)``.
            rate: the rate ρ of the reaction.
        """
        reacting = 1 - np.minimum(shares, 1.0) * self.client_share
        moved = self._moved(shares, rate * reacting)
        _, residual_norm = self.final_model
        return np.asarray(
            np.sqrt(self.record.dim) * moved.position / residual_norm
        )

    @functools.cached_property
    def final_model(self) -> tuple[Floats, float]:
        """The contribution of each round's participant to θ_T − θ_0, and the residual's norm."""
        added = self.record.round_weights() * self.contributions
        if self.reaction is not None and self.reaction.rate is not None:
            rounds = np.eye(self.record.rounds)
            added = self._moved(rounds, self.reaction.rate).position
        typical = float(np.sqrt(np.mean((added @ self.record.shares()) ** 2)))
        return added, float(hidden_norm(self.alone.norms.displacement, typical))

    def _moved(self, shares: Floats, rate: float | Floats) -> Moved:
        """The effect of shares of the contributions, ``(T, m)``, if clients react with rate ρ."""
        _, contributions = self._norms_and_contributions
        server = self.record.mechanism.server
        # With another server, scores are of model updates, whose sum is the displacement.
        if not server.linear:
            server = ServerStep("sgd", np.ones(self.record.rounds))
        rates = np.broadcast_to(rate, shares.shape)
        return pulled_back(contributions[:, None] * shares, rates, server)

    @property
    def _norms_and_contributions(self) -> tuple[Floats, Floats]:
        """Norms of the rounds' residuals, and of a client's contributions, ``(T,)`` each.

        The latter are up to a factor if the canaries' contributions are not known.
        """
        if self.record.signal_known():
            return self.residual_norms, self.contributions
        norms = self.alone.norms.means
        return norms, norms / np.sqrt(self.record.dim)
