"""A privacy claim as a test: ``assert_private(run, epsilon, delta)``.

A failure disproves the claim at the given confidence and under the stated assumption. Passing does
not prove the claim: a better attack may get further. A true claim fails with probability at most
1 − confidence, so for 1% over a whole test suite use ``confidence=1 - 0.01 / tests``. This holds
only if a failed test is not repeated until it passes, and if the method is chosen in advance.

Examples:
    >>> import numpy as np
    >>> from fl_epe.auditing.games import play
    >>> rng = np.random.default_rng(0)
    >>> scores = play(lambda updates: sum(updates) + rng.normal(0, 1, 2), [], [1, 0], trials=50)
    >>> assert_private(scores, epsilon=5.0, delta=1e-5, method="gdp").violated
    False
"""

from fl_epe.auditing.epsilon_estimate import Adversary
from fl_epe.auditing.evidence import Evidence, find_evidence
from fl_epe.checks import raise_invalid


def assert_private(
    run: object,
    epsilon: float,
    delta: float,
    confidence: float = 0.99,
    *,
    adversary: Adversary | None = None,
    method: str | None = None,
) -> Evidence:
    """Fail if a run disproves the claim that it was (ε, δ)-DP; passing does not prove it.

    Arguments are those of `find_evidence`, whose evidence is returned.

    Raises:
        AssertionError: with the evidence, if the claim is violated, or the run has ``faults``.
        ValueError, TypeError: as `find_evidence`; if so few scores cannot disprove the claim; and
            if a method that assumes Gaussian noise would, and the scores refute that.
    """
    found = find_evidence(run, epsilon, delta, confidence, adversary=adversary, method=method)
    if found.violated or found.faults:
        raise AssertionError(str(found))
    if found.refuted and found.lower_bound > epsilon:
        wanted = f"to go with Gaussian scores: Anderson–Darling has p = {found.gaussian_p:.2g}. "
        wanted += "Leave out method, for a bound without that assumption"
        raise_invalid("method", found.method, wanted)
    if found.ceiling <= epsilon:
        wanted = f"< {found.ceiling:.4g}, the largest bound that {found.observed} + "
        wanted += f"{found.unobserved} scores can give with {found.method!r}. Use more canaries "
        raise_invalid(
            "epsilon", epsilon, f"{wanted}(or trials), or method='gdp' if the noise is Gaussian"
        )
    return found
