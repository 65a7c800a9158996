"""The result of one check of a mechanism, and the common result of several."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

from fl_epe.wording import counted

Outcome = Literal["passed", "failed", "unknown", "not handled"]
"""The outcome of a check.

"passed": it found no fault. "failed": it found one. "unknown": the values cannot decide it.
"not handled": an input is neither refused nor handled; this is a fault of the program, and
contradicts no claim on proper inputs.
"""

Severity = Literal["critical", "theoretical", "negligible"]
"""The severity of a failed check.

"critical": ε is infinite, or at least twice the claim, to a percent. "theoretical": the claim
is wrong by less, or by an amount that was not measured. "negligible": the claim is wrong by
less than rounding or a percent.
"""

_CRITICAL_PART = 0.505  # half of the noise, to a percent
_NEGLIGIBLE_PART = 0.99  # all of the noise, to a percent


@dataclasses.dataclass(frozen=True)
class Check:
    """The result of one check of a mechanism.

    Attributes:
        name: what was checked, in a few words.
        outcome: whether the check passed, see `Outcome`.
        claim: what should hold, in words or numbers.
        measured: what was measured.
        why: what a failure means for privacy, or why the check is undecided; a sentence.
        severity: the severity of a failure; else ``None``.
        reproduce: Python or shell code that reproduces a failure, ready to paste; else empty.
        infinite: whether a failure makes ε infinite.
    """

    name: str
    outcome: Outcome
    claim: str
    measured: str
    why: str = ""
    severity: Severity | None = None
    reproduce: str = ""
    infinite: bool = False

    @property
    def text(self) -> str:
        """What was measured, and what a failure means, as a clause without its full stop."""
        return f"{self.measured}. {self.why}".rstrip(". ")


def severity_of(part: float) -> Severity:
    """The severity of a failure, to a percent.

    Args:
        part: the smallest part of the claimed noise that was added, or the claimed ε or
            sensitivity over the true one; NaN if it is not known.
    """
    if part <= _CRITICAL_PART:
        return "critical"
    if part >= _NEGLIGIBLE_PART:
        return "negligible"
    return "theoretical"


def judged(
    name: str,
    *,
    claim: str,
    measured: str,
    why: str,
    log_chance: float,
    level: float,
    part: float = math.nan,
    reproduce: str = "",
) -> Check:
    """A check that fails if its p-value is below a level.

    Args:
        name: the name of the check.
        claim: what should hold.
        measured: what was measured.
        why: what a failure means.
        log_chance: the logarithm of the p-value.
        level: the probability of a false failure.
        part: the part of the claimed noise that was added, see `severity_of`.
        reproduce: code that reproduces the failure.
    """
    if log_chance < math.log(level):
        severity = severity_of(part)
        infinite = part == 0
        return Check(
            name, "failed", claim, measured, why, severity, reproduce, infinite
        )
    return Check(name, "passed", claim, measured)


def told(
    checks: Sequence[Check],
) -> Literal["as claimed", "not as claimed", "cannot be told"]:
    """The common result of several checks of noise; negligible failures do not count."""
    if faults(checks):
        return "not as claimed"
    unknown = {check.name for check in checks if check.outcome == "unknown"}
    decided = {check.name for check in checks if check.outcome != "unknown"}
    if "scale" in decided and "grid" not in unknown:
        return "as claimed"
    return "cannot be told"


def faults(checks: Sequence[Check]) -> list[Check]:
    """The checks that failed with more than negligible severity, the critical ones first."""
    failed = [
        check
        for check in checks
        if check.outcome == "failed" and check.severity != "negligible"
    ]
    return sorted(failed, key=lambda check: check.severity != "critical")


def fault(checks: Sequence[Check]) -> str:
    """The worst fault as a clause without its full stop; empty if `faults` has none."""
    failed = faults(checks)
    if not failed:
        return ""
    worst = failed[0]
    if len(failed) > 1:
        others_failed = counted(len(failed) - 1, "other check")
        further_failures = f"; {others_failed} of it failed"
    else:
        further_failures = ""
    return f"the noise is not as claimed ({worst.name}): {worst.text}{further_failures}"


def sentences(checks: Sequence[Check]) -> tuple[str, ...]:
    """The results of checks of noise: first the common result, then that of each check."""
    result = told(checks)
    reason = ""
    if result == "cannot be told":
        texts = [check.text for check in checks if check.outcome == "unknown"]
        reason = f", as {'; '.join(texts)}"
    details = [
        f"Noise, {check.name}: {check.outcome}; {check.text}."
        for check in checks
    ]
    return f"Noise: {result}{reason}.", *details
