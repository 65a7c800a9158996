"""Empirical privacy estimation for federated learning, in the same single run.

Importing this package loads nothing else; the module of a name is imported when the name is first
used. `fl_epe.flower` imports Flower, and imports PyTorch with the first name that trains models.

Examples:
    >>> from statistics import NormalDist
    >>> from fl_epe import epsilon_from_scores
    >>> observed = NormalDist(5, 1).samples(100, seed=1)  # of canaries that took part
    >>> unobserved = NormalDist(0, 1).samples(100, seed=2)  # of others that did not
    >>> epsilon_from_scores(observed, unobserved, delta=1e-5).epsilon > 1
    True
"""

from typing import TYPE_CHECKING

from fl_epe.lazy import lazy_names

if TYPE_CHECKING:
    from fl_epe.accounting import delta_two_gaussians, epsilon_two_gaussians
    from fl_epe.auditing import (
        EVERY_ROUND,
        FINAL_MODEL,
        Adversary,
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
    from fl_epe.dp_sgd import audit_dp_sgd
    from fl_epe.noise import check_noise
    from fl_epe.silos import audit_records

__version__ = "0.1.0"

__all__ = [
    "EVERY_ROUND",
    "FINAL_MODEL",
    "Adversary",
    "AuditRecord",
    "CanarySet",
    "EpsilonEstimate",
    "RoundFacts",
    "RunAuditor",
    "assert_private",
    "audit_dp_sgd",
    "audit_records",
    "check_noise",
    "delta_two_gaussians",
    "epsilon_from_cosines",
    "epsilon_from_record",
    "epsilon_from_scores",
    "epsilon_lower_bound",
    "epsilon_two_gaussians",
    "find_evidence",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "fl_epe.auditing": __all__,  # all names that are not listed below
        "fl_epe.accounting": ("delta_two_gaussians", "epsilon_two_gaussians"),
        "fl_epe.canaries": ("CanarySet",),
        "fl_epe.dp_sgd": ("audit_dp_sgd",),
        "fl_epe.noise": ("check_noise",),
        "fl_epe.silos": ("audit_records",),
    },
)
