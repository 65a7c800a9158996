"""The command line, one file a command.

`main` is the entry point of ``fl-epe``; a command imports what it needs when it runs.
"""

from fl_epe.cli.main import main

__all__ = ["main"]
