"""DP-FedAvg with canaries on Flower: the strategy, the worker app, and ways to run them here.

Run a `Job` with `simulate` on this machine, or with `run_on_grid` on any Flower grid. Training
needs PyTorch, which is imported when such a name is first used. Only `flower_internals.py` touches
what Flower does not publish.

Examples:
    >>> from flwr.clientapp import ClientApp
    >>> from fl_epe.simulation import InProcessGrid
    >>> with InProcessGrid(ClientApp(), nodes=3) as grid:
    ...     list(grid.get_node_ids())
    [1, 2, 3]
"""

import importlib
from typing import TYPE_CHECKING, Any

from fl_epe.simulation.flower_internals import quiet_flower, simulate_with_ray
from fl_epe.simulation.in_process_grid import InProcessGrid
from fl_epe.simulation.messages import pack
from fl_epe.simulation.strategy import DPFedAvg

if TYPE_CHECKING:
    from fl_epe.simulation.run import Job, Progress, RunOptions, load_job, run_on_grid, simulate
    from fl_epe.simulation.worker import worker_app

__all__ = [
    "DPFedAvg",
    "InProcessGrid",
    "Job",
    "Progress",
    "RunOptions",
    "load_job",
    "pack",
    "quiet_flower",
    "run_on_grid",
    "simulate",
    "simulate_with_ray",
    "worker_app",
]

_TRAINS = {
    "Job": "run",
    "Progress": "run",
    "RunOptions": "run",
    "load_job": "run",
    "run_on_grid": "run",
    "simulate": "run",
    "worker_app": "worker",
}


def __getattr__(name: str) -> Any:
    if name not in _TRAINS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_TRAINS[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
