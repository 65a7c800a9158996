"""The audit record of a run: its parts, its file and its faults.

An estimate from a record without an ε raises `NotMeasured`, with the reason.
"""

from fl_epe.auditing.record.audit_record import AuditRecord
from fl_epe.auditing.record.faults import Fault, FaultBook, FaultKind
from fl_epe.auditing.record.measured import (
    LEAST_CANARIES,
    NotMeasured,
    at_chance,
    check_measured,
    divergence,
    no_better_than_constant,
    not_measured,
    tells_apart,
    updates_lost,
)
from fl_epe.auditing.record.parts import (
    CanaryCosines,
    ClientLog,
    Design,
    EarlyStop,
    Findings,
    Mechanism,
    Norms,
    Provenance,
    RunningScores,
    ServerStep,
    installed_versions,
    quotients,
)
from fl_epe.auditing.record.round_correlation import (
    SKETCH_PARTS,
    WINDOW,
    Precision,
    Residual,
    RoundCorrelation,
    Whitener,
    energy_of_pairs,
    reach_of,
    whitened_row,
)

__all__ = [
    "LEAST_CANARIES",
    "SKETCH_PARTS",
    "WINDOW",
    "AuditRecord",
    "CanaryCosines",
    "ClientLog",
    "Design",
    "EarlyStop",
    "Fault",
    "FaultBook",
    "FaultKind",
    "Findings",
    "Mechanism",
    "Norms",
    "NotMeasured",
    "Precision",
    "Provenance",
    "Residual",
    "RoundCorrelation",
    "RunningScores",
    "ServerStep",
    "Whitener",
    "at_chance",
    "check_measured",
    "divergence",
    "energy_of_pairs",
    "installed_versions",
    "no_better_than_constant",
    "not_measured",
    "quotients",
    "reach_of",
    "tells_apart",
    "updates_lost",
    "whitened_row",
]
