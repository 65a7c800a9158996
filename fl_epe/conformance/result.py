"""What a conformance suite found, as a table, JSON and HTML."""

from __future__ import annotations

import dataclasses
import html
import math
from typing import Any

from fl_epe.noise import Check

_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Conformance of {title}</title>
<style>body{{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:76rem;padding:0 1rem}}
table{{border-collapse:collapse}}th,td{{text-align:left;vertical-align:top;padding:.3rem .8rem;
border-bottom:1px solid #ccc}}.failed{{background:#fbe3e0}}.unknown{{color:#666}}</style>
<h1>Conformance of {title}</h1><p>{summary}</p><table><tr>{head}</tr>{rows}</table></html>
"""
_COLUMNS = ("check", "result", "claim", "measured", "severity", "why", "to reproduce")


@dataclasses.dataclass(frozen=True)
class ConformanceResult:
    """What `conform` found.

    Attributes:
        name: "module:name" of the target, or empty.
        claimed: ε of the claim.
        delta: δ of the claim.
        checks: in the order in which they were made.
        largest_epsilon: the largest ε at δ that a game of so many trials could have shown, of an
            attack that is never wrong.
        trials: runs of each world in each game.
    """

    name: str
    claimed: float
    delta: float
    checks: list[Check]
    largest_epsilon: float
    trials: int

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
        could = f"{self.trials:,} trials could have shown ε up to {self.largest_epsilon:.2f}"
        if self.passed:
            unknown = sum(one.outcome == "unknown" for one in self.checks)
            rest = f", of which {unknown} could not tell" if unknown else ""
            return f"Nothing found in {len(self.checks)} checks{rest}; {could}."
        worst = {one.severity for one in self.failed}
        rank = next(word for word in ("critical", "theoretical", "negligible") if word in worst)
        return f"{len(self.failed)} of {len(self.checks)} checks failed ({rank}); {could}."

    def table(self) -> str:
        """Each check in a line, failed ones first with why and how to show them again."""
        order = sorted(self.checks, key=lambda one: one.outcome != "failed")
        width = max((len(one.name) for one in order), default=0)
        lines = [f"Claim: ε = {self.claimed:.4g} at δ = {self.delta:.3g}.", self.summary]
        for one in order:
            word = one.severity or one.outcome
            lines.append(f"  {one.name:{width}}  {word:11}  {one.measured}  (claim: {one.claim})")
            if one.outcome != "passed" and one.why:
                lines.append(f"  {'':{width}}  {'':11}  {one.why}")
        again = dict.fromkeys(one.reproduce for one in self.failed if one.reproduce)
        return "\n".join([*lines, *(f"Again: {command}" for command in again)])

    def as_json(self) -> dict[str, Any]:
        """Values for JSON; an infinite ε is ``None``."""
        return {
            "target": self.name,
            "claimed": self.claimed if math.isfinite(self.claimed) else None,
            "delta": self.delta,
            "passed": self.passed,
            "summary": self.summary,
            "largest_epsilon": self.largest_epsilon,
            "trials": self.trials,
            "checks": [dataclasses.asdict(one) for one in self.checks],
        }

    def as_html(self) -> str:
        """A self-contained page."""
        rows = []
        for one in self.checks:
            cells = (one.name, one.outcome, one.claim, one.measured, one.severity or "", one.why)
            texts = [*cells, one.reproduce]
            row = "".join(f"<td>{html.escape(text)}</td>" for text in texts)
            rows.append(f'<tr class="{one.outcome}">{row}</tr>')
        head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
        title, summary = html.escape(self.name or "a target"), html.escape(self.summary)
        return _PAGE.format(title=title, summary=summary, head=head, rows="\n".join(rows))
