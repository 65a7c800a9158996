"""`View`: the values that an adversary computes from a record, each computed once.

Notation: ``s_it = √d·cot(c_i, mean_t)`` is the score of canary i in round t, with the server's
momentum undone: √d times C/√(1 − C²) for the cosine C (`scores.shift_scores`). It is N(0, 1) for an
unobserved canary; the expected score ``a_t`` of a participant is in
`fl_epe.auditing.scoring.signals`. Whitened scores are ``L⁻¹s_i``
(`fl_epe.auditing.record.round_correlation`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from fl_epe.auditing.estimate import FINAL_MODEL, Adversary
from fl_epe.auditing.record import (
    AuditRecord,
    Precision,
    check_measured,
    energy_of_pairs,
    quotients,
    reach_of,
)
from fl_epe.auditing.scoring.expected_scores import ExpectedScores
from fl_epe.auditing.scoring.leave_one_out import keep_all_canaries
from fl_epe.auditing.scoring.reaction import Reaction
from fl_epe.auditing.scoring.reaction_fit import fit_reaction
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
        reaction: the reaction of later rounds to a contribution; ``None`` if canaries take part
            about as often as a client, so that their scores include the client's reaction.
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
        """The expected scores of participations in each round."""
        return Signals(self.record, self.reaction)

    @functools.cached_property
    def fitted_reaction(self) -> Reaction:
        """The reaction of later rounds to a contribution, fitted to the canaries' scores.

        Raises:
            NotMeasured: see `fit_reaction`.
        """
        return fit_reaction(
            self.signals, self.whitened_scores, self.round_scores
        )

    @functools.cached_property
    def with_all_canaries(self) -> View:
        """The view of an adversary who cannot project out the other canaries."""
        return seen_by(keep_all_canaries(self.record), self.adversary)

    @property
    def precision(self) -> Precision:
        """The effect of estimated correlations on the scores; none for the final model."""
        if self.adversary.sees_final:
            return Precision()
        correlation = self.record.correlation
        reach = reach_of(self.record.rounds, correlation.window)
        return Precision.of(reach, self.record.dim, correlation.parts)

    @functools.cached_property
    def unit_error(self) -> float:
        """Relative standard error of all expected scores, as correlations are estimated."""
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
        """The means of the `whitened_scores` of each observed canary, ``(T, k)``, for κ = 1.

        If the canaries' contributions are not known, these means are correct up to a factor.
        """
        recorded = self.record.running.signals
        if recorded is not None and self.reaction is None:
            return recorded
        return self.signals.whitened(self.record.shares() * 1.0)

    @functools.cached_property
    def whitened_scores(self) -> Floats:
        """Scores of the observed canaries, ``(T, k)``: N(0, 1) plus κ · `whitened_signals`."""
        recorded = self.record.running.scores
        if recorded is not None:
            return recorded
        return self.record.correlation.whiten(self.round_scores)

    @property
    def round_scores(self) -> Floats:
        """Scores of the observed canaries in each round, not whitened, ``(T, k)``."""
        cosines = self.signals.leave_one_out.observed.means
        return shift_scores(cosines, self.record.dim)

    @functools.cached_property
    def whitened_null(self) -> Floats:
        """Whitened scores of the unobserved canaries, ``(T, u)``."""
        cosines = self.signals.leave_one_out.unobserved.means
        scores = shift_scores(cosines, self.record.dim)
        return self.record.correlation.whiten(scores)

    @functools.cached_property
    def expected_scores(self) -> ExpectedScores:
        """The expected scores of canaries and clients.

        For the final model, the expected score of one participation is ``√d·w_t·C_t / (n·‖h‖)``,
        with the weight ``w_t`` of round t in θ_T − θ_0, and the residual h of a typical canary.

        Raises:
            NotMeasured: if too few canaries took part, or the model did not move.
        """
        check_measured(self.record, self.adversary)
        if self.adversary.sees_final:
            return self._final_expected_scores()
        record = self.record
        precision = self.precision
        scale_is_known = record.signal_known()
        weights = np.ones(record.rounds)
        if scale_is_known:
            weights = self.signals.participant_scores
        took_part = record.presence.any(axis=0)
        signals = self.whitened_signals[:, took_part]
        energies = signals**2 / precision.observed_std**2
        observed = np.sqrt(energies.sum(axis=0))
        return ExpectedScores(
            observed=observed,
            parts=quotients(energies, observed),
            unit=precision.unit,
            weights=weights,
            scale_is_known=scale_is_known,
            signals=self.signals,
            sees_final=False,
        )

    def _final_expected_scores(self) -> ExpectedScores:
        """The expected scores in the final model.

        All rounds have the same weight if the contributions are not known, or the server is not
        SGD.
        """
        record = self.record
        scale_is_known = True
        try:
            weights = np.asarray(
                self.signals.final_contributions
                * np.sqrt(record.dim)
                / self.signals.final_residual_norm
            )
        except ValueError:
            scale_is_known = False
            weights = np.ones(record.rounds)
        parts = weights[:, None] * record.shares()
        return ExpectedScores(
            observed=parts.sum(axis=0),
            parts=parts,
            unit=1.0,
            weights=weights,
            scale_is_known=scale_is_known,
            signals=self.signals,
            sees_final=True,
        )

    def noise_prevails(self) -> bool:
        """Whether noise that is independent between rounds has most of the residual's energy."""
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
        # Correlated noise is `inverse` times independent noise, see `Mechanism.strategy`.
        strategy = record.mechanism.strategy
        inverse = None if strategy is None else np.linalg.inv(strategy)
        if self.adversary.sees_final:
            if not record.mechanism.server.is_linear:
                return 1.0
            noise_weights = record.round_weights() * std
            if inverse is not None:
                noise_weights = noise_weights @ inverse
            noise = np.array([record.dim * np.sum(noise_weights**2)])
            shifts = np.array([fitted_shift(scores.cosines, record.dim)])
            residual = np.array([self.signals.final_residual_norm**2])
        else:
            if inverse is not None:
                noise = noise * np.sum(inverse**2, axis=1)
            parts = self.precision.observed_std * self.expected_scores.parts
            shifts = np.mean(parts, axis=1)
            residual = self.signals.residual_norms**2
        shares = np.minimum(quotients(noise, residual), 1.0)
        return mean_spread(len(scores.observed), record.dim, shifts, shares)

    @property
    def _noise_std(self) -> Floats:
        """Claimed noise std of each round in one coordinate, ``(T,)``; 0 if it is not known."""
        mechanism = self.record.mechanism
        z = mechanism.sum_noise_multiplier or 0.0
        clients = mechanism.noise_cohort_size or mechanism.cohort_size
        return z * mechanism.clip_norms / clients


def seen_by(
    record: AuditRecord,
    adversary: Adversary = FINAL_MODEL,
    reaction: Reaction | None = None,
) -> View:
    """The view of an adversary on a record; repeated calls return the same object."""
    # Views are stored in the record's `__dict__`, so that both are freed together.
    views: dict[Any, View] = vars(record).setdefault("_views", {})
    key = (adversary, reaction)
    if key not in views:
        views[key] = View(record, adversary, reaction)
    return views[key]
