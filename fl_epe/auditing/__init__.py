"""Evidence: the record of a run, scores of canaries, estimates of ε, lower bounds and assertions.

Everything here needs an `AuditRecord` or bare scores; nothing needs Flower or PyTorch.
"""

from fl_epe.auditing.assertions import (
    Evidence,
    Scores,
    assert_private,
    find_evidence,
    play,
)
from fl_epe.auditing.bounds.by_name import (
    BOUNDS,
    epsilon_lower_bound,
    lower_bound_by,
)
from fl_epe.auditing.estimators import (
    EpsilonEstimate,
    epsilon_from_cosines,
    epsilon_from_record,
    epsilon_from_scores,
    footprint_fit,
)
from fl_epe.auditing.normality import (
    anderson_darling,
)
from fl_epe.auditing.record import (
    AuditRecord,
    installed_versions,
)
from fl_epe.auditing.run_auditor import (
    RoundFacts,
    RunningEstimate,
    Watch,
)
from fl_epe.auditing.score_file import (
    LAYOUT,
    read_scores,
)
from fl_epe.auditing.score_summary import (
    COIN_METHODS,
    all_bounds,
    assess_scores,
    estimate_values,
    finite,
    gaussian_test,
)
from fl_epe.auditing.statistics import (
    STATISTICS,
    footprints,
    scores_from_record,
    secret_law,
)

__all__ = [
    "BOUNDS",
    "COIN_METHODS",
    "LAYOUT",
    "STATISTICS",
    "AuditRecord",
    "EpsilonEstimate",
    "Evidence",
    "RoundFacts",
    "RunningEstimate",
    "Scores",
    "Watch",
    "all_bounds",
    "anderson_darling",
    "assert_private",
    "assess_scores",
    "epsilon_from_cosines",
    "epsilon_from_record",
    "epsilon_from_scores",
    "epsilon_lower_bound",
    "estimate_values",
    "find_evidence",
    "finite",
    "footprint_fit",
    "footprints",
    "gaussian_test",
    "installed_versions",
    "lower_bound_by",
    "play",
    "read_scores",
    "scores_from_record",
    "secret_law",
]
