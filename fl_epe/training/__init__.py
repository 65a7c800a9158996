"""Local training: clients' data and the global model in, updates or their clipped sum out.

`CohortTrainer` trains all clients that a worker has in a round, as `Execution` says: one after
another, or many at once. `fl_epe.training.local.Trainer` trains a single client.

Examples:
    >>> from fl_epe.tasks import load_task
    >>> from fl_epe.training import LocalTraining
    >>> from fl_epe.training.local import Trainer
    >>> task = load_task("synthetic-emnist", num_clients=5, max_examples=8)
    >>> trainer = Trainer(task)
    >>> theta = task.initial(seed=1)
    >>> local = LocalTraining(learning_rate=0.05, epochs=1, batch_size=16)
    >>> update = trainer.train(theta, 3, local, seed=1, round_number=0)  # what client 3 learned
    >>> update.values.shape == theta.shape and update.examples > 0
    True
"""

from fl_epe.training.cohort import CohortTrainer
from fl_epe.training.execution import Execution
from fl_epe.training.local import LocalTraining

__all__ = ["CohortTrainer", "Execution", "LocalTraining"]
