"""ε of a record in a federation of a few silos, measured from uploads, averages and the last model.

    python simulations/studies/silos.py [--runs 200] [--canaries 200] [--dim 4000] [--setting three]

Each silo takes steps of DP-SGD before it uploads their sum; canary records are in one of them, by
coins of their own. Gradients do not depend on the model (the *linear limit*), so that ε of each
adversary is known exactly: a record is in a release a binomial number of times, and the noise is
that of all steps in it (a mixture of Gaussians, docs/notes/silos.md). Silos without canaries are
one Gaussian draw a round. The adversaries: the server, who sees the audited silo's uploads; a
partner, who sees every average and subtracts its own upload; an outsider, who sees every average;
the public, which has the last model.

For each setting, audited silo and adversary it prints exact ε, ε as measured on average, how many
95% intervals hold it, κ with its deviation, how many proofs (95%) are above it, and theory (the
accountant's ε of every step). No line is an upper bound but theory: where gradients react to the
model, ε of uploads may be larger than the linear limit.
"""

import argparse
import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator

import numpy as np

from fl_epe import RoundFacts, RunAuditor
from fl_epe.accounting import hidden_rounds_epsilon
from fl_epe.auditing import Answer, RoundCorrelation, answer, claim_adversary
from fl_epe.schedules import Events, ParticipationLaw

DELTA = 1e-5


@dataclasses.dataclass(frozen=True)
class Silo:
    """How a silo trains, in any unit that is the same for all silos.

    Attributes:
        steps: of DP-SGD in a round.
        rate: sampling rate of a step.
        noise: z of a step.
        clip_norm: of a record's gradient.
        step_size: learning rate of a step.
        batch: expected size, by which the sum of a step is divided.
        weight: of the silo in the average.
    """

    steps: int
    rate: float
    noise: float = 1.0
    clip_norm: float = 1.0
    step_size: float = 1.0
    batch: float = 1.0
    weight: float = 1.0

    @property
    def contribution(self) -> float:
        """What a record adds once to the average."""
        return self.weight * self.step_size * self.clip_norm / self.batch

    @property
    def deviation(self) -> float:
        """Of the silo's noise in the average."""
        return self.contribution * self.noise * math.sqrt(self.steps)


@dataclasses.dataclass(frozen=True)
class Setting:
    """A federation.

    Attributes:
        rounds: of the federation.
        silos: all of them.
        audited: numbers of those that are audited, in turn.
    """

    rounds: int
    silos: tuple[Silo, ...]
    audited: tuple[int, ...] = (0,)


def epoch(records: int, batch: int = 64) -> Silo:
    """A silo that takes one epoch a round, and has the weight of its records."""
    return Silo(
        round(records / batch), batch / records, batch=batch, weight=records
    )


SETTINGS = {
    "three": Setting(30, (Silo(20, 0.02),) * 3),
    "less-noise": Setting(30, (Silo(20, 0.02, noise=0.6),) * 3),
    "long": Setting(50, (Silo(100, 0.01),) * 3),
    "ten": Setting(30, (Silo(20, 0.02),) * 10),
    "sizes": Setting(30, (epoch(500), epoch(2000), epoch(8000)), (0, 1, 2)),
    "methods": Setting(
        20,
        (
            Silo(40, 0.02, noise=0.7, clip_norm=2.0, step_size=0.5, batch=50),
            Silo(
                10,
                0.05,
                noise=1.2,
                clip_norm=1.0,
                step_size=1.0,
                batch=100,
                weight=2.0,
            ),
        ),
        (0, 1),
    ),
}
ADVERSARIES = ("server", "partner", "outsider", "public")


def deviation(silos: tuple[Silo, ...], audited: int, adversary: str) -> float:
    """Of the noise that hides a record of a silo in a round, over what the record adds once.

    The partner is the one whose noise in the average is largest, as it subtracts it.
    """
    audited_silo = silos[audited]
    deviations = sorted(
        silo.deviation for k, silo in enumerate(silos) if k != audited
    )
    match adversary:
        case "server":
            hiding: list[float] = []
        case "partner":
            hiding = deviations[:-1]
        case "outsider" | "public":
            hiding = deviations
        case _:
            raise ValueError(
                f"Expected adversary={adversary!r} to be one of {ADVERSARIES}."
            )
    return (
        math.hypot(audited_silo.deviation, *hiding) / audited_silo.contribution
    )


def exact_epsilon(setting: Setting, audited: int, adversary: str) -> float:
    """ε in the linear limit."""
    rounds, silo = setting.rounds, setting.silos[audited]
    hidden = deviation(setting.silos, audited, adversary)
    if adversary == "public":
        rounds = 1
        silo = dataclasses.replace(silo, steps=silo.steps * setting.rounds)
        hidden *= math.sqrt(setting.rounds)
    events = Events.steps([np.ones(silo.steps)] * rounds, [silo.rate] * rounds)
    return hidden_rounds_epsilon(events, np.full(rounds, 1 / hidden), DELTA)


def measured(
    setting: Setting,
    audited: int,
    adversary: str,
    canaries: int,
    dim: int,
    seed: int,
    *,
    proof: bool = False,
) -> Answer:
    """The answer of one federation against one adversary, with a ``proof`` or without."""
    rounds, silo = setting.rounds, setting.silos[audited]
    law = ParticipationLaw.of_records(
        [np.ones(silo.steps)] * rounds, [silo.rate] * rounds
    )
    rng = np.random.default_rng((seed, 42))
    auditor = RunAuditor(
        canaries, 2, seed=seed, delta=DELTA, client=law, window=1
    )
    hidden = deviation(setting.silos, audited, adversary)
    model = np.zeros(dim)
    auditor.begin(model)
    vectors = auditor.canaries.vectors(list(range(canaries)))
    for _ in range(rounds):
        times = rng.binomial(silo.steps, silo.rate, canaries)
        present = np.flatnonzero(times)
        weights = times[present].astype(np.float64)
        model = (
            model
            + weights @ vectors[present]
            + hidden * rng.standard_normal(dim)
        )
        facts = RoundFacts(
            present.tolist(), contribution=1.0, weights=weights.tolist()
        )
        auditor.observe(model, facts, vectors[present])
    record = auditor.record(
        noise_multiplier=silo.noise, sum_noise_multiplier=silo.noise
    )
    if (
        proof
    ):  # the rounds are known to be independent, so that the null is exact
        fresh = RoundCorrelation(np.ones((rounds, 1)))
        record = dataclasses.replace(record, correlation=fresh)
    sees = claim_adversary(record)
    if adversary == "public":
        sees = dataclasses.replace(sees, sees="final")
    return answer(record, sees)


def lines(
    settings: Iterable[str], runs: int, proofs: int, canaries: int, dim: int
) -> Iterator[str]:
    """One line for each setting, audited silo and adversary."""
    yield (
        "setting     silo  adversary   exact  measured    held      κ  ± of κ"
        "  proved  proofs above  theory"
    )
    for name in settings:
        setting = SETTINGS[name]
        for audited in setting.audited:
            for adversary in ADVERSARIES:
                run = functools.partial(
                    measured, setting, audited, adversary, canaries, dim
                )
                exact = exact_epsilon(setting, audited, adversary)
                results = [run(seed) for seed in range(runs)]
                proved = [
                    run(seed, proof=True).proved or 0.0
                    for seed in range(proofs)
                ]
                yield f"{name:10}  {audited:4}  {adversary:9}  {_row(exact, results, proved)}"


def _row(exact: float, found: list[Answer], proved: list[float]) -> str:
    pairs = [(bound.estimate, bound.fit) for bound in found]
    measured = [
        (e, fit) for e, fit in pairs if e is not None and fit is not None
    ]
    if not measured:
        return f"{exact:6.3f}  not measured"
    held = np.mean([e.low <= exact <= e.high for e, _ in measured])
    scales = [fit.scale for _, fit in measured]
    above = f"{sum(bound > exact for bound in proved)} of {len(proved)}"
    theory = found[0].analytical.epsilon or np.nan
    return (
        f"{exact:6.3f}  {np.mean([e.epsilon for e, _ in measured]):8.3f}  {held:6.1%}"
        f"  {np.mean(scales):5.3f}  {np.std(scales):6.3f}"
        f"  {np.mean(proved):6.3f}  {above:>12}  {theory:6.3f}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--runs", type=int, default=200, help="federations for each line"
    )
    parser.add_argument(
        "--proofs",
        type=int,
        default=40,
        help="those with a proof, which is slow",
    )
    parser.add_argument(
        "--canaries", type=int, default=200, help="canary records in one silo"
    )
    parser.add_argument(
        "--dim", type=int, default=4000, help="parameters of the model"
    )
    parser.add_argument(
        "--setting", choices=SETTINGS, nargs="+", default=list(SETTINGS)
    )
    options = parser.parse_args()
    for line in lines(
        options.setting,
        options.runs,
        options.proofs,
        options.canaries,
        options.dim,
    ):
        print(line, flush=True)


if __name__ == "__main__":
    main()
