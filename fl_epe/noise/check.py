"""One question about a mechanism, and its answer."""

import dataclasses
from typing import Literal

Outcome = Literal["passed", "failed", "unknown"]
"""Of a check: nothing was found, something was, or it cannot be told from what was seen."""

Severity = Literal["critical", "theoretical", "negligible"]
"""Of a failed check. Critical: ε is infinite, or at least twice the claim. Theoretical: the claim is
wrong by less, or by what was not measured. Negligible: by less than rounding or a percent."""


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
    """

    name: str
    outcome: Outcome
    claim: str
    measured: str
    why: str = ""
    severity: Severity | None = None
    reproduce: str = ""
