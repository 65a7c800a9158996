"""What `gpu.py` measures besides whole runs: copies, scoring, training. Each answer is JSON."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
import multiprocessing
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import scipy
import torch
from gpu_run import Prepared
from gpu_scoring import butterflies, dot

from fl_epe.canaries import CanarySet
from fl_epe.canaries.directions import hadamard
from fl_epe.mechanism import ClippedSum
from fl_epe.models import SeededDropout
from fl_epe.tasks import Task
from fl_epe.training import CohortTrainer, Execution, LocalTraining

_WARM_UP, _FEWEST, _MOST = 2, 3, 30
_CLIP_NORM = 0.1
_ROOMY = 16.0  # clip norm that cuts nothing off, and whose grid is fine
_CORRELATION = 4  # clients whose updates are compared

Answer = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        chunks: how many clients are trained at once.
        precisions: of `Execution`.
        least_clients: a cohort of smaller chunks has that many clients.
        copied: bytes of the array that is copied.
        seconds: a measurement is repeated for that long.
        rounds: rounds of the paper's size in each precision; the first does not count.
    """

    chunks: tuple[int, ...] = (1, 8, 32, 64, 128, 256)
    precisions: tuple[str, ...] = ("float32", "tf32", "bf16")
    least_clients: int = 8
    copied: int = 1 << 30
    seconds: float = 2.0
    rounds: int = 4


QUICK = Sizes((1, 2), ("float32", "bf16"), 2, 1 << 24, 0.0, 2)


def machine(device: torch.device) -> Answer:
    """Where the numbers are from."""
    gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device)
        if gpu
        else f"CPU {platform.machine()}",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "python": platform.python_version(),
    }


def timed(
    work: Callable[[], object], device: torch.device, at_least: float
) -> list[float]:
    """Seconds of each of several calls, after two that do not count.

    On a GPU between two of its events, from an idle device to an idle device.
    """
    for _ in range(_WARM_UP):
        work()
    times: list[float] = []
    while len(times) < _FEWEST or (
        sum(times) < at_least and len(times) < _MOST
    ):
        times.append(_once(work, device))
    return times


def _once(work: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        began = time.perf_counter()
        work()
        return time.perf_counter() - began
    torch.cuda.synchronize(device)
    event: Any = torch.cuda.Event  # which has no types
    start, end = event(enable_timing=True), event(enable_timing=True)
    start.record()
    work()
    end.record()
    torch.cuda.synchronize(device)
    return float(start.elapsed_time(end)) / 1e3


def spread(times: list[float]) -> Answer:
    """Median, least and largest of some seconds."""
    return {
        "seconds": statistics.median(times),
        "range": [min(times), max(times)],
    }


def copy_bandwidth(device: torch.device, sizes: Sizes) -> Answer:
    """GB/s of a copy on the device, counting what is read and what is written."""
    source = torch.zeros(sizes.copied // 4, device=device)
    target = torch.empty_like(source)
    answer = spread(timed(lambda: target.copy_(source), device, sizes.seconds))
    return answer | {"gb_per_s": 2 * sizes.copied / answer["seconds"] / 1e9}


def scoring(
    dim: int, device: torch.device, sizes: Sizes, seed: int, few: int
) -> Answer:
    """All scores of a round by rotation on the device, and how far they are from the CPU's.

    "transforms" are two fast transforms alone, as `gpu_scoring.dot` makes them, and
    "products" the same from matrix products. "few" is a call of it for the canaries of
    a usual run, "every" one for as many as there are. "gb_per_s" counts what two transforms must
    read and write at least, once each.
    """
    x = np.random.default_rng(seed).standard_normal(dim, np.float32)
    on_device = torch.tensor(x, device=device)
    size = 1 << (dim - 1).bit_length()
    began = time.perf_counter()
    canaries, all_of_them = (
        CanarySet(dim, few, seed),
        CanarySet(dim, size, seed),
    )
    dot(canaries, on_device)
    set_up = time.perf_counter() - began
    padded = torch.zeros(size, device=device)
    padded[:dim] = on_device / on_device.abs().max()
    multiply = products(size, device)
    works: dict[str, Callable[[], object]] = {
        "transforms": lambda: [
            butterflies(padded).mul_(size**-0.5) for _ in range(2)
        ],
        "products": lambda: [
            multiply(padded).mul_(size**-0.5) for _ in range(2)
        ],
        "few": lambda: dot(canaries, on_device),
        "every": lambda: dot(all_of_them, on_device),
    }
    answer: Answer = {
        "dim": dim,
        "size": size,
        "few_count": few,
        "set_up": set_up,
    }
    for name, work in works.items():
        answer[name] = spread(timed(work, device, sizes.seconds))
    answer["gb_per_s"] = (
        2 * 2 * 4 * size / answer["transforms"]["seconds"] / 1e9
    )
    answer["from_cpu"] = {
        name: _from_cpu(some, x, device, seed)
        for name, some in (("few", canaries), ("every", all_of_them))
    }
    return answer


def products(
    size: int, device: torch.device
) -> Callable[[torch.Tensor], torch.Tensor]:
    """The transform of a vector of this length by three matrix products, on the device."""
    bits = size.bit_length() - 1
    outer, middle = 1 << bits // 3, 1 << (bits - bits // 3) // 2
    inner = size // (outer * middle)
    first, left, right = (
        torch.tensor(hadamard(n), device=device) for n in (outer, middle, inner)
    )

    def transform(x: torch.Tensor) -> torch.Tensor:
        within = left @ (x.view(outer, middle, inner) @ right)
        return (first @ within.view(outer, -1)).view(-1)

    return transform


def _from_cpu(
    canaries: CanarySet, x: np.ndarray, device: torch.device, seed: int
) -> float:
    """The largest difference between scores here and on the CPU, in deviations of a score."""
    sparse = np.zeros_like(x)
    places = np.random.default_rng((seed, 1)).choice(len(x), 300, replace=False)
    sparse[places] = 1 / x[places]  # heavy tails
    far = 0.0
    for vector in (x, sparse):
        deviation = float(np.linalg.norm(vector.astype(np.float64))) / np.sqrt(
            len(x)
        )
        there = dot(canaries, torch.tensor(vector, device=device))
        far = max(
            far, float(np.abs(there - canaries.dot(vector)).max() / deviation)
        )
    return far


def speed(
    task: Task, execution: Execution, local: LocalTraining, sizes: Sizes
) -> Answer:
    """Clients a second that a `CohortTrainer` trains, clips and adds up; their data is ready."""
    device = execution.torch_device()
    fresh_memory(device)
    with noted() as notes:
        trainer, cohort, train = _round(task, execution, local, sizes)
        answer = spread(timed(train, device, sizes.seconds))
        answer |= {"peak_gb": peak_gb(device), "waits": waits(train, device)}
    answer["chunk"] = trainer.chunk
    return answer | {
        "clients": cohort,
        "per_s": cohort / answer["seconds"],
        "notes": notes,
    }


def _round(
    task: Task, execution: Execution, local: LocalTraining, sizes: Sizes
) -> tuple[CohortTrainer, int, Callable[[], None]]:
    """A trainer, its number of clients, whose data are ready, and a round of theirs."""
    cohort = max(execution.chunk or 1, sizes.least_clients)
    prepared = Prepared(task)
    prepared.prepare(range(cohort))
    trainer, theta = CohortTrainer(prepared, execution), task.initial(1)

    def train() -> None:
        total = ClippedSum(len(theta), _CLIP_NORM)
        counts = trainer.train(
            theta, range(cohort), local, total, seed=1, round_number=1
        )
        if counts.faults:
            raise RuntimeError(f"A client was lost: {counts.faults[0]}")

    return trainer, cohort, train


def waits(work: Callable[[], object], device: torch.device) -> int | None:
    """How often the host waits for a GPU meanwhile, as CUDA's own alarm counts it."""
    if device.type != "cuda":
        return None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing" in str(warning.message) for warning in caught)


def loop(
    task: Task, local: LocalTraining, device: torch.device, sizes: Sizes
) -> Answer:
    """Clients a second of a plain loop over clients: `torch.optim.SGD`, clipped and summed there.

    Its clients' examples are on the device before the clock starts.
    """
    cohort = sizes.least_clients
    data = [
        task.client(client).map(lambda part: part.to(device))
        for client in range(cohort)
    ]
    model = task.model().to(device).train()
    for module in model.modules():
        if isinstance(module, SeededDropout):  # whose masks come from the host
            module.forward = partial(torch.nn.functional.dropout, p=module.p)  # type: ignore[method-assign]
    parameters = [p for p in model.parameters() if p.requires_grad]
    theta = torch.as_tensor(task.initial(1), device=device)

    def train() -> None:
        total = torch.zeros_like(theta)
        for own in data:
            torch.nn.utils.vector_to_parameters(theta.clone(), parameters)
            optimizer = torch.optim.SGD(parameters, lr=local.learning_rate)
            order = torch.randperm(len(own)).to(device)
            for start in range(0, len(own), local.batch_size):
                here = order[start : start + local.batch_size]
                optimizer.zero_grad()
                batch = own.map(partial(torch.index_select, dim=0, index=here))
                loss: Any = task.batch_loss(model, batch).mean()
                loss.backward()
                optimizer.step()
            update = (
                torch.nn.utils.parameters_to_vector(parameters).detach() - theta
            )
            total += update * (_CLIP_NORM / update.norm().clamp(min=_CLIP_NORM))
        total.cpu()

    fresh_memory(device)
    answer = spread(timed(train, device, sizes.seconds))
    return answer | {
        "clients": cohort,
        "per_s": cohort / answer["seconds"],
        "chunk": 1,
    }


def shared(
    task: Task,
    execution: Execution,
    local: LocalTraining,
    workers: int,
    sizes: Sizes,
) -> Answer:
    """Clients a second of several processes that train on one device at the same time."""
    spawn = multiprocessing.get_context("spawn")
    barrier, found = spawn.Barrier(workers), spawn.Queue()
    given = task, execution, local, sizes, barrier, found
    processes = [
        spawn.Process(target=_share, args=given, daemon=True)
        for _ in range(workers)
    ]
    for process in processes:
        process.start()
    try:
        rates = [found.get(timeout=90) for _ in processes]
    finally:
        for process in processes:
            process.kill()
            process.join()
    if lost := [rate for rate in rates if isinstance(rate, str)]:
        raise RuntimeError(lost[0])
    return {"workers": workers, "per_s": sum(rates), "rates": rates}


def _share(
    task: Task,
    execution: Execution,
    local: LocalTraining,
    sizes: Sizes,
    barrier: Any,
    found: Any,
) -> None:
    """Train until the time is over; all processes begin at once."""
    try:
        _, cohort, train = _round(task, execution, local, sizes)
        train()
        barrier.wait(60)
        began, done = time.perf_counter(), 0
        while not done or time.perf_counter() - began < max(sizes.seconds, 0.2):
            train()
            done += cohort
        found.put(done / (time.perf_counter() - began))
    except Exception as error:  # noqa: BLE001 (told by the process that waits for it)
        found.put(f"{type(error).__name__}: {error}")


def correlation(
    task: Task, execution: Execution, local: LocalTraining
) -> Answer:
    """How far the sum of a few clients' updates is from the CPU's in float32, relatively."""
    sums = []
    prepared = Prepared(task)
    prepared.prepare(range(_CORRELATION))
    with noted() as notes:
        for how in (Execution(device="cpu", chunk=1), execution):
            theta, total = task.initial(1), ClippedSum(task.dim, _ROOMY)
            trainer = CohortTrainer(prepared, how)
            trainer.train(
                theta, range(_CORRELATION), local, total, seed=1, round_number=1
            )
            sums.append(total.total())
    off = np.linalg.norm(sums[1] - sums[0]) / np.linalg.norm(sums[0])
    return {"relative": float(off), "chunk": trainer.chunk, "notes": notes}


def fresh_memory(device: torch.device) -> None:
    """Give back what earlier trainers used, and measure the peak from here."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_gb(device: torch.device) -> float | None:
    """The most memory that tensors took on a GPU; ``None`` on a CPU."""
    return (
        torch.cuda.max_memory_allocated(device) / 1e9
        if device.type == "cuda"
        else None
    )


class _Notes(logging.Handler):
    """Keeps messages, each once."""

    def __init__(self, notes: list[str]) -> None:
        super().__init__()
        self._notes = notes

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        if record.getMessage() not in self._notes:
            self._notes.append(record.getMessage())


@contextlib.contextmanager
def noted() -> Iterator[list[str]]:
    """What the trainer logs meanwhile (a chunk that failed), and torch's warnings."""
    notes: list[str] = []
    logger, handler = logging.getLogger("fl_epe.training.cohort"), _Notes(notes)
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield notes
    finally:
        logger.removeHandler(handler)
    notes += sorted(
        {str(warning.message).partition("\n")[0] for warning in caught}
    )
