"""One canary among real clients: projects the other canaries out of the released vectors.

A released mean holds all canaries of its round. They are known, so an adversary who looks for one
of them subtracts the others; if they stay in, ε falls as canaries are added. `measure_others`
computes what is needed when a record is made, `leave_one_out` projects them out. Derivation and
measurements: docs/notes/other-canaries.md.

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
    CanaryCosines,
    NotMeasured,
    RoundCorrelation,
    RunningScores,
    quotients,
)
from fl_epe.auditing.scoring.scores import cosines_of
from fl_epe.canaries import SCORE_MEMORY, CanarySet
from fl_epe.checks import Floats, Integers, raise_invalid
from fl_epe.mechanism import norm

# Others with a smaller share of a vector's energy are left in; the score changes by half of it.
SMALLEST_SHARE = 1e-3
_LEAST_HIDDEN = 1e-6  # of a mean; a residual that is less is rounding
_MEMORY = SCORE_MEMORY // 4  # bytes for sums of canaries that are scored at once
_LARGEST = 1e15
_BY_CHANCE = 1e-9
_PARTS = ("observed", "unobserved", "norms")


def leave_others_out(
    dots: Floats,
    with_sum: Floats,
    own: Floats | float,
    square: Floats | float,
    sum_dot: Floats | float,
    sum_square: Floats | float,
) -> tuple[Floats, Floats, Floats | float]:
    """Takes the sum S of the canaries out of a vector m, and puts each canary's own part back.

    How much S has added is measured, not assumed: the residual is orthogonal to it. A canary that
    took no part has the exact null of a cosine, as the residual does not depend on it.

    Args:
        dots: ``⟨m, u⟩``, the last axis over canaries u.
        with_sum: ``⟨S, u⟩``, of the same shape.
        own: the weight of u in S; 0 for a canary that is not in it.
        square: ``‖m‖²``.
        sum_dot: ``⟨m, S⟩``.
        sum_square: ``‖S‖²``.

    Returns:
        The inner product of u with the residual and its own part, the norm of the residual, and
        how many times S was in m.
    """
    share = sum_dot / sum_square
    left = dots - share * (with_sum - own)
    rest = square - share * sum_dot
    return left, np.sqrt(np.maximum(rest, _LEAST_HIDDEN**2 * square)), share


def others_share(record: AuditRecord) -> Floats:
    """Share of the other canaries in the energy of each round's mean, as measured, ``(T,)``."""
    count = record.presence.sum(axis=1)
    of_others = np.maximum(count - 1, 0) / np.maximum(count, 1)
    others = of_others * _energies(record)
    return np.minimum(quotients(others, record.norms.means**2), 1.0)


def _measured(record: AuditRecord) -> Floats:
    """The contribution of a round by what its canaries added along their directions, ``(T,)``."""
    dots = np.sum(record.shares() * record.observed.means, axis=1) * record.norms.means
    return quotients(dots, np.sum(record.shares() ** 2.0, axis=1))


def _energies(record: AuditRecord) -> Floats:
    """Energy of all canaries of a round in its mean, as measured, ``(T,)``."""
    return np.asarray(np.sum(record.shares() ** 2.0, axis=1) * _measured(record) ** 2)


def _own_parts(record: AuditRecord) -> Floats | None:
    """What each canary should have added to θ_T − θ_0, ``(k,)``; ``None`` if not server SGD."""
    if not record.mechanism.server.linear:
        return None
    return np.asarray(record.round_weights() * _added(record) @ record.shares())


def _added(record: AuditRecord) -> Floats:
    """What a canary should have added to each round's mean, or has, ``(T,)``."""
    known = record.mechanism.added
    return np.where(np.isfinite(known), known, np.maximum(_measured(record), 0.0))


def measure_others(record: AuditRecord, canaries: CanarySet) -> AuditRecord:
    """The record with the cosines that `leave_one_out` needs.

    Rounds in which the canaries' share is below `SMALLEST_SHARE` are left out, unless the real
    clients' sums are known too (`View.scores`). Otherwise each
    independent canary of a round is made twice, and the unobserved ones once for some rounds
    together; rotated ones cost a few transforms a round.

    Args:
        record: of a run.
        canaries: all canaries, among which the record's have their ids.
    """
    ids = np.append(np.asarray(record.observed.ids), np.asarray(record.unobserved.ids))
    own = _own_parts(record)
    sums, lengths = _round_sums(record, canaries, ids)
    found = {"sums": (sums, lengths)}
    if own is not None:
        found["part"] = _final_part(record, canaries, own, ids)
    values: dict[str, Any] = {}
    for name, (cosines, length) in found.items():
        mine, theirs = np.split(cosines, [record.num_canaries], axis=-1)
        values |= {
            f"observed.{name}": mine,
            f"unobserved.{name}": theirs,
            f"norms.{name}": length,
        }
    return record.with_values(**values)


def _round_sums(
    record: AuditRecord, canaries: CanarySet, ids: Integers
) -> tuple[Floats, Any]:
    """Cosines of all canaries with the sum of those of each round, and the sums' norms."""
    found = np.zeros((record.rounds, len(ids)))
    lengths = np.zeros(record.rounds)
    energy = _energies(record)
    wanted = (energy >= SMALLEST_SHARE * record.norms.means**2) & (energy > 0)
    if record.norms.residuals is not None:  # there is nothing but noise beside them
        wanted |= record.presence.sum(axis=1) >= 2
    rounds = np.flatnonzero(wanted)
    count = record.num_canaries
    rows = 1 if canaries.fast else max(1, _MEMORY // (4 * record.dim))
    for first in range(0, len(rounds), rows):
        block = rounds[first : first + rows]
        here = record.presence[block].any(axis=0)
        weights = record.shares()[block][:, here].astype(np.float32)
        sums = canaries.combine(weights, numbers=ids[:count][here].tolist())
        lengths[block] = [norm(row) for row in sums]
        # Made again, those of other rounds cost too much.
        asked = np.append(here | canaries.fast, np.ones(len(ids) - count, bool))
        dots = canaries.dot(sums, numbers=ids[asked].tolist())
        found[np.ix_(block, asked)] = dots / lengths[block, None]
    return found, lengths


def _final_part(
    record: AuditRecord, canaries: CanarySet, own: Floats, ids: Integers
) -> tuple[Floats, Any]:
    square = record.norms.displacement**2
    fits = (
        np.max(np.abs(own), initial=0.0) < _LARGEST
    )  # else float32 cannot hold their sum
    if not (fits and np.sum(own**2) >= SMALLEST_SHARE * square > 0):
        return np.zeros(len(ids)), 0.0
    part = canaries.combine(own[None], numbers=ids[: len(own)].tolist())[0]
    return canaries.dot(part, numbers=ids.tolist()) / norm(part), norm(part)


def leave_one_out(record: AuditRecord) -> AuditRecord:
    """The record as one canary among real clients would have left it.

    Changed are the cosines and norms of the means and of the displacement. Final models and model
    deltas, of which the paper's statistics are made, stay as they are. A record without the cosines
    of `measure_others`
    is returned as it is, and so is the result of this function.
    """
    if record.norms.sums is None:
        return record
    return all_canaries(_means_alone(_displacement_alone(record)))


def known_others(record: AuditRecord) -> tuple[Floats, Floats]:
    """What the other canaries should have added to ``⟨mean_t, c_i⟩``, of both sides.

    Unlike `leave_one_out` this measures nothing: it is for an adversary who knows all but canary i.

    Returns:
        ``(T, k)`` of observed and ``(T, m)`` of unobserved canaries.

    Raises:
        ValueError: if the record does not say what a canary adds to the mean, or lacks the cosines
            of `measure_others`.
    """
    if not record.signal_known():
        raise_invalid(
            "clip_norms", record.mechanism.clip_norms, "to be known in every round"
        )
    norms, mine, theirs = (
        record.norms.sums,
        record.observed.sums,
        record.unobserved.sums,
    )
    if norms is None or mine is None or theirs is None:
        raise_invalid(
            "canary_sum_norms", norms, "known, for an adversary with full knowledge"
        )
    lengths = norms[:, None]
    added = _added(record)[:, None]
    own = np.where(lengths > 0, record.shares(), 0.0)
    return added * (lengths * mine - own), added * (lengths * theirs)


def all_canaries(record: AuditRecord) -> AuditRecord:
    """The record with all canaries left in, its rounds taken as independent.

    `leave_one_out` of it is the same.
    """
    others = [f"{part}.{name}" for name in ("sums", "part") for part in _PARTS]
    independent = {"correlation": RoundCorrelation(), "running": RunningScores()}
    return record.with_values(**independent, **dict.fromkeys(others))


def _means_alone(record: AuditRecord) -> AuditRecord:
    norms, observed, unobserved = record.norms, record.observed, record.unobserved
    if observed.sums is None or unobserved.sums is None or norms.sums is None:
        return record
    rounds = np.flatnonzero(norms.sums)
    weights, length, whole = (
        record.shares()[rounds],
        norms.means[rounds],
        norms.sums[rounds],
    )
    sum_dot = np.sum(weights * observed.means[rounds], axis=1) * length
    shared = (length[:, None] ** 2, sum_dot[:, None], whole[:, None] ** 2)

    def alone(side: CanaryCosines, own: np.ndarray) -> tuple[Floats, Floats]:
        dots = side.means[rounds] * length[:, None]
        with_sum = np.asarray(side.sums)[rounds] * whole[:, None]
        left, hidden, _ = leave_others_out(dots, with_sum, own, *shared)
        cosines = side.means.copy()
        cosines[rounds] = cosines_of(math.sqrt(record.dim) * left / hidden, record.dim)
        return cosines, hidden[:, 0]

    means, hidden = alone(observed, weights)
    lengths = norms.means.copy()
    lengths[rounds] = np.hypot(hidden, _added(record)[rounds])
    others, _ = alone(unobserved, np.zeros(1))
    return record.with_values(
        **{"observed.means": means, "unobserved.means": others, "norms.means": lengths}
    )


def _displacement_alone(record: AuditRecord) -> AuditRecord:
    norms = record.norms
    own = _own_parts(record)
    observed = record.observed
    unobserved = record.unobserved
    if (
        not norms.part
        or own is None
        or observed.part is None
        or unobserved.part is None
    ):
        return record
    length = norms.displacement
    whole = norms.part
    # Of a sum of canaries each has its own part, and by chance that of the others over √d.
    error = (
        float(np.sum((observed.part * whole - own) ** 2))
        * record.dim
        / float(own @ own)
    )
    if error > scipy.special.chdtri(len(own), _BY_CHANCE):
        raise NotMeasured(
            "what canaries should have added to the final model was changed after they were "
            "projected out of it; hand it to RunAuditor.record"
        )
    sum_dot = float(own @ observed.displacement) * length

    def alone(
        side: CanaryCosines, part: Floats, weights: Floats
    ) -> tuple[Floats, Floats]:
        left, hidden, share = leave_others_out(
            side.displacement * length,
            part * whole,
            weights,
            length**2,
            sum_dot,
            whole**2,
        )
        mine = share * weights
        return left / np.sqrt(hidden**2 + 2 * mine * left - mine**2), np.hypot(
            hidden, mine
        )

    mine, lengths = alone(observed, observed.part, own)
    others, _ = alone(unobserved, unobserved.part, np.zeros(unobserved.count))
    length = float(np.sqrt(np.mean(lengths**2)))
    values = zip(_PARTS, (mine, others, length), strict=True)
    return record.with_values(
        **{f"{name}.displacement": value for name, value in values}
    )
