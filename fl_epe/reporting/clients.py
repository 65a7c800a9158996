"""ε of every real client of a run, from its own rounds and κ of the canaries: `client_leakage`.

It is that of an adversary who knows the client's rounds, as they are in the log.
"""

import dataclasses
from pathlib import Path

import numpy as np

from fl_epe.accounting import epsilon_of_shift
from fl_epe.auditing import AuditRecord, NotMeasured
from fl_epe.checks import Floats, Integers
from fl_epe.files import write_text
from fl_epe.reporting.publish import table_text
from fl_epe.reporting.summary import Summary

_AT_ONCE = 1000  # clients


@dataclasses.dataclass(frozen=True, eq=False)
class ClientLeakage:
    """ε of the n clients of a log, for adversaries who know their rounds.

    Attributes:
        ids: of the clients, ``(n,)``.
        participations: of each, ``(n,)``.
        weights: how many times as much as a client of median weight each added in its rounds, on
            average, ``(n,)``.
        epsilon: by what the adversary sees, ``(n,)`` each; NaN where it was not measured.
    """

    ids: Integers
    participations: Integers
    weights: Floats
    epsilon: dict[str, Floats]


def client_leakage(summary: Summary) -> ClientLeakage:
    """ε of each client of the log, computed once for all with the same rounds and weights.

    Raises:
        ValueError: if the record does not say which client took part when.
    """
    record = summary.record
    if record is None or record.clients.ids is None:
        raise ValueError(
            "Expected a record that says which client took part in which round."
        )
    if not len(record.clients.ids):
        raise ValueError("Expected a record with clients: its log is empty.")
    ids, examples, example_of = _alike(record)
    participations, weights = np.zeros(len(examples), np.int64), np.zeros(len(examples))
    sizes = {
        one.adversary.sees: np.full(len(examples), np.nan) for one in summary.answers
    }
    for first in range(0, len(examples), _AT_ONCE):
        block = slice(first, first + _AT_ONCE)
        shares = record.clients.shares_of(examples[block])
        participations[block] = np.count_nonzero(shares, axis=0)
        weights[block] = shares.sum(axis=0)
        for one in summary.answers:
            if one.fit is not None and one.view is not None:
                sizes[one.adversary.sees][block] = one.fit.scale * one.view.sizes.of(
                    shares
                )
    weights /= np.maximum(participations, 1)
    epsilon = dict[str, Floats]()
    for sees, each in sizes.items():
        found = epsilon_of_shift(np.nan_to_num(each), summary.delta)
        epsilon[sees] = np.where(np.isfinite(each), found, np.nan)[example_of]
    return ClientLeakage(ids, participations[example_of], weights[example_of], epsilon)


def _alike(record: AuditRecord) -> tuple[Integers, Integers, Integers]:
    """All clients, one of each kind with the same rounds and weights, and each client's kind."""
    log = record.clients
    who, rounds, weights = log.rows()
    order = np.lexsort((rounds, who))
    ids, starts = np.unique(who[order], return_index=True)
    rows = np.stack([rounds, weights], axis=1)[order]
    keys = [part.tobytes() for part in np.split(rows, starts[1:])]
    kinds: dict[bytes, int] = {}
    kind_of = np.array([kinds.setdefault(key, len(kinds)) for key in keys])
    return ids, ids[np.unique(kind_of, return_index=True)[1]], kind_of


def write_clients(summary: Summary, path: Path) -> Path:
    """Write ``path``, a CSV file with ε of each client: personal data, for its owner alone (0600).

    Raises:
        NotMeasured: if no ε was measured.
        ValueError: if the record does not say which client took part when.
    """
    if all(one.fit is None for one in summary.answers):
        raise NotMeasured(summary.answers[0].reason)
    found = client_leakage(summary)
    columns = {
        "client": found.ids.tolist(),
        "participations": found.participations.tolist(),
    }
    columns["weight"] = [float(f"{weight:.5g}") for weight in found.weights]
    for sees, each in found.epsilon.items():
        texts = ["" if np.isnan(epsilon) else f"{epsilon:.5g}" for epsilon in each]
        columns[f"epsilon_{sees}_rounds_known"] = texts
    rows = zip(*columns.values(), strict=True)
    text = table_text([dict(zip(columns, row, strict=True)) for row in rows])
    return write_text(path, text, private=True)
