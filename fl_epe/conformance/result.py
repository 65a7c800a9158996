"""The result of a conformance suite, as a table, JSON and HTML."""

import dataclasses
import math
from collections import Counter
from typing import Any, get_args

from fl_epe.noise import Check, Severity
from fl_epe.reporting import render_page


@dataclasses.dataclass(frozen=True)
class ConformanceResult:
    """The result of `conform`.

    Attributes:
        target: "module:name" of the target, or empty.
        claimed: ε of the claim.
        delta: δ of the claim.
        checks: the checks, in the order in which they were made.
        detectable_epsilon: the smallest ε at δ that a game of ``trials`` trials detects with
            probability 0.8 if the noise is too small; infinite if it detects none.
        trials: the number of runs of each world in each game.
        noise: the law of the noise for which ``detectable_epsilon`` holds: the claimed one.
            Without a claim it is Gaussian, or Laplace with δ = 0.
        categories: whether a category is released, which may leak less about a record.
    """

    target: str
    claimed: float
    delta: float
    checks: list[Check]
    detectable_epsilon: float
    trials: int
    noise: str
    categories: bool

    @property
    def failed(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if check.outcome == "failed"]

    @property
    def passed(self) -> bool:
        """Whether no check failed, which does not prove the claim."""
        return not self.failed

    @property
    def summary(self) -> str:
        """The result in a sentence or two."""
        if math.isinf(self.detectable_epsilon):
            power = f"so large a claim cannot be contradicted by games of {self.trials:,} trials"
        else:
            power = (
                f"{self.trials:,} trials find ε from {self.detectable_epsilon:.2f} on in 4 of 5"
                f" runs, where {self.noise} noise is too small"
            )
            if self.categories:
                power += (
                    ", and more trials are needed where a category shows less"
                )
        total = f"{len(self.checks)} checks"
        counts = Counter(check.outcome for check in self.checks)
        if not self.passed:
            worst = self.ranked[0].severity
            return f"{counts['failed']} of {total} failed (worst: {worst}); {power}."
        summary = f"Nothing found in {total}"
        if counts["unknown"]:
            summary += f", of which {counts['unknown']} were undecided"
        if counts["not handled"]:
            summary += f", of which {counts['not handled']} found inputs that are not handled"
        return f"{summary}; {power}."

    @property
    def ranked(self) -> list[Check]:
        """The checks: the most severe failures first, then those not handled, unknown, passed."""
        ranks = [*get_args(Severity), "not handled", "unknown", "passed"]
        return sorted(
            self.checks,
            key=lambda check: ranks.index(check.severity or check.outcome),
        )

    def table(self) -> str:
        """A line for each check, failures first, and the commands that reproduce failures."""
        width = max(len(check.name) for check in self.checks)
        lines = [
            f"Claim: ε = {self.claimed:.4g} at δ = {self.delta:.3g}.",
            self.summary,
        ]
        for check in self.ranked:
            outcome = f"{check.severity or check.outcome:11}"
            lines.append(
                f"  {check.name:{width}}  {outcome}  {check.measured}  (claim: {check.claim})"
            )
            if check.outcome != "passed":
                lines.append(f"  {'':{width}}  {'':11}  {check.why}")
        return "\n".join(lines + self._commands())

    def as_json(self) -> dict[str, Any]:
        """The result as values for JSON."""
        return {
            **dataclasses.asdict(self),
            "passed": self.passed,
            "summary": self.summary,
        }

    def as_html(self) -> str:
        """A self-contained HTML page."""
        return render_page(
            "conformance.html.j2", found=self, again=self._commands()
        )

    def _commands(self) -> list[str]:
        """The distinct commands that reproduce the failures."""
        commands = dict.fromkeys(check.reproduce for check in self.failed)
        return [f"Again: {command}" for command in commands]
