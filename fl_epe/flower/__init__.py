"""Federated learning with Flower: the strategy, the worker app, the ways to run them."""

from fl_epe.flower.grid import InProcessGrid
from fl_epe.flower.protocol import pack
from fl_epe.flower.run import Job, Progress, run_on_grid, simulate
from fl_epe.flower.strategy import DPFedAvg
from fl_epe.flower.worker import worker_app

__all__ = [
    "DPFedAvg",
    "InProcessGrid",
    "Job",
    "Progress",
    "pack",
    "run_on_grid",
    "simulate",
    "worker_app",
]
