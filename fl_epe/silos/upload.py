"""`Upload`: what a silo's round uploads, split into its residual and the known part."""

import dataclasses

from fl_epe.checks import Floats, Vector


@dataclasses.dataclass(frozen=True, eq=False)
class Upload:
    """The upload of a silo's round: its model less the one that it was sent.

    Attributes:
        hidden: noise and canaries, ``(dim,)``: the upload less ``real``.
        real: the part of the silo's own records, ``(dim,)``.
        times: what each canary added, in units of ``unit``, ``(count,)``; whole numbers where all
            steps have the same weight.
        unit: norm of what a record adds once, on average over the steps.
        weights: of each step in units of ``unit``, ``(S,)``.
        rate: sampling rate of a step.
        variance: of the noise in a coordinate, as it is claimed.
    """

    hidden: Vector
    real: Vector
    times: Floats
    unit: float
    weights: Floats
    rate: float
    variance: float
