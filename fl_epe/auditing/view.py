"""`View`: what an adversary computes from a record, each thing once.

Notation: ``s_it = √d·cot(c_i, mean_t)`` is the score of canary i in round t, with the server's
momentum undone: √d times the cosine C over √(1 − C²) (`shifted_cosines.shift_scores`). It is
N(0, 1) for an unobserved canary. ``a_t = √d·C_t / (n·‖h_t‖)`` is the expected score of a
participant of round t (in general, √d times the norm of what it adds to the mean, over the norm of
all else in it, ``h_t``). ``S_i`` are the rounds of canary i.

Examples:
    >>> list(STATISTICS)
    ['displacement', 'model', 'matched-filter', 'full-knowledge', 'likelihood-ratio', 'maximum']
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools

import numpy as np
from numpy.typing import NDArray

from fl_epe.auditing import statistics
from fl_epe.auditing.epsilon_estimate import EVERY_ROUND, FINAL_MODEL, Adversary
from fl_epe.auditing.leave_one_out import all_canaries, leave_one_out
from fl_epe.auditing.measured import check_measured
from fl_epe.auditing.record import AuditRecord
from fl_epe.auditing.scores import UNKNOWN_ROUNDS, Scores, mean_spread
from fl_epe.auditing.shifted_cosines import fitted_shift, hidden_norm
from fl_epe.checks import raise_invalid
from fl_epe.schedules import SCHEDULES

Floats = NDArray[np.float64]

STATISTICS = {
    "displacement": FINAL_MODEL,
    "model": FINAL_MODEL,
    "matched-filter": EVERY_ROUND,
    "full-knowledge": Adversary("all", knows_others=True),
    "likelihood-ratio": Adversary("all", knows_rounds=False),
    "maximum": Adversary("all", knows_rounds=False),
}
"""Statistics by name, each with the adversary who knows enough for it, and no more.

An adversary's own one is the first of these; one who knows more may choose another of the list.
"""


@dataclasses.dataclass(frozen=True, eq=False)
class View:
    """A record as an adversary sees it; make it with `seen_by`.

    Attributes:
        record: the audit record of a run.
        adversary: what is seen and known.
    """

    record: AuditRecord
    adversary: Adversary
    _scores: dict[str, Scores] = dataclasses.field(default_factory=dict, init=False, repr=False)

    @functools.cached_property
    def alone(self) -> AuditRecord:
        """The record as one canary among real clients would have left it (`leave_one_out`)."""
        if self.adversary != FINAL_MODEL:
            return seen_by(self.record, FINAL_MODEL).alone
        return leave_one_out(self.record)

    @functools.cached_property
    def with_all_canaries(self) -> View:
        """The view of an adversary who does not know the other canaries: they stay in."""
        return seen_by(all_canaries(self.record), self.adversary)

    def scores(self, statistic: str | None = None) -> Scores:
        """Scores of observed and unobserved canaries.

        With fewer than two unobserved canaries ``unobserved`` is ``None``. Scores of one canary
        among real clients ("displacement", "matched-filter", "likelihood-ratio") are of the record
        `alone`; all canaries stay in for the others. Scores of the matched filter over several
        rounds are divided by the standard deviation of unobserved ones where that is certainly
        above 1 (`scores.with_measured_null`).

        Args:
            statistic: one of `STATISTICS` that the adversary can compute; its own by default.

        Raises:
            ValueError: if it is another, or the record lacks its data.
            NotMeasured: a `ValueError`, if too few canaries took part, or there is no model.
        """
        statistic = checked_statistic(self.adversary, statistic)
        if statistic not in self._scores:
            check_measured(self.record, self.adversary, statistic)
            scores = dataclasses.replace(self._computed(statistic), adversary=STATISTICS[statistic])
            self._scores[statistic] = scores
        return self._scores[statistic]

    def _computed(self, statistic: str) -> Scores:
        scores = statistics.FUNCTIONS[statistic](self)
        if not scores.standard_null or statistic == "full-knowledge":
            return scores
        if statistic != "model" and self.record.norms.sums is not None:
            scores = dataclasses.replace(scores, spread=self._overlap_spread(scores))
        with contextlib.suppress(ValueError):  # not known
            return dataclasses.replace(scores, expected=self.expected_scores)
        return scores

    @functools.cached_property
    def signal(self) -> Floats:
        """Expected score of a participant in each round's mean, ``a_t``, ``(T,)``.

        The mean is that of one canary among real clients, as far as the record can tell.

        Raises:
            ValueError: if the record does not say what a canary adds to the mean.
        """
        norms = self._hidden_norms
        signal = np.sqrt(self.record.dim) * self.contributions
        return np.asarray(np.divide(signal, norms, out=np.zeros_like(signal), where=norms > 0))

    @functools.cached_property
    def signals(self) -> Floats:
        """`signal` of each observed canary in each round, ``(T, k)``; 0 where it is not in it."""
        return np.asarray(self.signal[:, None] * self.record.shares())

    @property
    def contributions(self) -> Floats:
        """Norm of what one canary adds to the released mean, ``(T,)``.

        Raises:
            ValueError: if the record does not say.
        """
        mechanism = self.record.mechanism
        if not self.record.signal_known():
            raise_invalid(
                "clip_norms", mechanism.clip_norms, "(or contributions) to be known in every round"
            )
        if mechanism.contributions is not None:
            return mechanism.contributions
        return np.asarray(mechanism.clip_norms / mechanism.cohort_size)

    @functools.cached_property
    def weights(self) -> Floats:
        """What taking part in each round adds to an expected score, or to its square, ``(T,)``.

        For an adversary who sees the final model ``√d·w_t·C_t / (n·‖h‖)``, with ``w_t`` the weight
        of round t in θ_T − θ_0, and h all but a typical canary in it; for one who sees every
        round's ``a_t²``.

        Raises:
            ValueError: if the clip norms are unknown, or for the final model if the server was not
                SGD, as it is then not a weighted sum of the rounds.
            NotMeasured: as `scores`.
        """
        check_measured(self.record, self.adversary)
        if self.adversary.sees == "all":
            return self.signal**2
        added, hidden = self._final_parts
        if hidden == 0:
            raise_invalid("displacement_norm", hidden, "> 0 for expected scores")
        return np.asarray(added * np.sqrt(self.record.dim) / hidden)

    @functools.cached_property
    def all_expected_scores(self) -> Floats:
        """Expected score of each canary, ``(k,)``; 0 of one that never took part.

        The sum of the `weights` of its rounds, or the root of that sum if each is seen.
        """
        weights = self.weights
        if self.adversary.sees == "all":
            return np.asarray(np.sqrt(np.sum(self.signals**2, axis=0)))
        return np.asarray(weights @ self.record.shares())

    @property
    def expected_scores(self) -> Floats:
        """`all_expected_scores`, of the canaries that have `scores` alone."""
        found = self.all_expected_scores
        return found if self.adversary.sees == "final" else found[self.record.presence.any(axis=0)]

    def of_sum(self, weights: float) -> float:
        """The expected score of a client whose rounds have this sum of `weights`."""
        return float(np.sqrt(weights)) if self.adversary.sees == "all" else float(weights)

    @functools.cached_property
    def _hidden_norms(self) -> Floats:
        """Norm of one canary's residual in each round's mean, ``‖h_t‖``, ``(T,)``."""
        own = np.where(self.record.presence.any(axis=1), self.contributions, 0.0)
        return hidden_norm(self.alone.norms.means, own)

    @functools.cached_property
    def _final_parts(self) -> tuple[Floats, float]:
        """What each round's participant adds to θ_T − θ_0, and the norm of its residual."""
        added = np.asarray(self.record.round_weights() * self.contributions)
        typical = float(np.sqrt(np.mean((added @ self.record.shares()) ** 2)))
        return added, float(hidden_norm(self.alone.norms.displacement, typical))

    def _overlap_spread(self, scores: Scores) -> float:
        """`mean_spread` of scores that the other canaries were projected out of.

        It is 1 where the noise is not known: the interval is then for the rounds as they were.
        """
        record, mechanism = self.record, self.record.mechanism
        z = mechanism.sum_noise_multiplier
        noise = record.dim * ((z or 0.0) * mechanism.clip_norms / mechanism.cohort_size) ** 2
        if not z or not record.signal_known() or not np.all(np.isfinite(noise)):
            return 1.0
        if self.adversary.sees == "final":
            if not mechanism.server.linear:
                return 1.0
            shifts = np.array([fitted_shift(scores.cosines, record.dim)])
            noise = np.array([np.sum(record.round_weights() ** 2 * noise)])
            hidden = np.array([self._final_parts[1] ** 2])
        else:
            energy = self.signals[:, record.presence.any(axis=0)] ** 2
            total = np.sqrt(np.sum(energy, axis=0))
            each = np.divide(energy, total, out=np.zeros_like(energy), where=total > 0)
            shifts, hidden = np.mean(each, 1), self._hidden_norms**2
        share = np.divide(noise, hidden, out=np.zeros_like(hidden), where=hidden > 0)
        return mean_spread(len(scores.observed), record.dim, shifts, np.minimum(share, 1.0))

    @property
    def unknown_rounds_law(self) -> str | None:
        """How one canary's rounds are drawn: "coins", "epochs", or ``None`` if it is neither.

        "coins": in each round independently with the same probability, as for Poisson sampling and
        for one member of a cohort of fixed size. "epochs": once in each of the `epoch_blocks`.
        """
        mechanism = self.record.mechanism
        schedule = SCHEDULES.get(mechanism.participation)
        if schedule is None or mechanism.canary_weights is not None:
            return None
        law, times = schedule.unknown_rounds, mechanism.canary_participations
        return None if law == "epochs" and times != round(times) else law

    def checked_law(self) -> str:
        """The `unknown_rounds_law`.

        Raises:
            ValueError: if it is ``None``.
        """
        law, mechanism = self.unknown_rounds_law, self.record.mechanism
        if law is None:
            raise_invalid(
                "participation",
                mechanism.participation,
                f"with canary_participations={mechanism.canary_participations} to be poisson, "
                "fixed-size, balls-in-bins or whole epochs",
            )
        return law

    @property
    def coin_rate(self) -> float:
        """Probability of a canary to be in a round, where coins decide."""
        return min(self.record.mechanism.canary_participations / self.record.rounds, 1.0)

    @property
    def epoch_blocks(self) -> list[NDArray[np.int64]]:
        """The rounds of each epoch; every canary takes part once in each of them."""
        repeats = max(1, round(self.record.mechanism.canary_participations))
        return np.array_split(np.arange(self.record.rounds), repeats)


def seen_by(record: AuditRecord, adversary: Adversary = FINAL_MODEL) -> View:
    """The view of an adversary on a record; the same object whenever it is asked for."""
    views: dict[Adversary, View] = vars(record).setdefault("_views", {})
    return views.setdefault(adversary, View(record, adversary))


def checked_statistic(adversary: Adversary, statistic: str | None = None) -> str:
    """The statistic, or by default the adversary's own one.

    Raises:
        ValueError: if the adversary does not know enough to compute it.
    """
    known = [
        name
        for name, needs in STATISTICS.items()
        if needs.sees == adversary.sees
        and needs.knows_rounds <= adversary.knows_rounds
        and needs.knows_others <= adversary.knows_others
    ]
    if statistic is None:
        return next((name for name in known if STATISTICS[name] == adversary), known[0])
    if statistic not in known:
        raise_invalid("statistic", statistic, f"to be one of {', '.join(known)}, for {adversary}")
    return statistic


def scores_for_claim(record: AuditRecord) -> Scores:
    """Scores of the adversary of a privacy claim, who sees every round's model.

    Where rounds are drawn by coins (Poisson sampling, cohorts of fixed size), privacy accounting
    holds for an adversary who does not know them, and for clients whose coins are still to be
    tossed. So the scores are likelihood ratios at unknown rounds, and canaries that were drawn for
    no round count as members. Otherwise they are the matched filter at the known rounds.
    """
    view = seen_by(record, EVERY_ROUND)
    if view.unknown_rounds_law != "coins" or not record.rounds or view.coin_rate >= 1:
        return view.scores()
    found = seen_by(record.in_order(), STATISTICS["likelihood-ratio"]).scores()
    count = record.num_canaries
    planned = record.design.num_canaries
    if record.mechanism.inclusion == "fixed" and planned is not None:
        drawn = planned
    else:  # as many as one expects to draw for no round, if those of no round were left out
        drawn = round(count / -np.expm1(record.rounds * np.log1p(-view.coin_rate)))
    if not record.presence.any(axis=0).all():
        drawn = count
    scores = dataclasses.replace(found, statistic=UNKNOWN_ROUNDS)
    if (others := scores.unobserved) is None:
        return scores
    absent = min(max(drawn - count, 0), len(others) - 2)
    observed = np.concatenate([scores.observed, others[:absent]])
    return dataclasses.replace(scores, observed=observed, unobserved=others[absent:])
