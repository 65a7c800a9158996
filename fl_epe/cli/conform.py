"""``fl-epe conform``: does an implementation of a mechanism do what its privacy claim says?"""

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

# Fields of a `Target` without an option; the last two cannot be typed.
_NOT_TYPED = ("where", "trials", "probes", "clip_rule")


@dataclasses.dataclass(frozen=True)
class Conform:
    """Check a mechanism against its claim: odd inputs, noise, games, accountant.

    TARGET is module:name of a fl_epe.conformance.Target, or of a function from updates (n, d) and a
    NumPy generator to what is released, whose claim the options say. Nobody has to know which
    canary or statistic would show an error: several are tried, and a right mechanism fails with a
    probability of --level at most. That nothing was found proves nothing; what so many trials could
    have shown is said. Exits with 3 if a check fails.

    Examples:
        fl-epe conform aggregation:noisy_sum --noise-multiplier 1 --delta 1e-5 --noise gaussian
        fl-epe conform counts:release --epsilon 1 --norm l1 --noise laplace --trials 20000
        fl-epe conform targets:strategy --html conformance.html

    Attributes:
        target: module:name, found from the current folder.
        trials: runs of each world in each game (default: those of the target, 4000 of a function).
        level: probability of a false alarm of all checks together.
        seed: of canaries, trials and noise.
        json: print JSON instead.
        html: also write a page there.
        claim: the claim, where the target does not say it.
    """

    target: Annotated[str, "TARGET"]
    trials: int | None = None
    level: float = 0.01
    seed: int = 0
    json: bool = False
    html: Path | None = None
    claim: Annotated[Typed, Group(Target, _NOT_TYPED)] = dataclasses.field(
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
