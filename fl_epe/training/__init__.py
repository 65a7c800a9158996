"""Local training: clients' data and the global model in, updates or their clipped sum out.

`CohortTrainer` trains all clients that a worker has in a round, as `Execution` says: one after
another, or many at once. `fl_epe.training.local.Trainer` trains a single client.

Examples:
    >>> from fl_epe.mechanism import ClippedSum
    >>> from fl_epe.tasks import load_task
    >>> task = load_task("synthetic-emnist", num_clients=5, max_examples=8)
    >>> trainer, total = CohortTrainer(task), ClippedSum(task.dim, clip_norm=0.5)
    >>> local = LocalTraining(learning_rate=0.05, epochs=1, batch_size=16)
    >>> counts = trainer.train(task.initial(1), [3, 4], local, total, seed=1, round_number=0)
    >>> counts.clients, total.total().shape == (task.dim,)
    (2, True)
"""

from fl_epe.training.cohort import CohortTrainer
from fl_epe.training.local import Execution, LocalTraining

__all__ = ["CohortTrainer", "Execution", "LocalTraining"]
