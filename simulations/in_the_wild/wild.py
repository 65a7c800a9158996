"""What the audits of released libraries share: leads, their table, a command line, and imports.

A `Lead` is a suspicion about released code, or a control that seems sound. Its game runs that code
unmodified in two neighbouring worlds, and its claim comes from the library's own accountant or
documentation. `examine` compares the claim with a lower bound on ε that holds with 99% confidence;
the method is chosen before any score is seen.

Severity: "critical" if the proved ε is at least twice the claim, "theoretical" if it is above the
claim by less. What cannot be proved is "none found", which does not mean that there is nothing.

Libraries are installed without what they depend on, so that nothing they pin replaces what is
installed here. `skip_init` and `placeholders` let the audited file be imported all the same; the
audited file itself is what `pip` unpacked.

Examples:
    >>> def noisy(updates: Floats) -> Floats:
    ...     return updates.sum(axis=0) + np.random.default_rng().normal(0, 0.1, updates.shape[1])
    >>> lead = Lead("a tenth of the noise", 4.4, played(noisy, np.eye(4)[0]), defect=True)
    >>> examine(lead, 300, seed=1).severity
    'critical'
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import importlib.machinery
import importlib.metadata
import io
import logging
import random
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from fl_epe.auditing import Scores, find_evidence
from fl_epe.checks import Floats
from fl_epe.conformance.games import (
    ALONG_CANARY,
    Adjacency,
    AuditedMechanism,
    Statistic,
    play_game,
)

CONFIDENCE, DELTA = 0.99, 1e-5
CRITICAL = 2.0  # times the claim

Release = Callable[[Floats], ArrayLike]
"""From updates, shape (n, d), to what is released, shape (d,), with noise of its own."""
Game = Callable[[int, int], Scores]
"""From a number of observations of each world, and a seed, to their scores."""


@dataclasses.dataclass(frozen=True)
class Lead:
    """One suspicion about a library, or one control.

    Attributes:
        name: what is audited, in a few words.
        claim: ε that the library's accountant or documentation gives for the game, in nats.
        game: plays both worlds.
        defect: whether a violation was found before; otherwise none must be found.
        delta: δ of the claim.
        method: name of the lower bound: "gdp" assumes Gaussian noise, ``None`` nothing.
        note: settings that it needs, or what becomes of it.
        most: the most observations of each world, where a step is slow.
    """

    name: str
    claim: float
    game: Game
    defect: bool = False
    delta: float = DELTA
    method: str | None = None
    note: str = ""
    most: int = 1_000_000


@dataclasses.dataclass(frozen=True)
class Finding:
    """What is proved about a lead.

    Attributes:
        lead: the lead.
        proved: lower bound on ε at 99% confidence.
        seconds: what the game took.
    """

    lead: Lead
    proved: float
    seconds: float

    @property
    def severity(self) -> str:
        """How far the claim is off, as far as it is proved."""
        if self.proved <= self.lead.claim:
            return "none found"
        return (
            "critical"
            if self.proved >= CRITICAL * self.lead.claim
            else "theoretical"
        )

    @property
    def as_expected(self) -> bool:
        """Whether a defect was found where one is known, and only there."""
        return (self.severity != "none found") == self.lead.defect

    def __str__(self) -> str:
        lead, method = self.lead, self.lead.method or "weighted"
        row = f"{lead.name:44} {lead.claim:8.3g} {self.proved:8.3g} {method:8} {self.severity:11}"
        return f"{row} {self.seconds:6.1f}  {lead.note}".rstrip()


def examine(lead: Lead, observations: int, seed: int) -> Finding:
    """Play a lead's game and compare the bound with the claim."""
    began = time.perf_counter()
    seed_globals(seed)
    with contextlib.redirect_stdout(io.StringIO()):  # what libraries print
        scores = lead.game(min(observations, lead.most), seed)
    evidence = find_evidence(
        scores, lead.claim, lead.delta, CONFIDENCE, method=lead.method
    )
    return Finding(lead, evidence.lower_bound, time.perf_counter() - began)


def seed_globals(seed: int) -> None:
    """Seed the global generators, which most libraries draw their noise from."""
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


class _Released(AuditedMechanism):
    def __init__(self, release: Release) -> None:
        self._release = release

    def release(self, updates: Floats, rng: np.random.Generator) -> ArrayLike:
        return self._release(updates)


def played(
    release: Release,
    canary: ArrayLike,
    *,
    others: ArrayLike = (),
    adjacency: Adjacency = "add-or-remove",
    weights: ArrayLike | None = None,
) -> Game:
    """A game for a function with noise of its own.

    Args:
        release: the function.
        canary: the update to hide, shape (d,).
        others: the other updates, shape (n, d).
        adjacency: what differs between the worlds.
        weights: a score is the inner product with these, shape (d,); by default with the canary.
    """
    statistic = ALONG_CANARY if weights is None else along(weights)

    def game(observations: int, seed: int) -> Scores:
        return play_game(
            _Released(release),
            adjacency,
            canary,
            observations=observations,
            others=others,
            statistic=statistic,
            seed=seed,
        )

    return game


def along(weights: ArrayLike) -> Statistic:
    """The inner product of what one step released with ``weights``."""
    direction = np.asarray(weights, np.float64)
    return Statistic(
        "a weighted sum", lambda released, _: float(released[0] @ direction)
    )


def skip_init(*packages: str) -> None:
    """Make these packages importable without running their ``__init__.py``, outer ones first.

    It is for packages whose ``__init__.py`` imports what the audited file does not need.
    """
    for name in packages:
        outer, _, _ = name.rpartition(".")
        path = sys.modules[outer].__path__ if outer else None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.submodule_search_locations is None:
            raise ModuleNotFoundError(f"No package named {name!r}", name=name)
        module = types.ModuleType(name)
        module.__path__ = list(spec.submodule_search_locations)
        module.__spec__ = spec
        sys.modules[name] = module


class _Placeholder(types.ModuleType):
    """A module in which every name is an empty class."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def placeholders(*modules: str) -> None:
    """Let these modules be imported although they are missing; the audited code uses none."""
    for name in modules:
        if name not in sys.modules:
            module = _Placeholder(name)
            module.__path__ = []
            sys.modules[name] = module


def print_table(
    leads: Iterable[Lead], observations: int, seeds: Sequence[int]
) -> bool:
    """Examine every lead, controls in every seed; returns whether all is as expected."""
    print(
        f"{'':44} {'claimed':>8} {'proved':>8} {'by':8} {'severity':11} {'s':>6}"
    )
    well = True
    for lead in leads:
        first = examine(lead, observations, seeds[0])
        later = (
            []
            if lead.defect
            else [examine(lead, observations, seed) for seed in seeds[1:]]
        )
        well &= first.as_expected and all(run.as_expected for run in later)
        passed = sum(run.as_expected for run in (first, *later))
        print(
            f"{first}{f'  {passed} of {len(seeds)} seeds pass' if later else ''}",
            flush=True,
        )
    return well


def main(
    distribution: str,
    leads: Callable[[], Sequence[Lead]],
    arguments: Sequence[str] | None = None,
    *,
    observations: int = 2000,
) -> int:
    """The command line of a script; the status is 1 if something is not as expected."""
    parser = argparse.ArgumentParser(
        description=f"Audit {distribution} as released."
    )
    parser.add_argument(
        "--quick", action="store_true", help="400 observations: seconds"
    )
    parser.add_argument(
        "--observations", type=int, default=observations, help="of each world"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="of all that is drawn (default: 1)"
    )
    parser.add_argument(
        "--seeds", type=int, default=1, help="repeat controls in so many seeds"
    )
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    print(
        f"{distribution} {importlib.metadata.version(distribution)}, δ = {DELTA:g} or as said"
    )
    count = 400 if options.quick else options.observations
    seeds = range(options.seed, options.seed + options.seeds)
    return 0 if print_table(leads(), count, seeds) else 1
