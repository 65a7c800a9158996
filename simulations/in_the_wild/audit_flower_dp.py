"""An audit of the installed Flower's DP wrappers: does a run leak more than they promise?

    python simulations/in_the_wild/audit_flower_dp.py               # two minutes on two cores
    python simulations/in_the_wild/audit_flower_dp.py --seeds 20    # controls in 20 seeds: 5 more
    python simulations/in_the_wild/audit_flower_dp.py --only FedAdam --tables 1

Every verdict is computed in the run, so a defect that a later version of Flower fixes is no longer
reported. To audit another strategy, write a `Case` for it.

**Table 1, privacy.** The claim is the ε of one participation in a Gaussian mechanism with the
configured noise multiplier. Twenty clients train on digits (4,810 parameters, uniform weights), a
thousand canaries take part beside them in one round each, and the noise is for all replies
together.

- "measured" is the estimate of ε with its 99% interval.
- "proved" is a lower bound, which exceeds the true ε with probability at most 1% in each case. The
  bound "weighted" holds for every distribution of the scores. The bound "gdp" is sharper and holds
  if the noise is Gaussian, as it is here; it is used where a small excess needs a sharper bound.
- "No violation found" does not prove that there is none. Around FedAvgM the wrapper adds a round's
  noise after the optimizer, which takes it for the clients' next update: later rounds take a part
  of it back, and the whitened scores show that.

In the one-round games, and in "clip norm alone", the spread of both groups of scores is fitted, so
that the estimate comes out high; the bound does not.

Controls use the wrappers as they are meant to be used. In the other cases one client's num-examples
are 1,000 times the others', half of the clients' replies are lost, another optimizer is wrapped,
clipping is adaptive (clip_norm_lr is 0.2, or 2 in "rate 2"), the released clip norm is attacked, or
a parameter is 0-d. With an accountant the canaries take the place of clients, because one more
reply makes a round fail.

**Table 2, adaptive clipping.** The clip norm of a round divided by the median of the updates'
norms, starting far below and far above it, for Flower and for `fl_epe` in the same settings.

**Table 3.** Single rounds with something odd in them.

Flower 1.41.0, two cores, CPU, 2026-11-21, seed 1; 1.42.0 has the same code::

Table 1: ε at δ = 1e-05, 1000 canaries, 99% confidence
                              claimed measured                   proved by       verdict
fixed, server side               4.38    4.36 (3.95 to 4.78)       2.41 weighted no violation found
fixed, client side               4.38    4.36 (3.95 to 4.78)       2.41 weighted no violation found
fixed, accountant                4.38    4.39 (3.98 to 4.80)       2.33 weighted no violation found
one round, array                 1.99    2.65 (1.08 to 5.84)       0.55 weighted no violation found
one round, 0-d array             1.99   93.85 (80.35 to 115.67)    5.05 weighted violation, proved
1,000 examples                   4.38   41.41 (40.59 to 42.23)    32.27 weighted violation, proved
1,000 examples, accountant       4.38  refused: Accounted aggregation requires equal client weights.
half lost                        4.38    9.18 (8.70 to 9.68)       5.83 weighted violation, proved
half lost, accountant            4.38  refused: every round is skipped
FedAdam                          4.38   39.75 (38.95 to 40.56)    39.23 weighted violation, proved
FedAdam, accountant              4.38  refused: Fixed-clipping accounting currently requires a [...]
FedAvgM, momentum 0.9            4.38   11.27 (10.74 to 11.81)     8.26 weighted violation, proved
FedAvgM, momentum 0.9, rate 2    4.38   24.41 (23.66 to 25.16)    18.87 weighted violation, proved
adaptive, server side            4.38    4.51 (4.09 to 4.92)       4.13 gdp      no violation found
adaptive, client side            4.38    4.51 (4.09 to 4.92)       4.13 gdp      no violation found
adaptive, server side, rate 2    4.38    7.11 (6.65 to 7.57)       6.69 gdp      violation, proved
adaptive, client side, rate 2    4.38    7.11 (6.65 to 7.57)       6.69 gdp      violation, proved
adaptive, clip norm alone        1.99    7.23 (4.21 to 11.63)      3.12 gdp      violation, proved

Controls in 20 seeds: bounds at or below the claim, and ε measured
fixed, server side               4.38    4.19 (3.88 to 4.61)     20 of 20
fixed, client side               4.38    4.19 (3.88 to 4.61)     20 of 20
fixed, accountant                4.38    4.22 (3.91 to 4.64)     20 of 20
one round, array                 1.99    3.09 (1.94 to 4.57)     20 of 20

Table 2: adaptive clip norm of a round over the median of the updates' norms
round                         1       10       20       30       45       60
Flower, server side        0.05   0.0199  0.00725   0.0025 0.000535 0.000118  elsewhere
Flower, client side        0.05   0.0199  0.00725   0.0025 0.000535 0.000118  elsewhere
fl_epe.AdaptiveClip        0.05    0.121     0.33    0.734     1.02     1.03  at the median
Flower, server side          20     48.1      130      331 1.42e+03 6.28e+03  elsewhere
Flower, client side          20     48.1      130      331 1.42e+03 6.28e+03  elsewhere
fl_epe.AdaptiveClip          20     7.97     2.97      1.4     1.08     1.04  at the median

Table 3: one odd round each
a zero update              DEFECT        raises ZeroDivisionError: float division by zero
NaN in an update           DEFECT        the model is poisoned: [nan  0.  0.]
infinity in an update      DEFECT        the model is poisoned: [nan  0.  0.]
1-d integer array          DEFECT        raises UFuncTypeError: Cannot cast ufunc 'multiply' [...]
0-d integer array          DEFECT        at C = 1 it moves by 100; the weights' 0.5 becomes 0.005
arrays in another order    DEFECT        moves of 0.1 become 16.6 and 16.6
one client fails           DEFECT        the round is skipped
noise can be repeated      DEFECT        np.random.seed repeats the noise
noise of an adaptive round DEFECT        std·n/z = 2.796, where C_t = 1 and C_t+1 = 2.788
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import logging
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.clientapp.typing import Mod
from flwr.serverapp import (
    NeighboringRelation,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
)
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    Strategy,
)
from numpy.typing import NDArray

from fl_epe.accounting import gaussian_epsilon
from fl_epe.auditing import (
    EVERY_ROUND,
    AuditRecord,
    Scores,
    find_evidence,
    scores_of,
    seen_by,
)
from fl_epe.auditing.claims.evidence import Evidence
from fl_epe.conformance.games import play
from fl_epe.flower import CanaryAudit
from fl_epe.simulation.flower_internals import quiet_flower
from simulations.in_the_wild.flower_dp_checks import CHECKS, trajectories
from simulations.shared.flower_federation import (
    Digits,
    LossyGrid,
    Model,
    client_app,
    one_round,
    seed_flower,
    to_record,
)

DELTA = 1e-5
CONFIDENCE = 0.99
CLIP = 0.1  # clip norm, and the adaptive ones' first
Floats = NDArray[np.float64]
Build = Callable[[float, int], Strategy]
"""Takes the noise multiplier and the number of replies it is for; returns a strategy."""


# The strategies.


def fixed(
    base: type[FedAvg] = FedAvg,
    *,
    on_client: bool = False,
    accountant: bool = False,
    **options: Any,
) -> Build:
    """Fixed clipping around ``base``, which takes the ``options``."""
    kind = (
        DifferentialPrivacyClientSideFixedClipping
        if on_client
        else DifferentialPrivacyServerSideFixedClipping
    )

    def build(z: float, replies: int) -> Strategy:
        inner = base(fraction_evaluate=0, **options)
        ledger = _accountant(replies) if accountant else None
        return kind(inner, z, CLIP, replies, accountant=ledger)

    return build


def _accountant(population: int) -> RdpAccountant:
    relation, sampling = (
        NeighboringRelation.ADD_OR_REMOVE_ONE,
        SamplingMethod.NO_AMPLIFICATION,
    )
    return RdpAccountant(PrivacyConfig(DELTA, population, relation, sampling))


def adaptive(rate: float, *, on_client: bool = False) -> Build:
    """Adaptive clipping around FedAvg, for the median, with ``clip_norm_lr=rate``."""
    kind = (
        DifferentialPrivacyClientSideAdaptiveClipping
        if on_client
        else DifferentialPrivacyServerSideAdaptiveClipping
    )
    return lambda z, replies: kind(
        FedAvg(fraction_evaluate=0), z, replies, CLIP, 0.5, rate
    )


# What is run, and scored.


@dataclasses.dataclass(frozen=True)
class Training:
    """Clients train on digits, and canaries take part beside them, each in one round.

    Attributes:
        build: makes the strategy.
        mods: mods of the clients.
        clients: number of clients in every round.
        canaries: number of canaries in every round.
        replace: canaries take the place of clients, so that the noise is for ``clients`` replies;
            otherwise they come on top, and it is for both together.
        weight: num-examples of a canary; by default that of a client.
        arriving: share of the clients' replies that arrives.
    """

    build: Build
    mods: tuple[Mod, ...] = ()
    clients: int = 20
    canaries: int = 20
    replace: bool = False
    weight: float | None = None
    arriving: float = 1.0

    def __call__(self, z: float, canaries: int, seed: int) -> CanaryAudit:
        """The audit after a run in which about so many canaries took part."""
        seed_flower(seed)
        rounds = max(1, canaries // self.canaries)
        replies = self.clients + (0 if self.replace else self.canaries)
        audit = CanaryAudit(
            self.build(z, replies),
            num_canaries=rounds * self.canaries,
            delta=DELTA,
            seed=seed,
            unobserved=0,
            num_examples=self.weight,
            max_share=1.0,  # what one heavy client may do is what is shown
        )
        clients, models = Digits(self.clients), list[ArrayRecord]()
        with LossyGrid(
            client_app(clients, self.mods), self.clients, self.arriving
        ) as grid:
            start = to_record(clients.initial())
            audit.start(
                grid,
                start,
                rounds,
                evaluate_fn=lambda _, model: models.append(model),
            )
        if all(model is models[0] for model in models):
            raise ValueError("every round is skipped")
        if refused := audit.record().findings.missing_canaries_reason:
            raise ValueError(refused.partition("Error: ")[2] or refused)
        return audit


@dataclasses.dataclass(frozen=True)
class OneRound:
    """The membership game on single rounds, for 0-d parameters, which random canaries do not test.

    Attributes:
        large_in: the parameter in which the canary's update is large; it is zero in the others.
    """

    large_in: str

    def __call__(self, z: float, canaries: int, seed: int) -> Scores:
        """Play ``canaries`` rounds, half of them with the canary."""
        seed_flower(seed)
        before: Model = {"w": np.zeros(4), "temperature": np.array(0.0)}
        coordinate = {"w": 0, "temperature": 4}[self.large_in]
        others = (
            0.05 * CLIP * np.random.default_rng(seed).standard_normal((4, 5))
        )

        def aggregate(updates: list[Floats]) -> Floats:
            updates = [x if x.any() else absent for x in updates]
            answers: list[Model] = [
                {"w": x[:4], "temperature": np.array(x[4])} for x in updates
            ]
            after = one_round(fixed()(z, len(updates)), before, answers)
            if after is None:
                raise ValueError("the round is skipped")
            return np.append(after["w"], after["temperature"]).astype(
                np.float64
            )

        canary, absent = 20 * CLIP * np.eye(5)[coordinate], np.full(5, 1e-6)
        return play(
            aggregate, list(others), canary, trials=canaries // 2, seed=seed
        )


def clip_norm_game(z: float, canaries: int, seed: int) -> Scores:
    """The same game on the adaptive clip norm alone: does one more client, who is clipped, show?

    By the wrapper's budget, noise of standard deviation σ_b on the count is worth z = 2·σ_b.
    """
    seed_flower(seed)

    def aggregate(updates: list[Floats]) -> Floats:
        answers: list[Model] = [
            {"w": update} for update in updates if update.any()
        ]
        strategy = DifferentialPrivacyServerSideAdaptiveClipping(
            FedAvg(fraction_evaluate=0),
            0.0,
            len(updates),
            CLIP,
            clipped_count_stddev=z / 2,
        )
        one_round(strategy, {"w": np.zeros(2)}, answers)
        return np.array([-np.log(strategy.clipping_norm), 0.0])

    other_updates, canary = [np.full(2, 1e-6)] * 20, np.array([10 * CLIP, 0.0])
    return play(
        aggregate, other_updates, canary, trials=canaries // 2, seed=seed
    )


# Table 1.


@dataclasses.dataclass(frozen=True)
class Case:
    """A use of the wrappers that promises ε(z) for one participation.

    Attributes:
        name: its name in the table.
        run: takes z, the number of canaries and a seed; returns what `find_evidence` takes.
        z: noise multiplier of the promise.
        method: name of the lower bound: "weighted" assumes nothing, "gdp" Gaussian noise.
        control: whether the wrapper is used as it is meant to be.
    """

    name: str
    run: Callable[[float, int, int], object]
    z: float = 1.0
    method: str = "weighted"
    control: bool = False

    @property
    def claimed(self) -> float:
        """The promised ε."""
        return gaussian_epsilon(self.z, DELTA)


_ACCOUNTED = fixed(accountant=True)
_MOMENTUM = Training(fixed(FedAvgM, server_momentum=0.9))
_FASTER = Training(
    fixed(FedAvgM, server_momentum=0.9, server_learning_rate=2.0)
)
_CLIPS, _VOTES = (fixedclipping_mod,), (adaptiveclipping_mod,)

CASES = (
    Case("fixed, server side", Training(fixed()), control=True),
    Case(
        "fixed, client side",
        Training(fixed(on_client=True), _CLIPS),
        control=True,
    ),
    Case(
        "fixed, accountant",
        Training(_ACCOUNTED, clients=40, replace=True),
        control=True,
    ),
    Case("one round, array", OneRound("w"), z=2.0, control=True),
    Case("one round, 0-d array", OneRound("temperature"), z=2.0),
    Case("1,000 examples", Training(fixed(), canaries=4, weight=1000)),
    Case(
        "1,000 examples, accountant",
        Training(_ACCOUNTED, clients=40, replace=True, weight=1000),
    ),
    Case("half lost", Training(fixed(), canaries=2, arriving=0.5)),
    Case(
        "half lost, accountant",
        Training(_ACCOUNTED, clients=40, replace=True, arriving=0.5),
    ),
    Case("FedAdam", Training(fixed(FedAdam), canaries=4)),
    Case(
        "FedAdam, accountant",
        Training(fixed(FedAdam, accountant=True), replace=True),
    ),
    Case("FedAvgM, momentum 0.9", _MOMENTUM),
    Case("FedAvgM, momentum 0.9, rate 2", _FASTER),
    Case("adaptive, server side", Training(adaptive(0.2)), method="gdp"),
    Case(
        "adaptive, client side",
        Training(adaptive(0.2, on_client=True), _VOTES),
        method="gdp",
    ),
    Case(
        "adaptive, server side, rate 2", Training(adaptive(2.0)), method="gdp"
    ),
    Case(
        "adaptive, client side, rate 2",
        Training(adaptive(2.0, on_client=True), _VOTES),
        method="gdp",
    ),
    Case("adaptive, clip norm alone", clip_norm_game, z=2.0, method="gdp"),
)


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of a case.

    Attributes:
        case: the case.
        evidence: ``None`` if the wrapper refused to run it.
        refusal: the wrapper's message, if it refused.
    """

    case: Case
    evidence: Evidence | None
    refusal: str = ""

    @property
    def verdict(self) -> str:
        """The result in a few words."""
        evidence = self.evidence
        if evidence is None:
            return f"refused: {self.refusal}"
        if evidence.refuted_by_bound:
            return "violation, proved"
        if evidence.violated:
            return "violation, if noise is Gaussian"
        if (
            evidence.estimate is not None
            and evidence.estimate.low > evidence.claimed
        ):
            return "measured more, not proved"
        return (
            "too few canaries to tell"
            if evidence.undecided_reason
            else "no violation found"
        )

    def __str__(self) -> str:
        row = f"{self.case.name:29} {self.case.claimed:7.2f}"
        if (found := self.evidence) is None or found.estimate is None:
            return f"{row}  {self.verdict}"
        low, high = found.estimate.low, found.estimate.high
        interval = f"{found.estimate.epsilon:7.2f} ({low:.2f} to {high:.2f})"
        return f"{row} {interval:26} {found.lower_bound:6.2f} {found.method:8} {self.verdict}"


def examine(case: Case, canaries: int, seed: int) -> Finding:
    """Run a case and weigh the evidence."""
    try:
        run = case.run(case.z, canaries, seed)
    except (ValueError, AggregationError) as error:
        return Finding(case, None, textwrap.shorten(str(error), 52))
    if not isinstance(run, Scores):  # of every canary, however heavy
        record: AuditRecord = getattr(run, "record")()  # noqa: B009 - of a strategy's audit
        run = scores_of(seen_by(record, EVERY_ROUND))
    evidence = find_evidence(
        run, case.claimed, DELTA, CONFIDENCE, method=case.method
    )
    return Finding(case, evidence)


def print_privacy(
    cases: Sequence[Case], canaries: int, seed: int
) -> list[Finding]:
    """Table 1."""
    print(
        f"Table 1: ε at δ = {DELTA:g}, {canaries} canaries, {CONFIDENCE:.0%} confidence"
    )
    print(f"{'':29} claimed measured {'':17} proved {'by':8} verdict")
    findings = []
    for case in cases:
        findings.append(examine(case, canaries, seed))
        print(findings[-1], flush=True)
    return findings


def print_controls(
    cases: Sequence[Case], canaries: int, seeds: Sequence[int]
) -> None:
    """Run the controls in many seeds; there a bound above the claim is a false accusation."""
    print(
        f"\nControls in {len(seeds)} seeds: bounds at or below the claim, and ε measured"
    )
    for case in cases:
        findings = [examine(case, canaries, seed) for seed in seeds]
        row, found = (
            f"{case.name:29} {case.claimed:7.2f}",
            [x.evidence for x in findings],
        )
        measured = [
            run.estimate.epsilon for run in found if run and run.estimate
        ]
        if len(measured) < len(found):
            print(
                f"{row}  {next(x.verdict for x in findings if x.evidence is None)}",
                flush=True,
            )
            continue
        passed = sum(
            evidence is not None and not evidence.violated for evidence in found
        )
        spread = f"{np.mean(measured):7.2f} ({min(measured):.2f} to {max(measured):.2f})"
        print(f"{row} {spread:26} {passed} of {len(found)}", flush=True)


# Tables 2 and 3.


def print_clip_norms(rounds: int, seed: int) -> None:
    """Table 2."""
    shown = sorted({min(t, rounds) for t in (1, 10, 20, 30, 45, 60, rounds)})
    print(
        "\nTable 2: adaptive clip norm of a round over the median of the updates' norms"
    )
    print(f"{'round':22}" + "".join(f"{t:>9}" for t in shown))
    for trajectory in trajectories(rounds, seed):
        cells = "".join(f"{trajectory.clip_norms[t - 1]:9.3g}" for t in shown)
        print(f"{trajectory.name:22}{cells}  {trajectory.verdict}", flush=True)


def print_checks() -> None:
    """Table 3."""
    print("\nTable 3: one odd round each")
    for check in CHECKS:
        well, words = check.result()
        print(
            f"{check.name:26} {'as it should' if well else 'DEFECT':13} {words}",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--canaries", type=int, default=1000, help="per case (default: 1000)"
    )
    parser.add_argument(
        "--rounds", type=int, default=60, help="of Table 2 (default: 60)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="of all that is drawn (default: 1)"
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=0,
        help="repeat the controls in so many seeds",
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="TEXT",
        help="cases whose name contains this",
    )
    parser.add_argument(
        "--tables", default="123", help="which tables (default: 123)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="200 canaries, half a minute"
    )
    options = parser.parse_args(arguments)
    quiet_flower()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    canaries = 200 if options.quick else options.canaries
    cases = [case for case in CASES if options.only in case.name]
    print(f"Flower {importlib.metadata.version('flwr')}\n")
    if "1" in options.tables:
        print_privacy(cases, canaries, options.seed)
    if options.seeds:
        controls = [case for case in cases if case.control]
        print_controls(
            controls,
            canaries,
            range(options.seed, options.seed + options.seeds),
        )
    if "2" in options.tables:
        print_clip_norms(options.rounds, options.seed)
    if "3" in options.tables:
        print_checks()


if __name__ == "__main__":
    main()
