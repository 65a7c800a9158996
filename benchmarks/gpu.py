"""What does a GPU make of the paper's runs? Training, scoring, a round, and a whole run with its ε.

    python benchmarks/gpu.py                       # on a machine with a GPU, at most nine minutes
    python benchmarks/gpu.py                       # again: goes on where it stopped
    python benchmarks/gpu.py --quick               # all of it at a reduced size, a minute on a CPU

It needs torch, NumPy and SciPy, and this folder's checkout; nothing has to be installed. What is
measured goes into ``gpu.json`` under ``--output`` (by default the environment variable OUT, or else
``runs/gpu``), and a checkpoint of the run into ``gpu-run/`` beside it, in files below 16 MiB. Where
the output does not last, hand the files of the call before to ``--resume``. In this order, of which
``--sections`` chooses:

- copies on the device, and scoring by rotation: two fast transforms against the copy bandwidth, all
  scores of a round, and how far they are from the CPU's, in deviations of a score (at most 1e-5);
- whether updates agree with the CPU's, for each model and precision;
- clients a second of the EMNIST CNN (32 images each) and the StackOverflow LSTM (16 sentences), in
  chunks of 1 to 256 clients, in float32, TF32 and bfloat16, through `CohortTrainer`;
- the same of a plain loop over clients, and of 2 and 4 processes that share the GPU;
- a round at the paper's size: EMNIST with 101 clients, StackOverflow with 167 of up to 256
  sentences, with clipping, noise, the server's step and the scores of 2,000 canaries;
- the whole StackOverflow run, 2,048 such rounds, as far as time allows, with ε so far.

All data are the synthetic data sets of `fl_epe.data`; all random streams have seeds (``--seed``).

One H200 with 16 processor cores, torch 2.11.0, CUDA 13.0, 2026-11-26 (scoring in a call of its own;
numbers of equal settings differed by up to 40% from call to call)::

    Copies 4,175 GB/s. Scoring 4,050,748 parameters: two transforms 2.9 ms, by products 0.5 ms, a
    call for 2,000 canaries 21 ms (57 ms on the 16 cores), 2.2e-06 deviations from the CPU's

    Clients a second by chunk, and how far updates are from the CPU's in float32
                          1        8       32       64      128      256  64 free       off
    cnn  float32       87.3    307.5    705.7    933.2   1051.4   1450.0   1330.3    3.9e-06
    cnn  tf32         102.1    395.9   1085.1   1484.8   1388.1   1899.3   1558.5    9.5e-03
    cnn  bf16         108.2    416.9   1056.8   1321.3   1230.7   1308.8   1501.0    5.7e-02
    lstm float32      122.0    235.7    703.7    973.0   1142.9   1372.2   1043.3    6.1e-07
    lstm tf32         140.1    229.0    705.4   1140.7   1323.0   1529.2   1125.9    6.0e-05
    lstm bf16         111.8    206.1    727.3    922.9   1074.1   1184.2   1012.9    5.4e-04
    a plain loop over clients: cnn 134.6, lstm 194.8
    processes that share the GPU: cnn 1845.9 (2), 2151.9 (4), lstm 1336.5 (2), 1411.2 (4)

    Seconds of a round, and hours of all rounds
                  clients    round      data  training     noise    server   scoring    hours
    cnn  float32      101    0.987    0.4684    0.5451    0.0160    0.0128    0.0109    0.137
    lstm float32      167    1.330    0.0600    1.1020    0.0564    0.0480    0.0214    0.757

    StackOverflow run (float32, z = 0.2317): 72 of 2,048 rounds, 1.363 s each, 0.775 hours in all
        loss 9.046 → 4.583; ε, every round: 25.9 (23.1 – 28.9) after 35 canaries; theorem 29.3

The host waits three times a round, whatever the chunk: for the model to leave its memory, for the
sum and for the counts. Chunks of 1 and 8 are rounds of eight clients, of whose time a sixth or more
is the round's own. The data of the CNN's clients are synthetic images, which take half a second to
draw. Without a GPU, or with ``--quick``, all is done at a reduced size, which says nothing of
speed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if (
    __name__ == "__main__"
):  # before NumPy and CUDA start; the package need not be installed
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import argparse
import dataclasses
import json
import shutil
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gpu_measures as measures
import torch
from gpu_run import AuditedRun, RunPlan, SmallWords, found_epsilon
from gpu_table import table

from fl_epe.config import RunConfig
from fl_epe.seeding import Seeds
from fl_epe.tasks import Task
from fl_epe.tasks.stored import SyntheticEmnist, SyntheticStackOverflow
from fl_epe.training import Execution, LocalTraining

_SECTIONS = (
    "copy",
    "scoring",
    "correlation",
    "loop",
    "speed",
    "workers",
    "round",
    "run",
)
_WORKERS = (2, 4)
_RESERVE = 25.0  # seconds for the last checkpoint, ε and the table
_SAVE_EVERY = 60.0
_SMALL = {
    "rounds": 6,
    "clients_per_round": 4,
    "num_canaries": 6,
    "canary_participations": 1,
    "unobserved": 20,
    "delta": 1e-5,
}


class OutOfTimeError(Exception):
    """The budget is spent."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """What one call measures.

    Attributes:
        device: where.
        quick: at a reduced size.
        seed: of everything random.
        precision: of the whole run.
        chunk: of the rounds and the run; 0 for the fastest of those measured.
        noise_multiplier: of the whole run; ``None`` for the task's.
        deadline: of `time.monotonic`.
    """

    device: torch.device
    quick: bool
    seed: int
    precision: str
    chunk: int
    noise_multiplier: float | None
    deadline: float

    @property
    def sizes(self) -> measures.Sizes:
        """How much is measured."""
        return measures.QUICK if self.quick else measures.Sizes()

    def execution(
        self, chunk: int, precision: str, deterministic: bool = True
    ) -> Execution:
        """On the device."""
        return Execution(str(self.device), chunk, precision, deterministic)

    def batches(self) -> dict[str, tuple[Task, LocalTraining]]:
        """The models, each on clients of few batches."""
        words = SmallWords if self.quick else SyntheticStackOverflow
        return {
            "cnn": (
                SyntheticEmnist(max_examples=32),
                LocalTraining(0.031, 1, 16),
            ),
            "lstm": (words(max_examples=16), LocalTraining(1.0, 1, 16)),
        }

    def full(self) -> dict[str, Task]:
        """The tasks of the paper, with all examples."""
        if self.quick:
            small = SmallWords(num_clients=24, max_examples=20)
            return {
                "cnn": SyntheticEmnist(num_clients=24, max_examples=20),
                "lstm": small,
            }
        return {"cnn": SyntheticEmnist(), "lstm": SyntheticStackOverflow()}

    def plan(self, model: str, precision: str, chunk: int) -> RunPlan:
        """The paper's run of a model."""
        task = self.full()[model]
        settings = dict(task.defaults) | (
            _SMALL if self.quick else {"canary_design": "paper"}
        )
        if self.noise_multiplier is not None:
            settings["noise_multiplier"] = self.noise_multiplier
        settings["noise_generator"] = (
            "sfc64"  # as in `gpu_run`, which needs nothing but NumPy
        )
        config = RunConfig(clients=task.num_clients, **settings)
        return RunPlan(
            task,
            config,
            Seeds.derive(self.seed),
            self.execution(chunk, precision),
        )

    def left(self) -> float:
        """Seconds until this call should end."""
        return self.deadline - time.monotonic()


class Results:
    """What was measured, by name, in a JSON file that is written after each measurement."""

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        self.path = path
        self.values: dict[str, Any] = {
            "facts": facts,
            "cells": {},
            "errors": {},
        }
        if path.exists():
            self.values = json.loads(path.read_text())
            if self.values["facts"] != json.loads(json.dumps(facts)):
                raise SystemExit(
                    f"Expected {path} to be from this machine and with these settings, but it "
                    f"has {self.values['facts']}. Name another --output."
                )

    @property
    def cells(self) -> dict[str, Any]:
        """Answers by name."""
        return dict(self.values["cells"])

    @property
    def errors(self) -> dict[str, str]:
        """Messages by the name of what failed."""
        return dict(self.values["errors"])

    def keep(self, name: str, answer: Any) -> None:
        """Keep an answer, and write the file."""
        self.values["cells"][name] = answer
        self.values["errors"].pop(name, None)
        self._write()

    def fail(self, name: str, error: Exception) -> None:
        """Keep an error; what failed is tried again in the next call."""
        traceback.print_exception(error)
        self.values["errors"][name] = f"{type(error).__name__}: {error}"
        self._write()

    def _write(self) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self.values, indent=1))
        new.replace(self.path)


Cell = tuple[str, Callable[[], dict[str, Any]]]


def cells(setting: Setting, results: Results) -> Iterator[Cell]:
    """What there is to measure, in order: names, and functions that answer."""
    device, sizes, batches = setting.device, setting.sizes, setting.batches()
    yield "copy", partial(measures.copy_bandwidth, device, sizes)
    for model in ("lstm",) if setting.quick else ("cnn", "lstm"):
        dim = batches[model][0].dim
        yield (
            f"scoring/{dim}",
            partial(measures.scoring, dim, device, sizes, setting.seed, 2000),
        )
    for model, (task, local) in batches.items():
        for precision in sizes.precisions:
            how = setting.execution(4, precision)
            work = partial(measures.correlation, task, how, local)
            yield f"correlation/{model}/{precision}", work
    for model, (task, local) in batches.items():
        yield (
            f"loop/{model}",
            partial(measures.loop, task, local, device, sizes),
        )
    yield from speeds(setting)
    for model, (task, local) in batches.items():
        for workers in _WORKERS[: 1 if setting.quick else None]:
            how = setting.execution(
                chunk_for(setting, results, model, "float32"), "float32"
            )
            work = partial(measures.shared, task, how, local, workers, sizes)
            yield f"workers/{model}/{workers}", work
    for model in batches:
        for precision in sizes.precisions:
            work = partial(paper_rounds, setting, results, model, precision)
            yield f"round/{model}/{precision}", work


def speeds(setting: Setting) -> Iterator[Cell]:
    """Clients a second, and once in each line without the demand that CUDA repeats to the bit."""
    sizes = setting.sizes
    on_cpu = setting.device.type == "cpu"
    for model, (task, local) in setting.batches().items():
        for precision in sizes.precisions:
            # Many processors have no LSTM of one client in bfloat16.
            chunks = sizes.chunks[
                on_cpu and (model, precision) == ("lstm", "bf16") :
            ]
            for chunk in chunks:
                how = setting.execution(chunk, precision)
                work = partial(measures.speed, task, how, local, sizes)
                yield f"speed/{model}/{precision}/{chunk}", work
            free = max(sizes.chunks[-1] // 4, chunks[0])
            how = setting.execution(free, precision, deterministic=False)
            work = partial(measures.speed, task, how, local, sizes)
            yield f"speed/{model}/{precision}/{how.chunk} free", work


def chunk_for(
    setting: Setting, results: Results, model: str, precision: str
) -> int:
    """The chunk that trained most clients a second, unless one was asked for."""
    found = {
        int(name.rpartition("/")[2]): answer["per_s"]
        for name, answer in results.cells.items()
        if name.startswith(f"speed/{model}/{precision}/")
        and not name.endswith("free")
    }
    return setting.chunk or max(
        found, key=found.__getitem__, default=setting.sizes.chunks[-2]
    )


def paper_rounds(
    setting: Setting, results: Results, model: str, precision: str
) -> dict[str, Any]:
    """Seconds of the parts of a round: medians over a few rounds, without the first."""
    chunk = chunk_for(setting, results, model, precision)
    measures.fresh_memory(setting.device)
    run, played = (
        AuditedRun(setting.plan(model, precision, chunk)),
        list[dict[str, float]](),
    )
    with measures.noted() as notes:
        for _ in range(setting.sizes.rounds):
            if setting.left() < _RESERVE:
                raise OutOfTimeError
            played.append(run.play())
    parts = {
        part: statistics.median(row[part] for row in played[1:])
        for part in played[0]
    }
    return {
        "chunk": run.chunk,
        "clients": statistics.mean(run.series["clients"]),
        "seconds": statistics.median(sum(row.values()) for row in played[1:]),
        "parts": parts,
        "rounds": run.plan.config.rounds,
        "peak_gb": measures.peak_gb(setting.device),
        "faults": run.faults[:3],
        "notes": notes,
    }


def whole_run(
    setting: Setting, results: Results, place: Path
) -> dict[str, Any]:
    """Go on with the StackOverflow run until it or the time is over; ε of the rounds so far."""
    chunk = chunk_for(setting, results, "lstm", setting.precision)
    run = AuditedRun(setting.plan("lstm", setting.precision, chunk))
    run.resume(place)
    saved, longest, rounds = time.monotonic(), 0.0, run.plan.config.rounds
    while (
        run.rounds_done < rounds and setting.left() > _RESERVE + 1.5 * longest
    ):
        longest = max(longest, sum(run.play().values()))
        if time.monotonic() - saved > _SAVE_EVERY:
            run.save(place)
            saved = time.monotonic()
    if not run.rounds_done:
        raise OutOfTimeError
    run.save(place)
    losses = run.series["loss"]
    return {
        "chunk": run.chunk,
        "precision": setting.precision,
        "noise_multiplier": run.plan.config.noise_multiplier,
        "rounds": rounds,
        "seconds": sum(run.series["seconds"]),
        "loss": [losses[0], losses[-1]],
        "faults": run.faults[:3],
        "so_far": found_epsilon(run.record()),
    }


def chosen(
    setting: Setting, results: Results, place: Path, sections: list[str]
) -> Iterator[Cell]:
    """What is left to measure in these sections."""
    for name, work in cells(setting, results):
        if name.partition("/")[0] in sections and name not in results.cells:
            yield name, work
    run = results.cells.get("run")
    if "run" in sections and (
        run is None or run["so_far"]["rounds"] < run["rounds"]
    ):
        yield "run", partial(whole_run, setting, results, place)


def measure(setting: Setting, results: Results, work: Iterator[Cell]) -> bool:
    """Measure as far as time allows; returns whether everything is done."""
    longest = 0.0
    for name, answer in work:
        if name != "run" and setting.left() < _RESERVE + 1.5 * longest:
            return False
        began = time.monotonic()
        try:
            attempt(results, name, answer)
        except OutOfTimeError:
            return False
        longest = max(longest, time.monotonic() - began)
    run = results.cells.get("run")
    return not results.errors and (
        run is None or run["so_far"]["rounds"] == run["rounds"]
    )


def attempt(
    results: Results, name: str, work: Callable[[], dict[str, Any]]
) -> None:
    """Measure and keep; an error is kept too, so that one failure leaves the rest."""
    began = time.monotonic()
    try:
        results.keep(name, work())
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as e:
        results.fail(name, e)
    print(f"{time.monotonic() - began:7.1f} s  {name}", flush=True)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(os.environ.get("OUT") or "runs/gpu")
    parser.add_argument("--output", type=Path, default=default)
    parser.add_argument(
        "--resume", type=Path, help="output of the call before, to begin with"
    )
    parser.add_argument(
        "--budget", type=float, default=540, help="seconds that this call takes"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--quick", action="store_true", help="at a reduced size"
    )
    parser.add_argument(
        "--sections", nargs="+", choices=_SECTIONS, default=list(_SECTIONS)
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--precision", choices=measures.Sizes.precisions, default="float32"
    )
    parser.add_argument(
        "--chunk", type=int, default=0, help="clients at once in rounds and run"
    )
    parser.add_argument(
        "--noise-multiplier",
        type=float,
        help="of rounds and run (default: task)",
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Returns 1 if something failed, else 0."""
    began, options = time.monotonic(), parse(arguments)
    device = Execution(options.device).torch_device()
    quick = options.quick or device.type != "cuda"
    if device.type != "cuda":
        print("No CUDA device: everything runs at a reduced size on the CPU.")
    setting = Setting(
        device,
        quick,
        options.seed,
        options.precision,
        options.chunk,
        options.noise_multiplier,
        began + options.budget,
    )
    stem = "quick" if quick else "gpu"
    options.output.mkdir(parents=True, exist_ok=True)
    facts = measures.machine(device) | {"seed": options.seed, "quick": quick}
    path = options.output / f"{stem}.json"
    if options.resume is not None and not path.exists():
        shutil.copytree(options.resume, options.output, dirs_exist_ok=True)
    results = Results(path, facts)
    work = chosen(
        setting, results, options.output / f"{stem}-run", options.sections
    )
    done = measure(setting, results, work)
    print(f"\n{table(results.values)}\n\n{path}")
    if not done:
        print("Not finished: the same command goes on from here.")
    return 1 if results.errors else 0


if __name__ == "__main__":
    sys.exit(main())
