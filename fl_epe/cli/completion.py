"""``fl-epe completion``: a script that completes commands and options in the user's shell."""

from __future__ import annotations

import argparse

from fl_epe.cli.options import add_command

_SHELLS = ("bash", "zsh", "fish", "tcsh")
_EXAMPLES = """examples:
  bash: fl-epe completion bash > ~/.local/share/bash-completion/completions/fl-epe
  zsh:  fl-epe completion zsh > ~/.zfunc/_fl-epe     (with ~/.zfunc in fpath, before compinit)
  fish: fl-epe completion fish > ~/.config/fish/completions/fl-epe.fish
"""


def add_completion(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], whole: argparse.ArgumentParser
) -> None:
    """Add ``completion`` to the subcommands of the ``whole`` parser."""
    completion = add_command(
        commands,
        "completion",
        lambda arguments: _completion(arguments.shell, whole),
        summary="print a script that completes commands and options in your shell",
        description="Print a script that completes commands and options in your shell.",
        examples=_EXAMPLES,
    )
    completion.add_argument("shell", choices=_SHELLS, metavar="SHELL", help=", ".join(_SHELLS))


def _completion(shell: str, parser: argparse.ArgumentParser) -> int:
    try:
        import shtab
    except ImportError as error:
        raise RuntimeError(
            "Completion needs shtab, which is not installed: pip install shtab."
        ) from error
    print(shtab.complete(parser, shell))
    return 0
