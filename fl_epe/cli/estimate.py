"""``fl-epe estimate``: every estimate and bound that a file of scores allows."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar

from fl_epe.auditing import NotMeasured, ScoreSummary, bare_scores, read_scores, summarize_scores
from fl_epe.auditing.bounds import (
    BOUNDS,
    PrimaryBound,
    applicable_methods,
    ceiling,
    method_by_design,
)
from fl_epe.checks import raise_invalid
from fl_epe.cli.console import print_json, print_lines, terminal
from fl_epe.cli.errors import NOT_MEASURED


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Every estimate and bound that a file of scores allows.

    FILE is CSV, NPZ, JSON or Parquet with columns (or keys) 'observed' and, unless --dim is given,
    'unobserved'; or 'score' and 'member' (1 took part, 0 did not); or NPY with observed scores
    alone. Larger scores say that a canary took part.

    Attributes:
        file: the scores.
        verdict: the one lower bound that counts; choose it before you see any score (default:
            auto, by the number of scores and delta).
        delta: target δ.
        dim: the scores are cosines in that many dimensions: their null is then exact.
        confidence: of the intervals, two-sided, and of the bounds, one-sided.
        coins: each canary took part by an independent fair coin: show the one-run bound too.
        json: print JSON instead of tables.
    """

    NAMES: ClassVar = {"path": "FILE"}

    file: Annotated[Path, "FILE"]
    verdict: str = "auto"
    delta: float = 1e-5
    dim: int | None = None
    confidence: float = 0.95
    coins: bool = False
    json: bool = False

    def __call__(self, words: Sequence[str]) -> int:
        """Print them."""
        method = PrimaryBound.parse(self.verdict).method
        if ":" in self.verdict:
            wanted = "to name a method alone, as scores are of one kind"
            raise_invalid("verdict", self.verdict, wanted)
        if method != "auto" and BOUNDS[method].needs_coins and not self.coins:
            raise_invalid("verdict", method, "to go with --coins")
        try:
            found = self._summary(method)
        except NotMeasured as error:
            if not self.json:
                raise
            nothing = dict.fromkeys(("estimates", "bounds", "gaussian"), ())
            print_json({"status": "not measured", "reasons": [str(error)], **nothing})
            return NOT_MEASURED
        if self.json:
            print_json({"status": "ok", "reasons": [], **found.to_dict()})
        else:
            _print_tables(found)
        return 0

    def _summary(self, method: str | None) -> ScoreSummary:
        scores = bare_scores(*read_scores(self.file), self.dim)
        found = summarize_scores(scores, self.delta, confidence=self.confidence, coins=self.coins)
        if method == "auto":
            method = method_by_design(scores, self.delta, self.confidence)
        if method is None or method not in applicable_methods(scores, coins=self.coins):
            return found
        most = ceiling(scores, self.delta, self.confidence, method)
        return dataclasses.replace(found, verdict=method, ceiling=most)


def _print_tables(found: ScoreSummary) -> None:
    from fl_epe.reporting import most_text, score_notes, score_tables

    console = terminal()
    for shown in (*score_tables(found), *score_notes(found)):
        console.print(shown)
    if found.verdict is not None and found.ceiling is not None:
        words = (
            f"• The verdict is {found.verdict!r}, chosen without regard to the scores; the other "
            f"bounds are exploratory. It rests on {BOUNDS[found.verdict].theorem}."
        )
        print_lines(console, [words, f"• {most_text(found.ceiling)}."])
