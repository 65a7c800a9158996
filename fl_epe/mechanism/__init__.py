"""One round of DP-FedAvg: clip and add up updates, add noise, move the model and the clip norm.

State goes in and comes out of every function; the room needs NumPy only.

Examples:
    >>> import numpy as np
    >>> from fl_epe.mechanism import ClippedSum
    >>> clipped = ClippedSum(dim=2, clip_norm=1.0)
    >>> clipped.add(np.array([0.0, 0.5]))  # short enough
    True
    >>> clipped.add(np.array([3.0, 0.0]))
    False
    >>> clipped.total().round(6)
    array([1. , 0.5])
"""

from fl_epe.mechanism import clip_norms
from fl_epe.mechanism.clip_norms import AdaptiveClip, ClipNorm, FixedClip
from fl_epe.mechanism.clipping import BLOCK, ClippedSum, blocks, norm
from fl_epe.mechanism.noise import gaussian_noise
from fl_epe.mechanism.server_optimizers import (
    ServerAdam,
    ServerOptimizer,
    ServerSGD,
    advance,
    discounted_sums,
    sgd_weights,
)
from fl_epe.mechanism.strategies import (
    Banded,
    Strategy,
    parse_strategy,
    strategy_matrix,
)

__all__ = [
    "BLOCK",
    "AdaptiveClip",
    "Banded",
    "ClipNorm",
    "ClippedSum",
    "FixedClip",
    "ServerAdam",
    "ServerOptimizer",
    "ServerSGD",
    "Strategy",
    "advance",
    "blocks",
    "clip_norms",
    "discounted_sums",
    "gaussian_noise",
    "norm",
    "parse_strategy",
    "sgd_weights",
    "strategy_matrix",
]
