"""A plugin of pytest: ``dp_conformance`` fails a test whose mechanism breaks its claim.

Example:
    A test of an aggregation function, with the claim in its marker::

        @pytest.mark.dp(noise_multiplier=1.0, delta=1e-5, noise="gaussian", adversary="every")
        def test_aggregation_is_private(dp_conformance):
            dp_conformance(noisy_sum, trials=2000)
"""

from __future__ import annotations

import dataclasses
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
    """Register the marker."""
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture
def dp_conformance(
    request: pytest.FixtureRequest,
) -> Callable[..., ConformanceResult]:
    """A function that checks a mechanism, and fails the test if the claim is violated.

    It takes a `Target`, or a function and the claim about it. Its arguments ``level`` and ``seed``
    are those of `conform`. Further arguments, and those of the marker ``dp``, are those of
    `Target`.
    """

    def check(
        target: Any, *, level: float = 0.01, seed: int = 0, **claim: Any
    ) -> ConformanceResult:
        from fl_epe.conformance import Target, conform  # slow to import

        marker = request.node.get_closest_marker("dp")
        if marker is not None:
            claim = {**marker.kwargs, **claim}
        if isinstance(target, Target):
            target = dataclasses.replace(target, **claim)
        else:
            target = Target(target, **claim)
        result = conform(target, level=level, seed=seed)
        if not result.passed:
            pytest.fail(result.table(), pytrace=False)
        return result

    return check
