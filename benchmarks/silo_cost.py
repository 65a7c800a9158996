"""What does the audit of a silo cost? The time that `audit_records` adds to a round of DP-SGD.

    python benchmarks/silo_cost.py [--pairs 6]

A silo of 5,000 records trains a network of 1,197,150 parameters (784-1024-380-10) by Opacus for one
epoch at batch 64, with ``make_private`` anew in every round. Rounds with the audit and without take
turns, from the same model; the audit goes on from round to round, with 200 canaries. The cost is
the median over pairs of the audited round's processor time over the plain one's, less 1. Beside it
are the parts of the audit that are outside of the steps, the bytes of what is kept in the silo, and
those by which its reply grows.

Six pairs beside other jobs on two shared cores, torch 2.13.0, 2026-11-28::

    processor 0.8% (-0.9 – 2.6)
    wall      3.2% (-11.8 – 5.1)
    a plain round: 55.7 s of the processor
      before the steps         233 ms   0.4%
      in the steps             -45 ms  -0.1%
      after the steps          232 ms   0.4%
      the reply                  9 ms   0.0%
    the reply grows by 1,161 bytes
    kept in the silo: 20.2 MB

In brackets is the middle half of the pairs; rounds without the audit differ by some percent.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import copy
import dataclasses
import itertools
import logging
import time
import warnings
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, RecordDict
from opacus import PrivacyEngine

from fl_epe.auditing import RECORDS
from fl_epe.models import one_thread
from fl_epe.silos import audit_records

_RECORDS, _BATCH, _CANARIES = 5000, 64, 200
_LAYERS = (784, 1024, 380, 10)
_PARTS = ("before the steps", "in the steps", "after the steps", "the reply")


@dataclasses.dataclass(frozen=True)
class Timed:
    """A round.

    Attributes:
        wall: seconds.
        processor: seconds of the processor.
        parts: those of the audit's parts.
        grown: bytes by which the reply grows.
    """

    wall: float
    processor: float
    parts: dict[str, float]
    grown: int


class Watch:
    """Adds up processor time by label."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = collections.defaultdict(float)

    @contextlib.contextmanager
    def on(self, label: str) -> Any:
        """Time what happens while this lasts."""
        began = time.process_time()
        yield
        self.seconds[label] += time.process_time() - began


def network() -> torch.nn.Module:
    layers: list[torch.nn.Module] = []
    for rows, columns in itertools.pairwise(_LAYERS):
        layers += [torch.nn.Linear(rows, columns), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def play(
    start: torch.nn.Module, data: Any, where: dict[str, Any] | None
) -> Timed:
    """One round from a model, audited if there is a place to keep the audit."""
    model = copy.deepcopy(start)
    watch = Watch()
    private, optimizer, batches = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(data, batch_size=_BATCH),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    wall, processor = time.perf_counter(), time.process_time()
    audit = None
    if where is not None:
        with watch.on(_PARTS[0]):
            audit = audit_records(
                where, optimizer, delta=1e-5, num_canaries=_CANARIES, silos=3
            )
            audit.__enter__()
    with watch.on(_PARTS[1]):
        for inputs, labels in batches:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(
                private(inputs), labels
            ).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    if audit is not None:
        with watch.on(_PARTS[2]):
            audit.__exit__(None, None, None)
    content = RecordDict({"arrays": ArrayRecord(model.state_dict())})
    grown = 0
    if audit is not None:
        with watch.on(_PARTS[3]):
            audit.reply(content)
        grown = len(str(content.config_records[RECORDS]["answer"]).encode())
    ended = time.perf_counter() - wall, time.process_time() - processor
    return Timed(*ended, dict(watch.seconds), grown)


def bytes_kept(where: dict[str, Any]) -> int:
    """Bytes of what is kept in the silo."""
    return sum(np.asarray(value).nbytes for value in where[RECORDS].values())


def spread(values: np.ndarray) -> str:
    """Median and quartiles, in percent."""
    low, middle, high = (
        f"{100 * x:.1f}" for x in np.quantile(values, [0.25, 0.5, 0.75])
    )
    return f"{middle}% ({low} – {high})"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=6, help="of rounds")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    rng = torch.Generator().manual_seed(1)
    inputs = torch.randn(_RECORDS, _LAYERS[0], generator=rng)
    labels = torch.randint(_LAYERS[-1], (_RECORDS,), generator=rng)
    data = torch.utils.data.TensorDataset(inputs, labels)
    start = network()
    where: dict[str, Any] = {}
    pairs = []
    with one_thread():
        for pair in range(-1, options.pairs):  # the first one warms up
            places = [None, where][:: 1 if pair % 2 else -1]
            timed = {
                place is not None: play(start, data, place) for place in places
            }
            with torch.no_grad():
                for p in start.parameters():  # a model of the server
                    p.add_(0.001 * torch.randn(p.shape, generator=rng))
            if pair >= 0:
                pairs.append((timed[False], timed[True]))
    for kind in ("processor", "wall"):
        costs = [getattr(b, kind) / getattr(a, kind) - 1 for a, b in pairs]
        print(f"{kind:9} {spread(np.array(costs))}")
    plain = float(np.median([a.processor for a, _ in pairs]))
    print(f"a plain round: {plain:.1f} s of the processor")
    for part in _PARTS:
        spent = [b.parts[part] - a.parts.get(part, 0.0) for a, b in pairs]
        print(
            f"  {part:20} {1e3 * float(np.median(spent)):7.0f} ms {np.median(spent) / plain:6.1%}"
        )
    print(f"the reply grows by {pairs[-1][1].grown:,} bytes")
    print(f"kept in the silo: {bytes_kept(where) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
