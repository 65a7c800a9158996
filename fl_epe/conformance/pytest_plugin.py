"""A plugin of pytest: ``dp_conformance`` fails a test whose mechanism breaks its claim.

Example:
    A test of an aggregation function, whose claim is its marker::

        @pytest.mark.dp(noise_multiplier=1.0, delta=1e-5, noise="gaussian", adversary="every")
        def test_aggregation_is_private(dp_conformance):
            dp_conformance(noisy_sum, trials=2000)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fl_epe.conformance import ConformanceResult

_MARKER = (
    "dp(epsilon=…, delta=…, adversary=…, …): the privacy claim that dp_conformance checks, with "
    "the names of fl_epe.conformance.Target"
)


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture
def dp_conformance(request: pytest.FixtureRequest) -> Callable[..., ConformanceResult]:
    """A function of a `Target`, or of a function with a claim, that fails the test if it must.

    Its arguments ``trials``, ``level`` and ``seed`` are those of `conform`; others, and those of
    the marker ``dp``, are those of `Target`.
    """

    def check(target: Any, **claim: Any) -> ConformanceResult:
        import dataclasses

        from fl_epe.conformance import Target, conform

        options = {
            name: claim.pop(name)
            for name in ("trials", "level", "seed")
            if name in claim
        }
        marker = request.node.get_closest_marker("dp")
        claim = {**(marker.kwargs if marker else {}), **claim}
        known = isinstance(target, Target)
        target = (
            dataclasses.replace(target, **claim) if known else Target(target, **claim)
        )
        found = conform(target, **options)
        if not found.passed:
            pytest.fail(found.table(), pytrace=False)
        return found

    return check
