"""``fl-epe estimate``: every estimate and bound that a file of scores allows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from fl_epe.auditing import (
    COIN_METHODS,
    NotMeasured,
    PrimaryBound,
    Scores,
    ScoreSummary,
    SimultaneousBounds,
    applicable_methods,
    bare_scores,
    ceiling,
    lifted_lower_bound,
    method_by_design,
    read_scores,
    simultaneous_bounds,
    summarize_checked,
    theorem,
)
from fl_epe.checks import raise_invalid
from fl_epe.cli.console import print_json, print_lines, terminal
from fl_epe.cli.errors import NOT_MEASURED

_SEVERAL = "lifted DP: independent runs of one mechanism, any dependence inside a run"


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Every estimate and bound that a file of scores allows.

    FILE is CSV, NPZ, JSON or Parquet with columns (or keys) 'observed' and, unless --dim is given,
    'unobserved'; or 'score' and 'member' (1 took part, 0 did not); or NPY with observed scores
    alone. Larger scores say that a canary took part.

    Attributes:
        file: the scores; several files are independent runs of one mechanism, which give one more
            bound, 'lifted', that holds under any dependence of the scores inside a run.
        verdict: the one lower bound that counts; choose it before you see any score (default:
            auto, by the number of scores and delta).
        simultaneous: also all valid lower bounds at once, corrected for their number (Bonferroni).
        delta: target δ.
        dim: the scores are cosines in that many dimensions: their null is then exact.
        confidence: of the intervals, two-sided, and of the bounds, one-sided.
        coins: each canary took part by an independent fair coin: show the one-run bounds too.
        together: all observed canaries, and no others, took part in the one release that the
            cosines are with: show ε of one alone too (needs --dim).
        sum_norm: length of the sum of the canaries' directions, which makes that interval shorter
            (needs --together).
        json: print JSON instead of tables.
    """

    NAMES: ClassVar = {"path": "FILE"}

    file: Annotated[tuple[Path, ...], "FILE"]
    verdict: str = "auto"
    simultaneous: bool = False
    delta: float = 1e-5
    dim: int | None = None
    confidence: float = 0.95
    coins: bool = False
    together: bool = False
    sum_norm: float | None = None
    json: bool = False

    def __call__(self, words: Sequence[str]) -> int:
        """Print them."""
        rule = PrimaryBound.parse(self.verdict)
        if ":" in self.verdict:
            wanted = "to name a method alone, as scores are of one kind"
            raise_invalid("verdict", self.verdict, wanted)
        if rule.method in COIN_METHODS and not self.coins:
            raise_invalid("verdict", rule.method, "to go with --coins")
        try:
            runs = [bare_scores(*read_scores(path), self.dim) for path in self.file]
            _check_independent(runs, self.file)
            results = [self._summary(scores, rule) for scores in runs]
        except NotMeasured as error:
            if self.json:
                print_json(self._nothing(error))
                return NOT_MEASURED
            raise
        lifted = at_once = None
        if len(runs) > 1:
            lifted = lifted_lower_bound(runs, self.delta, confidence=self.confidence)
        if self.simultaneous:
            named = dict(zip(map(str, self.file), runs, strict=True))
            at_once = simultaneous_bounds(
                named, self.delta, confidence=self.confidence, coins=self.coins
            )
        (self._print_json if self.json else self._print_tables)(results, lifted, at_once)
        return 0

    def _summary(self, scores: Scores, rule: PrimaryBound) -> ScoreSummary:
        found = summarize_checked(
            scores,
            self.delta,
            confidence=self.confidence,
            coins=self.coins,
            together=self.together,
            sum_norm=self.sum_norm,
        )
        method: str | None = rule.method
        if method == "auto":
            method = method_by_design(scores, self.delta, self.confidence)
        if method is None or method not in applicable_methods(scores, coins=self.coins):
            return found
        most = ceiling(scores, self.delta, self.confidence, method)
        return dataclasses.replace(found, verdict=method, ceiling=most)

    def _print_json(
        self, results: list[ScoreSummary], lifted: float | None, at_once: SimultaneousBounds | None
    ) -> None:
        found = [result.to_dict() for result in results]
        named = [{"file": str(p)} | values for p, values in zip(self.file, found, strict=True)]
        shown: dict[str, Any] = found[0] if len(found) == 1 else {"files": named}
        if lifted is not None:
            about = {"runs": len(results), "epsilon": lifted, "assumption": _SEVERAL}
            shown = {**shown, "lifted": about}
        if at_once is not None:
            rows = {name: [row.to_dict() for row in some] for name, some in at_once.rows.items()}
            about = {"confidence": at_once.confidence, "each": at_once.each, "bounds": rows}
            shown = {**shown, "simultaneous": about}
        print_json({"status": "ok", "reasons": [], **shown})

    def _print_tables(
        self, results: list[ScoreSummary], lifted: float | None, at_once: SimultaneousBounds | None
    ) -> None:
        from fl_epe.reporting import (
            most_text,
            number,
            score_notes,
            score_tables,
            simultaneous_lines,
        )

        console = terminal()
        for path, result in zip(self.file, results, strict=True):
            if len(results) > 1:
                print_lines(console, [f"{path}:"])
            for table in score_tables(result):
                console.print(table)
            for line in score_notes(result):
                console.print(line)
            if result.verdict is not None and result.ceiling is not None:
                words = (
                    f"• The verdict is {result.verdict!r}, chosen without regard to the scores; "
                )
                words += "the other bounds are exploratory. It rests on "
                words += f"{theorem(result.verdict, coins=self.coins)}."
                print_lines(console, [words, f"• {most_text(result.ceiling)}."])
        if lifted is not None:
            found = f"ε ≥ {number(lifted)} at {100 * self.confidence:.6g}%"
            print_lines(console, [f"All {len(results)} runs: {found} ({_SEVERAL})."])
        print_lines(console, simultaneous_lines(at_once))

    def _nothing(self, error: NotMeasured) -> dict[str, Any]:
        """The keys of a result, without any number for ε."""
        asked = {"delta": self.delta, "confidence": self.confidence, "dim": self.dim}
        values: dict[str, Any] = {name: [] for name in ("estimates", "bounds", "gaussian")}
        return {"status": "not measured", "reasons": [str(error)], **asked, **values}


def _check_independent(runs: Sequence[Scores], files: Sequence[Path]) -> None:
    """Refuse a file that is there twice: a copy is not another run."""
    seen: dict[bytes, Path] = {}
    for scores, path in zip(runs, files, strict=True):
        content = np.sort(scores.observed).tobytes()
        if content in seen:
            why = f"to be another run than {seen[content]}: their observed scores are the same"
            raise_invalid("path", str(path), why)
        seen[content] = path
