"""Tests of a claim of (ε, δ)-DP, by a record, the scores in a file, or the answers of silos."""

from fl_epe.auditing.claims.evidence import (
    Evidence,
    Undecided,
    Verdict,
    assert_private,
    evidence_against_theory,
    find_evidence,
)
from fl_epe.auditing.claims.score_file import (
    ScoreSummary,
    bare_scores,
    read_scores,
    summarize_scores,
)
from fl_epe.auditing.claims.silo_claims import assert_silos_private

__all__ = [
    "Evidence",
    "ScoreSummary",
    "Undecided",
    "Verdict",
    "assert_private",
    "assert_silos_private",
    "bare_scores",
    "evidence_against_theory",
    "find_evidence",
    "read_scores",
    "summarize_scores",
]
