"""Schedules of every kind, alone and composed, and many runs of each."""

import functools

import numpy as np
import numpy.typing as npt

from fl_epe.accounting import expected_score_law
from fl_epe.schedules import (
    Capped,
    Events,
    Poisson,
    Schedule,
    ShuffledEpochs,
    Trace,
    presence,
)
from fl_epe.schedules.availability import DeviceClasses
from fl_epe.schedules.composed import DropOut
from fl_epe.schedules.sampled import (
    BallsInBins,
    BMinSep,
    Cyclic,
    FixedSize,
    MinSeparation,
    RandomAllocation,
)

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
    RandomAllocation(T, 3),
    BMinSep(T, 0.125, 5),
    BMinSep(T, 0.25, 4),
    TRACE,
]
COMPOSED: list[Schedule] = [
    DropOut(Cyclic(T, 3), 0.25),
    DropOut(RandomAllocation(T, 4), 0.25),
    DropOut(BMinSep(T, 0.15, 5), 0.25),
    Capped(BMinSep(T, 0.08, 5), per_run=1),
    Capped(RandomAllocation(T, 4), per_run=3),
    DropOut(Capped(Poisson(T, 0.3), per_run=2), 0.25),
    Capped(Poisson(T, 0.2), per_run=2),
    Capped(Poisson(T, 0.3), per_window=1, window=4),
    Capped(FixedSize(T, 0.3), per_run=5, per_window=2, window=6),
    Capped(DropOut(FixedSize(T, 0.3), 0.1), per_window=2, window=10),
]
EVERY = SIMPLE + COMPOSED


@functools.cache
def runs_of(schedule: Schedule) -> np.ndarray:
    """Who took part when, in many runs: (runs, rounds, clients)."""
    seeds = range(RUNS)
    return np.stack(
        [presence(schedule, CLIENTS, np.random.default_rng(s)) for s in seeds]
    )


def sizes_of(schedule: Schedule) -> np.ndarray | None:
    """Expected size of every round's cohort, or None where there is no formula."""
    even = np.full(T, schedule.cohort_size(CLIENTS))
    match schedule:
        case BallsInBins():
            return np.concatenate(
                [np.full(length, CLIENTS / length) for length in [7, 7, 6]]
            )
        case Trace():
            return (
                CLIENTS
                * np.bincount(TRACE.round_ids, minlength=T)
                / TRACE.population
            )
        case Capped(schedule=Poisson(rate=q), per_run=2, window=None):
            return _capped_twice(q)
        case Capped(
            schedule=Poisson(rate=q), per_run=None, per_window=1, window=4
        ):
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
    return (
        CLIENTS * q * ((1 - q) ** t + t * q * (1 - q) ** np.maximum(t - 1, 0))
    )


def assert_near(
    values: np.ndarray, expected: npt.ArrayLike, errors: float = 4.0
) -> None:
    """Means over runs within so many standard errors (and rounding) of what is expected."""
    standard_error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    assert np.all(
        np.abs(values.mean(axis=0) - expected) <= errors * standard_error + 1e-9
    )


def law_faults(schedule: Schedule) -> list[str]:
    """What of a schedule's law is not true of 12,000 clients that it draws, in words.

    Chances of every round, of pairs of rounds and of every number of rounds; the limits that
    theorems rest on; coins that depend on nothing else, so that neither do clients on each other.
    """
    law, runs = schedule.law(CLIENTS), runs_of(schedule)
    counts, events, faults = runs.sum(axis=1), law.events, list[str]()

    def compare(
        what: str, seen: np.ndarray, expected: float, *, at_most: bool = False
    ) -> None:
        error = seen.std(ddof=1) / np.sqrt(RUNS)
        rare = np.sqrt(
            min(expected, abs(1 - expected)) / (RUNS * CLIENTS)
        )  # too rare to be seen
        off = seen.mean() - expected
        if not (off if at_most else abs(off)) <= 5 * max(error, rare) + 1e-9:
            faults.append(f"{what}: {seen.mean():.4g}, not {expected:.4g}")

    compare("participations", counts.mean(axis=1), law.participations or np.nan)
    if counts.max() > law.limit:
        faults.append("most")
    rounds = [np.flatnonzero(client) for run in runs[:30] for client in run.T]
    apart = np.concatenate([np.diff(each) for each in rounds])
    if len(apart) and (
        apart.min() < law.separation or (law.regular and np.ptp(apart))
    ):
        faults.append("separation")
    for start, end in law.blocks if isinstance(schedule, BallsInBins) else ():
        if runs[:, start:end].sum(axis=1).max() > 1:
            faults.append("blocks")
    if events is not None:
        pairs = [(0, 1), (2, 7), (5, 6), (4, 15), (18, 19)]
        for chosen in [*((t,) for t in range(T)), *pairs]:
            weights = np.zeros(T)
            weights[list(chosen)] = 1.0
            both = runs[:, list(chosen)].all(axis=1).mean(axis=1)
            compare(
                f"rounds {chosen}", both, _chance(events, weights, len(chosen))
            )
        for number in range(int(law.limit) + 1):
            seen = (counts == number).mean(axis=1)
            compare(
                f"{number} rounds", seen, _chance(events, np.ones(T), number)
            )
    elif law.events_at_most is not None:
        for number in range(1, int(law.limit) + 1):
            most = expected_score_law(law.events_at_most, np.ones(T))
            allowed = (
                most.shares[most.expected_scores > number - 0.5].sum()
                if most
                else 1.0
            )
            more = (counts >= number).mean(axis=1)
            compare(f"{number} rounds or more", more, allowed, at_most=True)
    toss = (
        events.chances.max() * events.keep
        if law.coins is not None and events
        else 0.0
    )
    if law.coins is not None and toss > law.coins.rate * (1 + 1e-9):
        faults.append("coins")
    if law.coins is not None and law.hidden and events is not None:
        rates = np.array([_chance(events, np.eye(T)[t], 1) for t in range(T)])
        spread = (runs.sum(axis=2) - CLIENTS * rates) ** 2
        compare(
            "clients",
            spread.mean(axis=1),
            CLIENTS * float(np.mean(rates * (1 - rates))),
        )
    if law.hidden and law.secret_events is None:
        faults.append("hidden")
    return faults


def _chance(events: Events, weights: np.ndarray, score: int) -> float:
    law = expected_score_law(events, weights)
    if law is None:
        return float("nan")
    return float(law.shares[np.abs(law.expected_scores - score) < 1e-6].sum())
