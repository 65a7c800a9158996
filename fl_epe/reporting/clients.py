"""`client_leakage`: ε of every real client of a run, for adversaries who know its rounds.

It is computed from the client's rounds in the log, and from the scale κ: the canaries' scores
divided by their expected scores, as fitted to all canaries.
"""

import dataclasses
from pathlib import Path

import numpy as np

from fl_epe.accounting import epsilon_of_shift
from fl_epe.auditing import AuditRecord, NotMeasured
from fl_epe.checks import Floats, Integers
from fl_epe.files import write_text
from fl_epe.reporting.publish import columns_text
from fl_epe.reporting.summary import Summary

# The number of clients whose rounds are in memory at a time.
_BLOCK = 1000


@dataclasses.dataclass(frozen=True, eq=False)
class ClientLeakage:
    """ε of the n clients of a log, for adversaries who know their rounds.

    Attributes:
        ids: ids of the clients, ``(n,)``.
        participations: number of rounds of each client, ``(n,)``.
        weights: mean weight of each client in its rounds, divided by the median weight, ``(n,)``.
        epsilon: ε of each client, ``(n,)``, by `Adversary.sees`; NaN where it was not measured.
    """

    ids: Integers
    participations: Integers
    weights: Floats
    epsilon: dict[str, Floats]


def client_leakage(summary: Summary) -> ClientLeakage:
    """ε of each client of the log, computed once for clients with the same rounds and weights.

    Raises:
        ValueError: if the record does not say which client took part in which round.
    """
    record = summary.record
    if record is None or record.clients.ids is None:
        raise ValueError(
            "Expected a record that says which client took part in which round."
        )
    if not len(record.clients.ids):
        raise ValueError("Expected a record with clients: its log is empty.")
    ids, representatives, kind_of_client = _kinds(record)
    num_kinds = len(representatives)
    participations = np.zeros(num_kinds, np.int64)
    total_weights = np.zeros(num_kinds)
    shifts = {
        answer.adversary.sees: np.full(num_kinds, np.nan)
        for answer in summary.answers
    }
    for start in range(0, num_kinds, _BLOCK):
        block = slice(start, start + _BLOCK)
        shares = record.clients.weights_by_round(representatives[block])
        participations[block] = np.count_nonzero(shares, axis=0)
        total_weights[block] = shares.sum(axis=0)
        for answer in summary.answers:
            if answer.fit is not None and answer.view is not None:
                sizes = answer.view.expected_scores.of(shares)
                shifts[answer.adversary.sees][block] = answer.fit.scale * sizes
    mean_weights = total_weights / np.maximum(participations, 1)
    epsilon = dict[str, Floats]()
    for sees, shift in shifts.items():
        epsilons = epsilon_of_shift(np.nan_to_num(shift), summary.delta)
        epsilons = np.where(np.isfinite(shift), epsilons, np.nan)
        epsilon[sees] = epsilons[kind_of_client]
    return ClientLeakage(
        ids,
        participations[kind_of_client],
        mean_weights[kind_of_client],
        epsilon,
    )


def _kinds(record: AuditRecord) -> tuple[Integers, Integers, Integers]:
    """Groups clients into kinds: clients of one kind have the same rounds and weights.

    Returns:
        The ids of all clients, ``(n,)``; the id of one client of each kind; and the kind of each
        client, ``(n,)``.
    """
    clients, rounds, weights = record.clients.rows()
    order = np.lexsort((rounds, clients))
    ids, starts = np.unique(clients[order], return_index=True)
    rows = np.stack([rounds, weights], axis=1)[order]
    keys = [client_rows.tobytes() for client_rows in np.split(rows, starts[1:])]
    kinds: dict[bytes, int] = {}
    kind_of_client = np.array(
        [kinds.setdefault(key, len(kinds)) for key in keys]
    )
    _, first_clients = np.unique(kind_of_client, return_index=True)
    return ids, ids[first_clients], kind_of_client


def write_clients(summary: Summary, path: Path) -> Path:
    """Write a CSV file with ε of each client, which is personal data.

    Only the file's owner can read it (mode 0600).

    Raises:
        NotMeasured: if no ε was measured.
        ValueError: if the record does not say which client took part in which round.
    """
    if all(answer.fit is None for answer in summary.answers):
        raise NotMeasured(summary.answers[0].reason)
    leakage = client_leakage(summary)
    columns = {
        "client": leakage.ids.tolist(),
        "participations": leakage.participations.tolist(),
        "weight": [float(f"{weight:.5g}") for weight in leakage.weights],
    }
    for sees, epsilons in leakage.epsilon.items():
        columns[f"epsilon_{sees}_rounds_known"] = [
            "" if np.isnan(epsilon) else f"{epsilon:.5g}"
            for epsilon in epsilons
        ]
    return write_text(path, columns_text(columns), private=True)
