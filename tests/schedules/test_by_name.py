"""Schedules made from a name, options and text."""

import pytest
from every_schedule import TRACE, T
from trace_files import ROWS, write_csv

from fl_epe.schedules import (
    SCHEDULES,
    Capped,
    Trace,
    make_schedule,
    parse_schedule,
)
from fl_epe.schedules.availability import DeviceClasses
from fl_epe.schedules.composed import DropOut
from fl_epe.schedules.sampled import (
    BallsInBins,
    Cyclic,
    FixedSize,
    MinSeparation,
)

OPTIONS = {
    "min-separation": {"separation": 4},
    "b-min-sep": {"separation": 4},
    "device-classes": {"rates": (1, 5), "shares": (0.75, 0.25)},
    "drop-out": {"of": "min-separation:separation=5", "rate": 0.2},
    "capped": {"of": "poisson", "per_run": 20},
}


@pytest.mark.parametrize("kind", SCHEDULES)
def test_every_kind_is_made_with_its_participations(kind, tmp_path):
    options, participations = OPTIONS.get(kind, {}), 3.0
    if kind == "trace":
        rows = zip(TRACE.round_ids, TRACE.client_ids, strict=True)
        options = {"path": str(write_csv(tmp_path / "trace.csv", rows))}
        participations = TRACE.participations()
    schedule = make_schedule(kind, T, participations, **options)
    assert type(schedule) is SCHEDULES[kind]
    assert schedule.kind == kind
    assert schedule.rounds == T
    assert schedule.participations() == pytest.approx(participations, rel=1e-12)
    for bad in (0, T + 1, float("nan")):
        with pytest.raises(
            ValueError, match=rf"participations={bad} in \(0, rounds=20\]"
        ):
            make_schedule(kind, T, bad, **options)
    with pytest.raises(
        ValueError, match=f"Unknown option speed=7 of kind='{kind}'"
    ):
        make_schedule(kind, T, participations, **options, speed=7)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(
            lambda: FixedSize(0, 0.5),
            "Expected rounds=0 >= 1",
            id="rounds=0-at-least-1",
        ),
        pytest.param(
            lambda: FixedSize(3, 1.5),
            r"Expected rate=1.5 in \(0, 1\]",
            id="rate=1.5-in-0,1",
        ),
        pytest.param(
            lambda: FixedSize(3, float("nan")),
            r"Expected rate=nan in \(0, 1\]",
            id="rate=nan-in-0,1",
        ),
        pytest.param(
            lambda: MinSeparation(9, 0.3, 4),
            "Expected rate=0.3 <= 1/separation=0.25",
            id="rate=0.3-at-most-1-separation=0.25",
        ),
        pytest.param(
            lambda: MinSeparation(9, 0.3, 2.5),
            "Expected separation=2.5 to be an integer >= 1",
            id="separation=2.5-to-be-an-integer-at-least-1",
        ),
        pytest.param(
            lambda: DeviceClasses(9, (0.1,), (0.5, 0.5)),
            "to be as many as shares",
            id="to-be-as-many-as-shares",
        ),
        pytest.param(
            lambda: DeviceClasses(9, (0.1, 2), (0.5, 0.5)),
            r"Expected rates=\(0.1, 2\) in \[0, 1",
            id="rates=0.1,2.0-in-0,1",
        ),
        pytest.param(
            lambda: DeviceClasses(9, (0.1, 0.2), (0.5, 0.4)),
            "to add up to 1",
            id="to-add-up-to-1",
        ),
        pytest.param(
            lambda: Cyclic(3, 4),
            r"Expected epochs=4 in \(0, rounds=3\]",
            id="epochs=4-in-0,rounds=3",
        ),
        pytest.param(
            lambda: BallsInBins(3, 1.5),
            "Expected epochs=1.5 to be an integer >= 1",
            id="epochs=1.5-to-be-an-integer",
        ),
        pytest.param(
            lambda: BallsInBins(3, 4),
            r"Expected epochs=4 in \(0, rounds=3\]",
            id="epochs=4-in-0,3",
        ),
        pytest.param(
            lambda: DropOut(Cyclic(9, 1), 1),
            r"Expected rate=1 in \[0, 1\)",
            id="rate=1-in-0,1",
        ),
        pytest.param(
            lambda: Capped(Cyclic(9, 1)),
            "Expected per_run=None to be a number, or per_window to be given",
            id="a-cap,got-per_run=None",
        ),
        pytest.param(
            lambda: Capped(Cyclic(9, 1), per_window=2),
            "per_window=2 to be given together with window, which is None",
            id="per_window=2-and-window=None-together",
        ),
        pytest.param(
            lambda: Capped(Cyclic(9, 1), per_run=0),
            "Expected per_run=0 to be an integer >= 1",
            id="per_run=0-to-be-an-integer-at-least-1",
        ),
        pytest.param(
            lambda: Capped(Cyclic(9, 1), None, 5, 4),
            "Expected per_window=5 <= window=4",
            id="per_window=5-at-most-window=4",
        ),
        pytest.param(
            lambda: Trace([], []),
            r"round_ids=\[\] of shape",
            id="round_ids.shape=0",
        ),
        pytest.param(
            lambda: Trace([1.5], [1]),
            "Expected round_ids to be integers, got float64",
            id="round_ids-to-be-integers,got-float64",
        ),
        pytest.param(
            lambda: Trace([1], [1.5]),
            "client_ids to be integers or strings, got float64",
            id="client_ids-to-be-integers-or-strings,got-float64",
        ),
        pytest.param(
            lambda: Trace([1, 2], [1]),
            r"Expected round_ids=\[1 2\] to be as many as the 1 client_ids",
            id="round_ids-2-and-client_ids-1-alike",
        ),
        pytest.param(
            lambda: Trace([1, 1], [4, 4]),
            "client_id=4 once, got it twice in round 1",
            id="client_id=4-twice-in-round-1",
        ),
        pytest.param(
            lambda: make_schedule("weekly", 3, 1),
            "Expected kind='weekly' to be one of",
            id="kind=weekly-to-be-one-of",
        ),
        pytest.param(
            lambda: make_schedule("min-separation", 3, 1),
            "Expected option 'separation' for kind",
            id="option-separation-for-kind",
        ),
        pytest.param(
            lambda: make_schedule("balls-in-bins", 3, 1.5),
            "participations=1.5 to be an integer",
            id="participations=1.5-to-be-an-integer",
        ),
        pytest.param(
            lambda: make_schedule("drop-out", 9, 8, of="poisson", rate=0.5),
            "participations=8 <=",
            id="participations=8-at-most",
        ),
        pytest.param(
            lambda: make_schedule("drop-out", 9, 8, of="poisson", rate=1),
            "Expected rate=1 in",
            id="rate=1-in",
        ),
        pytest.param(
            lambda: make_schedule("drop-out", 9, 1, of="", rate=0.5),
            "Expected of='' to be text",
            id="of=to-be-text",
        ),
        pytest.param(
            lambda: make_schedule(
                "device-classes", 9, 5, rates=(1, 9), shares=(0.9, 0.1)
            ),
            r"rates=\(0.308\S+ 2.77\S+\) in \[0, 1\]",
            id="rates=0.308-2.77-in-0,1",
        ),
    ],
)
def test_schedules_that_cannot_be_met(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_trace_options_agree_with_the_file(tmp_path):
    path = write_csv(tmp_path / "t.csv", ROWS)
    with pytest.raises(ValueError, match="Expected rounds=6 to be 4, as in "):
        make_schedule("trace", 6, 1, path=str(path))
    with pytest.raises(
        ValueError, match=r"Expected participations=1 to be 1.66"
    ):
        make_schedule("trace", 4, 1, path=str(path))


@pytest.mark.parametrize(
    ("of", "most"), [("balls-in-bins", 10), ("epochs", 10)]
)
def test_a_share_that_drops_out_is_not_rounded(of, most):
    schedule = make_schedule(
        "drop-out", 60, 1, of=of, rate=0.9
    )  # 1 / (1 - 0.9) is above 10
    assert schedule.most_participations() == most
    assert schedule.participations() == pytest.approx(1)


# By text.


@pytest.mark.parametrize(
    ("spec", "kind", "options"),
    [
        pytest.param("epochs", "epochs", {}, id="epochs"),
        pytest.param(
            "min-separation:separation=5",
            "min-separation",
            {"separation": 5},
            id="min-separation",
        ),
        pytest.param(
            "capped:of=poisson, per_window=2, window=7",
            "capped",
            {"of": "poisson", "per_window": 2, "window": 7},
            id="spaces",
        ),
        pytest.param(
            "capped:of=poisson,per_run=2",
            "capped",
            {"of": "poisson", "per_run": 2},
            id="capped",
        ),
        pytest.param(
            'drop-out:{"rate": 0.1, "of": "cyclic"}',
            "drop-out",
            {"rate": 0.1, "of": "cyclic"},
            id="drop-out",
        ),
    ],
)
def test_schedules_are_read_from_text(spec, kind, options):
    assert parse_schedule(spec) == (kind, options)
    assert make_schedule(kind, 48, 2, **options).rounds == 48


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param(
            "weekly",
            "kind='weekly' to be one of",
            id="kind=weekly-to-be-one-of",
        ),
        pytest.param(
            "capped:per_run",
            "name=value, got 'per_run'",
            id="name=value,got-per_run",
        ),
        pytest.param(
            "capped:{oops",
            "JSON object after 'capped:'",
            id="JSON-object-after-capped",
        ),
    ],
)
def test_text_that_is_no_schedule_is_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        parse_schedule(spec)
