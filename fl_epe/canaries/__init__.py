"""Canaries, random directions that any process regenerates from a seed, and their scorer.

`CanarySet` generates them; `CanaryScorer` keeps the cosine of each with every vector that an
adversary sees.

Examples:
    >>> import numpy as np
    >>> from fl_epe.canaries import CanarySet
    >>> canaries = CanarySet(dim=10_000, count=3, seed=1)
    >>> model = 2.0 * canaries.vector(0)  # only the first canary took part
    >>> [bool(product > 1) for product in canaries.dot(model)]
    [True, False, False]
"""

from fl_epe.canaries.canary_set import (
    SCORE_MEMORY,
    CanaryKind,
    CanaryScorer,
    CanarySet,
)
from fl_epe.canaries.directions import one_blas_thread, signs
from fl_epe.canaries.ladder import divided_places, ladder, rungs

__all__ = [
    "SCORE_MEMORY",
    "CanaryKind",
    "CanaryScorer",
    "CanarySet",
    "divided_places",
    "ladder",
    "one_blas_thread",
    "rungs",
    "signs",
]
