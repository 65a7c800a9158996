"""``fl-epe advise``: noise for a target ε, numbers of canaries, and worst-case clients of a log."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from fl_epe import limit
from fl_epe.auditing import AuditRecord
from fl_epe.checks import argument_context, raise_invalid
from fl_epe.cli.console import print_json, print_lines, terminal, waiting
from fl_epe.config import RunConfig, chosen_delta
from fl_epe.files import record_in
from fl_epe.mechanism import strategy_matrix
from fl_epe.schedules import Schedule, Trace, log_of, make_schedule

# Without a number of clients: the target δ, and the number.
_DEFAULT_DELTA = 1e-5
_DEFAULT_CLIENTS = 10**6
_CANARY_SHARES = (0.05, 0.1, 0.2)  # largest shares of canaries in a round


def _schedule_and_log(
    spec: str | None,
    rounds: int | None,
    participations: float | None,
    run: AuditRecord | None = None,
) -> tuple[Schedule, Trace | None]:
    """The schedule, and the log that it replays, if it replays one.

    Args:
        spec: the typed schedule (default: that of the run or log, or "epochs").
        rounds: the number of rounds (default: that of the run or log, or that of `RunConfig`).
        participations: the mean participations of a client (default: those in the run or log,
            or 1).
        run: the run of ``--like``.
    """
    default_participations = 1.0
    if run is not None:
        design = run.design
        spec = spec or design.schedule or run.mechanism.participation.name
        default_participations = run.mechanism.canary_participations
        if design.num_clients and design.clients_per_round:
            default_participations = (
                run.rounds * design.clients_per_round / design.num_clients
            )
    spec = spec or "epochs"
    log = None
    default_rounds = RunConfig.rounds
    with argument_context("participation", spec):
        replayed = log_of(spec)
    if replayed is not None:
        log, default_participations = replayed
        default_rounds = log.rounds
    rounds = limit.rounds_like(run, rounds, default_rounds)
    if participations is None:
        participations = default_participations
    with argument_context("participation", spec, "rounds", "participations"):
        return make_schedule(spec, rounds, participations), log


def _num_clients(
    typed: int | None, log: Trace | None, run: AuditRecord | None
) -> int | None:
    """The number of clients: of the log, as typed, or of the run; ``None`` if it is unknown."""
    if typed is not None and typed < 2:
        raise_invalid("clients", typed, ">= 2")
    if log is not None:
        return log.population
    if typed is None and run is not None:
        return run.design.num_clients
    return typed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noise:
    """Find the noise multiplier at which a run is expected to report a target ε.

    ε is that of a run's report: of the median client, for an adversary who knows the client's
    rounds unless the schedule hides them. It is an estimate for random canaries from the
    high-dimensional limit, without training, and no guarantee of differential privacy. The noise
    multiplier is that of the sum of the clients' updates.

    Examples:
        fl-epe advise noise --target-epsilon 1 --rounds 1000 --clients 50000
        fl-epe advise noise --target-epsilon 3 --participation poisson --participations 20
        fl-epe advise noise --target-epsilon 2 --like runs/half --worst-case
        fl-epe advise noise --target-epsilon 2 --participation cyclic --mechanism banded:bands=8

    Attributes:
        target_epsilon: target ε.
        participation: participation schedule, as for 'fl-epe run', or trace:path=FILE for a log
            (default: that of the run with --like, or epochs).
        rounds: number of rounds (default: that of the run or the log, or 60).
        participations: mean number of rounds in which a client takes part (default: that of the
            run or the log, or 1).
        clients: number of clients (default: that of the run, or a million; a log has its own).
        mechanism: how the noise of rounds is correlated, as for 'fl-epe run': independent, tree,
            banded:bands=8, toeplitz, blt, or a .npy file (default: that of the run, or
            independent).
        delta: target δ (default: that of the run, or clients^-1.1, or 1e-05 without a number of
            clients).
        momentum: momentum of the server's sgd (default: that of the run, or of 'fl-epe run').
        adversary: what the adversary sees: the final model, or the models of all rounds.
        worst_case: let the target ε be that of the worst-case client, whose rounds the adversary
            knows, instead of the median client.
        like: folder of a run whose clip norms, server and real updates are used.
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
    like: Path | None = None
    json: bool = False

    def __call__(self, words: Sequence[str]) -> int:
        """Print the noise."""
        run = None
        if self.like is not None:
            run = AuditRecord.load(record_in(self.like))
        schedule, log = _schedule_and_log(
            self.participation, self.rounds, self.participations, run
        )
        clients = _num_clients(self.clients, log, run)
        delta = self.delta
        if delta is None and run is not None:
            delta = run.delta
        elif delta is None and clients is not None:
            delta = chosen_delta(None, clients)
        strategy = None if run is None else run.mechanism.strategy
        if self.mechanism is not None:
            with waiting("Computing how the noise of rounds is correlated"):
                strategy = strategy_matrix(self.mechanism, schedule.rounds)
        limit_setting = limit.limit_like(run, self.momentum)
        with waiting("Searching for the noise"):
            advice = limit.noise_for_epsilon(
                schedule,
                self.target_epsilon,
                _DEFAULT_DELTA if delta is None else delta,
                clients or _DEFAULT_CLIENTS,
                sees=self.adversary,
                worst_case=self.worst_case,
                strategy=strategy,
                **limit_setting,
            )
        setting = limit.noise_multiplier_like(run, advice.noise_multiplier)
        if self.json:
            print_json(vars(advice) | {"setting": setting})
            return 0
        lines = limit.advice_lines(advice)
        if setting is not None:
            # It is 1 / (2 σ)² for noise of standard deviation σ on the count.
            inverse_variance = limit_setting["count_inverse_variance"]
            count_std = inverse_variance**-0.5 / 2
            lines.append(
                "• The clip norm of that run was adaptive: fl-epe run with --noise-multiplier "
                f"{setting:.6g} --clip-count-std {count_std:.6g} gives the sum this z."
            )
        print_lines(lines)
        return 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Canaries:
    """Show how many canaries fit beside the clients, and how narrow the interval of ε is then.

    For canaries that are at most 5%, 10% and 20% of a round: their number, and the interval for the
    median client's ε that a run is expected to report. 'fl-epe run' uses 10% by default.

    Examples:
        fl-epe advise canaries --clients 120 --rounds 60 --participations 12
        fl-epe advise canaries --clients 500 --participation poisson --noise-multiplier 1

    Attributes:
        clients: number of real clients; a log has its own.
        noise_multiplier: z, the standard deviation of the noise on the sum of updates, divided by
            the clip norm.
        participation: participation schedule, as for 'fl-epe run', or trace:path=FILE for a log.
        rounds: number of rounds (default: 60; a log has its own).
        participations: mean number of rounds in which a client takes part (default: 1; a log has
            its own).
        delta: target δ (default: clients^-1.1).
        share: largest share of canaries in a round, in (0, 1) (default: 0.05, 0.1 and 0.2).
        json: print JSON instead of text.
    """

    NAMES: ClassVar = {"kind": "--participation"}

    clients: int
    noise_multiplier: float = RunConfig.noise_multiplier
    participation: str = "epochs"
    rounds: int | None = None
    participations: float | None = None
    delta: float | None = None
    share: float | None = None
    json: bool = False

    @waiting("Computing what canaries can tell")
    def __call__(self, words: Sequence[str]) -> int:
        """Print the advice."""
        schedule, log = _schedule_and_log(
            self.participation, self.rounds, self.participations
        )
        clients = _num_clients(self.clients, log, None) or self.clients
        delta = chosen_delta(self.delta, clients)
        shares = _CANARY_SHARES if self.share is None else (self.share,)
        setting = limit.limit_like(None)
        advice = [
            limit.canary_advice(
                schedule,
                self.noise_multiplier,
                delta,
                clients,
                share,
                **setting,
            )
            for share in shares
        ]
        if self.json:
            print_json({"delta": delta, "advice": advice})
            return 0
        terminal().print(limit.canary_table(advice, delta))
        print_lines(limit.canary_lines(advice))
        return 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Log:
    """Compute ε of each client in the participation log of a real deployment, and what a cap does.

    FILE is CSV, TSV, JSON lines or Parquet with the columns round and client_id. ε is an estimate
    from the high-dimensional limit, no guarantee. A cap limits the participations of a client.

    Examples:
        fl-epe advise log participation.csv --noise-multiplier 0.5
        fl-epe advise log participation.csv --noise-multiplier 0.5 --window 30

    Attributes:
        file: the participation log.
        noise_multiplier: z, the standard deviation of the noise on the sum of updates, divided by
            the clip norm.
        delta: target δ (default: clients^-1.1).
        momentum: momentum of the server's sgd (default: that of 'fl-epe run').
        adversary: what the adversary sees: the final model, or the models of all rounds.
        window: number of consecutive rounds in which a cap limits the participations (default: all
            rounds).
        top: number of worst-case clients to list.
        json: print JSON instead of tables.
    """

    NAMES: ClassVar = {"path": "FILE"}

    file: Annotated[Path, "FILE"]
    noise_multiplier: float
    delta: float | None = None
    momentum: float = RunConfig.server_momentum
    adversary: Literal["final", "all"] = "final"
    window: int | None = None
    top: int = 3
    json: bool = False

    @waiting("Computing how exposed the clients of the log are")
    def __call__(self, words: Sequence[str]) -> int:
        """Print ε of the clients."""
        trace = Trace.read(self.file)
        delta = chosen_delta(self.delta, trace.population)
        exposure = limit.exposure(
            trace,
            self.noise_multiplier,
            delta,
            sees=self.adversary,
            window=self.window,
            momentum=self.momentum,
        )
        if self.json:
            values = {
                "noise_multiplier": exposure.noise_multiplier,
                "delta": delta,
                "rounds": trace.rounds,
                "clients": trace.population,
                "participations": len(trace.client_ids),
                "sees": exposure.sees,
                "median": exposure.median,
                "top": exposure.top(self.top),
                "caps": exposure.caps,
            }
            print_json(values)
            return 0
        for table in limit.exposure_tables(exposure, self.top):
            terminal().print(table)
        print_lines(limit.exposure_lines(exposure))
        return 0
