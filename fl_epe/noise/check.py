"""The result of one check of a mechanism, and the common result of several."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

from fl_epe.wording import counted

Outcome = Literal["passed", "failed", "unknown", "not handled"]
"""The outcome of a check.

"passed": the check found no fault. "failed": it found one. "unknown": the values are not
sufficient to decide. "not handled": an input is neither refused nor handled, which is a fault of
the program, but contradicts no claim about proper inputs.
"""

Severity = Literal["critical", "theoretical", "negligible"]
"""The severity of a failed check.

"critical": ε is infinite, or at least twice the claim, within one percent. "theoretical": the
claim is wrong by less, or by an amount that was not measured. "negligible": the claim is wrong by
at most one percent, which may be an error of the estimate.
"""

SCALE = "scale"
"""Name of the check of the amount of all noise."""
GRID = "grid"
"""Name of the check that the values of noise are not on a coarse grid."""

_MAX_CRITICAL_FRACTION = 0.505  # half of the noise, plus one percent
_MIN_NEGLIGIBLE_FRACTION = 0.99  # all of the noise, less one percent


@dataclasses.dataclass(frozen=True)
class Check:
    """The result of one check of a mechanism.

    Attributes:
        name: what was checked, in a few words.
        outcome: whether the check passed, see `Outcome`.
        claim: what should be true, in words or numbers.
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
        """What was measured, and `why`, without the last full stop."""
        return f"{self.measured}. {self.why}".rstrip(". ")


def severity_of(fraction: float) -> Severity:
    """The severity of a failure, within one percent.

    Args:
        fraction: the fraction of the claimed noise that was added, or the claimed ε or sensitivity
            divided by the true one; NaN if it is not known.
    """
    if fraction <= _MAX_CRITICAL_FRACTION:
        return "critical"
    if fraction >= _MIN_NEGLIGIBLE_FRACTION:
        return "negligible"
    return "theoretical"


def check_of_p_value(
    name: str,
    *,
    claim: str,
    measured: str,
    why: str,
    log_p_value: float,
    level: float,
    fraction: float = math.nan,
    reproduce: str = "",
) -> Check:
    """A check that fails if its p-value is below a level.

    Args:
        name: the name of the check.
        claim: what should hold.
        measured: what was measured.
        why: what a failure means.
        log_p_value: the logarithm of the p-value.
        level: the largest probability of a failure if the claim is true.
        fraction: the fraction of the claimed noise that was added, see `severity_of`.
        reproduce: code that reproduces the failure.
    """
    if log_p_value < math.log(level):
        return Check(
            name,
            "failed",
            claim,
            measured,
            why,
            severity_of(fraction),
            reproduce,
            infinite=fraction == 0,
        )
    return Check(name, "passed", claim, measured)


def told(
    checks: Sequence[Check],
) -> Literal["as claimed", "not as claimed", "cannot be told"]:
    """The common result of several checks of noise; negligible failures do not count."""
    if faults(checks):
        return "not as claimed"
    outcomes = {check.name: check.outcome for check in checks}
    # Without the scale the amount of noise is not known, and an undecided grid may leak all.
    is_scale_known = outcomes.get(SCALE, "unknown") != "unknown"
    if is_scale_known and outcomes.get(GRID) != "unknown":
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
    """The worst of `faults`, without its full stop; empty if there is none."""
    failed = faults(checks)
    if not failed:
        return ""
    worst = failed[0]
    text = f"the noise is not as claimed ({worst.name}): {worst.text}"
    if len(failed) > 1:
        text += f"; {counted(len(failed) - 1, 'other check')} failed"
    return text


def sentences(checks: Sequence[Check]) -> tuple[str, ...]:
    """The results of checks of noise: first the common result, then that of each check."""
    outcome = told(checks)
    result = f"Noise: {outcome}."
    if outcome == "cannot be told":
        for check in checks:
            if check.outcome == "unknown":
                result += f" {check.why}."
    details = [
        f"Noise, {check.name}: {check.outcome}; {check.text}."
        for check in checks
    ]
    return result, *details
