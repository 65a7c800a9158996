"""The recorder of every audited run, whatever trains, and how many canaries a run takes."""

from fl_epe.auditing.recorder.canary_load import (
    REAL_UPDATES_LEFT_OUT,
    CanaryLoad,
)
from fl_epe.auditing.recorder.load_choice import (
    CANARY_SHARE,
    MAX_CANARY_SHARE,
    canary_load,
)
from fl_epe.auditing.recorder.round_scores import RoundFacts
from fl_epe.auditing.recorder.run_auditor import RunAuditor

__all__ = [
    "CANARY_SHARE",
    "MAX_CANARY_SHARE",
    "REAL_UPDATES_LEFT_OUT",
    "CanaryLoad",
    "RoundFacts",
    "RunAuditor",
    "canary_load",
]
