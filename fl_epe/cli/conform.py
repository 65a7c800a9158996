"""``fl-epe conform``: check an implementation of a mechanism against its privacy claim."""

import dataclasses
import pkgutil
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from fl_epe.checks import raise_invalid
from fl_epe.cli.console import NOT_OK, print_json, print_unwrapped, waiting
from fl_epe.cli.options import Group, Typed
from fl_epe.conformance import Target, conform
from fl_epe.tasks import look_in_current_folder

# Fields of a `Target` without an option in the group: the command sets the first two, and the
# others are functions or objects.
_NO_OPTION = ("where", "trials", "probes", "clip_rule")


@dataclasses.dataclass(frozen=True)
class Conform:
    """Check a mechanism against its privacy claim: unusual inputs, noise, games, accountant.

    TARGET is module:name of a fl_epe.conformance.Target, or of a function from updates (n, d) and a
    NumPy generator to what is released; then the options state the claim. Several canaries and test
    statistics are tried. A correct mechanism fails with a probability of at most --level. A
    mechanism that passes may still violate its claim: the output says which violations would have
    been detected. Exits with 3 if a check fails.

    Examples:
        fl-epe conform aggregation:noisy_sum --noise-multiplier 1 --delta 1e-5 --noise gaussian
        fl-epe conform counts:release --epsilon 1 --norm l1 --noise laplace --trials 20000
        fl-epe conform targets:strategy --html conformance.html

    Attributes:
        target: module:name of the target; the module is also searched in the current folder.
        trials: number of runs with, and without, the canary in each game (default: that of the
            target, or 4000 for a function).
        level: probability of a false alarm in any of the checks.
        seed: seed of canaries, trials and noise.
        json: print JSON instead of text.
        html: file for a page with the result.
        claim: the claim, as far as the target does not state it.
    """

    target: Annotated[str, "TARGET"]
    trials: int | None = None
    level: float = 0.01
    seed: int = 0
    json: bool = False
    html: Path | None = None
    claim: Annotated[Typed, Group(Target, _NO_OPTION)] = dataclasses.field(
        default_factory=dict
    )

    def __call__(self, words: Sequence[str]) -> int:
        """Run the checks and print them."""
        look_in_current_folder()
        try:
            release = pkgutil.resolve_name(self.target)
        except (ImportError, AttributeError, ValueError) as error:
            raise_invalid(
                "target", self.target, f"to be module:name, but: {error}"
            )
        # The typed target and claim, for messages that say how to repeat a check.
        typed = [self.target]
        for name, value in self.claim.items():
            typed.append(f"--{name.replace('_', '-')}")
            if isinstance(value, tuple):
                typed += map(str, value)
            elif value is not True:
                typed.append(str(value))
        if not isinstance(release, Target):
            release = Target(release, **self.claim)
        target = dataclasses.replace(
            release, **self.claim, where=shlex.join(typed)
        )
        with waiting("Running the mechanism, thousands of times"):
            conformance = conform(
                target, trials=self.trials, level=self.level, seed=self.seed
            )
        if self.html is not None:
            self.html.write_text(conformance.as_html(), encoding="utf-8")
        if self.json:
            print_json(conformance.as_json())
        else:
            print_unwrapped(conformance.table())
        if conformance.passed:
            return 0
        return NOT_OK
