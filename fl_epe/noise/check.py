"""One question about a mechanism, and its answer."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

Outcome = Literal["passed", "failed", "unknown", "not handled"]
"""Of a check: it found no fault, it found one, the values cannot decide it, or an input is neither
refused nor handled, which is a fault of the program and of no claim on proper inputs."""

Severity = Literal["critical", "theoretical", "negligible"]
"""Of a failed check. Critical: ε is infinite, or twice the claim, to a percent, or more.
Theoretical: the claim is wrong by less, or by what was not measured. Negligible: by less than
rounding or a percent."""


@dataclasses.dataclass(frozen=True)
class Check:
    """One question about a mechanism, and its answer.

    Attributes:
        name: what was checked, a few words.
        outcome: what came of it.
        claim: what should hold, in words or numbers.
        measured: what was found instead, or beside it.
        why: what a failure means for privacy, or why it cannot be decided; a sentence.
        severity: of a failure; else ``None``.
        reproduce: Python or shell that shows a failure again, as it can be pasted; else empty.
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
        """What was measured, and why that is no pass, as a clause without its full stop."""
        return f"{self.measured}. {self.why}".rstrip(". ")


def severity_of(part: float) -> Severity:
    """The severity of a failure, to a percent.

    Args:
        part: the part of the claimed noise that was added, where it is smallest; or the claimed ε
            or sensitivity over the true one; NaN if it is not known.
    """
    if part <= 0.505:
        return "critical"
    if part >= 0.99:
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
        name: of the check.
        claim: what should hold.
        measured: what was measured.
        why: what a failure means.
        log_chance: logarithm of the p-value.
        level: probability of a false failure.
        part: of the claimed noise that was added, see `severity_of`.
        reproduce: code that shows the failure again.
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
    """The common result of checks of noise; a failure that is negligible does not count."""
    if faults(checks):
        return "not as claimed"
    unknown = {check.name for check in checks if check.outcome == "unknown"}
    decided = {check.name for check in checks if check.outcome != "unknown"}
    if "scale" in decided and "grid" not in unknown:
        return "as claimed"
    return "cannot be told"


def faults(checks: Sequence[Check]) -> list[Check]:
    """The checks that failed by more than is negligible, the critical ones first."""
    failed = [
        c
        for c in checks
        if c.outcome == "failed" and c.severity != "negligible"
    ]
    return sorted(failed, key=lambda check: check.severity != "critical")


def fault(checks: Sequence[Check]) -> str:
    """The worst fault as a clause without its full stop; empty without any."""
    failed = faults(checks)
    if not failed:
        return ""
    worst = failed[0]
    if len(failed) > 1:
        more = f"; {len(failed) - 1} more checks of it failed"
    else:
        more = ""
    return f"the noise is not as claimed ({worst.name}): {worst.text}{more}"


def sentences(checks: Sequence[Check]) -> tuple[str, ...]:
    """The result of checks of noise: first the common one, then that of each check."""
    result = told(checks)
    reason = ""
    if result == "cannot be told":
        texts = [check.text for check in checks if check.outcome == "unknown"]
        reason = f", as {'; '.join(texts)}"
    details = [f"Noise, {c.name}: {c.outcome}; {c.text}." for c in checks]
    return f"Noise: {result}{reason}.", *details
