"""`Upload`: the upload of a silo's round, split into its residual and a known part."""

import dataclasses

from fl_epe.checks import Floats, Vector


@dataclasses.dataclass(frozen=True, eq=False)
class Upload:
    """The upload of a silo's round: the trained model minus the received one.

    Attributes:
        hidden: the sum of noise and canaries, ``(dim,)``: the upload minus ``real``.
        real: the part of the upload that is due to the silo's own records, ``(dim,)``.
        times: how much each canary added, in units of ``unit``, ``(count,)``; whole numbers if
            all steps have the same weight.
        unit: norm of what a record adds when it is drawn once, on average over the steps.
        weights: norm of what a record adds in each step, in units of ``unit``, ``(S,)``.
        rate: sampling rate of a step.
        variance: claimed variance of the noise in a coordinate.
    """

    hidden: Vector
    real: Vector
    times: Floats
    unit: float
    weights: Floats
    rate: float
    variance: float
