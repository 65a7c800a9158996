"""Federated learning with Flower: an audit around any strategy, and a simulation of DP-FedAvg.

`CanaryAudit`, `canary_mod` and their parts need Flower alone; a client's process, which imports
`canary_mod` anew for every message, loads no more than that. The simulation (`DPFedAvg`,
`simulate` and the rest) is loaded when one of its names is asked for; to train models it needs
PyTorch: ``pip install 'fl-epe[sim]'``.

Examples:
    >>> from flwr.serverapp.strategy import FedAvg
    >>> from fl_epe.flower import CanaryAudit
    >>> strategy = CanaryAudit(FedAvg(), delta=1e-5)
    >>> # then: strategy.start(grid, initial_arrays, num_rounds=100); strategy.report("audit")
"""

from typing import TYPE_CHECKING

from fl_epe.flower.client_canaries import ClientCanaries, canary_mod
from fl_epe.lazy import lazy_names

if TYPE_CHECKING:
    from fl_epe.flower.canary_audit import CanaryAudit
    from fl_epe.flower.record_audit import RecordAudit
    from fl_epe.noise import LocalDp
    from fl_epe.silos import answer_records, audit_records
    from fl_epe.simulation import DPFedAvg, InProcessGrid, simulate, worker_app

__all__ = [
    "CanaryAudit",
    "ClientCanaries",
    "DPFedAvg",
    "InProcessGrid",
    "LocalDp",
    "RecordAudit",
    "answer_records",
    "audit_records",
    "canary_mod",
    "simulate",
    "worker_app",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "fl_epe.flower.canary_audit": ("CanaryAudit",),
        "fl_epe.flower.record_audit": ("RecordAudit",),
        "fl_epe.noise": ("LocalDp",),
        "fl_epe.silos": ("answer_records", "audit_records"),
        "fl_epe.simulation": (
            "DPFedAvg",
            "InProcessGrid",
            "simulate",
            "worker_app",
        ),
    },
)
