"""``fl-epe audit``: audits of mechanisms by name, with their tables and pictures."""

from __future__ import annotations

import argparse
from pathlib import Path

from fl_epe.audits import AUDITS, AuditSettings
from fl_epe.cli.console import print_json, terminal
from fl_epe.cli.options import a_path, add_command, add_options, given

_LIST = "list"
_EXAMPLES = """examples:
  fl-epe audit list
  fl-epe audit gaussian --quick
  fl-epe audit gaussian --observations 5000 --output runs/gaussian
"""


def add_audit(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``fl-epe audit``."""
    parser = add_command(
        commands,
        "audit",
        _audit,
        summary="audit a mechanism by name: DP-SGD, broken ones, …",
        description=(
            "Play membership games against a mechanism, and print what each bound proves of its "
            "ε. 'fl-epe audit list' lists the audits."
        ),
        examples=_EXAMPLES,
    )
    parser.add_argument("name", metavar="NAME", choices=[_LIST, *AUDITS], help="an audit, or list")
    add_options(parser, AuditSettings)
    parser.add_argument(
        "--output", type=a_path, metavar="DIR", help="write its tables and pictures here"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def _audit(arguments: argparse.Namespace) -> int:
    if arguments.name == _LIST:
        return _print_list(arguments.json)
    from fl_epe.reporting import write_audit

    settings = AuditSettings(**given(arguments, AuditSettings))
    result = AUDITS[arguments.name].run(settings)
    files = [] if arguments.output is None else write_audit(result, Path(arguments.output))
    if arguments.json:
        print_json(result.to_dict())
    else:
        _print("\n".join([result.text(), *(f"Written: {path}" for path in files)]))
    return 1 if result.passed is False else 0


def _print_list(as_json: bool) -> int:
    if as_json:
        facts = ("summary", "source", "extra")
        print_json({n: {f: getattr(a, f) for f in facts} for n, a in AUDITS.items()})
        return 0
    width = max(map(len, AUDITS))
    for name, audit in AUDITS.items():
        _print(f"{name:<{width}}  {audit.summary} ({audit.source})")
    return 0


def _print(text: str) -> None:
    """Print tables as they are, however wide the terminal is."""
    terminal().print(text, soft_wrap=True, markup=False, highlight=False)
