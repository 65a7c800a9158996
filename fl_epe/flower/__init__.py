"""Federated learning with Flower: the strategy, the worker app, the ways to run them."""

from fl_epe.flower.canary_audit import CanaryAudit
from fl_epe.flower.client_canaries import CanaryOrder, ClientCanaries, canary_mod
from fl_epe.flower.layout import Layout
from fl_epe.simulation import (
    DPFedAvg,
    InProcessGrid,
    Job,
    Progress,
    pack,
    run_on_grid,
    simulate,
    worker_app,
)

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
