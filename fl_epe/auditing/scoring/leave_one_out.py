"""The record of one canary among real clients: other canaries are projected out.

A released mean contains all canaries of its round. They are known, so an adversary who looks
for one of them subtracts the others; if they stay in, ε falls as canaries are added.
`measure_others` computes the necessary cosines when a record is made, and `leave_one_out`
projects the canaries out. Derivation and measurements: docs/notes/other-canaries.md.

Examples:
    >>> dots, with_sum = np.array([3.0]), np.array([1.0])  # of a vector 3u + 3v + 2w, orthogonal
    >>> leave_others_out(dots, with_sum, np.array([1.0]), 22.0, 6.0, 2.0)
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
from fl_epe.checks import Floats, Integers, raise_invalid
from fl_epe.mechanism import norm

# Other canaries with a smaller share of a vector's energy stay in; a score changes by half of it.
SMALLEST_SHARE = 1e-3

# A residual below this part of a mean's norm is a rounding error.
_LEAST_RESIDUAL = 1e-6

# Bytes for sums of canaries that are scored at once.
_MEMORY = SCORE_MEMORY // 4

# Largest weight of a canary whose sums do not overflow in float32.
_LARGEST = 1e15

# Level of the test that the canaries' weights were not changed.
_BY_CHANCE = 1e-9


def leave_others_out(
    dots: Floats,
    with_sum: Floats,
    weights: Floats | float,
    square: Floats | float,
    sum_dot: Floats | float,
    sum_square: Floats | float,
) -> tuple[Floats, Floats, Floats | float]:
    """Projects the sum S of the canaries out of a vector m, and adds each canary's own part again.

    The weight of S in m is measured, not assumed, so the residual is orthogonal to S. A canary
    that took no part has the exact null of a cosine, as the residual does not depend on it.

    Args:
        dots: ``⟨m, u⟩``; the last axis is over canaries u.
        with_sum: ``⟨S, u⟩``, of the same shape.
        weights: the weight of u in S; 0 for a canary that is not in it.
        square: ``‖m‖²``.
        sum_dot: ``⟨m, S⟩``.
        sum_square: ``‖S‖²``.

    Returns:
        The inner product of u with the residual plus u's own part, the norm of the residual,
        and the weight of S in m.
    """
    share = sum_dot / sum_square
    own_dots = dots - share * (with_sum - weights)
    residual = square - share * sum_dot
    norms = np.sqrt(np.maximum(residual, _LEAST_RESIDUAL**2 * square))
    return own_dots, norms, share


def others_share(record: AuditRecord) -> Floats:
    """The measured share of the other canaries in the energy of each round's mean, ``(T,)``."""
    count = record.presence.sum(axis=1)
    share_of_others = np.maximum(count - 1, 0) / np.maximum(count, 1)
    energies = share_of_others * _canary_energies(record)
    return np.minimum(quotients(energies, record.norms.means**2), 1.0)


def _measured_contributions(record: AuditRecord) -> Floats:
    """The contribution in each round, measured along its canaries' directions, ``(T,)``."""
    dots = (
        np.sum(record.shares() * record.observed.means, axis=1)
        * record.norms.means
    )
    return quotients(dots, np.sum(record.shares() ** 2.0, axis=1))


def _canary_energies(record: AuditRecord) -> Floats:
    """The measured energy of all canaries of a round in its mean, ``(T,)``."""
    return np.asarray(
        np.sum(record.shares() ** 2.0, axis=1)
        * _measured_contributions(record) ** 2
    )


def _final_weights(record: AuditRecord) -> Floats | None:
    """Each canary's expected weight in θ_T − θ_0, ``(k,)``; ``None`` if not server SGD."""
    if not record.mechanism.server.linear:
        return None
    return np.asarray(
        record.round_weights() * _contributions(record) @ record.shares()
    )


def _contributions(record: AuditRecord) -> Floats:
    """A canary's expected contribution to each round's mean, or else the measured one, ``(T,)``."""
    added = record.mechanism.added
    return np.where(
        np.isfinite(added),
        added,
        np.maximum(_measured_contributions(record), 0.0),
    )


def measure_others(record: AuditRecord, canaries: CanarySet) -> AuditRecord:
    """The record with the cosines that `leave_one_out` needs.

    Rounds in which the canaries' share is below `SMALLEST_SHARE` are left out, unless the real
    clients' sums are known too. Independent canaries are regenerated: those of a round twice, and
    unobserved ones once for several rounds together. Rotated ones cost a few transforms a round.

    Args:
        record: the record of a run.
        canaries: all canaries, in which the record's ids are numbers.
    """
    ids = np.append(
        np.asarray(record.observed.ids), np.asarray(record.unobserved.ids)
    )
    k = record.num_canaries
    cosines, norms = _round_sums(record, canaries, ids)
    values: dict[str, Any] = {
        "observed.sums": cosines[:, :k],
        "unobserved.sums": cosines[:, k:],
        "norms.sums": norms,
    }
    weights = _final_weights(record)
    if weights is not None:
        final_cosines, final_norm = _final_part(record, canaries, weights, ids)
        values["observed.part"] = final_cosines[:k]
        values["unobserved.part"] = final_cosines[k:]
        values["norms.part"] = final_norm
    return record.with_values(**values)


def _round_sums(
    record: AuditRecord, canaries: CanarySet, ids: Integers
) -> tuple[Floats, Floats]:
    """Cosines of all canaries with the sum of each round's canaries, and the sums' norms."""
    k = record.num_canaries
    cosines = np.zeros((record.rounds, len(ids)))
    norms = np.zeros(record.rounds)
    energy = _canary_energies(record)
    is_large = (energy >= SMALLEST_SHARE * record.norms.means**2) & (energy > 0)
    # With known residuals only noise remains beside the canaries.
    if record.norms.residuals is not None:
        is_large |= record.presence.sum(axis=1) >= 2
    rounds = np.flatnonzero(is_large)
    rows = 1 if canaries.fast else max(1, _MEMORY // (4 * record.dim))
    for first in range(0, len(rounds), rows):
        block = rounds[first : first + rows]
        present = record.presence[block].any(axis=0)
        weights = record.shares()[block][:, present].astype(np.float32)
        sums = canaries.combine(weights, numbers=ids[:k][present].tolist())
        norms[block] = [norm(row) for row in sums]
        # To regenerate observed canaries of other rounds would cost too much.
        scored = np.append(present | canaries.fast, np.ones(len(ids) - k, bool))
        dots = canaries.dot(sums, numbers=ids[scored].tolist())
        cosines[np.ix_(block, scored)] = dots / norms[block, None]
    return cosines, norms


def _final_part(
    record: AuditRecord, canaries: CanarySet, weights: Floats, ids: Integers
) -> tuple[Floats, float]:
    """Cosines of all canaries with the canaries' part of θ_T − θ_0, and its norm; 0 if small."""
    square = record.norms.displacement**2
    fits = np.max(np.abs(weights), initial=0.0) < _LARGEST
    if not (fits and np.sum(weights**2) >= SMALLEST_SHARE * square > 0):
        return np.zeros(len(ids)), 0.0
    numbers = ids[: len(weights)].tolist()
    part = canaries.combine(weights[None], numbers=numbers)[0]
    length = norm(part)
    return canaries.dot(part, numbers=ids.tolist()) / length, length


def leave_one_out(record: AuditRecord) -> AuditRecord:
    """The record that each canary would have as the only one among real clients.

    The cosines and norms of the means and of the displacement are changed. Those of final models
    and of model updates, which the paper's statistics use, are not. A record
    without the cosines of `measure_others` is returned as it is, and so is the result of this
    function.
    """
    if record.norms.sums is None:
        return record
    return all_canaries(_means_alone(_displacement_alone(record)))


def known_others(record: AuditRecord) -> tuple[Floats, Floats]:
    """The other canaries' expected contributions to ``⟨mean_t, c_i⟩``, of both groups.

    Unlike `leave_one_out` this measures nothing: it is for an adversary who knows all but canary i.

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
    norms = record.norms.sums
    observed = record.observed.sums
    unobserved = record.unobserved.sums
    if norms is None or observed is None or unobserved is None:
        raise_invalid(
            "canary_sum_norms",
            norms,
            "known, for an adversary with full knowledge",
        )
    lengths = norms[:, None]
    added = _contributions(record)[:, None]
    own_weights = np.where(lengths > 0, record.shares(), 0.0)
    return added * (lengths * observed - own_weights), added * (
        lengths * unobserved
    )


def all_canaries(record: AuditRecord) -> AuditRecord:
    """The record with all canaries left in, and its rounds declared independent.

    `leave_one_out` does not change it.
    """
    names = [
        f"{part}.{name}"
        for part in ("observed", "unobserved", "norms")
        for name in ("sums", "part")
    ]
    return record.with_values(
        correlation=RoundCorrelation(),
        running=RunningScores(),
        **dict.fromkeys(names),
    )


def _means_alone(record: AuditRecord) -> AuditRecord:
    """The record with the other canaries projected out of the means."""
    norms = record.norms
    observed = record.observed
    unobserved = record.unobserved
    if observed.sums is None or unobserved.sums is None or norms.sums is None:
        return record
    rounds = np.flatnonzero(norms.sums)
    mean_norms = norms.means[rounds, None]
    sum_norms = norms.sums[rounds, None]
    shares = record.shares()
    weights = np.concatenate([shares, np.zeros_like(unobserved.means)], axis=1)
    # The array is contiguous: the order of summation must not depend on a record's layout.
    means = np.ascontiguousarray(
        np.concatenate([observed.means, unobserved.means], axis=1)
    )
    sums = np.concatenate([observed.sums, unobserved.sums], axis=1)
    along_sum = np.sum(shares[rounds] * observed.means[rounds], axis=1)[:, None]
    own_dots, residual_norms, _ = leave_others_out(
        means[rounds] * mean_norms,
        sums[rounds] * sum_norms,
        weights[rounds],
        mean_norms**2,
        along_sum * mean_norms,
        sum_norms**2,
    )
    scores = math.sqrt(record.dim) * own_dots / residual_norms
    means[rounds] = cosines_of(scores, record.dim)
    lengths = norms.means.copy()
    lengths[rounds] = np.hypot(
        residual_norms[:, 0], _contributions(record)[rounds]
    )
    values = {
        "observed.means": means[:, : record.num_canaries],
        "unobserved.means": means[:, record.num_canaries :],
        "norms.means": lengths,
    }
    return record.with_values(**values)


def _displacement_alone(record: AuditRecord) -> AuditRecord:
    """The record with the other canaries projected out of the displacement."""
    norms = record.norms
    observed = record.observed
    unobserved = record.unobserved
    weights = _final_weights(record)
    if (
        not norms.part
        or weights is None
        or observed.part is None
        or unobserved.part is None
    ):
        return record
    # A canary's inner product with the sum is its own weight plus, by chance, a part of the other
    # weights over √d.
    by_chance = float(np.sum((observed.part * norms.part - weights) ** 2))
    error = by_chance * record.dim / float(weights @ weights)
    if error > scipy.special.chdtri(len(weights), _BY_CHANCE):
        raise NotMeasured(
            "what canaries should have added to the final model was changed after they were "
            "projected out of it; hand it to RunAuditor.record"
        )
    length = norms.displacement
    all_weights = np.append(weights, np.zeros(unobserved.count))
    own_dots, residual_norm, share = leave_others_out(
        np.append(observed.displacement, unobserved.displacement) * length,
        np.append(observed.part, unobserved.part) * norms.part,
        all_weights,
        length**2,
        float(weights @ observed.displacement) * length,
        norms.part**2,
    )
    parts = share * all_weights
    cosines = own_dots / np.sqrt(
        residual_norm**2 + 2 * parts * own_dots - parts**2
    )
    lengths = np.hypot(residual_norm, share * weights)
    values = {
        "observed.displacement": cosines[: len(weights)],
        "unobserved.displacement": cosines[len(weights) :],
        "norms.displacement": float(np.sqrt(np.mean(lengths**2))),
    }
    return record.with_values(**values)
