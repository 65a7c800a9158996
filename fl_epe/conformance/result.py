"""What a conformance suite found, as a table, JSON and HTML."""

import dataclasses
import math
from collections import Counter
from typing import Any, get_args

from fl_epe.noise import Check, Outcome, Severity
from fl_epe.reporting import render_page


@dataclasses.dataclass(frozen=True)
class ConformanceResult:
    """What `conform` found.

    Attributes:
        target: "module:name" of the target, or empty.
        claimed: ε of the claim.
        delta: δ of the claim.
        checks: in the order in which they were made.
        detectable_epsilon: the smallest ε at δ that a game of so many trials finds in 4 of 5 runs,
            where noise is too small; infinite if it finds none.
        trials: runs of each world in each game.
        noise: law of the noise that this is of: the claimed one, or where the claim says none
            Gaussian, or with δ = 0 Laplace.
        categories: whether a category is released, which may show less of a record.
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
        """What was found."""
        return [one for one in self.checks if one.outcome == "failed"]

    @property
    def passed(self) -> bool:
        """Whether nothing was found, which proves nothing."""
        return not self.failed

    @property
    def summary(self) -> str:
        """The result in a sentence or two."""
        could = (
            f"{self.trials:,} trials find ε from {self.detectable_epsilon:.2f} on in 4 of 5 runs,"
            f" where {self.noise} noise is too small"
        )
        if self.categories:
            could += ", and more trials are needed where a category shows less"
        if math.isinf(self.detectable_epsilon):
            could = f"so large a claim cannot be contradicted by games of {self.trials:,} trials"
        words: dict[Outcome, str] = {
            "unknown": "could not tell",
            "not handled": "found inputs that are not handled",
        }
        counts = Counter(one.outcome for one in self.checks)
        rest = "".join(
            f", of which {counts[x]} {word}" for x, word in words.items() if counts[x]
        )
        if self.passed:
            return f"Nothing found in {len(self.checks)} checks{rest}; {could}."
        worst = self.ranked[0].severity
        return f"{counts['failed']} of {len(self.checks)} checks failed (worst: {worst}); {could}."

    @property
    def ranked(self) -> list[Check]:
        """The checks, the most severe failures first, then what is unknown, then what passed."""
        ranks = [*get_args(Severity), "not handled", "unknown", "passed"]
        return sorted(
            self.checks, key=lambda one: ranks.index(one.severity or one.outcome)
        )

    def table(self) -> str:
        """Each check in a line, failed ones first with why and how to show them again."""
        width = max(len(one.name) for one in self.checks)
        lines = [
            f"Claim: ε = {self.claimed:.4g} at δ = {self.delta:.3g}.",
            self.summary,
        ]
        for one in self.ranked:
            word = f"{one.severity or one.outcome:11}"
            lines.append(
                f"  {one.name:{width}}  {word}  {one.measured}  (claim: {one.claim})"
            )
            if one.outcome != "passed":
                lines.append(f"  {'':{width}}  {'':11}  {one.why}")
        return "\n".join([*lines, *self._again()])

    def as_json(self) -> dict[str, Any]:
        """Values for JSON."""
        return {
            **dataclasses.asdict(self),
            "passed": self.passed,
            "summary": self.summary,
        }

    def as_html(self) -> str:
        """A self-contained page."""
        return render_page("conformance.html.j2", found=self, again=self._again())

    def _again(self) -> list[str]:
        return [
            f"Again: {one}"
            for one in dict.fromkeys(one.reproduce for one in self.failed)
        ]
