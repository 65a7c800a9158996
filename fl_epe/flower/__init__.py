"""Federated learning with Flower: an audit around any strategy, and a simulation of DP-FedAvg.

`CanaryAudit`, `canary_mod` and their parts need Flower alone. The simulation (`DPFedAvg`,
`simulate` and the rest) is loaded when one of its names is asked for; to train models it needs
PyTorch: ``pip install 'fl-epe[sim]'``.

Examples:
    >>> from flwr.serverapp.strategy import FedAvg
    >>> from fl_epe.flower import CanaryAudit
    >>> strategy = CanaryAudit(FedAvg(), num_canaries=1000, delta=1e-5)
    >>> # then: strategy.start(grid, initial_arrays, num_rounds=100); strategy.report("audit")
"""

import importlib
from typing import TYPE_CHECKING, Any

from fl_epe.flower.canary_audit import CanaryAudit
from fl_epe.flower.client_canaries import CanaryOrder, ClientCanaries, canary_mod
from fl_epe.flower.layout import Layout
from fl_epe.flower.self_auditing import SelfAuditing

if TYPE_CHECKING:
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
    "SelfAuditing",
    "canary_mod",
    "pack",
    "run_on_grid",
    "simulate",
    "worker_app",
]

_SIMULATION = {
    "DPFedAvg",
    "InProcessGrid",
    "Job",
    "Progress",
    "pack",
    "run_on_grid",
    "simulate",
    "worker_app",
}


def __getattr__(name: str) -> Any:
    if name not in _SIMULATION:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("fl_epe.simulation"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
