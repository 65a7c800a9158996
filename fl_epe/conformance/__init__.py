"""Conformance: does an implementation of a mechanism do what its privacy claim says?

`conform` runs every check that suits a `Target`: odd inputs, its noise, games with several canaries
and statistics, its accountant. A mechanism that passes is one in which nothing was found.
"""

from typing import TYPE_CHECKING

from fl_epe import lazy_names

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
