"""One canary among real clients: projects the other canaries out of the released vectors.

A released mean holds all canaries of its round. They are known, so an adversary who looks for one
of them subtracts the others; if they stay in, ε falls as canaries are added. `measure_others`
computes what is needed when a record is made, `leave_one_out` projects them out. Derivation and
measurements: docs/notes/other-canaries.md.

Examples:
    >>> dots, with_sum = np.array([3.0]), np.array([1.0])  # a mean 3u + 3v, u and v orthogonal
    >>> project_out(dots, with_sum, np.array([1.0]), 18.0, 6.0, 2.0)
    (array([3.]), array([9.]))
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_epe.auditing.record import AuditRecord
from fl_epe.auditing.record_parts import CanaryCosines, Floats
from fl_epe.canaries import SCORE_MEMORY, CanarySet
from fl_epe.checks import raise_invalid
from fl_epe.mechanism import norm

SMALLEST_SHARE = 1e-3
"""Others with a smaller share of a vector's energy are left in; the score changes by half of it."""

_MEMORY = SCORE_MEMORY // 4  # bytes for sums of canaries that are scored at once
_LARGEST = 1e15
_NOBODY = 1e-9  # smaller shares of a sum's energy are rounding


def project_out(
    dots: Floats,
    with_sum: Floats,
    own: ArrayLike,
    square: ArrayLike,
    sum_dot: ArrayLike,
    sum_square: ArrayLike,
) -> tuple[Floats, Floats]:
    """Projects the other canaries out of a vector, for each canary u.

    The vector m becomes its part orthogonal to ``S − own·u``, the sum of the others. How much they
    added is thus measured, not assumed. A canary that took no part has the exact null of a cosine,
    as nothing that is taken out depends on it.

    Args:
        dots: ``⟨m, u⟩``, the last axis over canaries.
        with_sum: ``⟨S, u⟩``, of the same shape.
        own: the weight of u in S; 0 for a canary that is not in it.
        square: ``‖m‖²``.
        sum_dot: ``⟨m, S⟩``.
        sum_square: ``‖S‖²``.

    Returns:
        The inner product of what is left with each u, and its squared norm.
    """
    weights = np.asarray(own, np.float64)
    others_dot = np.asarray(sum_dot, np.float64) - weights * dots
    whole = np.asarray(sum_square, np.float64)
    others_square = whole - 2 * weights * with_sum + weights**2
    some = others_square > _NOBODY * whole
    share = np.divide(others_dot, others_square, out=np.zeros_like(others_dot), where=some)
    left = dots - share * (with_sum - weights)
    rest = np.asarray(square, np.float64) - share * others_dot
    return left, np.maximum(rest, left**2)


def projected_square(
    square: ArrayLike, sum_dot: ArrayLike, sum_square: ArrayLike, own: float
) -> Floats:
    """Expected squared norm that `project_out` leaves, with one canary of weight ``own`` in it."""
    measured = np.asarray(sum_dot, np.float64) / np.asarray(sum_square, np.float64)
    rest = np.asarray(square, np.float64) - measured * np.asarray(sum_dot, np.float64)
    return np.asarray(np.maximum(rest, 0.0) + (measured * own) ** 2)


def others_share(record: AuditRecord) -> Floats:
    """Share of the other canaries in the energy of each round's mean, as measured, ``(T,)``."""
    count = record.presence.sum(axis=1)
    others = np.maximum(count - 1, 0) * _measured(record) ** 2
    square = record.norms.means**2
    share = np.divide(others, square, out=np.zeros(record.rounds), where=square > 0)
    return np.asarray(np.minimum(share, 1.0))


def least_deviations(record: AuditRecord) -> dict[str, float]:
    """The deviation that a measured null may have where other canaries are part of the release.

    Rotated canaries are nearly orthogonal to each other, so that those that took no part see only
    the rest: of d entries out of D = 2^m they have √(1 − share·d/D) of the exact null's deviation,
    or more if they come from other rotations. What hides an observed canary is not narrower, as the
    others are projected out (`leave_one_out`).

    Returns:
        By the names of the statistics in `MeasuredNull`, without the maximum.
    """
    kept = record.dim / (1 << (record.dim - 1).bit_length())
    count, square = record.presence.sum(axis=1), record.norms.means**2
    energy = count * _measured(record) ** 2
    shares = np.divide(energy, square, out=np.zeros(record.rounds), where=square > 0)
    known = _added(record)
    weights = np.divide(count * known**2, square, out=np.zeros(record.rounds), where=square > 0)
    mean = float(weights @ shares / weights.sum()) if weights.sum() > 0 else 0.0
    found = {"matched-filter": mean}
    own = _own_parts(record)
    for name, length in (
        ("displacement", record.norms.displacement),
        ("model", record.norms.final),
    ):
        usable = math.isfinite(length) and length > 0
        found[name] = mean if own is None or not usable else float(np.sum(own**2)) / length**2
    return {name: math.sqrt(1 - kept * min(max(share, 0.0), 1.0)) for name, share in found.items()}


def _measured(record: AuditRecord) -> Floats:
    """Mean of what the canaries of a round added to its mean, along their directions, ``(T,)``."""
    dots = np.sum(record.shares() * record.observed.means, axis=1) * record.norms.means
    count = record.presence.sum(axis=1)
    return np.asarray(np.divide(dots, count, out=np.zeros(record.rounds), where=count > 0))


def _own_parts(record: AuditRecord) -> Floats | None:
    """What each canary should have added to θ_T − θ_0, ``(k,)``; ``None`` if not server SGD."""
    mechanism = record.mechanism
    if not mechanism.server.linear:
        return None
    return np.asarray(record.round_weights() * _added(record) @ record.shares())


def _added(record: AuditRecord) -> Floats:
    """What a canary should have added to each round's mean, or has, ``(T,)``."""
    known = record.mechanism.contributions
    if known is None:
        known = record.mechanism.clip_norms / record.mechanism.cohort_size
    return np.where(np.isfinite(known), known, np.maximum(_measured(record), 0.0))


def measure_others(record: AuditRecord, canaries: CanarySet) -> AuditRecord:
    """The record with the cosines that `leave_one_out` needs.

    Rounds in which the others' share is below `SMALLEST_SHARE` are left out, unless the real
    clients' sums are known too (`View.scores`). Otherwise each
    independent canary of a round is made twice, and the unobserved ones once for some rounds
    together; rotated ones cost a few transforms a round.

    Args:
        record: of a run.
        canaries: all canaries, among which the record's have their ids.

    Raises:
        ValueError: if the record does not have the ids.
    """
    if record.observed.ids is None or record.unobserved.ids is None:
        raise_invalid("observed_ids", record.observed.ids, "known, as those of the unobserved")
    observed, unobserved = record.observed, record.unobserved
    numbers = (np.asarray(observed.ids), np.asarray(unobserved.ids))
    sums, lengths = _round_sums(record, canaries, *numbers)
    record = dataclasses.replace(
        record,
        observed=dataclasses.replace(observed, sums=sums[0]),
        unobserved=dataclasses.replace(unobserved, sums=sums[1]),
        norms=dataclasses.replace(record.norms, sums=lengths),
    )
    own = _own_parts(record)
    if own is None:
        return record
    parts, part = _final_part(record, canaries, own, *numbers)
    return dataclasses.replace(
        record,
        observed=dataclasses.replace(record.observed, part=parts[0]),
        unobserved=dataclasses.replace(record.unobserved, part=parts[1]),
        norms=dataclasses.replace(record.norms, part=part),
    )


def _round_sums(
    record: AuditRecord, canaries: CanarySet, ids: NDArray[np.int64], others: NDArray[np.int64]
) -> tuple[tuple[Floats, Floats], Floats]:
    """Cosines of both sides with the sum of each round's canaries, and the sums' norms."""
    found = np.zeros((record.rounds, len(ids))), np.zeros((record.rounds, len(others)))
    lengths = np.zeros(record.rounds)
    wanted = others_share(record) >= SMALLEST_SHARE
    if record.norms.residuals is not None:  # there is nothing but noise beside them
        wanted |= record.presence.sum(axis=1) >= 2
    rounds = np.flatnonzero(wanted)
    rows = 1 if canaries.fast else max(1, _MEMORY // (4 * record.dim))
    for first in range(0, len(rounds), rows):
        block = rounds[first : first + rows]
        here = record.presence[block].any(axis=0)
        weights = record.shares()[block][:, here].astype(np.float32)
        sums = canaries.combine(weights, numbers=ids[here].tolist())
        lengths[block] = [norm(row) for row in sums]
        asked = np.concatenate([ids[here], others]).tolist()
        cosines = canaries.dot(sums, numbers=asked) / lengths[block, None]
        mine = np.zeros((len(block), len(ids)))
        mine[:, here] = cosines[:, : here.sum()]
        found[0][block] = np.where(record.presence[block], mine, 0.0)
        found[1][block] = cosines[:, here.sum() :]
    return found, lengths


def _final_part(
    record: AuditRecord,
    canaries: CanarySet,
    own: Floats,
    ids: NDArray[np.int64],
    others: NDArray[np.int64],
) -> tuple[tuple[Floats, Floats], float]:
    """Cosines of both sides with the canaries' part of θ_T − θ_0, and its norm."""
    nothing = (np.zeros(len(ids)), np.zeros(len(others))), 0.0
    square = record.norms.displacement**2
    if not np.max(np.abs(own), initial=0.0) < _LARGEST:  # float32 cannot hold their sum
        return nothing
    if not np.sum(own**2) >= SMALLEST_SHARE * square > 0:
        return nothing
    part = canaries.combine(own[None], numbers=ids.tolist())[0]
    cosines = canaries.dot(part, numbers=np.concatenate([ids, others]).tolist()) / norm(part)
    return (cosines[: len(ids)], cosines[len(ids) :]), norm(part)


def leave_one_out(record: AuditRecord) -> AuditRecord:
    """The record as one canary among real clients would have left it.

    Changed are the cosines and norms of the means, of observed canaries in their own rounds and of
    unobserved ones, and those of the displacement. Final models and model deltas, of which the
    paper's statistics are made, stay as they are. A record without the cosines of `measure_others`
    is returned as it is, and so is the result of this function.
    """
    if record.norms.sums is None:
        return record
    return all_canaries(_means_alone(_displacement_alone(record)))


def known_others(record: AuditRecord) -> tuple[Floats, Floats]:
    """What the other canaries should have added to ``⟨mean_t, c_i⟩``, of both sides.

    Unlike `project_out` this measures nothing: it is for an adversary who knows all but canary i.

    Returns:
        ``(T, k)`` of observed and ``(T, m)`` of unobserved canaries.

    Raises:
        ValueError: if the record does not say what a canary adds to the mean, or lacks the cosines
            of `measure_others`.
    """
    if not record.signal_known():
        raise_invalid("clip_norms", record.mechanism.clip_norms, "to be known in every round")
    norms, mine, theirs = record.norms.sums, record.observed.sums, record.unobserved.sums
    if norms is None or mine is None or theirs is None:
        raise_invalid("canary_sum_norms", norms, "known, for an adversary with full knowledge")
    lengths, added = norms[:, None], _added(record)[:, None]
    own = np.where(lengths > 0, record.shares(), 0.0)
    return added * (lengths * mine - own), added * (lengths * theirs)


def all_canaries(record: AuditRecord) -> AuditRecord:
    """The record with all canaries left in: `leave_one_out` of it is the same."""
    return dataclasses.replace(
        record,
        observed=dataclasses.replace(record.observed, sums=None, part=None),
        unobserved=dataclasses.replace(record.unobserved, sums=None, part=None),
        norms=dataclasses.replace(record.norms, sums=None, part=None),
    )


def _means_alone(record: AuditRecord) -> AuditRecord:
    norms, observed = record.norms, record.observed
    assert norms.sums is not None  # noqa: S101 - the caller looked
    rounds = np.flatnonzero(norms.sums)
    if observed.sums is None or record.unobserved.sums is None or not len(rounds):
        return record
    present, length, sum_length = record.presence[rounds], norms.means[rounds], norms.sums[rounds]
    weights = record.shares()[rounds]
    sum_dot = np.sum(weights * observed.means[rounds], axis=1) * length
    shared = (length[:, None] ** 2, sum_dot[:, None], sum_length[:, None] ** 2)

    def alone(side: CanaryCosines, own: NDArray[Any], changed: NDArray[np.bool_]) -> Floats:
        assert side.sums is not None  # noqa: S101
        dots, with_sum = side.means[rounds] * length[:, None], side.sums[rounds]
        left, square = project_out(dots, with_sum * sum_length[:, None], own, *shared)
        cosines = side.means.copy()
        cosines[rounds] = np.where(changed, _cosine(left, square), side.means[rounds])
        return cosines

    nobody = np.zeros((len(rounds), record.unobserved.count), bool)
    lengths = norms.means.copy()
    lengths[rounds] = np.sqrt(projected_square(length**2, sum_dot, sum_length**2, 1.0))
    return dataclasses.replace(
        record,
        observed=dataclasses.replace(observed, means=alone(observed, weights, present)),
        unobserved=dataclasses.replace(
            record.unobserved, means=alone(record.unobserved, nobody, ~nobody)
        ),
        norms=dataclasses.replace(norms, means=lengths),
    )


def _displacement_alone(record: AuditRecord) -> AuditRecord:
    norms, own = record.norms, _own_parts(record)
    observed, unobserved = record.observed, record.unobserved
    if not norms.part or own is None or observed.part is None or unobserved.part is None:
        return record
    length, whole = norms.displacement, norms.part
    sum_dot = float(own @ observed.displacement) * length

    def alone(side: CanaryCosines, part: Floats, weights: Floats) -> Floats:
        found = project_out(
            side.displacement * length, part * whole, weights, length**2, sum_dot, whole**2
        )
        return _cosine(*found)

    typical = float(np.sqrt(np.mean(own**2)))
    square = float(projected_square(length**2, sum_dot, whole**2, typical))
    nothing = np.zeros(unobserved.count)
    return dataclasses.replace(
        record,
        observed=dataclasses.replace(observed, displacement=alone(observed, observed.part, own)),
        unobserved=dataclasses.replace(
            unobserved, displacement=alone(unobserved, unobserved.part, nothing)
        ),
        norms=dataclasses.replace(norms, displacement=math.sqrt(square)),
    )


def _cosine(dots: Floats, squares: Floats) -> Floats:
    return np.divide(dots, np.sqrt(squares), out=np.zeros_like(dots), where=squares > 0)
