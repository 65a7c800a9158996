"""The record of one canary among real clients: the other canaries are projected out.

A released mean contains all canaries of its round. They are known, so an adversary who looks
for one of them subtracts the others; if they stay in, ε falls as canaries are added.
`measure_others` computes the necessary cosines when a record is made, and `leave_one_out`
projects the canaries out. Derivation and measurements: docs/notes/other-canaries.md.

Examples:
    >>> # The canaries u and v have the sum S = u + v, and the mean is m = 3u + 3v + 2w.
    >>> dots, dots_with_sum, weights = np.array([3.0]), np.array([1.0]), np.array([1.0])  # of u
    >>> project_out(dots, dots_with_sum, weights, energy=22.0, sum_dot=6.0, sum_energy=2.0)
    (array([3.]), np.float64(2.0), 3.0)
"""

import math
from typing import Any

import numpy as np
import scipy

from fl_epe.auditing.record import (
    AuditRecord,
    NotMeasured,
    RoundCorrelation,
    RunningScores,
    quotients,
)
from fl_epe.auditing.scoring.scores import cosines_of
from fl_epe.canaries import SCORE_MEMORY, CanarySet
from fl_epe.checks import ArgumentError, Floats, Integers, raise_invalid
from fl_epe.mechanism import norm

# If the canaries have a smaller share of a vector's energy, they are not projected out of it. A
# score then differs relatively by half of this share.
MIN_PROJECTED_SHARE = 1e-3

# A residual below this part of a mean's norm is a rounding error.
_MIN_RESIDUAL = 1e-6

# Bytes for sums of canaries that are scored at once.
_MEMORY = SCORE_MEMORY // 4

# Largest weight of a canary whose sums do not overflow in float32.
_MAX_WEIGHT = 1e15

# Level of the test that the canaries' weights were not changed.
_LEVEL = 1e-9


def project_out(
    dots: Floats,
    dots_with_sum: Floats,
    weights: Floats | float,
    energy: Floats | float,
    sum_dot: Floats | float,
    sum_energy: Floats | float,
) -> tuple[Floats, Floats, Floats | float]:
    """Projects the sum S of the canaries out of a vector m, and adds each canary's own part again.

    The weight of S in m is measured, not assumed, so the residual is orthogonal to S. A canary
    that took no part has the exact null of a cosine, as the residual does not depend on it.

    Args:
        dots: ``⟨m, u⟩``; the last axis is over canaries u.
        dots_with_sum: ``⟨S, u⟩``, of the same shape.
        weights: the weight of u in S; 0 for a canary that is not in it.
        energy: ``‖m‖²``.
        sum_dot: ``⟨m, S⟩``.
        sum_energy: ``‖S‖²``.

    Returns:
        The inner product of u with the residual plus u's own part, the norm of the residual,
        and the weight of S in m.
    """
    sum_weight = sum_dot / sum_energy
    own_dots = dots - sum_weight * (dots_with_sum - weights)
    residual = energy - sum_weight * sum_dot
    norms = np.sqrt(np.maximum(residual, _MIN_RESIDUAL**2 * energy))
    return own_dots, norms, sum_weight


def others_share(record: AuditRecord) -> Floats:
    """The other canaries' measured share of the energy of each round's mean, ``(T,)``."""
    count = record.presence.sum(axis=1)
    share_of_others = np.maximum(count - 1, 0) / np.maximum(count, 1)
    energies = share_of_others * _canary_energies(record)
    return np.minimum(quotients(energies, record.norms.means**2), 1.0)


def _measured_contributions(record: AuditRecord) -> Floats:
    """The norm of a participant's contribution, measured along the canaries, ``(T,)``."""
    dots = (
        np.sum(record.shares() * record.observed.means, axis=1)
        * record.norms.means
    )
    return quotients(dots, np.sum(record.shares() ** 2.0, axis=1))


def _canary_energies(record: AuditRecord) -> Floats:
    """The measured energy of the canaries' sum in each round's mean, ``(T,)``."""
    return np.asarray(
        np.sum(record.shares() ** 2.0, axis=1)
        * _measured_contributions(record) ** 2
    )


def _final_weights(record: AuditRecord) -> Floats | None:
    """Each canary's expected weight in θ_T − θ_0, ``(k,)``; ``None`` if not server SGD."""
    if not record.mechanism.server.is_linear:
        return None
    return np.asarray(
        record.round_weights() * _contributions(record) @ record.shares()
    )


def _contributions(record: AuditRecord) -> Floats:
    """The norm of a participant's contribution to each mean, measured if unknown, ``(T,)``."""
    added = record.mechanism.contribution_norms
    return np.where(
        np.isfinite(added),
        added,
        np.maximum(_measured_contributions(record), 0.0),
    )


def measure_others(record: AuditRecord, canaries: CanarySet) -> AuditRecord:
    """The record with the cosines that `leave_one_out` needs.

    Rounds in which the canaries' share is below `MIN_PROJECTED_SHARE` are left out, unless the real
    clients' sums are known too. Independent canaries are regenerated: those of a round twice, and
    unobserved ones once for several rounds together. Rotated ones cost a few transforms a round.

    Args:
        record: the record of a run.
        canaries: all canaries, in which the record's ids are numbers.
    """
    ids = _of_all_canaries(record, "ids")
    cosines, norms = _round_sums(record, canaries, ids)
    values = _by_group(record, "canary_sums", cosines) | {
        "norms.canary_sums": norms
    }
    weights = _final_weights(record)
    if weights is not None:
        final_cosines, final_norm = _final_sum(record, canaries, weights, ids)
        values |= _by_group(record, "canary_displacement", final_cosines)
        values["norms.canary_displacement"] = final_norm
    return record.with_values(**values)


def _of_all_canaries(record: AuditRecord, name: str) -> np.ndarray:
    """A value of `CanaryCosines` for observed and then unobserved canaries, in one array."""
    groups = [getattr(record.observed, name), getattr(record.unobserved, name)]
    if any(group is None for group in groups):
        raise ArgumentError(
            f"Expected observed.{name} and unobserved.{name} to be known."
        )
    return np.concatenate(groups, axis=-1)


def _by_group(
    record: AuditRecord, name: str, values: np.ndarray
) -> dict[str, Any]:
    """The inverse of `_of_all_canaries`, under the names in a record."""
    observed, unobserved = np.split(values, [record.num_canaries], axis=-1)
    return {f"observed.{name}": observed, f"unobserved.{name}": unobserved}


def _round_sums(
    record: AuditRecord, canaries: CanarySet, ids: Integers
) -> tuple[Floats, Floats]:
    """Cosines of all canaries with the sum of each round's canaries, and the sums' norms.

    Both are 0 in rounds in which the canaries are not projected out.
    """
    k = record.num_canaries
    cosines = np.zeros((record.rounds, len(ids)))
    norms = np.zeros(record.rounds)
    energies = _canary_energies(record)
    is_projected = energies >= MIN_PROJECTED_SHARE * record.norms.means**2
    is_projected &= energies > 0
    if record.norms.residuals is not None:
        # These means have only noise beside the canaries, so that even small ones matter.
        is_projected |= record.presence.sum(axis=1) >= 2
    rounds = np.flatnonzero(is_projected)
    rounds_at_once = 1
    if not canaries.fast:
        rounds_at_once = max(1, _MEMORY // (4 * record.dim))
    for first in range(0, len(rounds), rounds_at_once):
        block = rounds[first : first + rounds_at_once]
        present = record.presence[block].any(axis=0)
        weights = record.shares()[block][:, present].astype(np.float32)
        sums = canaries.combine(weights, numbers=ids[:k][present].tolist())
        norms[block] = [norm(row) for row in sums]
        # It would cost too much to regenerate the observed canaries of other rounds.
        is_scored = np.ones(len(ids), bool)
        if not canaries.fast:
            is_scored[:k] = present
        dots = canaries.dot(sums, numbers=ids[is_scored].tolist())
        cosines[np.ix_(block, is_scored)] = dots / norms[block, None]
    return cosines, norms


def _final_sum(
    record: AuditRecord, canaries: CanarySet, weights: Floats, ids: Integers
) -> tuple[Floats, float]:
    """Cosines of all canaries with their expected sum in θ_T − θ_0, and its norm; 0 if small."""
    energy = record.norms.displacement**2
    can_be_scored = np.max(np.abs(weights), initial=0.0) < _MAX_WEIGHT
    # The displacement may be NaN, whose energy is not > 0.
    if not (
        can_be_scored and np.sum(weights**2) >= MIN_PROJECTED_SHARE * energy > 0
    ):
        return np.zeros(len(ids)), 0.0
    numbers = ids[: len(weights)].tolist()
    total = canaries.combine(weights[None], numbers=numbers)[0]
    length = norm(total)
    return canaries.dot(total, numbers=ids.tolist()) / length, length


def leave_one_out(record: AuditRecord) -> AuditRecord:
    """The record with the cosines that each canary would have as the only one among real clients.

    The cosines and norms of the means and of the displacement are changed. Those of the final
    model and of the model updates, which the paper's statistics use, are not. A record without
    the cosines of `measure_others` is returned as it is, and so is a result of this function.
    """
    if record.norms.canary_sums is None:
        return record
    return keep_all_canaries(_project_means(_project_displacement(record)))


def expected_others(record: AuditRecord) -> tuple[Floats, Floats]:
    """The other canaries' expected contributions to ``⟨mean_t, c_i⟩``, of both groups.

    They are expected, not measured as in `leave_one_out`, for an adversary who knows all clients
    but canary i.

    Returns:
        The contributions for observed canaries, ``(T, k)``, and for unobserved ones,
        ``(T, u)``.

    Raises:
        ValueError: if the record lacks a canary's contribution to the mean, or the cosines of
            `measure_others`.
    """
    if not record.signal_known():
        raise_invalid(
            "clip_norms",
            record.mechanism.clip_norms,
            "to be known in every round",
        )
    if record.norms.canary_sums is None:
        raise_invalid(
            "norms.canary_sums",
            None,
            "to be known, for an adversary with full knowledge",
        )
    norms = record.norms.canary_sums[:, None]
    own_weights = np.where(norms > 0, _all_shares(record), 0.0)
    dots_with_sum = norms * _of_all_canaries(record, "canary_sums")
    contributions = _contributions(record)[:, None]
    observed, unobserved = np.split(
        contributions * (dots_with_sum - own_weights),
        [record.num_canaries],
        axis=1,
    )
    return observed, unobserved


def _all_shares(record: AuditRecord) -> Floats:
    """`AuditRecord.shares` of all canaries, which are 0 for unobserved ones, ``(T, k + u)``."""
    unobserved = np.zeros_like(record.unobserved.means)
    return np.concatenate([record.shares(), unobserved], axis=1)


def keep_all_canaries(record: AuditRecord) -> AuditRecord:
    """The record without what `leave_one_out` needs, so that no canary is projected out.

    Its rounds count as independent, as their correlation was measured without canaries.
    """
    names = [
        f"{part}.{name}"
        for part in ("observed", "unobserved", "norms")
        for name in ("canary_sums", "canary_displacement")
    ]
    return record.with_values(
        correlation=RoundCorrelation(),
        running=RunningScores(),
        **dict.fromkeys(names),
    )


def _project_means(record: AuditRecord) -> AuditRecord:
    """The record with the other canaries projected out of the means."""
    norms = record.norms
    all_sum_norms = np.asarray(norms.canary_sums)
    rounds = np.flatnonzero(all_sum_norms)
    if not len(rounds):
        return record
    mean_norms = norms.means[rounds, None]
    sum_norms = all_sum_norms[rounds, None]
    # The array is contiguous: the order of summation must not depend on a record's layout.
    means = np.ascontiguousarray(_of_all_canaries(record, "means"))
    shares = record.shares()[rounds]
    cosines_with_sum = np.sum(shares * record.observed.means[rounds], axis=1)
    own_dots, residual_norms, _ = project_out(
        means[rounds] * mean_norms,
        _of_all_canaries(record, "canary_sums")[rounds] * sum_norms,
        _all_shares(record)[rounds],
        mean_norms**2,
        cosines_with_sum[:, None] * mean_norms,
        sum_norms**2,
    )
    scores = math.sqrt(record.dim) * own_dots / residual_norms
    means[rounds] = cosines_of(scores, record.dim)
    lengths = norms.means.copy()
    lengths[rounds] = np.hypot(
        residual_norms[:, 0], _contributions(record)[rounds]
    )
    values = _by_group(record, "means", means)
    return record.with_values(**values, **{"norms.means": lengths})


def _project_displacement(record: AuditRecord) -> AuditRecord:
    """The record with the other canaries projected out of the displacement.

    Raises:
        NotMeasured: if the canaries' weights are not those by which `measure_others` summed them.
    """
    norms = record.norms
    weights = _final_weights(record)
    if not norms.canary_displacement or weights is None:
        return record
    sum_cosines = _of_all_canaries(record, "canary_displacement")
    # A canary's inner product with the sum is its own weight plus a random term by the other
    # canaries, whose cosines with it have the variance 1/d. So the sum of the squared differences
    # is a χ² statistic.
    differences = (
        sum_cosines[: len(weights)] * norms.canary_displacement - weights
    )
    statistic = float(np.sum(differences**2)) * record.dim
    statistic /= float(weights @ weights)
    if statistic > scipy.special.chdtri(len(weights), _LEVEL):
        raise NotMeasured(
            "the canaries' expected contributions to the final model are not those that were "
            "projected out of it; pass the changed values to RunAuditor.record"
        )
    length = norms.displacement
    all_weights = np.append(weights, np.zeros(record.unobserved.count))
    own_dots, residual_norm, sum_weight = project_out(
        _of_all_canaries(record, "displacement") * length,
        sum_cosines * norms.canary_displacement,
        all_weights,
        length**2,
        float(weights @ record.observed.displacement) * length,
        norms.canary_displacement**2,
    )
    own_parts = sum_weight * all_weights
    # The squared norm of the residual plus the canary's own part.
    energies = residual_norm**2 + 2 * own_parts * own_dots - own_parts**2
    cosines = own_dots / np.sqrt(energies)
    lengths = np.hypot(residual_norm, sum_weight * weights)
    values = _by_group(record, "displacement", cosines)
    values["norms.displacement"] = float(np.sqrt(np.mean(lengths**2)))
    return record.with_values(**values)
