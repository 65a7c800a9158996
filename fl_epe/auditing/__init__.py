"""Evidence: the record of a run, scores of canaries, estimates of ε, lower bounds and assertions.

Everything here needs an `AuditRecord` or bare scores; nothing needs Flower or PyTorch.

Examples:
    >>> from fl_epe.auditing import epsilon_from_cosines
    >>> estimate = epsilon_from_cosines([0.02, 0.03, 0.04], dim=10_000, delta=1e-5)
    >>> estimate.low < estimate.epsilon < estimate.high
    True
"""

from fl_epe.auditing import games
from fl_epe.auditing.assertions import Evidence, assert_private, ceiling, find_evidence
from fl_epe.auditing.bounds.by_name import (
    BOUNDS,
    COIN_METHODS,
    epsilon_lower_bound,
    headline_method,
    least_canaries,
    lower_bound,
    lower_bound_by,
)
from fl_epe.auditing.bounds.exchangeable import LowerLimits, lower_limits
from fl_epe.auditing.bounds.hidden_substitute import hidden_substitute_lower_bound
from fl_epe.auditing.bounds.lifted import lifted_lower_bound
from fl_epe.auditing.bounds.one_threshold import lower_bounds_at
from fl_epe.auditing.bounds.subsampled import (
    composed_lower_bound,
    noise_multiplier_limit,
    subsampled_lower_bound,
)
from fl_epe.auditing.dependence import Dependence, dependence
from fl_epe.auditing.difference import EpsilonDifference, epsilon_difference
from fl_epe.auditing.divergence import divergence
from fl_epe.auditing.epsilon_by_round import RoundEstimate, epsilon_by_round
from fl_epe.auditing.epsilon_estimate import EpsilonEstimate
from fl_epe.auditing.estimators import (
    FootprintFit,
    epsilon_from_cosines,
    epsilon_from_record,
    epsilon_from_scores,
    epsilon_of,
    epsilon_together,
    footprint_fit,
    unknown_rounds_estimate,
)
from fl_epe.auditing.games.play import play
from fl_epe.auditing.measured import NotMeasured, check_measured
from fl_epe.auditing.measured_null import (
    NULL_CANARIES,
    MeasuredNull,
    Misfit,
    NullTally,
    misfits,
    scorer_with_null,
)
from fl_epe.auditing.normality import (
    GaussianFit,
    anderson_darling,
    combined_p_value,
    gaussian_by_group,
)
from fl_epe.auditing.one_release import LARGE_OVERLAP
from fl_epe.auditing.other_canaries import (
    least_deviations,
    measure_others,
    others_share,
    with_others,
    without_others,
)
from fl_epe.auditing.random_client import ExposedOfMany, RandomClient, RunSchedules, random_client
from fl_epe.auditing.record import AuditRecord
from fl_epe.auditing.record_from_scorer import record_from_scorer
from fl_epe.auditing.record_parts import (
    CanaryCosines,
    ClientLog,
    Mechanism,
    Norms,
    Provenance,
    installed_versions,
)
from fl_epe.auditing.round_agreement import SKETCH_PARTS
from fl_epe.auditing.run_auditor import RoundFacts, RunAuditor, RunningEstimate
from fl_epe.auditing.score_file import LAYOUT, read_scores
from fl_epe.auditing.score_spread import LEAST_FOR_NULL, wider_than_known
from fl_epe.auditing.score_summary import (
    BoundRow,
    ScoreSummary,
    all_bounds,
    bare_scores,
    finite,
    gaussian_test,
    summarize_checked,
    summarize_scores,
)
from fl_epe.auditing.scores import Scores
from fl_epe.auditing.sequential import WatchedMean, confidence_sequence
from fl_epe.auditing.statistics import (
    STATISTICS,
    ThreatModel,
    footprints,
    participant_signals,
    round_footprints,
    scores_for_claim,
    scores_from_record,
    unknown_rounds_law,
)
from fl_epe.auditing.verdict import (
    SimultaneousBounds,
    applicable_methods,
    method_by_design,
    simultaneous_bounds,
    theorem,
)
from fl_epe.auditing.watched_claims import WATCHED_METHODS, WatchedEvidence, watch_claim

__all__ = [
    "BOUNDS",
    "COIN_METHODS",
    "LARGE_OVERLAP",
    "LAYOUT",
    "LEAST_FOR_NULL",
    "NULL_CANARIES",
    "SKETCH_PARTS",
    "STATISTICS",
    "WATCHED_METHODS",
    "AuditRecord",
    "BoundRow",
    "CanaryCosines",
    "ClientLog",
    "Dependence",
    "EpsilonDifference",
    "EpsilonEstimate",
    "Evidence",
    "ExposedOfMany",
    "FootprintFit",
    "GaussianFit",
    "LowerLimits",
    "MeasuredNull",
    "Mechanism",
    "Misfit",
    "Norms",
    "NotMeasured",
    "NullTally",
    "Provenance",
    "RandomClient",
    "RoundEstimate",
    "RoundFacts",
    "RunAuditor",
    "RunSchedules",
    "RunningEstimate",
    "ScoreSummary",
    "Scores",
    "SimultaneousBounds",
    "ThreatModel",
    "WatchedEvidence",
    "WatchedMean",
    "all_bounds",
    "anderson_darling",
    "applicable_methods",
    "assert_private",
    "bare_scores",
    "ceiling",
    "check_measured",
    "combined_p_value",
    "composed_lower_bound",
    "confidence_sequence",
    "dependence",
    "divergence",
    "epsilon_by_round",
    "epsilon_difference",
    "epsilon_from_cosines",
    "epsilon_from_record",
    "epsilon_from_scores",
    "epsilon_lower_bound",
    "epsilon_of",
    "epsilon_together",
    "find_evidence",
    "finite",
    "footprint_fit",
    "footprints",
    "games",
    "gaussian_by_group",
    "gaussian_test",
    "headline_method",
    "hidden_substitute_lower_bound",
    "installed_versions",
    "least_canaries",
    "least_deviations",
    "lifted_lower_bound",
    "lower_bound",
    "lower_bound_by",
    "lower_bounds_at",
    "lower_limits",
    "measure_others",
    "method_by_design",
    "misfits",
    "noise_multiplier_limit",
    "others_share",
    "participant_signals",
    "play",
    "random_client",
    "read_scores",
    "record_from_scorer",
    "round_footprints",
    "scorer_with_null",
    "scores_for_claim",
    "scores_from_record",
    "simultaneous_bounds",
    "subsampled_lower_bound",
    "summarize_checked",
    "summarize_scores",
    "theorem",
    "unknown_rounds_estimate",
    "unknown_rounds_law",
    "watch_claim",
    "wider_than_known",
    "with_others",
    "without_others",
]
