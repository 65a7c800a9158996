"""One round of DP-FedAvg: clip and add up updates, add noise, move the model and the clip norm.

State goes in and comes out of every function; the room needs NumPy only.
"""

from fl_epe.mechanism.clip_norms import AdaptiveClip, ClipNorm, FixedClip
from fl_epe.mechanism.clipped_sum import ClippedSum
from fl_epe.mechanism.clipping import clip, norm
from fl_epe.mechanism.noise import gaussian_noise, split_noise_multiplier
from fl_epe.mechanism.server_optimizers import (
    ServerAdam,
    ServerOptimizer,
    ServerSGD,
    sgd_weights,
)

__all__ = [
    "AdaptiveClip",
    "ClipNorm",
    "ClippedSum",
    "FixedClip",
    "ServerAdam",
    "ServerOptimizer",
    "ServerSGD",
    "clip",
    "gaussian_noise",
    "norm",
    "sgd_weights",
    "split_noise_multiplier",
]
