"""How many clients a second does a round train, and in how much memory? Ours and others' compared.

    python benchmarks/throughput.py                 # some minutes a setting
    python benchmarks/throughput.py --pfl PYTHON    # an interpreter that has pfl-research

Each variant runs in a process of its own. They play one round each in turn, in a new order every
time, on the same synthetic data, with the same models, cohort, SGD, clipping to a fixed norm and
noise. The first rounds do not count. The columns:

- "clients/s": the median over rounds, and its range;
- "ours is": the median of our speed over the other's in the same turn;
- "CPU ms": processor time for each client, with the server's; other work on the machine disturbs it
  less;
- "MB": the largest sum of the resident memory of a variant's processes, sampled while it plays; a
  page that processes share counts for each of them;
- "load": the processor time that everything else took meanwhile, in cores.

The variants:

    ours     `DPFedAvg` and two in-process workers, as in ``fl-epe run``; two canaries
    loop     a plain loop over clients in PyTorch, one process, operations on all cores
    loop 1   the same loop, operations on one core
    Flower   fixed clipping around FedAvg, a node and a message for each client, Ray, two workers
    pfl      pfl-research 0.6, one process, operations on all cores

With the defaults (cohorts of 48 of 100 clients, 5 rounds after 2) on two cores of a Xeon (AVX-512),
Python 3.11, torch 2.13.0, Flower 1.41.0, Ray 2.55.1, 2026-11-22::

                clients/s   range         ours is   CPU ms       MB   load
    EMNIST CNN, 2 batches of 16 images a client
        ours        44.4    42.4 –  46.0     1.00 ×       38      659   0.11
        loop        29.3    27.8 –  30.1     1.51 ×       65      381   0.11
        Flower      14.6    13.4 –  14.8     3.00 ×      113     3011   0.01
        pfl         27.1    22.8 –  30.4     1.56 ×       70      463   0.09
    EMNIST CNN, 1 batch of 16 images
        ours        65.9    60.0 –  74.9     1.00 ×       23      707   0.09
        loop        53.7    50.7 –  59.4     1.18 ×       35      380   0.11
        Flower      18.3    16.6 –  18.7     3.60 ×       86     3162   0.01
        pfl         48.6    45.3 –  52.7     1.26 ×       39      463   0.11
    StackOverflow LSTM, 1 batch of 16 sentences of 20 words
        ours        15.9    15.4 –  17.1     1.00 ×      105     1360   0.07
        loop        15.3    13.8 –  15.3     1.09 ×      124      565   0.09
        Flower       7.9     7.3 –   8.0     2.06 ×      208     5295   0.02
        pfl         13.7    13.3 –  14.5     1.19 ×      139      654   0.08

A day later, on a slower machine (the loop at 0.8 to 1.0 of its speed), with rotated canaries that
are scored in every round, the null measured, and one heap for all threads (pfl-research beside it:
476, 465 and 649 MB)::

                        ours clients/s   loop     pfl      MB
        CNN, 2 batches        33.5     1.33 ×   1.45 ×    479
        CNN, 1 batch          61.4     1.13 ×   1.21 ×    474
        LSTM                  12.7     0.91 ×   1.03 ×    889

Memory of the LSTM six days later (2026-11-28, cohorts of 12, four rounds, the most that a process
had resident, beside much other work). Two threads took 876 MB, and 749 MB since networks are made
without torch's device "meta"; one thread takes 588 MB, and pfl-research 642 and 653 MB. Where that
is from, by resident memory after each step in MB::

                                          before     now
        Python, NumPy, torch                 231     231
        Flower                               +29     +29
        fl_epe, with SciPy                   +36     +36
        the model and its initial values    +123     +49   "meta" imports SymPy and torch.fx: 70
        between rounds, without holes        475     403   model, sums, scorer, libraries' buffers
        most in training, one thread         687     588
        most in training, two threads        832     745   holes in the heap were 165 of 832

So one thread takes less than pfl-research, which trains one client at a time; the second thread is
the reason for more. It has a model, its gradient and its update (16 MB each), three arrays of
the size of the logits (13 MB each), its own sum in float64 (32 MB), and holes between them. Not
done, as it brings less than it costs: `malloc_trim` after each message (821 MB, where it was 837),
after each client (775 MB, and slower); updates in the model's own memory (745 and 747 MB); sums
outside the heap (777 MB).

Three shorter runs gave the CNN 477, 467, 465 and 465, 468, 469 MB, and pfl-research 474, 469, 472
and 456, 463, 468. What the LSTM takes more is the second thread's gradients and activations, and
holes in the heap: without them, every large block given back at once, it is 672 MB at two thirds of
the speed.

A user's own models, by `fl_epe.tasks.from_datasets`, and with torch's layers, dropout and SGD in
the others; data in memory everywhere (``--settings tabular:2 transformer:2 --warm-up 1``, idle
machine, 2026-11-22)::

                clients/s   range         ours is   CPU ms       MB   load
    Tabular, 26,122 parameters, 2 batches of 16 rows of 64 features
        ours       454.4   411.3 – 518.6     1.00 ×      3.0      524   0.07
        loop       721.1   515.4 – 739.7     0.69 ×      2.7      323   0.06
        loop 1     657.2   568.7 – 756.4     0.69 ×      1.5      323   0.10
        Flower      53.6    39.2 –  59.6     8.81 ×     27.3     1794   0.00
        pfl        434.3   326.3 – 456.8     1.19 ×      4.4      391   0.08
    Transformer, 782,346 parameters, 2 batches of 16 texts of 32 tokens
        ours        27.2    24.5 –  32.9     1.00 ×     65.2      718   0.07
        loop        16.4    15.7 –  22.6     1.53 ×    117.9      385   0.06
        loop 1      16.8    12.3 –  17.8     1.76 ×     59.2      380   0.08
        Flower      12.5    10.0 –  14.7     2.37 ×    136.9     2483   0.00
        pfl         19.2    13.4 –  20.4     1.54 ×    100.8      468   0.06

A step of the tabular model is mostly Python, which runs in one of our two threads at a time: two
workers were 0.84 and 1.04 times as fast as one (7 and 11 turns, other work on both cores), and
taking turns by a lock 0.97 times. Masks of rates other than n/256 in half the time, counting with
NumPy, no threads for short transforms in scoring, and torch's generator seeded directly made ours
1.13 times as fast (CPU: 1.10; 11 pairs) for the tabular model. For the transformer a gain, if
any, was lost in other work (CPU: 1.03, from 0.92 to 1.07 in six pairs). Without gain: rows by
`index_select` instead of indexing (5.7 and 5.5 µs), and `torch.autograd.grad` without
``materialize_grads``. Beside more work the loop on all cores took 26 to 84 ms a client for the
tabular model, as its threads wait for each other.

For the CNN an earlier run gave 3.07 against Flower (two batches). Beside work on one core, ours
was 2.1 to 2.4 (two batches), 2.8 (one) and 2.0 (LSTM) times as fast as Flower, because a round
waits for the slower of two equal shares. Of our processor time for two batches, 82% was local
training, 9% clipping and adding up, and 6% the server's (cohorts of 24, beside other work). Matrix
products and convolutions, at the processor's peak speed, are most of a step. The LSTM's recurrent
products read 7 MB of weights from outside the fast cache for each of 20 words, forwards and
backwards.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from throughput_models import Setting

_PLAYERS = Path(__file__).with_name("throughput_players.py")
_MARK = "FL_EPE_BENCHMARK"
_INTERVAL = 0.2  # seconds between samples of memory
_SETTINGS = ["cnn:2", "cnn:1", "lstm:1", "transformer:2", "tabular:2"]
_LEAST = 0.5  # seconds that a turn takes: several rounds where they are short
_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


@dataclasses.dataclass(frozen=True)
class Played:
    """A turn: clients a second, processor seconds a client, peak memory in MB, others' load."""

    speed: float
    work: float
    memory: float
    load: float


class Player:
    """A variant in a process of its own, with the processes that it starts."""

    def __init__(self, name: str, setting: Setting, python: str) -> None:
        self.name, self._setting = name, setting
        self._mark = f"{_MARK}={uuid.uuid4()}"
        key, value = self._mark.split("=")
        self._process = subprocess.Popen(
            [
                python,
                str(_PLAYERS),
                name,
                json.dumps(dataclasses.asdict(setting)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {key: value},
        )

    def play(self) -> Played:
        """Play a round; where rounds are short, some more."""
        with self._sampled() as peak:
            began, own, all_of_them = time.perf_counter(), self._busy(), busy()
            played = [self._round()]
            while sum(played) < _LEAST:
                played.append(self._round())
            own, all_of_them = self._busy() - own, busy() - all_of_them
            load = (all_of_them - own) / (time.perf_counter() - began)
        clients = self._setting.cohort * len(played)
        return Played(clients / sum(played), own / clients, max(peak), load)

    def _round(self) -> float:
        """Seconds that a round takes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print("go", file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith("seconds "):
                return float(line.split()[1])
        raise RuntimeError(
            f"{self.name} ended; run it by itself: {self._process.args!r}"
        )

    @contextlib.contextmanager
    def _sampled(self) -> Iterator[list[float]]:
        """Sample the memory in MB while the context is open."""
        sizes, over = [0.0], threading.Event()

        def sample() -> None:
            while not over.wait(_INTERVAL):
                pages = sum(
                    int(read(p, "statm").split()[1] or 0)
                    for p in self._processes()
                )
                sizes.append(pages * _PAGE / 1e6)

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield sizes
        finally:
            over.set()
            thread.join()

    def _processes(self) -> list[Path]:
        """The process and those it started: all that have the mark in their environment."""
        return [
            path
            for path in Path("/proc").iterdir()
            if path.name.isdigit() and self._mark in read(path, "environ")
        ]

    def _busy(self) -> float:
        """Processor seconds of these processes."""
        fields = [
            read(p, "stat").rpartition(")")[2].split()
            for p in self._processes()
        ]
        return (
            sum(int(own[11]) + int(own[12]) for own in fields if own) / _TICKS
        )

    def close(self) -> None:
        """Close the variant's input, at which it ends."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def read(process: Path, name: str) -> str:
    """Read a file of a process; of one that has ended, an empty file (``statm``: zeros)."""
    try:
        return (process / name).read_text(errors="replace")
    except OSError:
        return "0 0" if name == "statm" else ""


def busy() -> float:
    """Processor seconds in which the machine was not idle."""
    user, nice, system, _, _, *rest = (
        Path("/proc/stat").read_text().split("\n")[0].split()[1:]
    )
    return sum(map(int, (user, nice, system, *rest[:3]))) / _TICKS


def compare(
    setting: Setting, pythons: dict[str, str], rounds: int, warm_up: int
) -> None:
    print(f"\n{setting}", flush=True)
    players = [
        Player(name, setting, python) for name, python in pythons.items()
    ]
    played: dict[str, list[Played]] = {name: [] for name in pythons}
    order = np.random.default_rng(0)
    try:
        for turn in range(rounds + warm_up):
            for i in order.permutation(len(players)):
                result = players[i].play()
                if turn >= warm_up:
                    played[players[i].name].append(result)
    finally:
        for player in players:
            player.close()
    show(played)


def show(played: dict[str, list[Played]]) -> None:
    ours = np.array([result.speed for result in played["ours"]])
    print(
        "            clients/s   range         ours is   CPU ms       MB   load",
        flush=True,
    )
    for name, results in played.items():
        speeds = np.array([result.speed for result in results])
        print(
            f"    {name:<8}{np.median(speeds):8.1f}   {speeds.min():5.1f} – {speeds.max():5.1f}"
            f"{np.median(ours / speeds):9.2f} ×"
            f"{1e3 * np.median([result.work for result in results]):9.1f}"
            f"{max(result.memory for result in results):9.0f}"
            f"{np.median([result.load for result in results]):7.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--cohort", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--warm-up", type=int, default=2, help="rounds that do not count"
    )
    parser.add_argument(
        "--shortest", type=int, default=20, help="words of a sentence, at least"
    )
    parser.add_argument("--settings", nargs="+", default=_SETTINGS)
    parser.add_argument(
        "--pfl", metavar="PYTHON", help="an interpreter that has pfl-research"
    )
    parser.add_argument(
        "--variants", nargs="+", default=["ours", "loop", "loop 1", "Flower"]
    )
    options = parser.parse_args()
    pythons = dict.fromkeys(options.variants, sys.executable)
    if options.pfl:
        pythons["pfl"] = options.pfl
    else:
        print(
            "pfl-research is left out: name an interpreter that has it with --pfl."
        )
    for text in options.settings:
        model, _, batches = text.partition(":")
        setting = Setting(
            model,
            int(batches),
            options.clients,
            options.cohort,
            options.shortest,
        )
        compare(setting, pythons, options.rounds, options.warm_up)


if __name__ == "__main__":
    main()
