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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fl_epe.schedules.availability import CheckIn, TimeOfDay
from fl_epe.schedules.composed import Capped, DropOut
from fl_epe.schedules.contract import Schedule
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
            ``path`` of a file whose rounds and participations are as given; "drop-out":
            ``of`` and ``rate``; "capped": ``of``, [``per_run``], [``per_window``], [``window``].
            ``of`` is the other schedule: its kind, or a mapping of "kind" and its options.

    Raises:
        ValueError: if an argument or option is out of range, unknown or missing.
    """
    if kind not in SCHEDULES:
        raise ValueError(f"Expected kind={kind!r} to be one of {tuple(SCHEDULES)}.")
    if not 0 < participations <= rounds:
        raise ValueError(f"Expected participations={participations} in (0, rounds={rounds}].")
    maker = _MAKERS[SCHEDULES[kind]]
    known = {
        name: parameter.default is parameter.empty
        for name, parameter in inspect.signature(maker).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    for name, value in options.items():
        if name not in known:
            raise ValueError(
                f"Unknown option {name}={value!r} of kind={kind!r}: expected {sorted(known)}."
            )
    for name, needed in known.items():
        if needed and name not in options:
            raise ValueError(f"Expected option {name!r} for kind={kind!r}.")
    return maker(rounds, participations, **options)


def parse_schedule(spec: str) -> tuple[str, dict[str, Any]]:
    """Kind and options from text: "kind", "kind:name=value,name=value", or "kind:{JSON object}".

    Examples: "cyclic", "min-separation:separation=5", "capped:of=poisson,per_run=2" and
    'drop-out:{"rate": 0.1, "of": {"kind": "min-separation", "separation": 5}}'.

    Raises:
        ValueError: if the kind is unknown, or the options are written in another way.
    """
    kind, _, rest = spec.partition(":")
    if kind not in SCHEDULES:
        raise ValueError(f"Expected kind={kind!r} to be one of {tuple(SCHEDULES)}.")
    if rest.startswith("{"):
        try:
            return kind, dict(json.loads(rest))
        except json.JSONDecodeError as error:
            raise ValueError(f"Expected {spec!r} to hold a JSON object after {kind}:.") from error
    pairs = [part.partition("=") for part in rest.split(",")] if rest else []
    if wrong := [name for name, equals, _ in pairs if not equals or not name]:
        raise ValueError(f"Expected name=value, got {wrong[0]!r} in {spec!r}.")
    return kind, {name.strip(): _value(text.strip()) for name, _, text in pairs}


def _value(text: str) -> Any:
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def _min_separation(rounds: int, participations: float, *, separation: int) -> Schedule:
    return MinSeparation(rounds, participations / rounds, separation)


def _device_classes(
    rounds: int, participations: float, *, rates: Sequence[float], shares: Sequence[float]
) -> Schedule:
    mean = sum(rate * share for rate, share in zip(rates, shares, strict=False))
    if not 0 < mean < math.inf:
        raise ValueError(f"Expected rates={rates} to have a mean > 0 over shares={shares}.")
    scale = participations / rounds / mean
    return DeviceClasses(rounds, tuple(scale * rate for rate in rates), tuple(shares))


def _balls_in_bins(rounds: int, participations: float) -> Schedule:
    if participations != int(participations):
        raise ValueError(f"Expected participations={participations} to be an integer.")
    return BallsInBins(rounds, int(participations))


def _check_in(rounds: int, participations: float, *, window: int | None = None) -> Schedule:
    if window is None:
        window = math.floor(rounds / participations)
    keep = participations * window / rounds
    if keep > 1 + 1e-12:
        raise ValueError(
            f"Expected window={window} <= rounds/participations={rounds / participations}."
        )
    return CheckIn(rounds, window, min(keep, 1.0))


def _time_of_day(
    rounds: int, participations: float, *, rounds_per_day: int, hours: float = 8, zones: int = 24
) -> Schedule:
    return TimeOfDay(rounds, participations / rounds, rounds_per_day, hours, zones)


def _trace(rounds: int, participations: float, *, path: Path | str) -> Trace:
    trace = Trace.read(path)
    if trace.rounds != rounds:
        raise ValueError(f"Expected rounds={rounds} to be {trace.rounds}, as in {path}.")
    if not math.isclose(trace.participations(), participations, rel_tol=1e-6):
        raise ValueError(
            f"Expected participations={participations} to be {trace.participations()}, "
            f"as in {path}."
        )
    return trace


def _trace_sample(rounds: int, participations: float, *, path: Path | str) -> Schedule:
    return TraceSample(_trace(rounds, participations, path=path))


def _drop_out(
    rounds: int, participations: float, *, of: str | Mapping[str, Any], rate: float
) -> Schedule:
    if not 0 <= rate < 1:
        raise ValueError(f"Expected rate={rate} in [0, 1).")
    if participations > rounds * (1 - rate):
        raise ValueError(
            f"Expected participations={participations} <= (1 - rate) * rounds with rate={rate}."
        )
    return DropOut(_other(rounds, participations / (1 - rate), of), rate)


def _capped(
    rounds: int,
    participations: float,
    *,
    of: str | Mapping[str, Any],
    per_run: int | None = None,
    per_window: int | None = None,
    window: int | None = None,
) -> Schedule:
    return Capped(_other(rounds, participations, of), per_run, per_window, window)


def _other(rounds: int, participations: float, of: str | Mapping[str, Any]) -> Schedule:
    """The schedule inside a composition."""
    options = {"kind": of} if isinstance(of, str) else dict(of)
    if "kind" not in options:
        raise ValueError(f"Expected of={of!r} to be a kind or to have a 'kind'.")
    return make_schedule(options.pop("kind"), rounds, participations, **options)


_MAKERS: dict[type[Schedule], Callable[..., Schedule]] = {
    ShuffledEpochs: ShuffledEpochs,
    Poisson: lambda rounds, participations: Poisson(rounds, participations / rounds),
    FixedSize: lambda rounds, participations: FixedSize(rounds, participations / rounds),
    MinSeparation: _min_separation,
    DeviceClasses: _device_classes,
    Cyclic: Cyclic,
    BallsInBins: _balls_in_bins,
    CheckIn: _check_in,
    TimeOfDay: _time_of_day,
    Trace: _trace,
    TraceSample: _trace_sample,
    DropOut: _drop_out,
    Capped: _capped,
}
"""What makes each schedule from rounds, participations and its options."""

SCHEDULES: dict[str, type[Schedule]] = {schedule.kind: schedule for schedule in _MAKERS}
"""The class of each kind of schedule."""
