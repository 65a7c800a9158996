"""``fl-epe conform``: does an implementation of a mechanism do what its privacy claim says?"""

from __future__ import annotations

import dataclasses
import importlib
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fl_epe.checks import ArgumentError, raise_invalid
from fl_epe.cli.console import NOT_MEASURED, print_json, print_whole

if TYPE_CHECKING:
    from fl_epe.conformance import Target

_OF_THE_COMMAND = ("target", "trials", "level", "seed", "json", "html")


@dataclasses.dataclass(frozen=True)
class Conform:
    """Check a mechanism against its claim: odd inputs, noise, games, accountant.

    TARGET is module:name of a fl_epe.conformance.Target or of a function, from updates (n, d) and a
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
        epsilon: claimed ε (default: that of the noise multiplier).
        delta: claimed δ (default: 0).
        clip_norm: to which updates are clipped (default: 1).
        noise_multiplier: claimed, of Gaussian noise.
        norm: of the clip norm and the sensitivity (default: l2).
        noise: law of the noise, if it is claimed.
        sensitivity: of one release in that norm (default: the clip norm).
        adjacency: what neighbours are (default: add-or-remove).
        inputs: any, finite, or clipped by the caller: what an update may be (default: any).
        arrays: number of entries of each array of an update (default: 6 6).
        steps: of one run, whose releases are all seen (default: 1).
        sampling_rate: probability of a record to be in a step (default: 1).
        trials: runs of each world in each game (default: 4000, or those of the target).
        level: probability of a false alarm of all checks together.
        seed: of canaries, trials and noise.
        json: print JSON instead.
        html: also write a page there.
    """

    target: Annotated[str, "TARGET"]
    epsilon: float | None = None
    delta: float | None = None
    clip_norm: float | None = None
    noise_multiplier: float | None = None
    norm: Literal["l1", "l2", "linf"] | None = None
    noise: Literal["gaussian", "laplace"] | None = None
    sensitivity: float | None = None
    adjacency: Literal["add-or-remove", "zero-out", "substitute"] | None = None
    inputs: Literal["any", "finite", "clipped"] | None = None
    arrays: tuple[int, ...] | None = None
    steps: int | None = None
    sampling_rate: float | None = None
    trials: int | None = None
    level: float = 0.01
    seed: int = 0
    json: bool = False
    html: Path | None = None

    def __call__(self, words: Sequence[str]) -> int:
        """Run the checks and print them."""
        from fl_epe.conformance import conform

        found = conform(self._found(), trials=self.trials, level=self.level, seed=self.seed)
        if self.html is not None:
            self.html.write_text(found.as_html(), encoding="utf-8")
        if self.json:
            print_json(found.as_json())
        else:
            print_whole(found.table())
        return 0 if found.passed else NOT_MEASURED

    def _found(self) -> Target:
        """The target, with what was typed of its claim."""
        from fl_epe.conformance import Target

        claim = {
            field.name: value
            for field in dataclasses.fields(self)
            if field.name not in _OF_THE_COMMAND
            and (value := getattr(self, field.name)) is not None
        }
        options = [(f"--{name.replace('_', '-')}", value) for name, value in claim.items()]
        texts = [
            text
            for name, value in options
            for text in (name, *map(str, value if isinstance(value, tuple) else (value,)))
        ]
        claim["where"] = shlex.join([self.target, *texts])
        found = _imported(self.target)
        if isinstance(found, Target):
            return dataclasses.replace(found, **claim)
        if not callable(found):
            raise_invalid("target", self.target, "to be a Target or a function")
        return Target(found, **claim)


def _imported(reference: str) -> Any:
    from fl_epe.tasks import look_in_current_folder

    module, _, name = reference.partition(":")
    if not name or module.endswith(".py"):
        raise_invalid("target", reference, "to be module:name, with dots and without .py")
    look_in_current_folder()
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ArgumentError(f"Cannot load {{target}}: {error}.", target=reference) from error
