"""``fl-epe estimate``: every estimate and bound that a file of scores allows."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from fl_epe.auditing import (
    COIN_METHODS,
    LAYOUT,
    NotMeasured,
    Scores,
    ScoreSummary,
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
from fl_epe.checks import expected
from fl_epe.cli.console import EXIT_STATUS, STATUS_NOT_MEASURED, print_json, print_lines, terminal
from fl_epe.cli.options import a_path, add_command, real_number, whole_number
from fl_epe.verdict import VerdictRule

_SEVERAL = "lifted DP: independent runs of one mechanism, any dependence inside a run"


def add_estimate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``estimate`` to the subcommands."""
    estimate = add_command(
        commands,
        "estimate",
        _estimate,
        summary="every estimate and bound that a file of scores allows",
        description=f"Every estimate and bound that a file of scores allows. FILE is CSV, NPZ, "
        f"JSON or Parquet with {LAYOUT}; or NPY with observed scores alone. Larger scores say that "
        f"a canary took part. {EXIT_STATUS}",
        spell={"path": "FILE"}.get,
    )
    estimate.add_argument(
        "file",
        type=a_path,
        nargs="+",
        metavar="FILE",
        help="the scores; several files are independent runs of one mechanism, which give one more "
        "bound, 'lifted', that holds under any dependence of the scores inside a run",
    )
    estimate.add_argument(
        "--verdict",
        default="auto",
        metavar="METHOD",
        help="the one lower bound that counts; choose it before you see any score (default: auto, "
        "by the number of scores and delta)",
    )
    estimate.add_argument(
        "--simultaneous",
        action="store_true",
        help="also all valid lower bounds at once, corrected for their number (Bonferroni)",
    )
    estimate.add_argument(
        "--delta", type=real_number, default=1e-5, help="target δ (default: 1e-5)"
    )
    estimate.add_argument(
        "--dim",
        type=whole_number,
        help="the scores are cosines in that many dimensions: their null is then exact",
    )
    estimate.add_argument(
        "--confidence",
        type=real_number,
        default=0.95,
        help="of the intervals, two-sided, and of the bounds, one-sided (default: 0.95)",
    )
    estimate.add_argument(
        "--coins",
        action="store_true",
        help="each canary took part by an independent fair coin: show the one-run bounds too",
    )
    estimate.add_argument(
        "--together",
        action="store_true",
        help="all observed canaries, and no others, took part in the one release that the cosines "
        "are with: show ε of one alone too (needs --dim)",
    )
    estimate.add_argument(
        "--sum-norm",
        type=real_number,
        help="length of the sum of the canaries' directions, which makes that interval shorter "
        "(needs --together)",
    )
    estimate.add_argument("--json", action="store_true", help="print JSON instead of tables")


def _estimate(arguments: argparse.Namespace) -> int:
    rule = VerdictRule.parse(arguments.verdict)
    if ":" in arguments.verdict:
        expected("verdict", arguments.verdict, "to name a method alone, as scores are of one kind")
    if rule.method in COIN_METHODS and not arguments.coins:
        expected("verdict", rule.method, "to go with --coins")
    try:
        runs = [_scores(path, arguments) for path in arguments.file]
        _check_independent(runs, arguments.file)
        results = [_summary(scores, arguments, rule) for scores in runs]
    except NotMeasured as error:
        if not arguments.json:
            raise
        print_json(_nothing(error, arguments))
        return STATUS_NOT_MEASURED
    many: dict[str, Any] = {}
    if len(runs) > 1:
        many["lifted"] = {
            "runs": len(runs),
            "epsilon": lifted_lower_bound(runs, arguments.delta, confidence=arguments.confidence),
            "assumption": _SEVERAL,
        }
    if arguments.simultaneous:
        names = [str(path) for path in arguments.file]
        many["simultaneous"] = _at_once(dict(zip(names, runs, strict=True)), arguments)
    (_print_json if arguments.json else _print_tables)(arguments, results, many)
    return 0


def _check_independent(runs: list[Scores], files: list[Path]) -> None:
    """Refuse a file that is there twice: a copy is not another run."""
    seen: dict[bytes, Path] = {}
    for scores, path in zip(runs, files, strict=True):
        content = np.sort(scores.observed).tobytes()
        if content in seen:
            why = f"to be another run than {seen[content]}: their observed scores are the same"
            expected("path", str(path), why)
        seen[content] = path


def _scores(path: Path, arguments: argparse.Namespace) -> Scores:
    observed, unobserved = read_scores(path)
    return bare_scores(observed, unobserved, arguments.dim)


def _summary(scores: Scores, arguments: argparse.Namespace, rule: VerdictRule) -> ScoreSummary:
    found = summarize_checked(
        scores,
        arguments.delta,
        confidence=arguments.confidence,
        coins=arguments.coins,
        together=arguments.together,
        sum_norm=arguments.sum_norm,
    )
    method: str | None = rule.method
    if method == "auto":
        method = method_by_design(scores, arguments.delta, arguments.confidence)
    if method is None or method not in applicable_methods(scores, coins=arguments.coins):
        return found
    most = ceiling(scores, arguments.delta, arguments.confidence, method)
    return dataclasses.replace(found, verdict=method, ceiling=most)


def _at_once(runs: dict[str, Scores], arguments: argparse.Namespace) -> dict[str, Any]:
    """All valid bounds of all files, corrected for their number."""
    found = simultaneous_bounds(
        runs, arguments.delta, confidence=arguments.confidence, coins=arguments.coins
    )
    return {
        "confidence": found.confidence,
        "each": found.each,
        "bounds": {name: [row.to_dict() for row in rows] for name, rows in found.rows.items()},
    }


def _print_json(
    arguments: argparse.Namespace, results: list[ScoreSummary], many: dict[str, Any]
) -> None:
    values: dict[str, Any] = {"status": "ok", "reasons": []}
    if len(results) == 1:
        print_json({**values, **results[0].to_dict(), **many})
        return
    shown = zip(arguments.file, results, strict=True)
    files = [{"file": str(path), **result.to_dict()} for path, result in shown]
    print_json({**values, "files": files, **many})


def _print_tables(
    arguments: argparse.Namespace, results: list[ScoreSummary], many: dict[str, Any]
) -> None:
    from fl_epe.reporting import most_text, number, score_notes, score_tables

    console = terminal()
    for path, result in zip(arguments.file, results, strict=True):
        if len(results) > 1:
            print_lines(console, [f"{path}:"])
        for table in score_tables(result):
            console.print(table)
        for line in score_notes(result):
            console.print(line)
        if result.verdict is not None and result.ceiling is not None:
            words = f"• The verdict is {result.verdict!r}, chosen without regard to the scores; "
            words += "the other bounds are exploratory. "
            told = theorem(result.verdict, coins=arguments.coins)
            print_lines(console, [f"{words}It rests on {told}.", f"• {most_text(result.ceiling)}."])
    if lifted := many.get("lifted"):
        found = f"ε ≥ {number(lifted['epsilon'])} at {100 * arguments.confidence:.6g}%"
        print_lines(console, [f"All {lifted['runs']} runs: {found} ({_SEVERAL})."])
    if at_once := many.get("simultaneous"):
        bounds = at_once["bounds"]
        number_of = sum(map(len, bounds.values()))
        lines = [
            f"All {number_of} valid bounds at once, at {100 * at_once['confidence']:.6g}% "
            f"confidence together and {100 * at_once['each']:.5g}% each (Bonferroni):"
        ]
        for name, rows in bounds.items():
            cells = ", ".join(f"{row['method']} {number(row['epsilon'])}" for row in rows)
            lines.append(f"{name if len(bounds) > 1 else 'scores'}: ε ≥ {cells}")
        print_lines(console, lines)


def _nothing(error: NotMeasured, arguments: argparse.Namespace) -> dict[str, Any]:
    """The keys of a result, without any number for ε."""
    return {
        "status": "not measured",
        "reasons": [str(error)],
        "delta": arguments.delta,
        "confidence": arguments.confidence,
        "dim": arguments.dim,
        "estimates": [],
        "bounds": [],
        "gaussian": [],
    }
