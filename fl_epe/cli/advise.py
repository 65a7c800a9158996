"""``fl-epe advise``: noise for a wanted ε, canaries for a claim, and who of a log is worst case."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from fl_epe.auditing import Adversary, AuditRecord
from fl_epe.checks import (
    ArgumentError,
    Floats,
    argument_context,
    check_count,
    check_positive,
    raise_invalid,
)
from fl_epe.cli.console import print_json, print_lines, terminal
from fl_epe.cli.guards import check_limit
from fl_epe.files import RECORD
from fl_epe.limit import (
    canaries_for_epsilon,
    exposure,
    limit_like,
    noise_for_epsilon,
    rounds_like,
    setting_like,
)
from fl_epe.mechanism import strategy_matrix
from fl_epe.schedules import Schedule, Trace, log_of, make_schedule

_ROUNDS, _PARTICIPATIONS, _DELTA = 60, 1.0, 1e-5
_PARTICIPATIONS_TRIED = (1, 2, 4, 8, 16)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noise:
    """The noise multiplier of the clients' sum at which canaries would measure a wanted ε.

    An estimate for random canaries by the high-dimensional limit, without training; no guarantee
    of differential privacy.

    Examples:
        fl-epe advise noise --target-epsilon 1 --rounds 1000 --clients 50000
        fl-epe advise noise --target-epsilon 3 --participation poisson --participations 20
        fl-epe advise noise --target-epsilon 2 --like runs/half --worst-case
        fl-epe advise noise --target-epsilon 2 --participation cyclic --mechanism banded:bands=8

    Attributes:
        target_epsilon: wanted ε.
        participation: schedule, as for 'fl-epe run', or trace:path=FILE (default: that of the run
            under --like, or epochs).
        rounds: rounds of training (default: the run's, or 60).
        participations: rounds in which a client takes part on average (default: the run's, or 1).
        clients: clients in all (default: a million; of a log, its own).
        mechanism: how the noise of rounds is correlated, as for 'fl-epe run': independent, tree,
            banded:bands=8, toeplitz, blt, or a .npy file (default: the run's, or independent).
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
    mechanism: str | None = None
    delta: float | None = None
    momentum: float | None = None
    adversary: Literal["final", "all"] = "final"
    worst_case: bool = False
    num_canaries: int = 2000
    like: Path | None = None
    json: bool = False

    def __call__(self, words: Sequence[str]) -> int:
        """Print it."""
        from fl_epe.reporting import advice_lines

        run = None if self.like is None else AuditRecord.load(self.like / RECORD)
        schedule, log = self._schedule(run)
        clients = log.population if log and self.clients is None else self.clients
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
            strategy=self._strategy(run, schedule.rounds),
            **limit_like(run, self.momentum),
        )
        setting = setting_like(run, advice.noise_multiplier)
        if self.json:
            print_json(vars(advice) | {"adversary": self.adversary, "setting": setting})
            return 0
        lines = advice_lines(advice)
        if setting is not None:
            lines.append(
                f"• The clip norm of that run was adaptive: --noise-multiplier {setting:.4g} gives "
                "the sum this z."
            )
        print_lines(terminal(), lines)
        return 0

    def _strategy(self, run: AuditRecord | None, rounds: int) -> Floats | None:
        """The strategy matrix that is asked for, else that of the run."""
        if self.mechanism is not None:
            return strategy_matrix(self.mechanism, rounds)
        return None if run is None else run.mechanism.strategy

    def _schedule(self, run: AuditRecord | None) -> tuple[Schedule, Trace | None]:
        """The schedule, and the log that it replays, if it replays one."""
        spec, usual = self.participation or "epochs", _PARTICIPATIONS
        if run is not None:
            spec = self.participation or run.design.schedule or run.mechanism.participation
            usual = run.mechanism.canary_participations
        with argument_context("participation", spec):
            log, often = log_of(spec) or (None, usual)
        participations = often if self.participations is None else self.participations
        rounds = rounds_like(run, self.rounds, log.rounds if log else _ROUNDS)
        check_limit(rounds, self.clients)
        with argument_context("participation", spec, "rounds", "participations"):
            return make_schedule(spec, rounds, participations), log


@dataclasses.dataclass(frozen=True, kw_only=True)
class Canaries:
    """How many canaries, rounds and participations show that ε exceeds a claim.

    Until the lower bound of a report exceeds a claimed ε with a wanted probability, by simulating
    audits of Gaussian scores. With few canaries a report cannot show a large ε, whatever leaks.

    Examples:
        fl-epe advise canaries --true-epsilon 8 --claimed 4
        fl-epe advise canaries --noise-multiplier 1 --claimed 4 --clients-per-round 24

    Attributes:
        claimed: ε that the lower bound is to exceed.
        true_epsilon: ε that the run really has for a canary's participations; needed without
            --noise-multiplier.
        noise_multiplier: z of the sum: the true ε is then that of the Gaussian mechanism, for an
            adversary who sees every round, and several numbers of participations are tried.
        participations: rounds in which each canary takes part (default: 1, or with
            --noise-multiplier 1, 2, 4, 8 and 16).
        clients_per_round: real clients of a round; the rounds that have room for as many canaries
            are then told.
        delta: target δ.
        confidence: of the lower bound, one-sided.
        power: wanted probability that the bound exceeds the claim.
        json: print JSON instead of text.
    """

    NAMES: ClassVar = {"epsilon": "--true-epsilon"}

    claimed: float
    true_epsilon: float | None = None
    noise_multiplier: float | None = None
    participations: int | None = None
    clients_per_round: float | None = None
    delta: float = 1e-5
    confidence: float = 0.95
    power: float = 0.8
    json: bool = False

    def __post_init__(self) -> None:
        if (self.true_epsilon is None) == (self.noise_multiplier is None):
            raise ArgumentError(
                "Expected {true_epsilon} or {noise_multiplier} to be given, and only one of them.",
                true_epsilon=self.true_epsilon,
                noise_multiplier=self.noise_multiplier,
            )
        if self.noise_multiplier is not None:
            check_positive("noise_multiplier", self.noise_multiplier)
        if self.participations is not None:
            check_count("participations", self.participations)
        if self.clients_per_round is not None:
            check_positive("clients_per_round", self.clients_per_round)

    def __call__(self, words: Sequence[str]) -> int:
        """Print it."""
        from fl_epe.accounting import gaussian_epsilon
        from fl_epe.reporting import canary_lines

        z = self.noise_multiplier
        tried = (1,) if z is None else _PARTICIPATIONS_TRIED
        found = [
            canaries_for_epsilon(
                gaussian_epsilon(z, self.delta, participations) if z else self.true_epsilon or 0.0,
                self.claimed,
                self.delta,
                confidence=self.confidence,
                power=self.power,
                participations=participations,
                room=self.clients_per_round,
            )
            for participations in (tried if self.participations is None else (self.participations,))
        ]
        if self.json:
            print_json({"power": self.power, "advice": found})
        else:
            print_lines(terminal(), canary_lines(found, self.power))
        return 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Log:
    """How exposed each client of a real deployment is, and what a cap would change.

    From the log of who took part when: FILE is CSV or Parquet with the columns round and
    client_id. An estimate by the high-dimensional limit, no guarantee.

    Examples:
        fl-epe advise log participation.csv --noise-multiplier 0.5
        fl-epe advise log participation.csv --noise-multiplier 0.5 --window 30

    Attributes:
        file: the log.
        noise_multiplier: z, the standard deviation of the noise on the sum over the clip norm.
        delta: target δ (default: clients^-1.1).
        momentum: momentum of the server's sgd.
        window: cap the participations in any so many rounds (default: those in the run).
        top: clients to list.
        json: print JSON instead of tables.
    """

    NAMES: ClassVar = {"path": "FILE"}

    file: Annotated[Path, "FILE"]
    noise_multiplier: float
    delta: float | None = None
    momentum: float = 0.0
    window: int | None = None
    top: int = 10
    json: bool = False

    def __call__(self, words: Sequence[str]) -> int:
        """Print it."""
        from fl_epe.reporting import exposure_lines, exposure_tables

        trace = Trace.read(self.file)
        if self.delta is None and trace.population < 2:
            raise ArgumentError("Expected {clients} >= 2, or a delta.", clients=trace.population)
        delta = trace.population**-1.1 if self.delta is None else self.delta
        found = exposure(
            trace, self.noise_multiplier, delta, window=self.window, momentum=self.momentum
        )
        if self.json:
            values = {
                "noise_multiplier": found.noise_multiplier,
                "delta": delta,
                "rounds": trace.rounds,
                "clients": trace.population,
                "participations": len(trace.client_ids),
                "levels": found.levels(),
                "top": found.top(self.top),
                "caps": found.caps,
            }
            print_json(values)
            return 0
        console = terminal()
        for table in exposure_tables(found, self.top):
            console.print(table)
        print_lines(console, exposure_lines(found))
        return 0
