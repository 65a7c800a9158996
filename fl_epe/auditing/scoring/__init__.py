"""Scores of canaries: what an adversary computes from a record, in a `View`.

`null_misfit` and similar functions test whether scores follow the law that estimates assume.
"""

from fl_epe.auditing.scoring.assumptions import (
    LEAST_FOR_NULL,
    GaussianFit,
    check_known_variance,
    check_sign,
    gaussian_test,
    not_gaussian,
    null_misfit,
    wider_than_known,
)
from fl_epe.auditing.scoring.leave_one_out import (
    MIN_PROJECTED_SHARE,
    measure_others,
    others_share,
    project_out,
)
from fl_epe.auditing.scoring.reaction import RATES, Reaction
from fl_epe.auditing.scoring.scores import (
    UNKNOWN_ROUNDS,
    Scores,
    check_cosines,
    cosines_of,
    in_moderate_units,
    normal_deviates,
    residual_norm,
    shift_scores,
)
from fl_epe.auditing.scoring.statistics import (
    STATISTICS,
    mixture_ratios,
    scores_of,
)
from fl_epe.auditing.scoring.view import View, seen_by

__all__ = [
    "LEAST_FOR_NULL",
    "MIN_PROJECTED_SHARE",
    "RATES",
    "STATISTICS",
    "UNKNOWN_ROUNDS",
    "GaussianFit",
    "Reaction",
    "Scores",
    "View",
    "check_cosines",
    "check_known_variance",
    "check_sign",
    "cosines_of",
    "gaussian_test",
    "in_moderate_units",
    "measure_others",
    "mixture_ratios",
    "normal_deviates",
    "not_gaussian",
    "null_misfit",
    "others_share",
    "project_out",
    "residual_norm",
    "scores_of",
    "seen_by",
    "shift_scores",
    "wider_than_known",
]
