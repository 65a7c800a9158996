"""The command line, one file a command.

`main` is the entry point of ``fl-epe``; a command imports what it needs when it runs.

Examples:
    >>> from fl_epe.cli import main
    >>> main(["estimate", "missing.csv"])  # bad input: one line of error, and exit status 2
    2
"""

from fl_epe.cli.main import main

__all__ = ["main"]
