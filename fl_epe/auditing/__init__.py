"""Evidence: the record of a run, scores of canaries, estimates of ε, lower bounds and assertions.

Everything here needs an `AuditRecord` or bare scores; nothing needs Flower or PyTorch.

Examples:
    >>> from fl_epe.auditing import epsilon_from_cosines
    >>> estimate = epsilon_from_cosines([0.02, 0.03, 0.04], dim=10_000, delta=1e-5)
    >>> estimate.low < estimate.epsilon < estimate.high
    True
"""

from fl_epe.auditing.analytical import Analytical, analytical
from fl_epe.auditing.answer import (
    Answer,
    answer,
    answer_metrics,
    answers,
    client_epsilon,
)
from fl_epe.auditing.assumptions import LEAST_FOR_NULL, null_misfit
from fl_epe.auditing.audited_client import AuditedClient, claim_adversary
from fl_epe.auditing.bounds import epsilon_lower_bound
from fl_epe.auditing.canary_load import (
    MOST_SHARE,
    REAL_UPDATES_LEFT_OUT,
    SHARE,
    CanaryLoad,
    canary_load,
)
from fl_epe.auditing.claim_scores import scores_for_claim
from fl_epe.auditing.epsilon_estimate import (
    EVERY_ROUND,
    FINAL_MODEL,
    Adversary,
    EpsilonDifference,
    EpsilonEstimate,
    Sees,
    epsilon_difference,
    epsilon_metrics,
)
from fl_epe.auditing.epsilon_so_far import epsilon_by_round
from fl_epe.auditing.estimators import (
    epsilon_from_cosines,
    epsilon_from_record,
    epsilon_from_scores,
    epsilon_of,
    epsilon_of_thresholds,
)
from fl_epe.auditing.evidence import (
    Evidence,
    Undecided,
    Verdict,
    assert_private,
    evidence_against_theory,
    find_evidence,
)
from fl_epe.auditing.faults import Fault, FaultBook, FaultKind
from fl_epe.auditing.ladder_fit import LadderFit, ladder_fit
from fl_epe.auditing.leave_one_out import others_share
from fl_epe.auditing.measured import (
    NotMeasured,
    at_chance,
    divergence,
    no_better_than_constant,
    tells_apart,
    updates_lost,
)
from fl_epe.auditing.record import AuditRecord
from fl_epe.auditing.record_parts import (
    CanaryCosines,
    ClientLog,
    Design,
    EarlyStop,
    Findings,
    Mechanism,
    Norms,
    Provenance,
    ServerStep,
    installed_versions,
)
from fl_epe.auditing.round_scores import RoundFacts
from fl_epe.auditing.run_auditor import RunAuditor
from fl_epe.auditing.score_file import (
    ScoreSummary,
    bare_scores,
    read_scores,
    summarize_scores,
)
from fl_epe.auditing.scores import Scores, quotients
from fl_epe.auditing.silo_claims import assert_silos_private
from fl_epe.auditing.silos import (
    RECORDS,
    SEEN_OF_SILOS,
    FederationFacts,
    SiloAdversary,
    SiloAnswer,
    SiloLine,
)
from fl_epe.auditing.view import STATISTICS, View, seen_by
from fl_epe.auditing.whitening import WINDOW, RoundCorrelation

__all__ = [
    "EVERY_ROUND",
    "FINAL_MODEL",
    "LEAST_FOR_NULL",
    "MOST_SHARE",
    "REAL_UPDATES_LEFT_OUT",
    "RECORDS",
    "SEEN_OF_SILOS",
    "SHARE",
    "STATISTICS",
    "WINDOW",
    "Adversary",
    "Analytical",
    "Answer",
    "AuditRecord",
    "AuditedClient",
    "CanaryCosines",
    "CanaryLoad",
    "ClientLog",
    "Design",
    "EarlyStop",
    "EpsilonDifference",
    "EpsilonEstimate",
    "Evidence",
    "Fault",
    "FaultBook",
    "FaultKind",
    "FederationFacts",
    "Findings",
    "LadderFit",
    "Mechanism",
    "Norms",
    "NotMeasured",
    "Provenance",
    "RoundCorrelation",
    "RoundFacts",
    "RunAuditor",
    "ScoreSummary",
    "Scores",
    "Sees",
    "ServerStep",
    "SiloAdversary",
    "SiloAnswer",
    "SiloLine",
    "Undecided",
    "Verdict",
    "View",
    "analytical",
    "answer",
    "answer_metrics",
    "answers",
    "assert_private",
    "assert_silos_private",
    "at_chance",
    "bare_scores",
    "canary_load",
    "claim_adversary",
    "client_epsilon",
    "divergence",
    "epsilon_by_round",
    "epsilon_difference",
    "epsilon_from_cosines",
    "epsilon_from_record",
    "epsilon_from_scores",
    "epsilon_lower_bound",
    "epsilon_metrics",
    "epsilon_of",
    "epsilon_of_thresholds",
    "evidence_against_theory",
    "find_evidence",
    "installed_versions",
    "ladder_fit",
    "no_better_than_constant",
    "null_misfit",
    "others_share",
    "quotients",
    "read_scores",
    "scores_for_claim",
    "seen_by",
    "summarize_scores",
    "tells_apart",
    "updates_lost",
]
