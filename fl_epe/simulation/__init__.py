"""DP-FedAvg with canaries on Flower: the strategy, the worker app, and ways to run them here.

It needs PyTorch. Only `flower_internals.py` touches what Flower does not publish.
"""

from fl_epe.simulation.flower_internals import (
    quiet_flower,
    simulate_with_ray,
)
from fl_epe.simulation.in_process_grid import (
    InProcessGrid,
)
from fl_epe.simulation.messages import (
    pack,
)
from fl_epe.simulation.run import (
    Job,
    Progress,
    load_job,
    run_on_grid,
    simulate,
)
from fl_epe.simulation.strategy import (
    DPFedAvg,
)
from fl_epe.simulation.worker import (
    worker_app,
)

__all__ = [
    "DPFedAvg",
    "InProcessGrid",
    "Job",
    "Progress",
    "load_job",
    "pack",
    "quiet_flower",
    "run_on_grid",
    "simulate",
    "simulate_with_ray",
    "worker_app",
]
