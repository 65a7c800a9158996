"""Federated learning with Flower: the strategy, the worker app, the ways to run them."""

from fl_epe.flower.audit import CanaryAudit
from fl_epe.flower.client_canaries import CanaryOrder, ClientCanaries, canary_mod
from fl_epe.flower.grid import InProcessGrid
from fl_epe.flower.layout import Layout
from fl_epe.flower.protocol import pack
from fl_epe.flower.run import Job, Progress, run_on_grid, simulate
from fl_epe.flower.strategy import DPFedAvg
from fl_epe.flower.worker import worker_app

__all__ = [
    "CanaryAudit",
    "CanaryOrder",
    "ClientCanaries",
    "DPFedAvg",
    "InProcessGrid",
    "Job",
    "Layout",
    "Progress",
    "canary_mod",
    "pack",
    "run_on_grid",
    "simulate",
    "worker_app",
]
