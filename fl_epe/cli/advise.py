"""``fl-epe advise``: the noise for a wanted ε, and which clients of a log are most exposed."""

from __future__ import annotations

import argparse
import csv
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fl_epe.accounting import UpperBound, tightest, upper_bounds
from fl_epe.auditing import AuditRecord, finite
from fl_epe.checks import (
    ArgumentError,
    check_count,
    check_noise,
    check_positive,
    check_types,
    expected,
    within,
)
from fl_epe.cli.console import print_json, print_lines, terminal
from fl_epe.cli.options import a_path, add_command, add_options, given
from fl_epe.cli.sizes import check_limit, check_memory
from fl_epe.compare import load_run, rounds_like, server_like
from fl_epe.mechanism import ServerSGD
from fl_epe.schedules import Schedule, Trace, log_of, make_schedule, parse_schedule
from fl_epe.table_file import csv_cell

if TYPE_CHECKING:
    from fl_epe.asymptotics import Exposure, NoiseAdvice

_ROUNDS, _PARTICIPATIONS, _DELTA = 60, 1.0, 1e-5
_ENOUGH_CLIENTS = 10**6  # where nobody said how many: only rounding depends on the number
_COLUMNS = (
    "client_id",
    "participations",
    "final",
    "every_round",
    "epsilon_final",
    "epsilon_every_round",
)
_MOST_DRAWS = 10_000
_PARTICIPATIONS_TRIED = (1, 2, 4, 8, 16)
_LONGEST = 3600.0  # advice is for somebody who waits
_EXAMPLES = """examples:
  fl-epe advise noise --target-epsilon 1 --rounds 1000 --clients 50000
  fl-epe advise noise --target-epsilon 3 --participation poisson --participations 20 --rounds 500
  fl-epe advise noise --target-epsilon 2 --like runs/half --who most-exposed
  fl-epe advise canaries --true-epsilon 8 --claimed 4
  fl-epe advise canaries --noise-multiplier 1 --claimed 4 --clients-per-round 24
  fl-epe advise log participation.csv --noise-multiplier 0.5
  fl-epe advise log participation.csv --noise-multiplier 0.5 --per-window 2 --window 30
"""


@dataclasses.dataclass(frozen=True)
class _Noise:
    """A question for ``fl-epe advise noise``.

    Attributes:
        target_epsilon: wanted ε.
        participation: schedule, as for 'fl-epe run', or trace:path=FILE (default: that of the run
            under --like, or epochs).
        rounds: rounds of training (default: the run's, or 60).
        participations: rounds in which a client takes part on average (default: the run's, or 1).
        clients: clients in all (default: a million; of a log, its own).
        delta: target δ (default: the run's, or clients^-1.1, or 1e-05).
        momentum: momentum of the server's sgd (default: the run's, or 0; 'fl-epe run' has 0.9).
        threat: the adversary sees the final model, or every round's.
        who: whose ε: that of a client drawn at random, of one with the mean expected score, or
            of the most exposed of all clients.
        num_canaries: canaries of the run that would measure.
        like: directory of a run whose clip norms, server and real updates are taken over.
        seed: of the clients that are drawn where a schedule has no law in closed form.
        json: print JSON instead of text.
    """

    target_epsilon: float
    participation: str | None = None
    rounds: int | None = None
    participations: float | None = None
    clients: int | None = None
    delta: float | None = None
    momentum: float | None = None
    threat: Literal["final", "all"] = "final"
    who: Literal["random", "mean", "most-exposed"] = "random"
    num_canaries: int = 2000
    like: Path | None = None
    seed: int = 0
    json: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        if self.num_canaries < 2:
            expected("num_canaries", self.num_canaries, ">= 2")
        if self.seed < 0:
            expected("seed", self.seed, ">= 0")
        check_memory(self.num_canaries * 16, "the canaries' scores", num_canaries=self.num_canaries)


@dataclasses.dataclass(frozen=True)
class _Log:
    """A question for ``fl-epe advise log``.

    Attributes:
        noise_multiplier: z, the standard deviation of the noise on the sum over the clip norm.
        delta: target δ (default: clients^-1.1).
        momentum: momentum of the server's sgd.
        per_run: a cap: most participations of a client in the run.
        per_window: a cap: most participations of a client in any window.
        window: length of a window in rounds.
        empty_rounds: keep or drop the rounds without any client (default: kept, if they are fewer
            than half).
        top: clients to list.
        csv: file to write every client to.
        json: print JSON instead of tables.
    """

    noise_multiplier: float
    delta: float | None = None
    momentum: float = 0.0
    per_run: int | None = None
    per_window: int | None = None
    window: int | None = None
    empty_rounds: Literal["keep", "drop"] | None = None
    top: int = 10
    csv: Path | None = None
    json: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        check_count("top", self.top)
        for name in ("per_run", "per_window", "window"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        if self.noise_multiplier:  # 0 is refused where nothing else hides a client
            check_noise("noise_multiplier", self.noise_multiplier)


@dataclasses.dataclass(frozen=True)
class _Canaries:
    """A question for ``fl-epe advise canaries``.

    Attributes:
        claimed: ε that the lower bound is to exceed.
        true_epsilon: ε that the run really has for a canary's participations; needed without
            --noise-multiplier.
        noise_multiplier: z of the sum: the true ε is then that of the Gaussian mechanism, for an
            adversary who sees every round, and several numbers of participations are tried.
        participations: rounds in which each canary takes part (default: 1, or with
            --noise-multiplier 1, 2, 4, 8 and 16).
        clients_per_round: real clients of a round; the rounds that have room are then told.
        share: largest share of canaries in a round.
        delta: target δ.
        confidence: of the lower bound, one-sided.
        power: wanted probability that the bound exceeds the claim.
        method: the lower bound, or auto for the one by design.
        null: whether the null is exact, or shown by as many unobserved canaries; a canary that
            takes part more than once needs them.
        draws: simulated audits for each number of canaries.
        seed: of the simulated audits.
        json: print JSON instead of text.
    """

    claimed: float
    true_epsilon: float | None = None
    noise_multiplier: float | None = None
    participations: int | None = None
    clients_per_round: float | None = None
    share: float = 0.5
    delta: float = _DELTA
    confidence: float = 0.95
    power: float = 0.8
    method: str = "auto"
    null: Literal["auto", "exact", "unobserved"] = "auto"
    draws: int = 40
    seed: int = 0
    json: bool = False

    def __post_init__(self) -> None:
        check_types(self)
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
        if not 0 < self.share < 1:
            expected("share", self.share, "in (0, 1)")
        if self.seed < 0:
            expected("seed", self.seed, ">= 0")
        if not 2 <= self.draws <= _MOST_DRAWS:
            expected("draws", self.draws, f"in [2, {_MOST_DRAWS}]")


def add_advise(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``advise`` to the commands of ``fl-epe``."""
    advise = commands.add_parser(
        "advise",
        help="noise for a wanted ε; canaries for a wanted bound; who of a log is most exposed",
        description="What the high-dimensional limit says of a schedule, without training: an "
        "estimate of what random canaries would measure, no guarantee of differential privacy.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = advise.add_subparsers(required=True, metavar="WHAT")
    noise = add_command(
        kinds,
        "noise",
        _noise,
        summary="the noise multiplier at which canaries would measure a wanted ε",
        description="The noise multiplier of the clients' sum at which canaries are expected to "
        "measure a wanted ε. An estimate for random canaries, no guarantee.",
        spell={"kind": "--participation", "population": "--clients"}.get,
    )
    add_options(noise, _Noise)
    canaries = add_command(
        kinds,
        "canaries",
        _canaries,
        summary="how many canaries, rounds and participations show that ε exceeds a claim",
        description="How many canaries, rounds and participations it takes until the lower bound "
        "of a report exceeds a claimed ε with a wanted probability, by simulating audits of "
        "Gaussian scores. With few canaries a report cannot show a large ε, whatever leaks.",
        spell={"epsilon": "--true-epsilon"}.get,
    )
    add_options(canaries, _Canaries)
    log = add_command(
        kinds,
        "log",
        _log,
        summary="who of a real deployment is most exposed, and what a cap would change",
        description="How exposed each client of a real deployment is, from the log of who took "
        "part when, and what a cap on participation would change. FILE is CSV or Parquet with the "
        "columns round and client_id. An estimate, no guarantee.",
        spell={"count": "--top", "path": "FILE"}.get,
    )
    log.add_argument("file", type=a_path, metavar="FILE", help="the log")
    add_options(log, _Log)


def _noise(arguments: argparse.Namespace) -> int:
    from fl_epe.asymptotics import noise_for_epsilon

    asked = _Noise(**given(arguments, _Noise))
    run = None if asked.like is None else load_run(asked.like)
    schedule, log = _schedule(asked, run)
    clients = asked.clients
    if clients is None and log is not None:
        clients = log.population
    if clients is not None and clients < 2:
        raise ArgumentError("Expected {clients} >= 2.", clients=clients)
    advice = noise_for_epsilon(
        schedule,
        asked.target_epsilon,
        _delta(asked.delta, run, clients),
        threat=asked.threat,
        who=asked.who,
        num_canaries=asked.num_canaries,
        population=clients,
        seed=asked.seed,
        **server_like(run, 0.0, momentum=asked.momentum),
    )
    theory = _theory(schedule, advice, clients)
    setting = _setting(run, advice.noise_multiplier)
    if asked.json:
        bounds = [vars(bound) | {"epsilon": finite(bound.epsilon)} for bound in theory]
        print_json(dataclasses.asdict(advice) | {"setting": setting, "analytical": bounds})
    else:
        _show_noise(advice, theory, setting)
    return 0


def _canaries(arguments: argparse.Namespace) -> int:
    from fl_epe.accounting import gaussian_epsilon
    from fl_epe.asymptotics import canaries_for_epsilon
    from fl_epe.reporting import canary_lines

    asked = _Canaries(**given(arguments, _Canaries))
    z, room = asked.noise_multiplier, None
    if asked.clients_per_round is not None:
        room = asked.clients_per_round * asked.share / (1 - asked.share)
    tried = _PARTICIPATIONS_TRIED if z is not None else (1,)
    found = []
    for participations in tried if asked.participations is None else (asked.participations,):
        true = asked.true_epsilon
        if z is not None:
            true = gaussian_epsilon(z, asked.delta, participations)
        assert true is not None  # noqa: S101 - one of the two is given
        exact = asked.null == "exact" or (asked.null == "auto" and participations == 1)
        found.append(
            canaries_for_epsilon(
                true,
                asked.claimed,
                asked.delta,
                confidence=asked.confidence,
                power=asked.power,
                method=asked.method,
                exact=exact,
                participations=participations,
                room=room,
                draws=asked.draws,
                seed=asked.seed,
            )
        )
    if asked.json:
        rows = [
            dataclasses.asdict(one)
            | {"true_epsilon": finite(one.true_epsilon), "ceiling": finite(one.ceiling)}
            for one in found
        ]
        print_json({"power": asked.power, "advice": rows})
    else:
        print_lines(terminal(), canary_lines(found, asked.power))
    return 0


def _show_noise(advice: NoiseAdvice, theory: list[UpperBound], setting: float | None) -> None:
    from fl_epe.reporting import advice_lines

    lines = [*advice_lines(advice), *_theory_lines(theory)]
    if setting is not None:
        lines.append(
            f"• The clip norm of that run was adaptive: --noise-multiplier {setting:.4g} gives the "
            "sum this z."
        )
    print_lines(terminal(), lines)


def _schedule(asked: _Noise, run: AuditRecord | None) -> tuple[Schedule, Trace | None]:
    """The schedule, and the log that it replays, if it replays one."""
    spec, participations = asked.participation, asked.participations
    if run is not None:
        spec = spec or run.provenance.config.get("participation", run.mechanism.participation)
    spec = spec or "epochs"
    with within("participation", spec):
        kind, options = parse_schedule(spec)
        log = log_of(kind, options)
        if participations is None and log is not None:
            participations = log[1]
        if participations is None:
            participations = _PARTICIPATIONS if run is None else run.mechanism.canary_participations
    rounds = rounds_like(run, asked.rounds, _ROUNDS if log is None else log[0].rounds)
    check_limit(rounds, asked.clients, longest=_LONGEST)
    with within("participation", spec, "rounds", "participations"):
        return make_schedule(kind, rounds, participations, **options), log and log[0]


def _delta(asked: float | None, record: AuditRecord | None, clients: int | None) -> float:
    if asked is not None:
        return asked
    if record is not None:
        return record.delta
    return _DELTA if clients is None else float(clients**-1.1)


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
    if advice.who == "most-exposed":
        found = tuple(bound for bound in found if not bound.averages)
    known, unknown = tightest(found, rounds_known=True), tightest(found, rounds_known=False)
    return [bound for bound in (known, unknown if unknown != known else None) if bound is not None]


def _theory_lines(theory: list[UpperBound]) -> list[str]:
    from fl_epe.reporting import number

    return [
        f"• Theory guarantees ε ≤ {number(finite(bound.epsilon))} at that z for "
        f"{'a client drawn at random' if bound.averages else 'every client'}, whatever the attack, "
        f"with rounds {'known' if bound.rounds_known else 'unknown'} ({bound.assumption}; "
        f"{bound.adjacency} adjacency)."
        for bound in theory
    ]


def _log(arguments: argparse.Namespace) -> int:
    from fl_epe.asymptotics import caps, exposure
    from fl_epe.reporting import exposure_lines, exposure_tables

    asked = _Log(**given(arguments, _Log))
    trace = Trace.read(arguments.file, asked.empty_rounds)
    if asked.delta is None and trace.population < 2:
        raise ArgumentError("Expected {clients} >= 2, or a delta.", clients=trace.population)
    delta = trace.population**-1.1 if asked.delta is None else asked.delta
    server = ServerSGD(1.0, asked.momentum)
    result = exposure(
        trace,
        asked.noise_multiplier,
        delta,
        per_run=asked.per_run,
        per_window=asked.per_window,
        window=asked.window,
        server=server,
    )
    effects = caps(trace, asked.noise_multiplier, delta, window=asked.window, server=server)
    if asked.csv is not None:
        _write_csv(asked.csv, result)
    if asked.json:
        print_json(_log_values(result, asked.top) | {"caps": [vars(e) for e in effects]})
        return 0
    console = terminal()
    for table in exposure_tables(result, effects, asked.top):
        console.print(table)
    print_lines(console, exposure_lines(result))
    print_lines(
        console,
        [f"• The log has {trace.rounds:,} rounds; {trace.rounds_with_clients:,} have clients."],
    )
    return 0


def _log_values(result: Exposure, top: int) -> dict[str, Any]:
    """An exposure as JSON values, without the arrays."""
    return {
        "noise_multiplier": result.noise_multiplier,
        "delta": result.delta,
        "rounds": result.rounds,
        "clients": len(result.clients),
        "participations": int(result.participations.sum()),
        "levels": [vars(level) for level in result.levels()],
        "top": [vars(client) for client in result.top(top)],
        "cap": None if result.cap is None else vars(result.cap),
        "capped": None if result.capped is None else _log_values(result.capped, top),
    }


def _write_csv(path: Path, result: Exposure) -> None:
    """Every client, the most exposed first; with a cap also what it leaves of each."""
    order = result.order()
    columns = [result.clients[order], *(getattr(result, name)[order] for name in _COLUMNS[1:])]
    names = list(_COLUMNS)
    if result.capped is not None:
        names += [f"capped_{name}" for name in _COLUMNS[1:]]
        columns += [getattr(result.capped, name)[order] for name in _COLUMNS[1:]]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        writer.writerows([csv_cell(value) for value in row] for row in rows)
