"""A Flower server app that runs one of `tests/apps` without an audit and with one, and compares.

It writes what it found into ``verdict.txt``: "no harm", or the traceback.
"""

from __future__ import annotations

import dataclasses
import traceback
from pathlib import Path

import no_harm
from app_runs import run_app
from every_app import case_named
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

NO_HARM = "no harm"
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    compare(
        str(config["app-name"]),
        int(config["nodes"]),
        Path(str(config["output"])),
        grid,
    )


def compare(name: str, nodes: int, output: Path, grid: Grid) -> None:
    """Run an app twice on the nodes of a grid."""
    output.mkdir(parents=True)
    found = case_named(name)
    audit = {
        "max_share": 0.5,
        **found.audit,
    }  # two canaries a round beside five nodes
    case = dataclasses.replace(found, nodes=nodes, rounds=2, audit=audit)
    verdict = NO_HARM
    try:
        plain, audited = (
            run_app(case, grid, output / word, audited=word == "audited")
            for word in ("plain", "audited")
        )
        no_harm.check_all(case, plain, audited)
    except Exception:  # noqa: BLE001 - the test that started the process reads it
        verdict = traceback.format_exc()
    (output / "verdict.txt").write_text(verdict)
