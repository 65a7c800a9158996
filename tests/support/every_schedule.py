"""Schedules of every kind, alone and composed, and many runs of each."""

import functools

import numpy as np
import numpy.typing as npt

from fl_epe.schedules import Capped, Poisson, Schedule, ShuffledEpochs, Trace, presence
from fl_epe.schedules.availability import CheckIn, DeviceClasses, TimeOfDay
from fl_epe.schedules.composed import DropOut
from fl_epe.schedules.sampled import BallsInBins, Cyclic, FixedSize, MinSeparation

T, CLIENTS, RUNS = 20, 40, 300


def _synthetic_trace() -> Trace:
    """55 clients, some much busier than others; nobody in the seventh round."""
    rng = np.random.default_rng(4)
    seen = rng.random((T, 55)) < rng.choice([0.05, 0.3], 55)
    seen[6] = False
    seen[0, ~seen.any(axis=0)] = True
    return Trace(*np.nonzero(seen))


TRACE = _synthetic_trace()
SIMPLE: list[Schedule] = [
    ShuffledEpochs(T, 2.5),
    Poisson(T, 0.2),
    FixedSize(T, 0.15),
    MinSeparation(T, 0.125, 5),
    MinSeparation(T, 0.25, 4),
    DeviceClasses(T, (0.05, 0.5), (0.7, 0.3)),
    Cyclic(T, 2.5),
    Cyclic(T, 3),
    BallsInBins(T, 3),
    CheckIn(T, 6),
    CheckIn(T, 3, keep=0.6),
    TimeOfDay(T, 0.15, 8),
    TRACE,
]
COMPOSED: list[Schedule] = [
    DropOut(Cyclic(T, 3), 0.25),
    DropOut(Capped(Poisson(T, 0.3), per_run=2), 0.25),
    Capped(Poisson(T, 0.2), per_run=2),
    Capped(Poisson(T, 0.3), per_window=1, window=4),
    Capped(FixedSize(T, 0.3), per_run=5, per_window=2, window=6),
    Capped(DropOut(TimeOfDay(T, 0.3, 10), 0.1), per_window=2, window=10),
]
EVERY = SIMPLE + COMPOSED


@functools.cache
def runs_of(schedule: Schedule) -> np.ndarray:
    """Who took part when, in many runs: (runs, rounds, clients)."""
    seeds = range(RUNS)
    return np.stack([presence(schedule, CLIENTS, np.random.default_rng(s)) for s in seeds])


def sizes_of(schedule: Schedule) -> np.ndarray | None:
    """Expected size of every round's cohort, or None where there is no formula."""
    even = np.full(T, schedule.cohort_size(CLIENTS))
    match schedule:
        case BallsInBins():
            return np.concatenate([np.full(length, CLIENTS / length) for length in [7, 7, 6]])
        case Trace():
            return CLIENTS * np.bincount(TRACE.round_ids, minlength=T) / TRACE.population
        case Capped(schedule=Poisson(rate=q), per_run=2, window=None):
            return _capped_twice(q)
        case Capped(schedule=Poisson(rate=q), per_run=None, per_window=1, window=4):
            p: list[float] = []
            for _ in range(T):
                p.append(q * (1 - sum(p[-3:])))
            return CLIENTS * np.array(p)
        case DropOut(schedule=Capped()):
            return (1 - schedule.rate) * _capped_twice(0.3)
        case Capped():
            return None
    return even


def _capped_twice(q: float) -> np.ndarray:
    t = np.arange(T)  # at most one head before
    return CLIENTS * q * ((1 - q) ** t + t * q * (1 - q) ** np.maximum(t - 1, 0))


def assert_near(values: np.ndarray, expected: npt.ArrayLike, errors: float = 4.0) -> None:
    """Means over runs within so many standard errors (and rounding) of what is expected."""
    standard_error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    assert np.all(np.abs(values.mean(axis=0) - expected) <= errors * standard_error + 1e-9)
