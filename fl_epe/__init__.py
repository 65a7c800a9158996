"""Empirical privacy estimation for federated learning, in the same single run.

Importing this package loads nothing; a name brings its room when it is first used. `fl_epe.flower`
brings Flower, and PyTorch when something of it that trains models is asked for.

Examples:
    >>> from fl_epe import epsilon_from_scores
    >>> observed = [5.0 + i / 100 for i in range(-50, 50)]  # of canaries that took part
    >>> unobserved = [i / 50 for i in range(-50, 50)]  # of others that did not
    >>> epsilon_from_scores(observed, unobserved, delta=1e-5).epsilon > 1
    True
"""

from typing import TYPE_CHECKING, Any

from fl_epe.lazy import lazy_names

if TYPE_CHECKING:
    from fl_epe.accounting import delta_two_gaussians, epsilon_two_gaussians
    from fl_epe.auditing import (
        AuditRecord,
        EpsilonEstimate,
        RoundFacts,
        RunAuditor,
        assert_private,
        epsilon_from_cosines,
        epsilon_from_record,
        epsilon_from_scores,
        epsilon_lower_bound,
        find_evidence,
    )
    from fl_epe.canaries import CanarySet
    from fl_epe.config import RunConfig
    from fl_epe.dp_sgd import audit_dp_sgd

    Watch = RunAuditor

__version__ = "0.1.0"

__all__ = [
    "AuditRecord",
    "CanarySet",
    "EpsilonEstimate",
    "RoundFacts",
    "RunAuditor",
    "RunConfig",
    "Watch",
    "assert_private",
    "audit_dp_sgd",
    "delta_two_gaussians",
    "epsilon_from_cosines",
    "epsilon_from_record",
    "epsilon_from_scores",
    "epsilon_lower_bound",
    "epsilon_two_gaussians",
    "find_evidence",
]

_get, __dir__ = lazy_names(
    __name__,
    {
        "fl_epe.accounting": ("delta_two_gaussians", "epsilon_two_gaussians"),
        "fl_epe.auditing": (
            "AuditRecord",
            "EpsilonEstimate",
            "RoundFacts",
            "RunAuditor",
            "assert_private",
            "epsilon_from_cosines",
            "epsilon_from_record",
            "epsilon_from_scores",
            "epsilon_lower_bound",
            "find_evidence",
        ),
        "fl_epe.canaries": ("CanarySet",),
        "fl_epe.config": ("RunConfig",),
        "fl_epe.dp_sgd": ("audit_dp_sgd",),
    },
)


def __getattr__(name: str) -> Any:
    return _get("RunAuditor" if name == "Watch" else name)  # its name up to version 0.1
