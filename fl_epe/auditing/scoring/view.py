"""`View`: the values that an adversary computes from a record, each computed once.

Notation: ``s_it = √d·cot(c_i, mean_t)`` is the score of canary i in round t, with the server's
momentum undone: √d times the cosine C over √(1 − C²) (`scores.shift_scores`). It is N(0, 1) for an
unobserved canary; a participant's expected score is in `fl_epe.auditing.scoring.signals`. Whitened
scores are ``L⁻¹s_i`` (`fl_epe.auditing.record.round_correlation`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from fl_epe.auditing.estimate import FINAL_MODEL, Adversary
from fl_epe.auditing.record import (
    EXACT,
    AuditRecord,
    Precision,
    check_measured,
    energy_of_pairs,
    quotients,
    reach_of,
)
from fl_epe.auditing.scoring.expected_scores import Sizes
from fl_epe.auditing.scoring.leave_one_out import all_canaries
from fl_epe.auditing.scoring.reaction import Reaction
from fl_epe.auditing.scoring.scores import (
    Scores,
    fitted_shift,
    mean_spread,
    shift_scores,
)
from fl_epe.auditing.scoring.signals import Signals
from fl_epe.checks import Floats


@dataclasses.dataclass(frozen=True, eq=False)
class View:
    """A record as an adversary sees it; make it with `seen_by`.

    Attributes:
        record: the audit record of a run.
        adversary: the adversary.
        reaction: the reaction of later rounds to a contribution; ``None`` if the canaries'
            scores include a client's reaction already.
        computed_scores: scores by statistic, see
            `fl_epe.auditing.scoring.statistics.scores_of`.
    """

    record: AuditRecord
    adversary: Adversary
    reaction: Reaction | None = None
    computed_scores: dict[str, Scores] = dataclasses.field(
        default_factory=dict, init=False, repr=False
    )

    @functools.cached_property
    def signals(self) -> Signals:
        """The expected contributions to scores."""
        return Signals(self.record, self.reaction)

    @property
    def alone(self) -> AuditRecord:
        """See `Signals.alone`."""
        return self.signals.alone

    @property
    def round_signal(self) -> Floats:
        """See `Signals.by_round`."""
        return self.signals.by_round

    @property
    def client_share(self) -> float:
        """See `Signals.client_share`."""
        return self.signals.client_share

    @functools.cached_property
    def with_all_canaries(self) -> View:
        """The view of an adversary who does not know the other canaries, which stay in."""
        return seen_by(all_canaries(self.record), self.adversary)

    @property
    def precision(self) -> Precision:
        """The effect of estimated correlations on `whitened_scores`."""
        if self.adversary.sees_final:
            return EXACT
        correlation = self.record.correlation
        reach = reach_of(self.record.rounds, correlation.window)
        return Precision.of(reach, self.record.dim, correlation.parts)

    @functools.cached_property
    def unit_error(self) -> float:
        """Relative standard error of `Sizes.of`, as correlations are estimated."""
        signals = self.whitened_signals
        window = self.record.correlation.window
        pairs = [
            energy_of_pairs(signals[t], signals[max(t - window + 1, 0) : t])
            for t in range(len(signals))
        ]
        energies = np.sum(signals**2, axis=1)
        return self.precision.unit_error(
            math.fsum(pairs), float(np.sum(energies**2)), float(energies.sum())
        )

    @functools.cached_property
    def whitened_signals(self) -> Floats:
        """The expected contribution of each observed canary to `whitened_scores`, ``(T, k)``.

        It is up to a factor if the canaries' contributions are not known.
        """
        recorded = self.record.running.signals
        if recorded is not None and self.reaction is None:
            return recorded
        return self.signals.of(self.record.shares() * 1.0)

    @functools.cached_property
    def whitened_scores(self) -> Floats:
        """Scores of the observed canaries, ``(T, k)``: N(0, 1) but for their own part."""
        recorded = self.record.running.scores
        if recorded is not None:
            return recorded
        return self.record.correlation.whiten(self.round_scores)

    @property
    def round_scores(self) -> Floats:
        """Scores of the observed canaries in each round, not whitened, ``(T, k)``."""
        return shift_scores(self.alone.observed.means, self.record.dim)

    @functools.cached_property
    def whitened_null(self) -> Floats:
        """Scores of the unobserved canaries, ``(T, u)``."""
        scores = shift_scores(self.alone.unobserved.means, self.record.dim)
        return self.record.correlation.whiten(scores)

    @functools.cached_property
    def weights(self) -> Floats:
        """The contribution of each round to an expected score, or to its square, ``(T,)``.

        For an adversary who sees the final model it is ``√d·w_t·C_t / (n·‖h‖)``, with ``w_t`` the
        weight of round t in θ_T − θ_0, and h the residual of a typical canary. For an adversary
        who sees every round's model it is ``fᵀG⁻¹f`` of a participation in this round only,
        which is ``a_t²`` if rounds are independent.

        Raises:
            ValueError: if the clip norms are unknown, or for the final model if the server is
                not SGD, as the final model is then not a weighted sum of the rounds.
            NotMeasured: see `scores_of`.
        """
        check_measured(self.record, self.adversary)
        if not self.adversary.sees_final:
            energies = self.record.correlation.alone(self.round_signal)
            return self.precision.unit**2 * energies
        added, residual_norm = self.signals.final_model
        return np.asarray(added * np.sqrt(self.record.dim) / residual_norm)

    @functools.cached_property
    def sizes(self) -> Sizes:
        """The expected scores of canaries and clients, see `Sizes`.

        Raises:
            NotMeasured: see `scores_of`.
        """
        record = self.record
        check_measured(record, self.adversary)
        if self.adversary.sees_final:
            is_known = True
            try:
                weights = self.weights
            except ValueError:
                # The weights are not known, not even up to a factor.
                is_known = False
                weights = np.ones(record.rounds)
            parts = weights[:, None] * record.shares()
            observed = parts.sum(axis=0)
            return Sizes(
                observed, parts, 1.0, weights, is_known, self.signals, True
            )
        precision = self.precision
        is_known = record.signal_known()
        weights = np.ones(record.rounds)
        if is_known:
            weights = self.round_signal
        took_part = record.presence.any(axis=0)
        energies = self.whitened_signals[:, took_part] ** 2 / precision.own**2
        observed = np.sqrt(energies.sum(axis=0))
        parts = quotients(energies, observed)
        return Sizes(
            observed,
            parts,
            precision.unit,
            weights,
            is_known,
            self.signals,
            False,
        )

    def noise_prevails(self) -> bool:
        """Whether noise that is independent between rounds dominates the residual."""
        if (
            not self.record.signal_known()
            or self.record.mechanism.strategy is not None
        ):
            return False
        noise = self.record.dim * self._noise_std**2
        residual = self.signals.residual_norms**2
        is_known = np.isfinite(noise) & (residual > 0)
        shares = noise[is_known] / residual[is_known]
        return bool(len(shares) and np.median(shares) > 1 / 2)

    def overlap_spread(self, scores: Scores) -> float:
        """`mean_spread` of scores from which the other canaries were projected out.

        It is 1 if the noise is not known: the interval then holds given the residuals' norms.
        """
        record = self.record
        std = self._noise_std
        noise = record.dim * std**2
        if (
            not std.any()
            or not record.signal_known()
            or not np.all(np.isfinite(noise))
        ):
            return 1.0
        strategy = record.mechanism.strategy
        inverse = None if strategy is None else np.linalg.inv(strategy)
        if self.adversary.sees_final:
            if not record.mechanism.server.linear:
                return 1.0
            along = record.round_weights() * std
            if inverse is not None:
                along = along @ inverse
            noise = np.array([record.dim * np.sum(along**2)])
            shifts = np.array([fitted_shift(scores.cosines, record.dim)])
            _, residual_norm = self.signals.final_model
            residual = np.array([residual_norm**2])
        else:
            if inverse is not None:
                noise = noise * np.sum(inverse**2, axis=1)
            shifts = np.mean(self.precision.own * self.sizes.parts, axis=1)
            residual = self.signals.residual_norms**2
        shares = np.minimum(quotients(noise, residual), 1.0)
        return mean_spread(len(scores.observed), record.dim, shifts, shares)

    @property
    def _noise_std(self) -> Floats:
        """Claimed noise std of each round in one coordinate, ``(T,)``; 0 if it is not known."""
        mechanism = self.record.mechanism
        z = mechanism.sum_noise_multiplier or 0.0
        clients = mechanism.noise_is_for or mechanism.cohort_size
        return z * mechanism.clip_norms / clients


def seen_by(
    record: AuditRecord,
    adversary: Adversary = FINAL_MODEL,
    reaction: Reaction | None = None,
) -> View:
    """The view of an adversary on a record; repeated calls return the same object."""
    views: dict[Any, View] = vars(record).setdefault("_views", {})
    key = (adversary, reaction)
    if key not in views:
        views[key] = View(record, adversary, reaction)
    return views[key]
