"""Conformance: does an implementation of a mechanism do what its privacy claim says?

`conform` runs every check that suits a `Target`: odd inputs, its noise, games with several canaries
and statistics, its accountant. A mechanism passes if no check finds a fault.

Examples:
    Randomised response that tells the truth in 9 of 10 cases, with the claim of 3 of 4:

    >>> import math
    >>> from fl_epe.conformance import Target, conform
    >>> def response(bit, rng):
    ...     return round(bit[0, 0]) if rng.random() < 0.9 else 1 - round(bit[0, 0])
    >>> target = Target(
    ...     response, epsilon=math.log(3), norm="linf", inputs="clipped", nonnegative=True,
    ...     adjacency="zero-out", arrays=(1,), categories=True, others=())
    >>> [check.name for check in conform(target, trials=1000).failed]
    ['game: no longer than the clip norm']
"""

from typing import TYPE_CHECKING

from fl_epe.lazy import lazy_names

if TYPE_CHECKING:
    from fl_epe.conformance.result import ConformanceResult
    from fl_epe.conformance.suite import conform
    from fl_epe.conformance.target import Target

__all__ = ["ConformanceResult", "Target", "conform"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "fl_epe.conformance.result": ("ConformanceResult",),
        "fl_epe.conformance.suite": ("conform",),
        "fl_epe.conformance.target": ("Target",),
    },
)
