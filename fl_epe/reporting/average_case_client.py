"""ε of an average-case client and of the worst case of many, as JSON values and as sentences."""

from __future__ import annotations

from typing import Any

from fl_epe.auditing import AverageCaseClient, EpsilonEstimate
from fl_epe.reporting.numbers import as_json, number
from fl_epe.reporting.verdict_types import SEES


def average_case_client_dict(found: AverageCaseClient) -> dict[str, Any]:
    """As JSON values; the interval of each estimate beside it."""
    names = ("known", "unknown", "mean", "canaries", "canaries_unknown", "worst_case")
    out: dict[str, Any] = {"expected_scores_of": found.source, "equal": found.equal}
    out |= {name: as_json(getattr(found, name)) for name in names}
    if (largest := found.largest) is not None:
        out["largest"] = {
            "clients": largest.clients,
            "simulated": largest.simulated,
            **as_json(largest.estimate),
        }
    return out


def average_case_client_notes(
    found: AverageCaseClient | None, adversary: str, canaries: int
) -> list[str]:
    """Who is meant by the ε of the table, and what others have, one sentence each."""
    if found is None:
        return []
    sees = SEES[adversary]
    if found.equal:
        return [
            f"An adversary who sees {sees}: all clients leave the same trace there (up to 1%), so "
            "the ε of the table is that of every client, of the mean one as of the worst case."
        ]
    unknown = (
        f"ε = {_with_ends(found.unknown)} if the adversary does not know the client's rounds"
        if adversary == "final"
        else f"ε = {_with_ends(found.unknown)} if the adversary is told the client's score alone, "
        "not its rounds"
    )
    lines = [
        f"An adversary who sees {sees}: ε = {number(found.known.epsilon)} is for one "
        f"client picked at random, whose rounds the adversary knows. {_source(found)}",
        f"For the same client, {unknown}.",
        f"A client that took part as strongly as the average one has ε = {_with_ends(found.mean)} "
        "there; it is not the ε of an attack on an average-case client.",
        f"The worst case of the {canaries:,} canaries of this run has ε = "
        f"{_with_ends(found.worst_case)} there.",
    ]
    if (largest := found.largest) is not None:
        how = "simulated populations" if largest.simulated else "the schedule's exact law"
        lines.append(
            f"With {largest.estimate.confidence:.0%} confidence, none of {largest.clients:,} "
            f"clients who follow the clients' schedule has an ε above "
            f"{number(largest.estimate.high)} there (about "
            f"{number(largest.estimate.epsilon)}; by {how}, and the error of the scores)."
        )
    return lines


def _source(found: AverageCaseClient) -> str:
    if found.source == "schedule":
        return "How often clients take part follows the schedule's law."
    words = (
        "The schedule's law is not known: the canaries stand for the clients, and the interval has "
        "the error of that."
    )
    if found.few:
        words += (
            " Few canaries decide this ε, so its upper end allows for clients who took part in "
            "every round and whom no canary stands for."
        )
    return words


def _with_ends(found: EpsilonEstimate) -> str:
    return f"{number(found.epsilon)} ({number(found.low)} – {number(found.high)})"
