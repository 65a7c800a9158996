"""Canaries, random directions that any process regenerates from a seed, and their scorer.

`CanarySet` makes them; `CanaryScorer` keeps the cosine of each with every vector an adversary sees.
"""

from fl_epe.canaries.canary_set import CanarySet
from fl_epe.canaries.scorer import SCORE_MEMORY, CanaryScorer

__all__ = ["SCORE_MEMORY", "CanaryScorer", "CanarySet"]
