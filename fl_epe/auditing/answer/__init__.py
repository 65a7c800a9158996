"""The answer of an audit: ε of a client of the run, beside what theory allows.

The same ε is computed during a run (`EpsilonSoFar`) and after it (`answer`).
"""

from fl_epe.auditing.answer.answer import (
    Answer,
    answer,
    answer_metrics,
    answers,
    client_epsilon,
)
from fl_epe.auditing.answer.audited_client import AuditedClient, claim_adversary
from fl_epe.auditing.answer.claim_scores import num_members, scores_for_claim
from fl_epe.auditing.answer.epsilon_so_far import EpsilonSoFar, epsilon_by_round
from fl_epe.auditing.answer.estimators import (
    ANY_LAW,
    epsilon_from_cosines,
    epsilon_from_record,
    epsilon_from_scores,
    epsilon_of,
    epsilon_of_thresholds,
)
from fl_epe.auditing.answer.ladder_fit import LadderFit, LadderTest, ladder_fit
from fl_epe.auditing.answer.silos import (
    RECORDS,
    SEEN_OF_SILOS,
    FederationFacts,
    SiloAdversary,
    SiloAnswer,
    SiloLine,
)
from fl_epe.auditing.answer.theory import Analytical, analytical

__all__ = [
    "ANY_LAW",
    "RECORDS",
    "SEEN_OF_SILOS",
    "Analytical",
    "Answer",
    "AuditedClient",
    "EpsilonSoFar",
    "FederationFacts",
    "LadderFit",
    "LadderTest",
    "SiloAdversary",
    "SiloAnswer",
    "SiloLine",
    "analytical",
    "answer",
    "answer_metrics",
    "answers",
    "claim_adversary",
    "client_epsilon",
    "epsilon_by_round",
    "epsilon_from_cosines",
    "epsilon_from_record",
    "epsilon_from_scores",
    "epsilon_of",
    "epsilon_of_thresholds",
    "ladder_fit",
    "num_members",
    "scores_for_claim",
]
