"""Local training: clients' data and the global model in, updates or their clipped sum out.

`Trainer` trains one client after another, `CohortTrainer` all that a worker has in a round, as
`Execution` says: one after another, or many at once.
"""

from fl_epe.training.cohort import CohortTrainer, Counts
from fl_epe.training.execution import Execution
from fl_epe.training.local import ClientUpdate, LocalTraining, Trainer

__all__ = [
    "ClientUpdate",
    "CohortTrainer",
    "Counts",
    "Execution",
    "LocalTraining",
    "Trainer",
]
