"""``fl-epe advise``: noise for a wanted ε, canaries for a run, and the worst case of a log."""

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

_DELTA = 1e-5  # target δ, if the number of clients is not known
_CLIENTS = 10**6  # number of clients, if it is not known
_SHARES = (0.05, 0.1, 0.2)  # shares of a round that canaries may have


def _planned(
    spec: str | None,
    rounds: int | None,
    participations: float | None,
    run: AuditRecord | None = None,
) -> tuple[Schedule, Trace | None]:
    """The requested schedule, else that of the run, and the log that it replays."""
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


def _clients(
    clients: int | None, log: Trace | None, run: AuditRecord | None
) -> int | None:
    """The number of clients of the log, as typed, or of the run; ``None`` if it is not known."""
    if clients is not None and clients < 2:
        raise_invalid("clients", clients, ">= 2")
    if log is not None:
        return log.population
    if clients is None and run is not None:
        return run.design.num_clients
    return clients


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noise:
    """The noise multiplier of the clients' sum at which a report is expected to say a wanted ε.

    For the same client and adversary as in the report of a run: the median client, and one who
    knows the client's rounds unless the schedule hides them. An estimate for random canaries by the
    high-dimensional limit, without training; no guarantee of differential privacy.

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
        clients: clients in all (default: the run's, or a million; of a log, its own).
        mechanism: how the noise of rounds is correlated, as for 'fl-epe run': independent, tree,
            banded:bands=8, toeplitz, blt, or a .npy file (default: the run's, or independent).
        delta: target δ (default: the run's, or clients^-1.1, or 1e-05).
        momentum: momentum of the server's sgd (default: the run's, or that of 'fl-epe run').
        adversary: the adversary sees the final model, or every round's.
        worst_case: for the worst case of all clients, whose rounds the adversary knows.
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
    like: Path | None = None
    json: bool = False

    def __call__(self, words: Sequence[str]) -> int:
        """Print the noise."""
        if self.like is None:
            run = None
        else:
            run = AuditRecord.load(record_in(self.like))
        schedule, log = _planned(
            self.participation, self.rounds, self.participations, run
        )
        clients = _clients(self.clients, log, run)
        delta = self.delta
        if delta is None and run is not None:
            delta = run.delta
        elif delta is None:
            delta = _DELTA if clients is None else chosen_delta(None, clients)
        strategy = None if run is None else run.mechanism.strategy
        if self.mechanism is not None:
            with waiting("Computing how the noise of rounds is correlated"):
                strategy = strategy_matrix(self.mechanism, schedule.rounds)
        with waiting("Searching for the noise"):
            advice = limit.noise_for_epsilon(
                schedule,
                self.target_epsilon,
                delta,
                clients or _CLIENTS,
                sees=self.adversary,
                worst_case=self.worst_case,
                strategy=strategy,
                **limit.limit_like(run, self.momentum),
            )
        setting = limit.noise_multiplier_like(run, advice.noise_multiplier)
        if self.json:
            print_json(vars(advice) | {"setting": setting})
            return 0
        lines = limit.advice_lines(advice)
        if setting is not None:
            count_std = limit.limit_like(run)["of_count"] ** -0.5 / 2
            lines.append(
                "• The clip norm of that run was adaptive: fl-epe run with --noise-multiplier "
                f"{setting:.6g} --clip-count-std {count_std:.6g} gives the sum this z."
            )
        print_lines(lines)
        return 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Canaries:
    """How many canaries fit beside the clients, and how well they tell ε of the median client.

    For canaries of at most 5%, 10% and 20% of a round: their number, and the interval that a run
    would report. An audit takes 10% unless told otherwise.

    Examples:
        fl-epe advise canaries --clients 120 --rounds 60 --participations 12
        fl-epe advise canaries --clients 500 --participation poisson --noise-multiplier 1

    Attributes:
        clients: real clients in all; of a log, its own.
        noise_multiplier: z, the standard deviation of the noise on the sum over the clip norm.
        participation: schedule, as for 'fl-epe run', or trace:path=FILE.
        rounds: rounds of training (default: 60; of a log, its own).
        participations: rounds in which a client takes part on average (default: 1).
        delta: target δ (default: clients^-1.1).
        share: only this share of a round's replies, in (0, 1).
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
        schedule, log = _planned(
            self.participation, self.rounds, self.participations
        )
        clients = _clients(self.clients, log, None) or self.clients
        delta = chosen_delta(self.delta, clients)
        shares = _SHARES if self.share is None else (self.share,)
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
    """How exposed each client of a real deployment is, and what a cap would change.

    From the log of who took part when: FILE is CSV, TSV, JSON lines or Parquet with the columns
    round and client_id. An estimate by the high-dimensional limit, no guarantee.

    Examples:
        fl-epe advise log participation.csv --noise-multiplier 0.5
        fl-epe advise log participation.csv --noise-multiplier 0.5 --window 30

    Attributes:
        file: the log.
        noise_multiplier: z, the standard deviation of the noise on the sum over the clip norm.
        delta: target δ (default: clients^-1.1).
        momentum: momentum of the server's sgd (default: that of 'fl-epe run').
        adversary: the adversary sees the final model, or every round's.
        window: cap the participations in any so many rounds (default: those in the run).
        top: clients to list.
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
        """Print the exposure of the clients."""
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
