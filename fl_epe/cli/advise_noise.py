"""``fl-epe advise noise``: the noise at which canaries would measure a wanted ε."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from fl_epe.accounting import UpperBound, tightest, upper_bounds
from fl_epe.auditing import AuditRecord, finite
from fl_epe.checks import argument_context, raise_invalid
from fl_epe.cli.console import print_json, print_lines, terminal
from fl_epe.cli.sizes import check_limit, check_memory
from fl_epe.limit import load_run, rounds_like, server_like
from fl_epe.schedules import Schedule, Trace, log_of, make_schedule

if TYPE_CHECKING:
    from fl_epe.limit import NoiseAdvice

_ROUNDS, _PARTICIPATIONS, _DELTA = 60, 1.0, 1e-5
_ENOUGH_CLIENTS = 10**6  # where nobody said how many: only rounding depends on the number
_LONGEST = 3600.0  # advice is for somebody who waits


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noise:
    """The noise multiplier of the clients' sum at which canaries would measure a wanted ε.

    An estimate for random canaries by the high-dimensional limit, without training; no guarantee
    of differential privacy.

    Examples:
        fl-epe advise noise --target-epsilon 1 --rounds 1000 --clients 50000
        fl-epe advise noise --target-epsilon 3 --participation poisson --participations 20
        fl-epe advise noise --target-epsilon 2 --like runs/half --who worst-case

    Attributes:
        target_epsilon: wanted ε.
        participation: schedule, as for 'fl-epe run', or trace:path=FILE (default: that of the run
            under --like, or epochs).
        rounds: rounds of training (default: the run's, or 60).
        participations: rounds in which a client takes part on average (default: the run's, or 1).
        clients: clients in all (default: a million; of a log, its own).
        delta: target δ (default: the run's, or clients^-1.1, or 1e-05).
        momentum: momentum of the server's sgd (default: the run's, or 0; 'fl-epe run' has 0.9).
        adversary: the adversary sees the final model, or every round's.
        who: whose ε: that of a client drawn at random, of one with the mean expected score, or
            of the worst case of all clients.
        num_canaries: canaries of the run that would measure.
        like: directory of a run whose clip norms, server and real updates are taken over.
        seed: of the clients that are drawn where a schedule has no law in closed form.
        json: print JSON instead of text.
    """

    NAMES: ClassVar = {"kind": "--participation", "population": "--clients"}

    target_epsilon: float
    participation: str | None = None
    rounds: int | None = None
    participations: float | None = None
    clients: int | None = None
    delta: float | None = None
    momentum: float | None = None
    adversary: Literal["final", "all"] = "final"
    who: Literal["random", "mean", "worst-case"] = "random"
    num_canaries: int = 2000
    like: Path | None = None
    seed: int = 0
    json: bool = False

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise_invalid("seed", self.seed, ">= 0")
        check_memory(self.num_canaries * 16, "the canaries' scores", num_canaries=self.num_canaries)

    def __call__(self, words: Sequence[str]) -> int:
        """Print it."""
        from fl_epe.auditing import Adversary
        from fl_epe.limit import noise_for_epsilon
        from fl_epe.reporting import advice_lines

        run = None if self.like is None else load_run(self.like)
        schedule, log = _schedule(self, run)
        clients = self.clients
        if clients is None and log is not None:
            clients = log.population
        if clients is not None and clients < 2:
            raise_invalid("clients", clients, ">= 2")
        delta = _DELTA if clients is None else float(clients**-1.1)
        delta = delta if run is None else run.delta
        advice = noise_for_epsilon(
            schedule,
            self.target_epsilon,
            delta if self.delta is None else self.delta,
            adversary=Adversary(self.adversary),
            who=self.who,
            num_canaries=self.num_canaries,
            population=clients,
            seed=self.seed,
            **server_like(run, 0.0, momentum=self.momentum),
        )
        theory = _theory(schedule, advice, clients)
        setting = _setting(run, advice.noise_multiplier)
        if self.json:
            bounds = [vars(bound) | {"epsilon": finite(bound.epsilon)} for bound in theory]
            more = {"adversary": self.adversary, "setting": setting, "analytical": bounds}
            print_json(dataclasses.asdict(advice) | more)
            return 0
        lines = [*advice_lines(advice), *map(_theory_line, theory)]
        if setting is not None:
            lines.append(
                f"• The clip norm of that run was adaptive: --noise-multiplier {setting:.4g} gives "
                "the sum this z."
            )
        print_lines(terminal(), lines)
        return 0


def _schedule(asked: Noise, run: AuditRecord | None) -> tuple[Schedule, Trace | None]:
    """The schedule, and the log that it replays, if it replays one."""
    spec, participations = asked.participation, asked.participations
    if run is not None:
        spec = spec or run.design.schedule or run.mechanism.participation
    spec = spec or "epochs"
    with argument_context("participation", spec):
        log = log_of(spec)
        if participations is None and log is not None:
            participations = log[1]
        if participations is None:
            participations = _PARTICIPATIONS if run is None else run.mechanism.canary_participations
    rounds = rounds_like(run, asked.rounds, _ROUNDS if log is None else log[0].rounds)
    check_limit(rounds, asked.clients, longest=_LONGEST)
    with argument_context("participation", spec, "rounds", "participations"):
        return make_schedule(spec, rounds, participations), log and log[0]


def _setting(record: AuditRecord | None, noise_multiplier: float) -> float | None:
    """``--noise-multiplier`` of a run whose sum of updates gets ``noise_multiplier``.

    ``None`` where the two are the same, because no adaptive clip norm spends a part of the noise.
    """
    mechanism = None if record is None else record.mechanism
    if not mechanism or not mechanism.noise_multiplier or not mechanism.sum_noise_multiplier:
        return None
    spent = mechanism.noise_multiplier**-2 - mechanism.sum_noise_multiplier**-2
    if spent <= 0 or noise_multiplier == 0:
        return None
    return float((noise_multiplier**-2 + spent) ** -0.5)


def _theory(schedule: Schedule, advice: NoiseAdvice, clients: int | None) -> list[UpperBound]:
    """The tightest guarantees for the client, for rounds that the adversary knows and unknown."""
    many = clients or _ENOUGH_CLIENTS
    found = upper_bounds(schedule, advice.noise_multiplier, advice.delta, many)
    if advice.who == "worst-case":
        found = tuple(bound for bound in found if not bound.averages)
    known, unknown = tightest(found, rounds_known=True), tightest(found, rounds_known=False)
    return [bound for bound in (known, unknown if unknown != known else None) if bound is not None]


def _theory_line(bound: UpperBound) -> str:
    from fl_epe.reporting import number

    whom = "a client drawn at random" if bound.averages else "every client"
    known = "known" if bound.rounds_known else "unknown"
    return (
        f"• Theory guarantees ε ≤ {number(finite(bound.epsilon))} at that z for {whom}, whatever "
        f"the attack, with rounds {known} ({bound.assumption}; {bound.adjacency} adjacency)."
    )
