"""One question about a mechanism, and its answer."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

Outcome = Literal["passed", "failed", "unknown", "not handled"]
"""Of a check: nothing was found, something was, it cannot be told from what was seen, or an input
is neither refused nor handled, which is a fault of the program and of no claim on proper inputs."""

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
        why: what a failure means for privacy, or why it cannot be told; a sentence.
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
    """Of a failure, to a percent.

    Args:
        part: of the claimed noise that is there, where it is least; or what is claimed of ε, or of
            the sensitivity, over what there is; NaN if it is not known.
    """
    return (
        "critical" if part <= 0.505 else "negligible" if part >= 0.99 else "theoretical"
    )


def judged(
    name: str,
    log_chance: float,
    level: float,
    texts: tuple[str, str, str],
    left: float = math.nan,
    reproduce: str = "",
) -> Check:
    """A check that fails if its p-value is below a level.

    Args:
        name: of the check.
        log_chance: logarithm of the p-value.
        level: probability of a false failure.
        texts: what is claimed and measured, and what a failure means.
        left: of the noise, where it is least, if the check fails; NaN if that is not known.
        reproduce: shows the failure again.
    """
    claim, measured, why = texts
    if log_chance < math.log(level):
        found = severity_of(left)
        return Check(
            name, "failed", claim, measured, why, found, reproduce, infinite=left == 0
        )
    return Check(name, "passed", claim, measured)


def told(
    checks: Sequence[Check],
) -> Literal["as claimed", "not as claimed", "cannot be told"]:
    """What checks of noise say together; a failure that is negligible does not count."""
    if faults(checks):
        return "not as claimed"
    known = any(
        check.name == "scale" and check.outcome != "unknown" for check in checks
    )
    open_grid = any(
        check.name == "grid" and check.outcome == "unknown" for check in checks
    )
    return "as claimed" if known and not open_grid else "cannot be told"


def faults(checks: Sequence[Check]) -> list[Check]:
    """Those that failed by more than is negligible, the critical ones first."""
    found = [c for c in checks if c.outcome == "failed" and c.severity != "negligible"]
    return sorted(found, key=lambda check: check.severity != "critical")


def fault(checks: Sequence[Check]) -> str:
    """The worst fault as a clause without its full stop; empty without any."""
    found = faults(checks)
    more = f"; {len(found) - 1} more checks of it failed" if len(found) > 1 else ""
    return (
        f"the noise is not as claimed ({found[0].name}): {found[0].text}{more}"
        if found
        else ""
    )


def sentences(checks: Sequence[Check]) -> tuple[str, ...]:
    """What checks of noise say: first together, and then each."""
    unknown = "; ".join(check.text for check in checks if check.outcome == "unknown")
    why = f", as {unknown}" if told(checks) == "cannot be told" else ""
    each = [f"Noise, {c.name}: {c.outcome}; {c.text}." for c in checks]
    return f"Noise: {told(checks)}{why}.", *each
