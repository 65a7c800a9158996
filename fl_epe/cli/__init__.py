"""The command line ``fl-epe``, one file a command; `main` is the entry point."""

from fl_epe.cli.main import main

__all__ = ["main"]
