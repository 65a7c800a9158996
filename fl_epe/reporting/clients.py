"""ε of every real client of a run, from its own rounds and κ of the canaries: `client_leakage`.

It is that of an adversary who knows the client's rounds, as they are in the log.
"""

import dataclasses
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_epe.accounting import epsilon_of_shift
from fl_epe.auditing import Adversary, NotMeasured, seen_by
from fl_epe.checks import Floats
from fl_epe.files import write_text
from fl_epe.reporting.publish import table_text
from fl_epe.reporting.summary import Summary

_AT_ONCE = 1000  # patterns of participation


@dataclasses.dataclass(frozen=True, eq=False)
class ClientLeakage:
    """ε of the n clients of a log, for adversaries who know their rounds.

    Attributes:
        ids: of the clients, ``(n,)``.
        participations: of each, ``(n,)``.
        epsilon: by what the adversary sees, ``(n,)`` each; NaN where it was not measured.
    """

    ids: NDArray[np.int64]
    participations: NDArray[np.int64]
    epsilon: dict[str, Floats]


def client_leakage(summary: Summary) -> ClientLeakage:
    """ε of each client of the log, computed once for all with the same rounds.

    Raises:
        ValueError: if the record does not say which client took part when.
    """
    record = summary.record
    if record is None or record.clients.ids is None or record.clients.offsets is None:
        raise ValueError("Expected a record that says which client took part in which round.")
    if not len(record.clients.ids):
        raise ValueError("Expected a record with clients: its log is empty.")
    rounds = np.repeat(np.arange(record.rounds), np.diff(record.clients.offsets))
    order = np.lexsort((rounds, record.clients.ids))
    ids, starts = np.unique(record.clients.ids[order], return_index=True)
    own = np.split(rounds[order], starts[1:])
    places: dict[bytes, int] = {}
    pattern = np.array([places.setdefault(each.tobytes(), len(places)) for each in own])
    distinct = [np.frombuffer(key, rounds.dtype) for key in places]
    epsilon = dict[str, Floats]()
    for one in summary.answers:
        sees, scale = one.adversary.sees, np.nan if one.fit is None else one.fit.scale
        sizes = np.full(len(distinct), np.nan)
        if one.fit is not None:
            view = seen_by(record, Adversary(sees))
            for first in range(0, len(distinct), _AT_ONCE):
                block = distinct[first : first + _AT_ONCE]
                presence = np.zeros((record.rounds, len(block)), bool)
                for column, taken in enumerate(block):
                    presence[taken, column] = True
                sizes[first : first + _AT_ONCE] = view.sizes.of(presence)
        known = np.nan_to_num(record.median_weight * scale * sizes)
        found = epsilon_of_shift(known, summary.delta)
        epsilon[sees] = np.where(np.isfinite(sizes), found, np.nan)[pattern]
    return ClientLeakage(ids, np.array([len(each) for each in own]), epsilon)


def write_clients(summary: Summary, path: Path) -> Path:
    """Write ``path``, a CSV file with ε of each client. It is personal data.

    Raises:
        NotMeasured: if no ε was measured.
        ValueError: if the record does not say which client took part when.
    """
    if all(one.fit is None for one in summary.answers):
        raise NotMeasured(summary.answers[0].reason)
    found = client_leakage(summary)
    columns = {"client": found.ids.tolist(), "participations": found.participations.tolist()}
    for sees, each in found.epsilon.items():
        texts = ["" if np.isnan(epsilon) else f"{epsilon:.5g}" for epsilon in each]
        columns[f"epsilon_{sees}_rounds_known"] = texts
    rows = zip(*columns.values(), strict=True)
    return write_text(path, table_text([dict(zip(columns, row, strict=True)) for row in rows]))
