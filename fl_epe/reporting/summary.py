"""A record in numbers: what `report.json` holds and every report shows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_epe.accounting import UpperBound, analytical_epsilon, gaussian_epsilon
from fl_epe.auditing import (
    AuditRecord,
    EpsilonEstimate,
    all_bounds,
    epsilon_from_record,
    estimate_values,
    finite,
    footprint_fit,
    gaussian_test,
    lower_bound_by,
    scores_from_record,
    secret_law,
)

BOUND_METHOD = "clopper-pearson"
"""The lower bound of the report: valid, and free of assumptions about the scores."""


ROWS = (
    ("final", "final model", "displacement"),
    ("all", "every round", "matched filter"),
    ("final.paper", "final model", "paper's cosine"),
    ("all.paper", "every round", "paper's maximum"),
)
"""Rows of the table: key in the summary, threat model, statistic."""


def summarize(
    record: AuditRecord, delta: float | None = None, confidence: float = 0.95
) -> dict[str, Any]:
    """Every number of the report, from the record alone.

    Args:
        record: what a run left behind.
        delta: target δ; the record's by default.
        confidence: of the intervals (two-sided) and of the bounds (one-sided).

    Returns:
        A dictionary of JSON values. ``None`` stands for a number that is infinite or not known.
    """
    delta = record.delta if delta is None else delta
    return {
        "task": record.config.get("task"),
        "delta": delta,
        "confidence": confidence,
        "dim": record.dim,
        "rounds": record.rounds,
        "canaries": record.canaries,
        "unobserved": record.unobserved.shape[1],
        "participation": record.participation,
        "noise_multiplier": record.noise_multiplier,
        "cohort_size": record.cohort_size,
        "canary_share": float(record.presence.sum() / record.rounds / record.cohort_size),
        "analytical": _analytical(record, delta),
        "final": _final(record, delta, confidence),
        "all": _all(record, delta, confidence),
        "metrics": _metrics(record),
        "faults": list(record.faults),
        "lost_count_as_zero": "canaries_come_from" not in record.config,  # else the strategy says
        "versions": record.versions,
    }


def pick(summary: dict[str, Any], key: str) -> dict[str, Any] | None:
    """The part of a summary under a dotted key, such as "final.paper"; ``None`` if missing."""
    part: Any = summary
    for name in key.split("."):
        part = part.get(name) if isinstance(part, dict) else None
    return part if isinstance(part, dict) else None


def _analytical(record: AuditRecord, delta: float) -> dict[str, Any]:
    known, reason = _upper_bound(record, delta)
    return {
        "epsilon": finite(known.epsilon) if known else None,
        "unbounded": known is not None and known.epsilon == math.inf,
        "adjacency": known.adjacency if known else reason[0],
        "assumption": known.assumption if known else reason[1],
        "participations": record.canary_repeats,
        "client_participations": record.config.get("client_participations"),
        "largest_share": _largest_share(record),
        "caveat": record.config.get("caveat"),
        "canary_epsilon": _canary_epsilon(record, delta),
    }


def _upper_bound(record: AuditRecord, delta: float) -> tuple[UpperBound | None, tuple[str, str]]:
    """The analytical ε of the run; where there is none, the adjacency and the reason to print."""
    if record.noise_multiplier is None:
        return None, ("any", "the noise is not known")
    bound = analytical_epsilon(
        record.participation,
        record.noise_multiplier,
        delta,
        participations=_participations(record),
        sampling_rate=min(1.0, record.canary_repeats / record.rounds),
        rounds=record.rounds,
    )
    return bound, ("none", f"no tight bound is known for {record.participation!r} schedules")


def _participations(record: AuditRecord) -> int:
    """How often a canary takes part, at most."""
    if record.participation in ("epochs", "poisson"):
        return math.ceil(record.canary_repeats)
    return int(record.presence.sum(axis=0).max())


def _largest_share(record: AuditRecord) -> float | None:
    """Largest share of a canary in a released mean, over the C/n that the noise is meant for."""
    expected = record.config.get("noise_is_for")
    if record.contributions is None or not expected or not record.signal_known():
        return None
    return float(np.max(record.contributions * expected / record.clip_norms))


def _canary_epsilon(record: AuditRecord, delta: float) -> float | None:
    """Analytical ε of a canary, which takes no part in the count that moves the clip norm."""
    votes = record.config.get("canaries_vote", False)
    if not record.sum_noise_multiplier or record.participation != "epochs" or votes:
        return None
    repeats = math.ceil(record.canary_repeats)
    return finite(gaussian_epsilon(record.sum_noise_multiplier, delta, repeats))


def _final(record: AuditRecord, delta: float, confidence: float) -> dict[str, Any]:
    """Against θ_T − θ_0 (the headline), and as the paper has it, against θ_T."""
    out = _statistic(record, delta, confidence, "final", "displacement", BOUND_METHOD)
    out["model"] = _statistic(record, delta, confidence, "final", "model", BOUND_METHOD)
    out["paper"] = _statistic(
        record, delta, confidence, "final", "model", "jeffreys", variance="fitted"
    )
    out["bounds"] = _bounds(record, delta, confidence, "final", "displacement")
    linear = record.server.get("name") == "sgd" and record.displacement_norm > 0
    linear = linear and bool(record.presence.any())
    if linear and record.signal_known():
        out["footprints"] = _footprints(record, delta, confidence, "final")
    return out


def _all(record: AuditRecord, delta: float, confidence: float) -> dict[str, Any]:
    """Matched filter at the known rounds, and the paper's maximum over rounds.

    With fewer than two participants only the latter is left.
    """
    if record.presence.any(axis=0).sum() < 2:
        return _paper_all(record, delta, confidence)
    out = _statistic(record, delta, confidence, "all", "matched-filter", BOUND_METHOD)
    out |= _paper_all(record, delta, confidence)
    out["bounds"] = _bounds(record, delta, confidence, "all", "matched-filter")
    if not record.signal_known():
        return out
    out["footprints"] = _footprints(record, delta, confidence, "all")
    if secret_law(record):
        out["secret_rounds"] = _estimate(
            epsilon_from_record(
                record, delta, threat="all", statistic="likelihood-ratio", confidence=confidence
            )
        )
    if record.observed_residual is not None and record.sum_noise_multiplier:
        out["full_knowledge"] = _statistic(
            record, delta, confidence, "all", "full-knowledge", BOUND_METHOD
        )
    return out


def _paper_all(record: AuditRecord, delta: float, confidence: float) -> dict[str, Any]:
    if record.unobserved.shape[1] < 2:
        return {}
    return {"paper": _statistic(record, delta, confidence, "all", "maximum", "jeffreys")}


def _footprints(
    record: AuditRecord, delta: float, confidence: float, threat: str
) -> dict[str, Any]:
    fit = footprint_fit(record, delta, threat=threat, confidence=confidence)
    return {
        "scale": fit.scale,
        "scale_low": fit.low,
        "scale_high": fit.high,
        "mean": _estimate(fit.mean),
        "most_exposed": _estimate(fit.most_exposed),
    }


def _statistic(
    record: AuditRecord,
    delta: float,
    confidence: float,
    threat: str,
    statistic: str,
    bound: str,
    variance: str = "known",
) -> dict[str, Any]:
    estimate = epsilon_from_record(
        record,
        delta,
        threat=threat,
        statistic=statistic,
        variance=variance,
        confidence=confidence,
    )
    observed, unobserved = scores_from_record(record, threat, statistic)
    members, others, dim = _for_bounds(record, statistic, observed, unobserved)
    lower = None
    if dim is not None or len(others) >= 2:
        lower = lower_bound_by(
            bound, members, None if dim else others, delta, dim=dim, confidence=confidence
        )
    return {
        **_estimate(estimate),
        "lower_bound": finite(lower),
        "lower_bound_unbounded": lower == math.inf,
        "bound_method": bound,
        "score_mean": float(observed.mean()),
        "score_std": float(observed.std(ddof=1)),
        "gaussian": gaussian_test(observed),
    }


def _for_bounds(
    record: AuditRecord,
    statistic: str,
    observed: NDArray[np.float64],
    unobserved: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], int | None]:
    """Scores and, where they are cosines with one vector each, their dimension.

    The null of such cosines is known exactly. For who sees every round, the matched filter is one
    where no canary took part more than once.
    """
    once = bool(record.presence.sum(axis=0).max() <= 1)
    if statistic in ("displacement", "model") or (statistic == "matched-filter" and once):
        scale = math.sqrt(record.dim)
        return observed / scale, unobserved / scale, record.dim
    return observed, unobserved, None


def _bounds(
    record: AuditRecord, delta: float, confidence: float, threat: str, statistic: str
) -> list[dict[str, Any]]:
    scores = scores_from_record(record, threat, statistic)
    observed, unobserved, dim = _for_bounds(record, statistic, *scores)
    if dim is None and len(unobserved) < 2:
        return []
    others = unobserved if len(unobserved) >= 2 else None
    # Dropping canaries that never took part would spoil the coins.
    coins = record.inclusion == "coin" and bool(record.presence.any(axis=0).all())
    return all_bounds(observed, others, delta, dim, confidence, coins)


def _estimate(estimate: EpsilonEstimate) -> dict[str, Any]:
    values = estimate_values(estimate)
    del values["delta"], values["confidence"]  # the same for all of the summary
    return values


def _metrics(record: AuditRecord) -> dict[str, Any]:
    series = record.metrics
    out: dict[str, Any] = {
        "clip_norm": finite(float(record.clip_norms[-1])),
        "absent": 0 if record.absent is None else int(record.absent.sum()),
    }
    for name, key in (("accuracy", "eval_accuracy"), ("loss", "eval_loss")):
        if len(values := series.get(key, np.empty(0))):
            out[name] = finite(float(values[-1]))
    return out
