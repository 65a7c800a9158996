"""ε of every real client of a run, from its own rounds and κ of the canaries: `client_leakage`.

It is that of an adversary who knows the client's rounds, as they are in the log.
"""

import csv
import dataclasses
import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_epe.accounting import epsilon_two_gaussians
from fl_epe.auditing import Adversary, NotMeasured, seen_by
from fl_epe.checks import Floats
from fl_epe.files import write_text
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
    weight, weights = 1.0, record.mechanism.canary_weights
    if weights is not None:
        weight = float(np.median(weights[record.presence]))
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
        known = np.maximum(np.nan_to_num(weight * scale * sizes), 0.0)
        found = np.asarray(epsilon_two_gaussians(0.0, 1.0, known, 1.0, summary.delta))
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
    found, file = client_leakage(summary), io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    columns = [f"epsilon_{sees}_rounds_known" for sees in found.epsilon]
    writer.writerow(["client", "participations", *columns])
    values = zip(found.ids, found.participations, *found.epsilon.values(), strict=True)
    for client, count, *each in values:
        writer.writerow([client, count, *("" if np.isnan(v) else f"{v:.5g}" for v in each)])
    return write_text(path, file.getvalue())
