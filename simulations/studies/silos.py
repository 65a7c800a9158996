"""ε of a record in a federation of a few silos, measured from uploads, averages and the last model.

    python simulations/studies/silos.py [--runs 200] [--canaries 200] [--dim 4000]

Each silo takes steps of DP-SGD before it uploads their sum; canary records are in one of them, by
coins of their own. Gradients do not depend on the model (the *linear limit*), so that ε of each
adversary is known exactly: a record is in a release a binomial number of times, and the noise is
that of all its steps (METHOD: a mixture of Gaussians). Silos without canaries are one Gaussian draw
a round. The adversaries: the server, who sees the audited silo's uploads; a partner, who sees every
average and subtracts its own upload; an outsider, who sees every average; the public, which has the
last model.

For each setting and adversary it prints exact ε, ε as measured on average, how many 95% intervals
hold it, κ with its deviation, how many proofs (95%) are above it, and theory (the accountant's ε of
every step). No line is an upper bound but theory: where gradients react to the model, ε of uploads
may be larger than the linear limit.
"""

import argparse
import dataclasses
from collections.abc import Iterator

import numpy as np

from fl_epe import RoundFacts, RunAuditor
from fl_epe.accounting import hidden_rounds_epsilon
from fl_epe.auditing import Answer, answers
from fl_epe.schedules import Events, ParticipationLaw

DELTA = 1e-5


@dataclasses.dataclass(frozen=True)
class Setting:
    """A federation of equal silos.

    Attributes:
        silos: how many.
        steps: of DP-SGD in a round.
        rounds: of the federation.
        rate: sampling rate of a step.
        noise: z of a step.
    """

    silos: int
    steps: int
    rounds: int
    rate: float
    noise: float

    def law(self) -> ParticipationLaw:
        """Of a record."""
        return ParticipationLaw.of_records(
            [np.ones(self.steps)] * self.rounds, [self.rate] * self.rounds
        )


SETTINGS = (
    Setting(3, 20, 30, 0.02, 1.0),
    Setting(3, 20, 30, 0.02, 0.6),
    Setting(3, 100, 50, 0.01, 1.0),
    Setting(10, 20, 30, 0.02, 1.0),
)
ADVERSARIES = ("server", "partner", "outsider", "public")


def hiding_silos(setting: Setting, adversary: str) -> int:
    """Of how many silos the noise hides a record."""
    match adversary:
        case "server":
            return 1
        case "partner":
            return setting.silos - 1
        case "outsider" | "public":
            return setting.silos
    raise ValueError(f"Expected adversary={adversary!r} to be one of {ADVERSARIES}.")


def exact_epsilon(setting: Setting, adversary: str) -> float:
    """ε in the linear limit."""
    hidden = setting.noise * np.sqrt(setting.steps * hiding_silos(setting, adversary))
    if adversary == "public":
        events = Events.steps([np.ones(setting.steps * setting.rounds)], [setting.rate])
        signals = np.array([1 / (hidden * np.sqrt(setting.rounds))])
    else:
        events = Events.steps(
            [np.ones(setting.steps)] * setting.rounds, [setting.rate] * setting.rounds
        )
        signals = np.full(setting.rounds, 1 / hidden)
    return hidden_rounds_epsilon(events, signals, DELTA)


def audited(setting: Setting, adversary: str, canaries: int, dim: int, seed: int) -> Answer:
    """The answer of one federation against one adversary."""
    rng = np.random.default_rng((seed, 42))
    auditor = RunAuditor(canaries, 2, seed=seed, delta=DELTA, client=setting.law(), window=1)
    model = np.zeros(dim)
    auditor.begin(model)
    hidden = setting.noise * np.sqrt(setting.steps * hiding_silos(setting, adversary))
    for _ in range(setting.rounds):
        times = rng.binomial(setting.steps, setting.rate, canaries)
        present = np.flatnonzero(times)
        weights = times[present].astype(np.float64)
        vectors = auditor.canaries.vectors(present.tolist())
        model = model + weights @ vectors + hidden * rng.standard_normal(dim)
        facts = RoundFacts(present.tolist(), contribution=1.0, weights=weights.tolist())
        auditor.observe(model, facts, vectors)
    z = setting.noise
    final, every = answers(auditor.record(noise_multiplier=z, sum_noise_multiplier=z))
    return final if adversary == "public" else every


def lines(runs: int, canaries: int, dim: int) -> Iterator[str]:
    """One line for each setting and adversary."""
    yield (
        "silos  steps  rounds     q    z  adversary   exact  measured   held      κ  ± of κ"
        "  proofs above  theory"
    )
    for setting in SETTINGS:
        for adversary in ADVERSARIES:
            exact = exact_epsilon(setting, adversary)
            found = [audited(setting, adversary, canaries, dim, seed) for seed in range(runs)]
            pairs = [(f.estimate, f.fit) for f in found]
            told = [(e, fit) for e, fit in pairs if e is not None and fit is not None]
            held = np.mean([e.low <= exact <= e.high for e, _ in told])
            scales = [fit.scale for _, fit in told]
            above = np.mean([(f.proved or 0.0) > exact for f in found])
            theory = found[0].analytical.epsilon or np.nan
            yield (
                f"{setting.silos:5}  {setting.steps:5}  {setting.rounds:6}  {setting.rate:4}"
                f"  {setting.noise:3}  {adversary:9}  {exact:6.3f}"
                f"  {np.mean([e.epsilon for e, _ in told]):8.3f}  {held:5.1%}"
                f"  {np.mean(scales):5.3f}  {np.std(scales):6.3f}  {above:12.1%}  {theory:6.3f}"
            )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="federations for each line")
    parser.add_argument("--canaries", type=int, default=200, help="canary records in one silo")
    parser.add_argument("--dim", type=int, default=4000, help="parameters of the model")
    options = parser.parse_args()
    for line in lines(options.runs, options.canaries, options.dim):
        print(line, flush=True)


if __name__ == "__main__":
    main()
