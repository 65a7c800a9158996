"""Participation schedules: who takes part in which round, from coins to traces of real runs.

| kind             | who takes part |
|------------------|---|
| `ShuffledEpochs` | fresh random orders, spread evenly over the rounds (the paper's schedule) |
| `Poisson`        | everybody by an independent coin in every round |
| `FixedSize`      | a fresh cohort of fixed size in every round |
| `MinSeparation`  | a cohort of fixed size among those who have rested long enough |
| `DeviceClasses`  | independent coins, at a rate that depends on the client's class |
| `Cyclic`         | one random order, again and again |
| `BallsInBins`    | everybody once in each block of rounds, at a random round |
| `RandomAllocation` | everybody equally often, in any rounds |
| `BMinSep`        | everybody by an independent coin, except who rests after taking part |
| `Trace`          | the clients that a log of a real run has in each round |
| `Capped`         | another schedule, without participations beyond a cap |
| `DropOut`        | another schedule, without those who drop out by a coin |

A schedule's `ParticipationLaw` is the law of one of its clients, on which accounting and estimates
of ε depend.
`SCHEDULES` maps the name of each kind to its class, and `make_schedule` builds one by name, from
text that may have options.

Examples:
    >>> import numpy as np
    >>> from fl_epe.schedules import make_schedule
    >>> schedule = make_schedule("cyclic", rounds=4, participations=2)
    >>> [len(cohort) for cohort in schedule.cohorts(10, np.random.default_rng(0))]
    [5, 5, 5, 5]
    >>> schedule.most_participations()
    2
"""

from fl_epe.schedules.by_name import (
    SCHEDULES,
    log_of,
    make_schedule,
    parse_schedule,
    replays_log,
    schedule_maker,
)
from fl_epe.schedules.composed import (
    Capped,
    Composed,
    basis_of,
    clients_of,
    trace_of,
)
from fl_epe.schedules.contract import Cohort, Schedule, presence
from fl_epe.schedules.law import (
    Adjacency,
    Coins,
    Event,
    Events,
    FixedCohorts,
    LocalSteps,
    ParticipationLaw,
)
from fl_epe.schedules.sampled import Poisson, ShuffledEpochs
from fl_epe.schedules.trace import Trace

__all__ = [
    "SCHEDULES",
    "Adjacency",
    "Capped",
    "Cohort",
    "Coins",
    "Composed",
    "Event",
    "Events",
    "FixedCohorts",
    "LocalSteps",
    "ParticipationLaw",
    "Poisson",
    "Schedule",
    "ShuffledEpochs",
    "Trace",
    "basis_of",
    "clients_of",
    "log_of",
    "make_schedule",
    "parse_schedule",
    "presence",
    "replays_log",
    "schedule_maker",
    "trace_of",
]
