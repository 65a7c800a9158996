"""A zoo of broken mechanisms, each beside its correct twin: what an audit should find, and pass.

`ZOO` lists them with the game to play. Before an audit is trusted that found nothing, see whether
it finds these.

Examples:
    >>> from fl_epe.auditing.games.zoo import ZOO
    >>> specimen = ZOO["too-little-noise"]
    >>> round(specimen.claim(delta=1e-5), 2)
    4.38
    >>> (broken,) = specimen.play(specimen.broken, observations=200, seed=1)
    >>> (twin,) = specimen.play(specimen.twin, observations=200, seed=1)
    >>> bool(broken.unobserved.std() < 0.7 < twin.unobserved.std())
    True
"""

from fl_epe.auditing.games.zoo.noise_bugs import (
    FewSeeds,
    NoiseOfWorkers,
    PrefixSums,
    RepeatedNoise,
    SharedNoise,
    TooLittleNoise,
    banded_factor,
)
from fl_epe.auditing.games.zoo.sensitivity_bugs import (
    AdaptiveSum,
    ClippedByTensor,
    ClipsTheMean,
    OneTensorUnclipped,
    SensitivityOverBatch,
    WeightedSum,
    strays_from,
)
from fl_epe.auditing.games.zoo.specimens import ZOO, Specimen

__all__ = [
    "ZOO",
    "AdaptiveSum",
    "ClippedByTensor",
    "ClipsTheMean",
    "FewSeeds",
    "NoiseOfWorkers",
    "OneTensorUnclipped",
    "PrefixSums",
    "RepeatedNoise",
    "SensitivityOverBatch",
    "SharedNoise",
    "Specimen",
    "TooLittleNoise",
    "WeightedSum",
    "banded_factor",
    "strays_from",
]
