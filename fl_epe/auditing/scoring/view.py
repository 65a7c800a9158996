"""`View`: what an adversary computes from a record, each thing once.

Notation: ``s_it = √d·cot(c_i, mean_t)`` is the score of canary i in round t, with the server's
momentum undone: √d times the cosine C over √(1 − C²) (`scores.shift_scores`). It is
N(0, 1) for an unobserved canary. ``a_t = √d·C_t / (n·‖h_t‖)`` is the expected score of a
participant of round t (in general, √d times the norm of what it adds to the mean, over the norm of
all else in it, ``h_t``). Rounds are correlated where their ``h_t`` are: whitened scores and signals
are ``L⁻¹s_i`` and ``L⁻¹f_i`` (`fl_epe.auditing.record.round_correlation`), with ``f_it`` = a_t
in the rounds of canary i and 0 in others.

"""

from __future__ import annotations

import contextlib
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
    ServerStep,
    check_measured,
    energy_of_pairs,
    quotients,
    reach_of,
)
from fl_epe.auditing.scoring.leave_one_out import all_canaries, leave_one_out
from fl_epe.auditing.scoring.reaction import Moved, Reaction, pulled_back
from fl_epe.auditing.scoring.scores import (
    Scores,
    fitted_shift,
    hidden_norm,
    mean_spread,
    shift_scores,
)
from fl_epe.checks import Floats, raise_invalid
from fl_epe.seeding import generator

_DRAWS = 10  # of a client's rounds


@dataclasses.dataclass(frozen=True, eq=False)
class Sizes:
    """Expected scores, up to one factor where a record does not say what a canary adds.

    Attributes:
        observed: means of the `View.scores`, ``(k',)``, of the canaries that have any.
        parts: what each round contributes to them, ``(T, k')``; they add up to ``observed``.
        unit: μ of a client is this times the root of its energy, or its sum of ``weights``.
        weights: of one participation in each round, ``(T,)``.
        known: whether the factor is 1.
        view: whose.
    """

    observed: Floats
    parts: Floats
    unit: float
    weights: Floats
    known: bool
    view: View

    def of(self, shares: np.ndarray) -> Floats:
        """Of clients who add these shares of the rounds' contributions, ``(T, m)``: ``(m,)``.

        Of few clients each is a good part of what seems to hide it, in just its rounds: there the
        rounds are drawn anew, as many as it has.
        """
        view = self.view
        final = view.adversary.sees_final
        if (
            view.reaction is None
            or view.reaction.rate is None
            or (final and not self.known)
        ):
            if final:
                return np.asarray(self.weights @ shares)
            return np.asarray(
                self.unit * np.sqrt(np.sum(view.signals(shares) ** 2, axis=0))
            )
        if final:
            return view.final_signals(shares)
        rng = generator(0, len(shares))
        drawn = [rng.permuted(shares, axis=0) for _ in range(_DRAWS)]
        energies = [
            np.sum(view.signals(each, of_clients=True) ** 2, axis=0) for each in drawn
        ]
        return np.asarray(self.unit * np.sqrt(np.mean(energies, axis=0)))

    def of_rounds(self, rounds: float) -> float:
        """Of a client with so many rounds, of which nobody knows which they are."""
        if self.view.adversary.sees_final:
            return rounds * float(self.weights.mean())
        alone = self.view.record.correlation.alone(self.weights)
        return self.unit * math.sqrt(rounds * float(alone.mean()))


@dataclasses.dataclass(frozen=True, eq=False)
class View:
    """A record as an adversary sees it; make it with `seen_by`.

    Attributes:
        record: the audit record of a run.
        adversary: what is seen and known.
        reaction: of later rounds to a contribution; by default none that a client's score has and
            a canary's has not.
        computed_scores: by statistic, see `fl_epe.auditing.scoring.statistics.scores_of`.
    """

    record: AuditRecord
    adversary: Adversary
    reaction: Reaction | None = None
    computed_scores: dict[str, Scores] = dataclasses.field(
        default_factory=dict, init=False, repr=False
    )

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

    @property
    def precision(self) -> Precision:
        """What it does to `whitened_scores` that correlations are estimated."""
        if self.adversary.sees_final:
            return EXACT
        record, correlation = self.record, self.record.correlation
        reach = reach_of(record.rounds, correlation.window)
        return Precision.of(reach, record.dim, correlation.parts)

    @functools.cached_property
    def unit_error(self) -> float:
        """Relative standard error of `Sizes.of`, as correlations are estimated."""
        signals = self.whitened_signals
        window = self.record.correlation.window
        before = (signals[max(t - window + 1, 0) : t] for t in range(len(signals)))
        pairs = math.fsum(map(energy_of_pairs, signals, before))
        energies = np.sum(signals**2, axis=1)
        return self.precision.unit_error(
            pairs, float(np.sum(energies**2)), float(energies.sum())
        )

    @functools.cached_property
    def round_signal(self) -> Floats:
        """``a_t``, ``(T,)``: what a participant adds to a round's score.

        Raises:
            ValueError: if the record does not say what a canary adds to the mean.
        """
        return quotients(
            np.sqrt(self.record.dim) * self.contributions, self._hidden_norms
        )

    @functools.cached_property
    def whitened_signals(self) -> Floats:
        """What each observed canary added to its `whitened_scores`, ``(T, k)``.

        In proportion, where the record does not say what a canary adds to the mean.
        """
        known = self.record.running.signals
        if known is not None and self.reaction is None:
            return known
        return self.signals(self.record.shares() * 1.0)

    def signals(
        self,
        shares: Floats,
        reaction: Reaction | None = None,
        *,
        of_clients: bool = False,
    ) -> Floats:
        """What is added to whitened scores by shares of the rounds' contributions, ``(T, m)``.

        In proportion, where the record does not say what a canary adds to the mean.

        Args:
            shares: of each direction, ``(T, m)``.
            reaction: the view's own, by default.
            of_clients: whether they are real clients, whose updates are in the residuals and do
                not hide themselves; canaries are not in them.
        """
        reaction = reaction or self.reaction
        correlation = self.record.correlation
        if reaction is None or reaction.rate is None:
            own = (
                self.round_signal[:, None] * shares
                if self.record.signal_known()
                else shares
            )
            if reaction is None:
                return correlation.whiten(own)
            return own / correlation.innovations[:, None]
        norms, _ = self._norms_and_parts
        if of_clients:  # all but one of them hide it
            norms = norms * math.sqrt(1 - min(self.client_share, 1 / 2))
        scores = np.sqrt(self.record.dim) * self._moved(shares, reaction.rate).updates
        return correlation.whiten(quotients(scores, norms[:, None]))

    @property
    def client_share(self) -> float:
        """The inverse of the mean number of real clients in a round; 0 if that is not known."""
        clients = self.record.mechanism.cohort_size - float(
            self.record.presence.sum(axis=1).mean()
        )
        return 1 / max(clients, 1.0) if math.isfinite(clients) else 0.0

    def _moved(self, shares: Floats, rate: float | Floats) -> Moved:
        """What shares of the contributions, ``(T, m)``, come to, at this ρ of the others."""
        rates = np.broadcast_to(rate, shares.shape)
        _, added = self._norms_and_parts
        server = self.record.mechanism.server
        if not server.linear:  # then the scores are of model updates, which add up
            server = ServerStep("sgd", np.ones(self.record.rounds))
        return pulled_back(added[:, None] * shares, rates, server)

    @property
    def _norms_and_parts(self) -> tuple[Floats, Floats]:
        """Norms of the rounds' residuals, and of what a client adds to them, ``(T,)`` each.

        The latter in proportion, where the record does not say.
        """
        if self.record.signal_known():
            return self._hidden_norms, self.contributions
        norms = self.alone.norms.means
        return norms, norms / np.sqrt(self.record.dim)

    def final_signals(self, shares: Floats) -> Floats:
        """Expected scores of real clients in the final model with a reaction: ``(m,)``.

        In a client's rounds all but itself react.

        Args:
            shares: of the rounds' contributions, of each client, ``(T, m)``.
        """
        rate = 0.0 if self.reaction is None else self.reaction.rate or 0.0
        others = 1 - np.minimum(shares, 1.0) * self.client_share
        moved = self._moved(shares, rate * others)
        return np.asarray(
            np.sqrt(self.record.dim) * moved.position / self._final_parts[1]
        )

    @functools.cached_property
    def whitened_scores(self) -> Floats:
        """Scores of the observed canaries, ``(T, k)``; N(0, 1) without their own part."""
        if (known := self.record.running.scores) is not None:
            return known
        return self.record.correlation.whiten(self.round_scores)

    @property
    def round_scores(self) -> Floats:
        """Scores of the observed canaries in each round, as they are, ``(T, k)``."""
        return shift_scores(self.alone.observed.means, self.record.dim)

    @functools.cached_property
    def whitened_null(self) -> Floats:
        """Scores of the unobserved canaries, ``(T, u)``."""
        scores = shift_scores(self.alone.unobserved.means, self.record.dim)
        return self.record.correlation.whiten(scores)

    @functools.cached_property
    def contributions(self) -> Floats:
        """Norm of what a client adds to the released mean when it takes part, ``(T,)``.

        Where a round without canaries does not say, it is the same share of the mean's norm as in
        the median round that does.

        Raises:
            ValueError: if the record does not say what its canaries added.
        """
        added = self.record.mechanism.added
        norms = self.record.norms.means
        if not self.record.signal_known():
            raise_invalid(
                "clip_norms", added, "(or contributions) to be known in every round"
            )
        known = np.isfinite(added)
        if known.all():
            return added
        telling = known & (norms > 0)
        share = (
            float(np.median(added[telling] / norms[telling])) if telling.any() else 0.0
        )
        return np.where(known, added, share * norms)

    @functools.cached_property
    def weights(self) -> Floats:
        """What taking part in each round adds to an expected score, or to its square, ``(T,)``.

        For an adversary who sees the final model ``√d·w_t·C_t / (n·‖h‖)``, with ``w_t`` the weight
        of round t in θ_T − θ_0, and h all but a typical canary in it; for one who sees every
        round's that of ``fᵀG⁻¹f`` for this round alone, ``a_t²`` where rounds are independent.

        Raises:
            ValueError: if the clip norms are unknown, or for the final model if the server was not
                SGD, as it is then not a weighted sum of the rounds.
            NotMeasured: as `scores`.
        """
        check_measured(self.record, self.adversary)
        if not self.adversary.sees_final:
            return self.precision.unit**2 * self.record.correlation.alone(
                self.round_signal
            )
        added, hidden = self._final_parts
        return np.asarray(added * np.sqrt(self.record.dim) / hidden)

    @functools.cached_property
    def sizes(self) -> Sizes:
        """Expected scores of canaries and clients, see `Sizes`.

        Raises:
            NotMeasured: as `scores`.
        """
        record, here = self.record, self.record.presence.any(axis=0)
        check_measured(record, self.adversary)
        if self.adversary.sees_final:
            weights = np.ones(record.rounds)
            known = False
            with contextlib.suppress(ValueError):  # in proportion
                weights = self.weights
                known = True
            parts = weights[:, None] * record.shares()
            return Sizes(parts.sum(axis=0), parts, 1.0, weights, known, self)
        own = self.precision.own
        known = record.signal_known()
        weights = self.round_signal if known else np.ones(record.rounds)
        energies = self.whitened_signals[:, here] ** 2 / own**2
        observed = np.sqrt(energies.sum(axis=0))
        parts = quotients(energies, observed)
        return Sizes(observed, parts, self.precision.unit, weights, known, self)

    @functools.cached_property
    def _hidden_norms(self) -> Floats:
        """Norm of one canary's residual in each round's mean, ``‖h_t‖``, ``(T,)``."""
        return hidden_norm(
            self.alone.norms.means,
            np.where(self.record.presence.any(axis=1), self.contributions, 0.0),
        )

    @functools.cached_property
    def _final_parts(self) -> tuple[Floats, float]:
        """What each round's participant adds to θ_T − θ_0, and the norm of its residual."""
        added = self.record.round_weights() * self.contributions
        if self.reaction is not None and self.reaction.rate is not None:
            added = self._moved(np.eye(self.record.rounds), self.reaction.rate).position
        typical = float(np.sqrt(np.mean((added @ self.record.shares()) ** 2)))
        return added, float(hidden_norm(self.alone.norms.displacement, typical))

    @property
    def noise_unit(self) -> Floats:
        """Claimed deviation of each round's noise in a coordinate, ``(T,)``; 0 if not known."""
        mechanism, size = self.record.mechanism, self.record.mechanism.noise_is_for
        z = mechanism.sum_noise_multiplier or 0.0
        return z * mechanism.clip_norms / (size or mechanism.cohort_size)

    def noise_prevails(self) -> bool:
        """Whether noise that is independent between rounds is most of the residual."""
        if not self.record.signal_known() or self.record.mechanism.strategy is not None:
            return False
        energy = self.record.dim * self.noise_unit**2
        hidden = self._hidden_norms**2
        known = np.isfinite(energy) & (hidden > 0)
        shares = energy[known] / hidden[known]
        return bool(len(shares) and np.median(shares) > 1 / 2)

    def overlap_spread(self, scores: Scores) -> float:
        """`mean_spread` of scores that the other canaries were projected out of.

        It is 1 where the noise is not known: the interval is then for the rounds as they were.
        """
        record, mechanism = self.record, self.record.mechanism
        z = mechanism.sum_noise_multiplier
        strategy = mechanism.strategy
        unit = self.noise_unit
        noise = record.dim * unit**2
        if not z or not record.signal_known() or not np.all(np.isfinite(noise)):
            return 1.0
        inverse = None if strategy is None else np.linalg.inv(strategy)
        if self.adversary.sees_final:
            if not mechanism.server.linear:
                return 1.0
            shifts = np.array([fitted_shift(scores.cosines, record.dim)])
            weights = record.round_weights()
            along = weights * unit if inverse is None else (weights * unit) @ inverse
            noise = np.array([record.dim * np.sum(along**2)])
            hidden = np.array([self._final_parts[1] ** 2])
        else:
            noise = noise if inverse is None else noise * np.sum(inverse**2, axis=1)
            shifts = np.mean(self.precision.own * self.sizes.parts, axis=1)
            hidden = self._hidden_norms**2
        share = np.minimum(quotients(noise, hidden), 1.0)
        return mean_spread(len(scores.observed), record.dim, shifts, share)


def seen_by(
    record: AuditRecord,
    adversary: Adversary = FINAL_MODEL,
    reaction: Reaction | None = None,
) -> View:
    """The view of an adversary on a record; the same object whenever it is asked for."""
    views: dict[Any, View] = vars(record).setdefault("_views", {})
    return views.setdefault((adversary, reaction), View(record, adversary, reaction))
