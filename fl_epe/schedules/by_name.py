"""Schedules by name, with the rounds and participations of a run's settings.

Examples:
    >>> make_schedule("poisson", rounds=100, participations=5)
    Poisson(rounds=100, rate=0.05)
    >>> parse_schedule("capped:of=poisson,per_run=2")
    ('capped', {'of': 'poisson', 'per_run': 2})
"""

import json
import math
from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any

from fl_epe.checks import (
    ArgumentError,
    check_fraction,
    checked_type,
    did_you_mean,
    raise_invalid,
    rename_arguments,
)
from fl_epe.schedules.availability import DeviceClasses
from fl_epe.schedules.composed import Capped, DropOut
from fl_epe.schedules.contract import Rated, Schedule
from fl_epe.schedules.sampled import (
    BallsInBins,
    BMinSep,
    Cyclic,
    FixedSize,
    MinSeparation,
    Poisson,
    RandomAllocation,
    ShuffledEpochs,
)
from fl_epe.schedules.trace import Trace


def make_schedule(
    spec: str, rounds: int, participations: float, **options: Any
) -> Schedule:
    """The schedule of a kind with a given number of rounds and of expected participations.

    Args:
        spec: one of `SCHEDULES`, which may have options, see `parse_schedule`.
        rounds: number of rounds.
        participations: expected participations of each client, in (0, rounds]: a whole number
            for "balls-in-bins" and "k-out-of-t"; those before the cap for "capped".
        options: options that ``spec`` does not have, see `schedule_maker`.

    Raises:
        ValueError: if an argument or option is out of range, unknown or missing.
    """
    kind, options = parse_schedule(spec, **options)
    if not 0 < participations <= rounds:
        raise ArgumentError(
            "Expected {participations} in (0, {rounds}].",
            participations=participations,
            rounds=rounds,
        )
    schedule = SCHEDULES[kind]
    if issubclass(schedule, Rated):
        return schedule(rounds, participations / rounds, **options)
    with rename_arguments(epochs="participations"):
        return schedule_maker(kind)(rounds, participations, **options)


def parse_schedule(spec: str, **options: Any) -> tuple[str, dict[str, Any]]:
    """Kind and options from text: "kind", "kind:name=value,name=value" or "kind:{JSON}".

    Examples: "cyclic", "min-separation:separation=5", "capped:of=poisson,per_run=2" and
    'drop-out:{"rate": 0.1, "of": "min-separation:separation=5"}'.

    Args:
        spec: the text.
        options: options that ``spec`` does not have.

    Raises:
        ValueError: if the kind is unknown, the text cannot be parsed, or an option is unknown, of
            the wrong type, or missing.
    """
    kind, _, text = spec.partition(":")
    if kind not in SCHEDULES:
        hint = did_you_mean(kind, list(SCHEDULES))
        raise_invalid("kind", kind, f"to be one of {tuple(SCHEDULES)}{hint}")
    is_json = text.startswith("{")
    values = _json_options(kind, spec, text) if is_json else _pairs(spec, text)
    values |= options
    maker = signature(schedule_maker(kind), eval_str=True)
    # The first two parameters, rounds and participations or a rate, are no options.
    parameters = dict(list(maker.parameters.items())[2:])
    for name, value in values.items():
        if name not in parameters:
            # `ArgumentError` replaces "{x}" by the argument x and its value.
            raise ArgumentError(
                f"Unknown option {{{name}}} of {{kind}}: expected {sorted(parameters)}.",
                **{name: value, "kind": kind},
            )
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in values:
            raise ArgumentError(
                f"Expected option {name!r} for {{kind}}.", kind=kind
            )
    return kind, {
        name: _checked(parameters[name], value)
        for name, value in values.items()
    }


def schedule_maker(kind: str) -> Callable[..., Schedule]:
    """The function of rounds, participations (or a rate) and options that makes a schedule.

    Its docstring says what the options mean, in the section "Options:" or "Attributes:".
    """
    return _MAKERS.get(kind, SCHEDULES[kind])


def replays_log(spec: str) -> bool:
    """Whether a schedule is a trace or is composed of one. The log file is not read.

    Raises:
        ValueError: see `parse_schedule`.
    """
    kind, options = parse_schedule(spec)
    return kind == Trace.kind or (
        "of" in options and replays_log(options["of"])
    )


def log_of(spec: str) -> tuple[Trace, float] | None:
    """The log that a schedule replays, and the participations to pass to `make_schedule` with it.

    The result is ``None`` if the schedule replays no log. For "capped", participations are those
    before the cap; for "drop-out", those of clients who do not drop out.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file holds no trace.
    """
    kind, options = parse_schedule(spec)
    if kind == Trace.kind:
        trace = Trace.read(options["path"])
        return trace, trace.participations()
    if "of" not in options:
        return None
    log = log_of(options["of"])
    if log is None or kind != DropOut.kind:
        return log
    trace, participations = log
    return trace, participations * (1 - options["rate"])


def _json_options(kind: str, spec: str, text: str) -> dict[str, Any]:
    """The options in a JSON object: ``text``, the part of ``spec`` after the kind."""
    try:
        return dict(json.loads(text))
    # The text is no JSON object, or nested too deeply.
    except (ValueError, RecursionError) as error:
        raise ArgumentError(
            f"Expected a JSON object after '{kind}:' in {{schedule}}.",
            schedule=spec,
        ) from error


def _pairs(spec: str, text: str) -> dict[str, Any]:
    """The options in ``text``, the part of ``spec`` after the kind: "name=value,name=value"."""
    options: dict[str, Any] = {}
    parts = text.split(",") if text else []
    for part in parts:
        name, equals, value = map(str.strip, part.partition("="))
        if not equals or not name or name in options:
            expected = "each option once" if name in options else "name=value"
            raise ArgumentError(
                f"Expected {expected}, got {part!r} in {{schedule}}.",
                schedule=spec,
            )
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def _checked(option: Parameter, value: Any) -> Any:
    """The value of an option, if it has the option's type."""
    if option.annotation == list[float]:
        if not isinstance(value, list | tuple) or not value:
            raise_invalid(
                option.name, value, "to be a list of numbers, in a JSON object"
            )
        return [checked_type(option.name, part, float) for part in value]
    checked_type(option.name, value, option.annotation)
    if value == "":
        raise_invalid(option.name, value, "to be text that is not empty")
    if option.name == "of":
        parse_schedule(value)
    return value


def _device_classes(
    rounds: int,
    participations: float,
    *,
    rates: list[float],
    shares: list[float],
) -> Schedule:
    """A schedule by classes of devices, whose rates are scaled to the participations.

    Options:
        rates: how often each class takes part, relative to the other classes.
    """
    # `DeviceClasses` checks that rates and shares are equally many.
    mean = sum(rate * share for rate, share in zip(rates, shares, strict=False))
    if not 0 < mean < math.inf:
        raise_invalid(
            "rates", rates, f"to have a mean > 0 over shares={shares}"
        )
    scale = participations / rounds / mean
    return DeviceClasses(
        rounds, tuple(scale * rate for rate in rates), tuple(shares)
    )


def _trace(rounds: int, participations: float, *, path: str) -> Trace:
    """The schedule of a log, which must have these rounds and participations.

    Options:
        path: the path of a CSV or Parquet file with the columns round and client_id.
    """
    trace = Trace.read(path)
    if trace.rounds != rounds:
        raise_invalid("rounds", rounds, f"to be {trace.rounds}, as in {path}")
    mean = trace.participations()
    # The mean may have been typed with the seven digits of the message.
    if not math.isclose(mean, participations, rel_tol=1e-6):
        raise_invalid(
            "participations", participations, f"to be {mean:.7g}, as in {path}"
        )
    return trace


def _drop_out(
    rounds: int, participations: float, *, of: str, rate: float
) -> Schedule:
    """Another schedule with drop-out, after which these participations are expected.

    Options:
        of: the other schedule, as text.
    """
    check_fraction("rate", rate)
    before = participations / (1 - rate)
    # Undo rounding: the quotient 1 / (1 - 0.9) is a little above 10.
    if math.isclose(before, round(before), rel_tol=1e-12):
        before = round(before)
    if before > rounds:
        raise_invalid(
            "participations",
            participations,
            f"<= (1 - rate={rate}) * rounds={rounds}",
        )
    return DropOut(make_schedule(of, rounds, before), rate)


def _capped(
    rounds: int,
    participations: float,
    *,
    of: str,
    per_run: int | None = None,
    per_window: int | None = None,
    window: int | None = None,
) -> Schedule:
    """Another schedule with a cap, before which these participations are expected.

    Options:
        of: the other schedule, as text.
    """
    return Capped(
        make_schedule(of, rounds, participations), per_run, per_window, window
    )


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
        RandomAllocation,
        BMinSep,
        Trace,
        DropOut,
        Capped,
    )
}
"""The class of each kind of schedule."""

# Functions that make the schedules whose class has other parameters than rounds, participations
# and the options.
_MAKERS: dict[str, Callable[..., Schedule]] = {
    DeviceClasses.kind: _device_classes,
    Trace.kind: _trace,
    DropOut.kind: _drop_out,
    Capped.kind: _capped,
}
