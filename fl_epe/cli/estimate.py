"""``fl-epe estimate``: every estimate and bound that a file of scores allows."""

from __future__ import annotations

import argparse
from typing import Any

from fl_epe.auditing import LAYOUT, NotMeasured, read_scores
from fl_epe.cli.console import EXIT_STATUS, STATUS_NOT_MEASURED, print_json, terminal
from fl_epe.cli.options import a_path, add_command, real_number, whole_number


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
    estimate.add_argument("file", type=a_path, metavar="FILE", help="the scores")
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
    from fl_epe.auditing import summarize_scores
    from fl_epe.reporting import score_notes, score_tables

    observed, unobserved = read_scores(arguments.file)
    try:
        result = summarize_scores(
            observed,
            unobserved,
            arguments.delta,
            dim=arguments.dim,
            confidence=arguments.confidence,
            coins=arguments.coins,
            together=arguments.together,
            sum_norm=arguments.sum_norm,
        )
    except NotMeasured as error:
        if not arguments.json:
            raise
        print_json(_nothing(error, arguments))
        return STATUS_NOT_MEASURED
    if arguments.json:
        print_json({"status": "ok", "reasons": [], **result.to_dict()})
        return 0
    console = terminal()
    for table in score_tables(result):
        console.print(table)
    for line in score_notes(result):
        console.print(line)
    return 0


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
