"""``fl-epe advise noise``: the noise at which canaries would measure a wanted ε."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

from fl_epe.auditing import AuditRecord
from fl_epe.checks import argument_context, finite, raise_invalid
from fl_epe.cli.console import print_json, print_lines, terminal
from fl_epe.cli.sizes import check_limit, check_memory
from fl_epe.files import RECORD
from fl_epe.limit import limit_like, rounds_like, setting_like
from fl_epe.schedules import Schedule, Trace, log_of, make_schedule

_ROUNDS, _PARTICIPATIONS, _DELTA = 60, 1.0, 1e-5
_LONGEST = 3600.0  # advice is for somebody who waits


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noise:
    """The noise multiplier of the clients' sum at which canaries would measure a wanted ε.

    An estimate for random canaries by the high-dimensional limit, without training; no guarantee
    of differential privacy.

    Examples:
        fl-epe advise noise --target-epsilon 1 --rounds 1000 --clients 50000
        fl-epe advise noise --target-epsilon 3 --participation poisson --participations 20
        fl-epe advise noise --target-epsilon 2 --like runs/half --worst-case

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
        worst_case: for the worst case of all clients, not for a client drawn at random.
        num_canaries: canaries of the run that would measure.
        like: directory of a run whose clip norms, server and real updates are taken over.
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
    worst_case: bool = False
    num_canaries: int = 2000
    like: Path | None = None
    json: bool = False

    def __post_init__(self) -> None:
        check_memory(self.num_canaries * 16, "the canaries' scores", num_canaries=self.num_canaries)

    def __call__(self, words: Sequence[str]) -> int:
        """Print it."""
        from fl_epe.auditing import Adversary
        from fl_epe.limit import noise_for_epsilon
        from fl_epe.reporting import advice_lines

        run = None if self.like is None else AuditRecord.load(self.like / RECORD)
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
            worst_case=self.worst_case,
            num_canaries=self.num_canaries,
            population=clients,
            **limit_like(run, self.momentum),
        )
        setting = setting_like(run, advice.noise_multiplier)
        if self.json:
            bounds = [vars(b) | {"epsilon": finite(b.epsilon)} for b in advice.analytical]
            more = {"adversary": self.adversary, "setting": setting, "analytical": bounds}
            print_json(dataclasses.asdict(advice) | more)
            return 0
        lines = advice_lines(advice)
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
