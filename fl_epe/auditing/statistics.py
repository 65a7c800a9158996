"""What an adversary computes from a record: one score for each canary, larger for "took part".

Notation: ``s_it = √d·cot(c_i, mean_t)`` is the score of canary i in round t, with the server's
momentum undone: √d times the cosine C over √(1 − C²) (`shifted_cosines.shift_scores`). It is
N(0, 1) for an unobserved canary. ``a_t = √d·C_t / (n·‖h_t‖)`` is the expected score of a
participant of round t (in general, √d times the norm of what it adds to the mean, over the norm of
all else in it, ``h_t``). ``S_i`` are the rounds of canary i.

Examples:
    >>> list(STATISTICS["final"])
    ['displacement', 'model']
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from fl_epe.auditing.measured import check_measured
from fl_epe.auditing.other_canaries import known_others, with_others, without_others
from fl_epe.auditing.record import AuditRecord
from fl_epe.auditing.score_spread import mean_spread, with_measured_null
from fl_epe.auditing.scores import UNKNOWN_ROUNDS, Scores
from fl_epe.auditing.shifted_cosines import fitted_shift, hidden_norm, shift_scores
from fl_epe.schedules import SCHEDULES

Floats = NDArray[np.float64]

ThreatModel = Literal["final", "all"]
"""What the adversary sees: the final model, or the model of every round."""


_BLOCK = 1 << 22  # pairs of canaries at once

AMONG_CLIENTS = ("displacement", "matched-filter", "likelihood-ratio")
"""Statistics of one canary among real clients; for the others all canaries of a run stay in."""


def scores_from_record(
    record: AuditRecord, threat: ThreatModel, statistic: str, *, raw: bool = False
) -> Scores:
    """Scores of observed and unobserved canaries under a threat model.

    With fewer than two unobserved canaries ``unobserved`` is ``None``. For the statistics in
    `AMONG_CLIENTS` the other canaries are taken out of what hides one (`without_others`). Scores
    of the matched filter over several rounds are divided by the standard deviation of unobserved
    ones where that is certainly above 1 (`score_spread.with_measured_null`).

    Args:
        record: the audit record of a run.
        threat: "final" (the adversary sees the final model) or "all" (every round's).
        statistic: one that `STATISTICS` lists for the threat.
        raw: leave the other canaries in.

    Raises:
        ValueError: if the threat does not have the statistic, or the record lacks its data.
        NotMeasured: a `ValueError`, if too few canaries took part, or there is no model to see.
    """
    if threat not in STATISTICS:
        raise ValueError(f"Expected threat={threat!r} to be 'final' or 'all'.")
    if statistic not in STATISTICS[threat]:
        names = ", ".join(STATISTICS[threat])
        raise ValueError(f"Expected statistic={statistic!r} to be one of {names}.")
    check_measured(record, threat, statistic)
    seen = with_others(record) if raw else record
    if statistic in AMONG_CLIENTS:
        seen = without_others(seen)
    scores = STATISTICS[threat][statistic](seen)
    if statistic in AMONG_CLIENTS and record.norms.sums is not None and not raw:
        scores = dataclasses.replace(scores, spread=_overlap_spread(seen, scores, threat))
    if scores.standard_null and statistic != "full-knowledge":
        with contextlib.suppress(ValueError):  # not known
            return dataclasses.replace(scores, expected=footprints(record, threat))
    return scores


def scores_for_claim(record: AuditRecord) -> Scores:
    """Scores of the adversary of a privacy claim, who sees every round's model.

    Where rounds are drawn by coins (Poisson sampling, cohorts of fixed size), privacy accounting
    holds for an adversary who does not know them, and for clients whose coins are still to be
    tossed. So the scores are likelihood ratios at unknown rounds, and canaries that were drawn for
    no round count as members. Otherwise they are the matched filter at the known rounds.
    """
    rate = _coin_rate(record)
    if rate is None or rate >= 1:
        return scores_from_record(record, "all", "matched-filter")
    check_measured(record, "all")
    record, count = without_others(record).in_order(), record.num_canaries
    if record.mechanism.inclusion == "fixed" and "num_canaries" in record.provenance.config:
        drawn = int(record.provenance.config["num_canaries"])
    else:  # as many as one expects to draw for no round, if those of no round were left out
        drawn = round(count / -np.expm1(record.rounds * np.log1p(-rate)))
    if not record.presence.any(axis=0).all():
        drawn = count
    scores = dataclasses.replace(likelihood_ratio(record), statistic=UNKNOWN_ROUNDS)
    if (others := scores.unobserved) is None:
        return scores
    absent = min(max(drawn - count, 0), len(others) - 2)
    observed = np.concatenate([scores.observed, others[:absent]])
    return dataclasses.replace(scores, observed=observed, unobserved=others[absent:])


def _coin_rate(record: AuditRecord) -> float | None:
    """Probability of a canary to be in a round; ``None`` if no coins decide."""
    if unknown_rounds_law(record) != "coins" or not record.rounds:
        return None
    return min(record.mechanism.canary_participations / record.rounds, 1.0)


def _overlap_spread(record: AuditRecord, scores: Scores, threat: ThreatModel) -> float:
    """`mean_spread` of scores that the other canaries were taken out of.

    It is 1 where the noise is not known: the interval is then for the rounds as they were.
    """
    mechanism = record.mechanism
    z = mechanism.sum_noise_multiplier
    noise = record.dim * ((z or 0.0) * mechanism.clip_norms / mechanism.cohort_size) ** 2
    if not z or not record.signal_known() or not np.all(np.isfinite(noise)):
        return 1.0
    if threat == "final":
        if mechanism.server.get("name") != "sgd":
            return 1.0
        shifts = np.array([fitted_shift(scores.cosines, record.dim)])
        noise = np.array([np.sum(record.round_weights() ** 2 * noise)])
        hidden = np.array([_final_parts(record)[1] ** 2])
    else:
        energy = participant_signals(record)[:, record.presence.any(axis=0)] ** 2
        total = np.sqrt(np.sum(energy, axis=0))
        shifts = np.mean(np.divide(energy, total, out=np.zeros_like(energy), where=total > 0), 1)
        hidden = _hidden_norms(record) ** 2
    share = np.divide(noise, hidden, out=np.zeros_like(hidden), where=hidden > 0)
    return mean_spread(len(scores.observed), record.dim, shifts, np.minimum(share, 1.0))


def displacement(record: AuditRecord) -> Scores:
    """``√d·cos(c_i, θ_T − θ_0)``, as the initial model is public. Null N(0, 1)."""
    return _scaled_cosines(
        record, record.observed.displacement, record.unobserved.displacement, "displacement"
    )


def model(record: AuditRecord) -> Scores:
    """``√d·cos(c_i, θ_T)`` (Andrew et al. 2024, Algorithm 2). Null N(0, 1)."""
    return _scaled_cosines(record, record.observed.final, record.unobserved.final, "model")


def maximum(record: AuditRecord) -> Scores:
    """``max_t cos(c_i, θ_t − θ_{t−1})`` (Andrew et al. 2024, Algorithm 3).

    This statistic has no closed-form null distribution; use unobserved canaries. The cosines are
    not scaled by √d, as in the paper.
    """
    observed, unobserved = record.delta_cosines()
    others = _if_enough(unobserved.max(axis=0))
    return Scores(observed.max(axis=0), others, statistic="maximum over rounds")


def matched_filter(record: AuditRecord) -> Scores:
    """``Σ a_t s_it / √(Σ a_t²)`` over the known rounds ``S_i``. Null N(0, 1).

    Canaries that never took part are left out. Each unobserved canary is scored at the rounds of
    an observed one. If the ``a_t`` are not known, all rounds weigh the same. If no canary took part
    more than once, a score is √d times the cosine with one round's mean.
    """
    here = record.presence.any(axis=0)
    signals = participant_signals(record) if record.signal_known() else record.presence * 1.0
    own, borrowed = signals[:, here], _borrowed(record, signals[:, here])
    observed, unobserved = record.observed.means[:, here], record.unobserved.means
    if bool(record.presence.sum(axis=0).max() <= 1):
        filtered, others = _filter(own, observed), _filter(borrowed, unobserved)
        return _scaled_cosines(record, filtered, others, "matched-filter")
    filtered = _filter(own, shift_scores(observed, record.dim))
    others = _filter(borrowed, shift_scores(unobserved, record.dim))
    return with_measured_null(
        Scores(filtered, _if_enough(others), None, "matched-filter", standard_null=True)
    )


def full_knowledge(record: AuditRecord) -> Scores:
    """Matched filter of an adversary who knows all but the canary, as in the definition of DP.

    The real clients' sum and what the other canaries should have added are subtracted from what
    was released, which leaves the noise and the canary. ``s_it`` is the inner product with that,
    over the noise's scale ``z·C_t``. A score has the mean √R/z for R participations, and the null
    N(0, 1) in any dimension. Where the other canaries are not known it has `full_knowledge_spread`.

    Raises:
        ValueError: if the run was not made with ``full_knowledge=True``, or had no noise.
    """
    norms, observed = record.norms.residuals, record.observed.residuals
    unobserved = record.unobserved.residuals
    if norms is None or observed is None or unobserved is None:
        raise ValueError("Expected a record of a run with full_knowledge=True.")
    mechanism = record.mechanism
    z = mechanism.sum_noise_multiplier
    if not z:
        raise ValueError(f"Expected sum_noise_multiplier={z} > 0.")
    here = record.presence.any(axis=0)
    presence = record.presence[:, here]
    noise = (z * mechanism.clip_norms / mechanism.cohort_size)[:, None]
    others = known_others(record)
    mine = (norms[:, None] * observed - others[0]) / noise
    null = (norms[:, None] * unobserved - others[1]) / noise
    return Scores(
        _filter(presence, mine[:, here]),
        _if_enough(_filter(_borrowed(record, presence), null)),
        statistic="full-knowledge",
        standard_null=True,
        expected=np.sqrt(presence.sum(axis=0)),
        spread=full_knowledge_spread(record),
    )


def full_knowledge_spread(record: AuditRecord) -> float:
    """Standard deviation of √k times the mean full-knowledge score of k canaries.

    It is 1 where the other canaries are known. Where they are not, as in records of earlier
    versions, two canaries that meet in N_ij rounds overlap by N_ij times the same number, of
    variance 1/d, which moves the scores of both: the variance is ``1 +
    Σ_{i<j} N_ij²·(1/√R_i + 1/√R_j)²/(k·d·z²)``.
    """
    z = record.mechanism.sum_noise_multiplier or 0.0
    if not z:
        return np.inf
    left_in = np.ones(record.rounds) if record.norms.sums is None else record.norms.sums == 0
    here = record.presence.any(axis=0)
    met = (record.presence[:, here] * left_in[:, None]).astype(np.float32)
    if not met.any():
        return 1.0
    rounds = np.sqrt(record.presence[:, here].sum(axis=0))
    total, rows = 0.0, max(1, _BLOCK // met.shape[1])
    for first in range(0, met.shape[1], rows):
        last = min(first + rows, met.shape[1])
        common = (met[:, first:last].T @ met).astype(np.float64) ** 2
        common[np.arange(last - first), np.arange(first, last)] = 0.0
        total += float(np.sum(common * (1 / rounds[first:last, None] + 1 / rounds) ** 2)) / 2
    return float(np.sqrt(1 + total / (met.shape[1] * record.dim * z**2)))


def likelihood_ratio(record: AuditRecord) -> Scores:
    """``Σ_e ln(mean_{t∈e} exp(a_t s_it − a_t²/2))``, for an adversary who does not know the rounds.

    There is one term for each epoch e. With rounds drawn by coins of probability q, there is one
    term ``ln(1 − q + q·exp(…))`` for each round instead, see `unknown_rounds_law`. The null is not
    Gaussian: use `unknown_rounds_estimate` for an ε.

    Raises:
        ValueError: if the schedule has no `unknown_rounds_law`.
    """
    law = check_unknown_rounds_law(record)
    signal = expected_signal(record)[:, None]
    terms = [
        signal * shift_scores(side.means, record.dim) - signal**2 / 2
        for side in (record.observed, record.unobserved)
    ]
    if law == "coins":
        rate = min(record.mechanism.canary_participations / record.rounds, 1 - 1e-12)
        observed, unobserved = (
            np.sum(np.logaddexp(np.log1p(-rate), np.log(rate) + term), axis=0) for term in terms
        )
    else:
        blocks = epoch_blocks(record)
        observed, unobserved = (
            np.sum(
                [scipy.special.logsumexp(term[b], axis=0) - np.log(len(b)) for b in blocks], axis=0
            )
            for term in terms
        )
    return Scores(observed, _if_enough(unobserved), statistic="likelihood-ratio")


STATISTICS: dict[ThreatModel, dict[str, Callable[[AuditRecord], Scores]]] = {
    "final": {"displacement": displacement, "model": model},
    "all": {
        "matched-filter": matched_filter,
        "full-knowledge": full_knowledge,
        "likelihood-ratio": likelihood_ratio,
        "maximum": maximum,
    },
}
"""Statistics by threat model; the first of each is the default."""


def expected_signal(record: AuditRecord) -> Floats:
    """Expected score of a participant in each round, ``a_t = √d·C_t / (n·‖h_t‖)``, ``(T,)``.

    The mean is that of one canary among real clients, as far as the record can tell.

    Raises:
        ValueError: if the record does not say what a canary adds to the mean.
    """
    norms = _hidden_norms(record)
    signal = np.sqrt(record.dim) * _contributions(record)
    return np.asarray(np.divide(signal, norms, out=np.zeros_like(signal), where=norms > 0))


def participant_signals(record: AuditRecord) -> Floats:
    """Expected score of each observed canary in each round, ``(T, k)``; 0 where it is not in it.

    Raises:
        ValueError: as `expected_signal`.
    """
    return np.asarray(expected_signal(record)[:, None] * record.shares())


def _hidden_norms(record: AuditRecord) -> Floats:
    """Norm of what hides one canary in each round's mean, ``‖h_t‖``, ``(T,)``."""
    own = np.where(record.presence.any(axis=1), _contributions(record), 0.0)
    return hidden_norm(without_others(record).norms.means, own)


def _final_parts(record: AuditRecord) -> tuple[Floats, float]:
    """What each round's participant adds to θ_T − θ_0, ``(T,)``, and the norm of what hides it."""
    added = np.asarray(record.round_weights() * _contributions(record))
    typical = float(np.sqrt(np.mean((added @ record.shares()) ** 2)))
    return added, float(hidden_norm(without_others(record).norms.displacement, typical))


def footprints(record: AuditRecord, threat: ThreatModel) -> Floats:
    """Expected score of each canary, from its rounds and their clip norms.

    For "final" ``√d·Σ_{t∈S_i} w_t·C_t / (n·‖h‖)``, with ``w_t`` the weight of round t in θ_T − θ_0,
    and h all but a typical canary in it; shape ``(k,)``. For "all" ``√(Σ_{t∈S_i} a_t²)``, for those
    that took part at all.

    Raises:
        ValueError: if the clip norms are unknown, or for "final" if the server was not SGD, as the
            final model is then not a weighted sum of the rounds.
        NotMeasured: as `scores_from_record`.
    """
    check_measured(record, threat)
    sizes = round_footprints(record, threat)[1]
    return sizes if threat == "final" else sizes[record.presence.any(axis=0)]


def round_footprints(record: AuditRecord, threat: ThreatModel) -> tuple[Floats, Floats]:
    """What taking part in each round adds, ``(T,)``, and every canary's footprint, ``(k,)``.

    For "final" a footprint is the sum over a canary's rounds of what they add, for "all" the root
    of that sum. Unlike in `footprints`, canaries that never took part are there, with 0.

    Raises:
        ValueError: as `footprints`.
    """
    check_measured(record, threat)
    if threat == "all":
        squares = np.sum(participant_signals(record) ** 2, axis=0)
        return expected_signal(record) ** 2, np.asarray(np.sqrt(squares))
    share, hidden = _final_parts(record)
    if hidden == 0:
        raise ValueError("Expected displacement_norm=0.0 > 0 for footprints.")
    added = share * np.sqrt(record.dim) / hidden
    return added, np.asarray(added @ record.shares())


def _contributions(record: AuditRecord) -> Floats:
    """Norm of what one canary adds to the released mean, ``(T,)``."""
    if not record.signal_known():
        raise ValueError("Expected clip_norms (or contributions) to be known in every round.")
    mechanism = record.mechanism
    if mechanism.contributions is not None:
        return mechanism.contributions
    return np.asarray(mechanism.clip_norms / mechanism.cohort_size)


def unknown_rounds_law(record: AuditRecord) -> str | None:
    """How one canary's rounds are drawn: "coins", "epochs", or ``None`` if it is neither.

    "coins": in each round independently with the same probability, as for Poisson sampling and for
    one member of a cohort of fixed size. "epochs": once in each of the `epoch_blocks`.
    """
    if record.mechanism.canary_weights is not None:
        return None
    schedule = SCHEDULES.get(record.mechanism.participation)
    law = None if schedule is None else schedule.unknown_rounds
    participations = record.mechanism.canary_participations
    if law == "epochs" and participations != round(participations):
        return None
    return law


def check_unknown_rounds_law(record: AuditRecord) -> str:
    """The `unknown_rounds_law` of a record.

    Raises:
        ValueError: if it is ``None``.
    """
    if law := unknown_rounds_law(record):
        return law
    participations = record.mechanism.canary_participations
    raise ValueError(
        f"Expected participation={record.mechanism.participation!r} with canary_participations="
        f"{participations} to be poisson, fixed-size, balls-in-bins or whole epochs."
    )


def epoch_blocks(record: AuditRecord) -> list[NDArray[np.int64]]:
    """The rounds of each epoch; every canary takes part once in each of them."""
    repeats = max(1, round(record.mechanism.canary_participations))
    return np.array_split(np.arange(record.rounds), repeats)


def _scaled_cosines(
    record: AuditRecord, observed: Floats, unobserved: Floats, statistic: str
) -> Scores:
    """Scores that are cosines with one vector each, which rounding may lift above 1."""
    scale = np.sqrt(record.dim)
    return Scores(observed * scale, _if_enough(unobserved * scale), record.dim, statistic)


def _if_enough(scores: Floats) -> Floats | None:
    return scores if len(scores) >= 2 else None


def _borrowed(record: AuditRecord, signals: NDArray[Any]) -> NDArray[Any]:
    """For each unobserved canary the column of one that took part."""
    return signals[:, np.resize(np.arange(signals.shape[1]), record.unobserved.count)]


def _filter(weights: NDArray[Any], cosines: Floats) -> Floats:
    energy = np.sqrt(np.sum(weights**2, axis=0))
    total = np.asarray(np.sum(weights * cosines, axis=0))
    return np.asarray(np.divide(total, energy, out=np.zeros_like(total), where=energy > 0))
