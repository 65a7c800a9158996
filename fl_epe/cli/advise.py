"""The command line's ``fl-epe advise``: noise for a wanted ε, and who of a log is most exposed."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fl_epe.accounting import UpperBound, tightest, upper_bounds
from fl_epe.auditing import AuditRecord, finite
from fl_epe.mechanism import ServerSGD
from fl_epe.schedules import Schedule, Trace, make_schedule, parse_schedule

if TYPE_CHECKING:
    from fl_epe.asymptotics import Exposure, NoiseAdvice

_RECORD = "record.npz"
_ROUNDS, _PARTICIPATIONS, _DELTA = 60, 1.0, 1e-5
_ENOUGH_CLIENTS = 10**6  # where their number is not known: only rounding depends on it
_COLUMNS = (
    "client_id",
    "participations",
    "final",
    "every_round",
    "epsilon_final",
    "epsilon_every_round",
)
_EXAMPLES = """examples:
  fl-epe advise noise --target-epsilon 1 --rounds 1000 --clients 50000
  fl-epe advise noise --target-epsilon 3 --participation poisson --participations 20 --rounds 500
  fl-epe advise noise --target-epsilon 2 --like runs/half --who most-exposed
  fl-epe advise log participation.csv --noise-multiplier 0.5
  fl-epe advise log participation.csv --noise-multiplier 0.5 --per-window 2 --window 30
"""


def add_advise(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``advise`` to the commands of ``fl-epe``."""
    advise = commands.add_parser(
        "advise",
        help="noise for a wanted ε; who of a real deployment is most exposed",
        description="What the high-dimensional limit says of a schedule, without training: an "
        "estimate of what random canaries would measure, no guarantee of differential privacy.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = advise.add_subparsers(required=True, metavar="WHAT")
    _add_noise(kinds)
    _add_log(kinds)


def _add_noise(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    noise = kinds.add_parser(
        "noise",
        help="the noise multiplier at which canaries would measure a wanted ε",
        description="The noise multiplier of the clients' sum at which canaries are expected to "
        "measure a wanted ε. An estimate for random canaries, no guarantee.",
    )
    noise.add_argument("--target-epsilon", type=float, required=True, metavar="E", help="wanted ε")
    noise.add_argument(
        "--participation",
        metavar="SPEC",
        help="schedule, as for 'fl-epe run', or trace:path=FILE (default: that of the run under "
        "--like, or epochs)",
    )
    noise.add_argument(
        "--rounds", type=int, help=f"rounds of training (default: the run's, or {_ROUNDS})"
    )
    noise.add_argument(
        "--participations",
        type=float,
        metavar="R",
        help=f"how often a client takes part on average (default: the run's, or "
        f"{_PARTICIPATIONS:g})",
    )
    noise.add_argument(
        "--clients",
        type=int,
        metavar="M",
        help="clients in all, of whom the canaries are some (default: the canaries alone)",
    )
    noise.add_argument(
        "--delta",
        type=float,
        help=f"target δ (default: the run's, or clients^-1.1, or {_DELTA:g})",
    )
    noise.add_argument(
        "--momentum",
        type=float,
        help="momentum of the server's sgd (default: the run's, or 0; 'fl-epe run' has 0.9)",
    )
    noise.add_argument(
        "--threat",
        default="final",
        choices=("final", "all"),
        help="the adversary sees the final model, or every round's (default: final)",
    )
    noise.add_argument(
        "--who",
        default="mean",
        choices=("mean", "most-exposed"),
        help="whose ε: the mean client's, or that of the most exposed canary (default: mean)",
    )
    noise.add_argument(
        "--num-canaries",
        type=int,
        default=2000,
        metavar="K",
        help="clients to draw, and canaries of the run that would measure (default: 2000)",
    )
    noise.add_argument(
        "--like",
        type=Path,
        metavar="RUN_DIR",
        help=f"take clip norms, server and real updates from the {_RECORD} of a run",
    )
    noise.add_argument("--seed", type=int, default=0, help="of the schedule's draws (default: 0)")
    noise.add_argument("--json", action="store_true", help="print JSON instead of text")
    noise.set_defaults(command=_noise)


def _add_log(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    log = kinds.add_parser(
        "log",
        help="who of a real deployment is most exposed, and what a cap would change",
        description="How exposed each client of a real deployment is, from the log of who took "
        "part when, and what a cap on participation would change. FILE is CSV or Parquet with the "
        "columns round and client_id. An estimate, no guarantee.",
    )
    log.add_argument("file", type=Path, metavar="FILE", help="the log")
    log.add_argument(
        "--noise-multiplier", type=float, required=True, metavar="Z", help="of the clients' sum"
    )
    log.add_argument("--delta", type=float, help="target δ (default: clients^-1.1)")
    log.add_argument(
        "--momentum", type=float, default=0.0, help="momentum of the server's sgd (default: 0)"
    )
    log.add_argument("--per-run", type=int, metavar="N", help="a cap: participations in the run")
    log.add_argument(
        "--per-window", type=int, metavar="N", help="a cap: participations in any window"
    )
    log.add_argument("--window", type=int, metavar="W", help="rounds of a window")
    log.add_argument(
        "--top", type=int, default=10, metavar="N", help="clients to list (default: 10)"
    )
    log.add_argument("--csv", type=Path, metavar="OUT", help="write every client there")
    log.add_argument("--json", action="store_true", help="print JSON instead of tables")
    log.set_defaults(command=_log)


def _noise(arguments: argparse.Namespace) -> int:
    from fl_epe.asymptotics import noise_for_epsilon

    record = None if arguments.like is None else AuditRecord.load(arguments.like / _RECORD)
    schedule = _schedule(arguments, record)
    clients = arguments.clients
    if clients is None and isinstance(schedule, Trace):
        clients = schedule.population
    if clients is not None and clients < 2:
        raise ValueError(f"Expected clients={clients} >= 2.")
    advice = noise_for_epsilon(
        schedule,
        arguments.target_epsilon,
        _delta(arguments.delta, record, clients),
        threat=arguments.threat,
        who=arguments.who,
        num_canaries=arguments.num_canaries,
        # Laws are the same for all clients: fewer than the canaries would not change them.
        population=clients if clients is not None and clients >= arguments.num_canaries else None,
        seed=arguments.seed,
        **_server_of(arguments.momentum, record),
    )
    theory = _theory(schedule, advice.noise_multiplier, advice.delta, clients)
    setting = _setting(record, advice.noise_multiplier)
    if arguments.json:
        values = {
            **dataclasses.asdict(advice),
            "setting": setting,
            "analytical": [vars(bound) | {"epsilon": finite(bound.epsilon)} for bound in theory],
        }
        _print_json(values)
        return 0
    _show_noise(advice, theory, setting)
    return 0


def _show_noise(advice: NoiseAdvice, theory: list[UpperBound], setting: float | None) -> None:
    from fl_epe.reporting import advice_lines

    lines = [*advice_lines(advice), *_theory_lines(theory)]
    if setting is not None:
        lines.append(
            f"• The clip norm of that run was adaptive: --noise-multiplier {setting:.4g} gives the "
            "sum this z."
        )
    _print_lines(Console(), lines)


def _schedule(arguments: argparse.Namespace, record: AuditRecord | None) -> Schedule:
    spec = arguments.participation
    if spec is None and record is not None:
        spec = record.provenance.config.get("participation", record.mechanism.participation)
    kind, options = parse_schedule(spec or "epochs")
    rounds, repeats = arguments.rounds, arguments.participations
    if kind in ("trace", "trace-sample") and "path" in options and rounds is None is repeats:
        return Trace.read(options["path"])
    if record is not None:
        if rounds not in (None, record.rounds):
            raise ValueError(f"Expected rounds={rounds} to be {record.rounds}, as in the run.")
        rounds = record.rounds
        repeats = record.mechanism.canary_participations if repeats is None else repeats
    rounds = _ROUNDS if rounds is None else rounds
    repeats = _PARTICIPATIONS if repeats is None else repeats
    return make_schedule(kind, rounds, repeats, **options)


def _delta(given: float | None, record: AuditRecord | None, clients: int | None) -> float:
    if given is not None:
        return given
    if record is not None:
        return record.delta
    return _DELTA if clients is None else float(clients**-1.1)


def _server_of(momentum: float | None, record: AuditRecord | None) -> dict[str, Any]:
    """Clip norms, server, decay and real updates, as `limit_record` takes them."""
    from fl_epe.asymptotics import limit_like

    if record is None:
        return {"server": ServerSGD(1.0, momentum or 0.0)}
    like = limit_like(record)
    if momentum is not None:
        like["server"] = dataclasses.replace(like["server"], momentum=momentum)
    return like


def _setting(record: AuditRecord | None, noise_multiplier: float) -> float | None:
    """The noise multiplier of a run whose sum has that one, where the clip norm spends a part."""
    mechanism = None if record is None else record.mechanism
    if not mechanism or not mechanism.noise_multiplier or not mechanism.sum_noise_multiplier:
        return None
    spent = mechanism.noise_multiplier**-2 - mechanism.sum_noise_multiplier**-2
    if spent <= 0 or noise_multiplier == 0:
        return None
    return float((noise_multiplier**-2 + spent) ** -0.5)


def _theory(
    schedule: Schedule, noise_multiplier: float, delta: float, clients: int | None
) -> list[UpperBound]:
    """The tightest guarantees, for rounds that the adversary knows and for unknown ones."""
    found = upper_bounds(schedule, noise_multiplier, delta, clients or _ENOUGH_CLIENTS)
    known, unknown = tightest(found, rounds_known=True), tightest(found, rounds_known=False)
    return [bound for bound in (known, unknown if unknown != known else None) if bound is not None]


def _theory_lines(theory: list[UpperBound]) -> list[str]:
    from fl_epe.reporting import number

    return [
        f"• Theory guarantees ε ≤ {number(finite(bound.epsilon))} at that z, whatever the attack, "
        f"with rounds {'known' if bound.rounds_known else 'unknown'} ({bound.assumption}; "
        f"{bound.adjacency} adjacency)."
        for bound in theory
    ]


def _log(arguments: argparse.Namespace) -> int:
    from fl_epe.asymptotics import caps, exposure
    from fl_epe.reporting import exposure_lines, exposure_tables

    trace = Trace.read(arguments.file)
    delta = arguments.delta
    if delta is None:
        if trace.population < 2:
            raise ValueError(f"Expected clients={trace.population} >= 2, or a delta.")
        delta = trace.population**-1.1
    server = ServerSGD(1.0, arguments.momentum)
    z = arguments.noise_multiplier
    result = exposure(
        trace,
        z,
        delta,
        per_run=arguments.per_run,
        per_window=arguments.per_window,
        window=arguments.window,
        server=server,
    )
    effects = caps(trace, z, delta, window=arguments.window, server=server)
    if arguments.csv is not None:
        _write_csv(arguments.csv, result)
    if arguments.json:
        _print_json(_log_values(result, arguments.top) | {"caps": [vars(e) for e in effects]})
        return 0
    console = Console()
    for table in exposure_tables(result, effects, arguments.top):
        console.print(table)
    _print_lines(console, exposure_lines(result))
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
        writer.writerows(zip(*(column.tolist() for column in columns), strict=True))


def _print_lines(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        style = "dim" if line.startswith("•") else None
        console.print(line, style=style, markup=False, highlight=False)


def _print_json(values: dict[str, Any]) -> None:
    print(json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False))
