"""Schedules by name, from the numbers that a run's settings give.

Examples:
    >>> make_schedule("poisson", rounds=100, participations=5)
    Poisson(rounds=100, rate=0.05)
    >>> parse_schedule("capped:of=poisson,per_run=2")
    ('capped', {'of': 'poisson', 'per_run': 2})
"""

from __future__ import annotations

import inspect
import json
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fl_epe.checks import ArgumentError, checked_type, raise_invalid, rename_arguments
from fl_epe.schedules.availability import CheckIn, TimeOfDay
from fl_epe.schedules.composed import Capped, DropOut
from fl_epe.schedules.contract import Rated, Schedule
from fl_epe.schedules.ordered import BallsInBins, Cyclic, ShuffledEpochs
from fl_epe.schedules.sampled import DeviceClasses, FixedSize, MinSeparation, Poisson
from fl_epe.schedules.trace import Trace, TraceSample


def make_schedule(kind: str, rounds: int, participations: float, **options: Any) -> Schedule:
    """The schedule of a ``kind`` with a given number of rounds and of expected participations.

    Args:
        kind: one of `SCHEDULES`.
        rounds: number of rounds.
        participations: expected participations of each client, in (0, rounds]. A whole number for
            "balls-in-bins"; before the cap for "capped".
        options: by kind; those in brackets are optional. "min-separation": ``separation``;
            "check-in": [``window``], by default the longest that allows these participations;
            "time-of-day": ``rounds_per_day``, [``hours``], [``zones``]; "device-classes":
            ``rates``, relative to each other, and ``shares``; "trace" and "trace-sample":
            ``path`` of a file whose rounds and participations are as given, [``empty_rounds``], see
            `Trace.read`; "drop-out": ``of`` and ``rate``; "capped": ``of``, [``per_run``],
            [``per_window``], [``window``].
            ``of`` is the other schedule: its kind, or a mapping of "kind" and its options.

    Raises:
        ValueError: if an argument or option is out of range, unknown or missing.
    """
    options = check_options(kind, options)
    if not 0 < participations <= rounds:
        raise ArgumentError(
            "Expected {participations} in (0, {rounds}].",
            participations=participations,
            rounds=rounds,
        )
    made = SCHEDULES[kind]
    if issubclass(made, Rated):
        return made(rounds, participations / rounds, **options)
    with rename_arguments(epochs="participations"):
        return _MAKERS.get(kind, made)(rounds, participations, **options)


def schedule_options(kind: str) -> dict[str, inspect.Parameter]:
    """The options of a kind of schedule by name, in the order of `make_schedule`.

    Each has its type as ``annotation``, and a ``default`` unless it is needed.
    """
    maker = _MAKERS.get(kind, SCHEDULES[kind])
    hints = typing.get_type_hints(maker)
    _, _, *options = inspect.signature(maker).parameters.values()  # rounds and how often
    return {option.name: option.replace(annotation=hints[option.name]) for option in options}


def check_options(kind: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a kind of schedule, if all are known, of their type, and none is missing.

    Raises:
        ArgumentError: otherwise, or for an unknown kind.
    """
    if not isinstance(kind, str) or kind not in SCHEDULES:
        raise_invalid("kind", kind, f"to be one of {tuple(SCHEDULES)}")
    known = schedule_options(kind)
    for name, value in options.items():
        if name not in known:
            raise ArgumentError(
                f"Unknown option {{{name}}} of {{kind}}: expected {sorted(known)}.",
                **{name: value} | {"kind": kind},
            )
    for name, option in known.items():
        if option.default is option.empty and name not in options:
            raise ArgumentError(f"Expected option {name!r} for {{kind}}.", kind=kind)
    return {name: _checked(known[name], value) for name, value in options.items()}


def _checked(option: inspect.Parameter, value: Any) -> Any:
    if option.annotation == Sequence[float]:
        if not isinstance(value, list | tuple) or not value:
            raise_invalid(option.name, value, "to be a list of numbers, in a JSON object")
        return [checked_type(option.name, part, float) for part in value]
    if option.name == "path":
        return value if isinstance(value, Path) else _text(option.name, value)
    if option.name == "of":
        if not isinstance(value, Mapping):
            value = {"kind": _text("of", value)}
        inner = {name: part for name, part in value.items() if name != "kind"}
        if "kind" not in value:
            raise_invalid("of", dict(value), "to be a kind, or an object with a 'kind'")
        return {"kind": value["kind"], **check_options(value["kind"], inner)}
    return checked_type(option.name, value, option.annotation)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise_invalid(name, value, "to be text that is not empty")
    return value


def log_of(kind: str, options: Mapping[str, Any]) -> tuple[Trace, float] | None:
    """The log that a schedule replays, and a client's mean participations under the schedule.

    ``None`` for a schedule that replays none. Participations are before the cap for "capped", as
    in `make_schedule`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file holds no trace.
    """
    if "path" in options:
        trace = Trace.read(options["path"], options.get("empty_rounds"))
        return trace, trace.participations()
    if "of" not in options:
        return None
    of = options["of"]
    inner = {"kind": of} if isinstance(of, str) else dict(of)
    found = log_of(inner.pop("kind"), inner)
    if found is None or kind != DropOut.kind:
        return found
    return found[0], found[1] * (1 - options["rate"])


def parse_schedule(spec: str) -> tuple[str, dict[str, Any]]:
    """Kind and options from text: "kind", "kind:name=value,name=value", or "kind:{JSON object}".

    Examples: "cyclic", "min-separation:separation=5", "capped:of=poisson,per_run=2" and
    'drop-out:{"rate": 0.1, "of": {"kind": "min-separation", "separation": 5}}'.

    Raises:
        ValueError: if the kind is unknown, or the options are written in another way.
    """
    kind, _, rest = spec.partition(":")
    options = _json_options(spec, rest) if rest.startswith("{") else _pairs(spec, rest)
    check_options(kind, options)
    return kind, options


def _json_options(spec: str, text: str) -> dict[str, Any]:
    try:
        return dict(json.loads(text))
    except (ValueError, RecursionError) as error:  # not JSON, or nested too deep
        kind = spec.partition(":")[0]
        raise ArgumentError(f"Expected {spec!r} to hold a JSON object after {kind}:.") from error


def _pairs(spec: str, text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in text.split(",") if text else ():
        name, equals, value = part.partition("=")
        name = name.strip()
        if not equals or not name or name in found:
            what = "an option once" if name in found else "name=value"
            raise ArgumentError(f"Expected {what}, got {part!r} in {{schedule}}.", schedule=spec)
        found[name] = _value(value.strip())
    return found


def _value(text: str) -> Any:
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def _device_classes(
    rounds: int, participations: float, *, rates: Sequence[float], shares: Sequence[float]
) -> Schedule:
    mean = sum(rate * share for rate, share in zip(rates, shares, strict=False))
    if not 0 < mean < math.inf:
        raise ArgumentError(
            "Expected {rates} to have a mean > 0 over {shares}.", rates=rates, shares=shares
        )
    scale = participations / rounds / mean
    return DeviceClasses(rounds, tuple(scale * rate for rate in rates), tuple(shares))


def _check_in(rounds: int, participations: float, *, window: int | None = None) -> Schedule:
    if window is None:
        window = math.floor(_whole(rounds / participations))
    keep = participations * window / rounds
    if keep > 1 + 1e-12:
        limit = rounds / participations
        raise_invalid("window", window, f"<= rounds/participations={limit}")
    return CheckIn(rounds, window, min(keep, 1.0))


def _trace(
    rounds: int, participations: float, *, path: Path | str, empty_rounds: str | None = None
) -> Trace:
    trace = Trace.read(path, empty_rounds)
    if trace.rounds != rounds:
        raise_invalid("rounds", rounds, f"to be {trace.rounds}, as in {path}")
    if not math.isclose(trace.participations(), participations, rel_tol=1e-6):
        raise_invalid(
            "participations", participations, f"to be {trace.participations()}, as in {path}"
        )
    return trace


def _trace_sample(
    rounds: int, participations: float, *, path: Path | str, empty_rounds: str | None = None
) -> Schedule:
    return TraceSample(_trace(rounds, participations, path=path, empty_rounds=empty_rounds))


def _drop_out(
    rounds: int, participations: float, *, of: str | Mapping[str, Any], rate: float
) -> Schedule:
    if not 0 <= rate < 1:
        raise ArgumentError("Expected {rate} in [0, 1).", rate=rate)
    inner = _whole(participations / (1 - rate))
    if inner > rounds:
        raise ArgumentError(
            "Expected {participations} <= (1 - rate) * rounds with {rate}.",
            participations=participations,
            rate=rate,
        )
    return DropOut(_other(rounds, inner, of), rate)


def _whole(number: float) -> float:
    """``number`` without the rounding of a quotient: 1 / (1 - 0.9) is 10."""
    near = round(number)
    return near if math.isclose(number, near, rel_tol=1e-12) else number


def _capped(
    rounds: int,
    participations: float,
    of: str | Mapping[str, Any],
    per_run: int | None = None,
    per_window: int | None = None,
    window: int | None = None,
) -> Schedule:
    return Capped(_other(rounds, participations, of), per_run, per_window, window)


def _other(rounds: int, participations: float, of: str | Mapping[str, Any]) -> Schedule:
    """The schedule inside a composition."""
    options = {"kind": of} if isinstance(of, str) else dict(of)
    return make_schedule(options.pop("kind"), rounds, participations, **options)


SCHEDULES: dict[str, type[Schedule]] = {
    schedule.kind: schedule
    for schedule in (
        ShuffledEpochs,
        Poisson,
        FixedSize,
        MinSeparation,
        DeviceClasses,
        Cyclic,
        BallsInBins,
        CheckIn,
        TimeOfDay,
        Trace,
        TraceSample,
        DropOut,
        Capped,
    )
}
"""The class of each kind of schedule."""

_MAKERS: dict[str, Callable[..., Schedule]] = {
    DeviceClasses.kind: _device_classes,
    CheckIn.kind: _check_in,
    Trace.kind: _trace,
    TraceSample.kind: _trace_sample,
    DropOut.kind: _drop_out,
    Capped.kind: _capped,
}
"""Where rounds and participations are not, with the options, what the class takes."""
