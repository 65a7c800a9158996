"""DP-FedAvg with canaries on Flower: the strategy, the worker app, and functions that run them.

`simulate` runs a `Job` on this machine, and `run_on_grid` runs it on any Flower grid. PyTorch is
imported when a name that needs it is first used. Only `flower_internals.py` uses private parts of
Flower.

Examples:
    >>> from flwr.clientapp import ClientApp
    >>> from fl_epe.simulation import InProcessGrid
    >>> with InProcessGrid(ClientApp(), nodes=3) as grid:
    ...     list(grid.get_node_ids())
    [1, 2, 3]
"""

from typing import TYPE_CHECKING

from fl_epe.lazy import lazy_names
from fl_epe.simulation.checkpoint import (
    Job,
    files_named,
    has_checkpoint,
    load_job,
    remove_checkpoint,
)
from fl_epe.simulation.flower_internals import ensure_task_identity
from fl_epe.simulation.grids import InProcessGrid, RunStoppedError, StopRequest
from fl_epe.simulation.progress import Progress
from fl_epe.simulation.strategy import DPFedAvg

if TYPE_CHECKING:
    from fl_epe.simulation.run import run_on_grid, simulate
    from fl_epe.simulation.worker import worker_app

__all__ = [
    "DPFedAvg",
    "InProcessGrid",
    "Job",
    "Progress",
    "RunStoppedError",
    "StopRequest",
    "ensure_task_identity",
    "files_named",
    "has_checkpoint",
    "load_job",
    "remove_checkpoint",
    "run_on_grid",
    "simulate",
    "worker_app",
]

__getattr__, __dir__ = lazy_names(  # what trains, which needs PyTorch
    __name__,
    {
        "fl_epe.simulation.run": ("run_on_grid", "simulate"),
        "fl_epe.simulation.worker": ("worker_app",),
    },
)
