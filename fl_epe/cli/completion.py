"""``fl-epe completion``: a script that completes commands and options in the user's shell."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Literal


@dataclasses.dataclass(frozen=True)
class Completion:
    """Print a script that completes commands and options in your shell.

    Examples:
        bash: fl-epe completion bash > ~/.local/share/bash-completion/completions/fl-epe
        zsh:  fl-epe completion zsh > ~/.zfunc/_fl-epe     (with ~/.zfunc in fpath, before compinit)
        fish: fl-epe completion fish > ~/.config/fish/completions/fl-epe.fish

    Attributes:
        shell: bash, zsh, fish or tcsh.
    """

    shell: Annotated[Literal["bash", "zsh", "fish", "tcsh"], "SHELL"]

    def __call__(self, words: Sequence[str]) -> int:
        """Print the script."""
        import shtab

        from fl_epe.cli.main import parser_for

        print(shtab.complete(parser_for(words, complete=True), self.shell))
        return 0
