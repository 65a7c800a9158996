"""Every participation schedule: one contract for all of them, then what each one promises."""

import csv
import functools
import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from case_ids import in_words

from fl_epe import RunConfig
from fl_epe.accounting import gaussian_epsilon
from fl_epe.asymptotics import limit_record
from fl_epe.auditing import scores_from_record
from fl_epe.reporting import summarize
from fl_epe.schedules import (
    SCHEDULES,
    BallsInBins,
    Capped,
    CheckIn,
    Cyclic,
    DeviceClasses,
    DropOut,
    FixedSize,
    MinSeparation,
    Poisson,
    ShuffledEpochs,
    TimeOfDay,
    Trace,
    TraceSample,
    make_schedule,
    parse_schedule,
    presence,
)
from fl_epe.seeding import generator

T, CLIENTS, RUNS = 20, 40, 300


def _trace():
    """55 clients, some much busier than others; nobody in the seventh round."""
    rng = np.random.default_rng(4)
    seen = rng.random((T, 55)) < rng.choice([0.05, 0.3], 55)
    seen[6] = False
    seen[0, ~seen.any(axis=0)] = True
    return Trace(*np.nonzero(seen))


TRACE = _trace()
SIMPLE = [
    ShuffledEpochs(T, 2.5),
    Poisson(T, 0.2),
    FixedSize(T, 0.15),
    MinSeparation(T, 0.125, 5),
    MinSeparation(T, 0.25, 4),
    DeviceClasses(T, (0.05, 0.5), (0.7, 0.3)),
    Cyclic(T, 2.5),
    Cyclic(T, 3),
    BallsInBins(T, 3),
    CheckIn(T, 6),
    CheckIn(T, 3, keep=0.6),
    TimeOfDay(T, 0.15, 8),
    TraceSample(TRACE),
]
COMPOSED = [
    DropOut(Cyclic(T, 3), 0.25),
    DropOut(Capped(Poisson(T, 0.3), per_run=2), 0.25),
    Capped(Poisson(T, 0.2), per_run=2),
    Capped(Poisson(T, 0.3), per_window=1, window=4),
    Capped(FixedSize(T, 0.3), per_run=5, per_window=2, window=6),
    Capped(DropOut(TimeOfDay(T, 0.3, 10), 0.1), per_window=2, window=10),
]
EVERY = SIMPLE + COMPOSED


@functools.cache
def _runs(schedule):
    """Who took part when, in many runs: (runs, rounds, clients)."""
    seeds = range(RUNS)
    return np.stack([presence(schedule, CLIENTS, np.random.default_rng(s)) for s in seeds])


def _sizes(schedule):
    """Expected size of every round's cohort, or None where there is no formula."""
    even = np.full(T, schedule.cohort_size(CLIENTS))
    match schedule:
        case BallsInBins():
            return np.concatenate([np.full(length, CLIENTS / length) for length in [7, 7, 6]])
        case TraceSample():
            return CLIENTS * np.bincount(TRACE.round_ids, minlength=T) / TRACE.population
        case Capped(schedule=Poisson(rate=q), per_run=2, window=None):
            t = np.arange(T)  # at most one head before
            return CLIENTS * q * ((1 - q) ** t + t * q * (1 - q) ** np.maximum(t - 1, 0))
        case Capped(schedule=Poisson(rate=q), per_run=None, per_window=1, window=4):
            p = []
            for _ in range(T):
                p.append(q * (1 - sum(p[-3:])))
            return CLIENTS * np.array(p)
        case DropOut(schedule=Capped()):
            return (1 - schedule.rate) * _capped_twice(0.3)
        case Capped():
            return None
    return even


def _capped_twice(rate):
    return _sizes(Capped(Poisson(T, rate), per_run=2))


def _assert_near(values, expected, errors=4.0):
    """Means over runs within so many standard errors (and rounding) of what is expected."""
    standard_error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    assert np.all(np.abs(values.mean(axis=0) - expected) <= errors * standard_error + 1e-9)


def digests():
    """A hash of every schedule's cohorts."""
    return [
        hashlib.sha256(presence(schedule, 23, np.random.default_rng(3)).tobytes()).hexdigest()
        for schedule in EVERY
    ]


@pytest.mark.parametrize("schedule", EVERY, ids=in_words)
class TestEverySchedule:
    @pytest.mark.parametrize("population", [0, 1, 5, 23])
    def test_cohorts_are_sorted_distinct_and_known(self, schedule, population):
        cohorts = list(schedule.cohorts(population, np.random.default_rng(0)))
        assert len(cohorts) == schedule.rounds
        for cohort in cohorts:
            assert cohort.dtype == np.int64
            assert np.array_equal(cohort, np.unique(cohort))
            assert np.all((cohort >= 0) & (cohort < population))

    def test_every_round_has_its_expected_size(self, schedule):
        sizes = _sizes(schedule)
        if sizes is not None:
            _assert_near(_runs(schedule).sum(axis=2), sizes)

    def test_everybody_takes_part_as_often_as_expected(self, schedule):
        # 40 clients × 19 schedules, so that one in a thousand beyond 4 is no surprise
        _assert_near(_runs(schedule).sum(axis=1), schedule.participations(), errors=4.5)

    def test_the_mean_is_as_expected(self, schedule):
        means = _runs(schedule).sum(axis=1).mean(axis=1)
        error = np.hypot(
            means.std(ddof=1) / np.sqrt(RUNS), getattr(schedule, "participations_error", float)()
        )
        assert abs(means.mean() - schedule.participations()) <= 4 * error + 1e-9

    def test_nobody_takes_part_more_than_the_most(self, schedule):
        most = schedule.most_participations()
        assert 1 <= most <= T
        assert _runs(schedule).sum(axis=1).max() <= most
        for population in (1, 3, 7):
            seen = presence(schedule, population, np.random.default_rng(8))
            assert seen.sum(axis=0).max() <= most

    def test_some_clients_take_part_as_all_do(self, schedule):
        # canaries among the clients: the first quarter against the others, run by run
        seen, k = _runs(schedule), CLIENTS // 4
        counts = seen.sum(axis=1)
        middle = (np.arange(T)[:, None] * seen).sum(axis=1)
        for statistic in (counts, counts**2, counts == counts.max(), middle):
            _assert_near(statistic[:, :k].mean(axis=1) - statistic[:, k:].mean(axis=1), 0)

    def test_neighbours_are_strangers(self, schedule):
        # any two clients meet as often as any other two
        seen = _runs(schedule)
        near, far = (seen & np.roll(seen, by, axis=2) for by in (1, CLIENTS // 2))
        _assert_near(near.mean(axis=(1, 2)) - far.mean(axis=(1, 2)), 0)

    def test_a_seed_repeats_and_another_differs(self, schedule):
        first, again, other = (presence(schedule, 23, np.random.default_rng(s)) for s in (5, 5, 6))
        assert np.array_equal(first, again)
        assert not np.array_equal(first, other)

    def test_hashable_and_equal(self, schedule):
        assert schedule in {schedule}
        assert SCHEDULES[schedule.kind] is type(schedule)


def test_another_process_draws_the_same():
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    code += "import test_schedules; print(*test_schedules.digests())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == digests()


# What each schedule promises.


@pytest.mark.parametrize(("rate", "population"), [(0.3, 10), (0.03, 10), (0.21, 33)])
def test_fixed_sizes_are_even_and_right_on_average(rate, population):
    seen = presence(FixedSize(T, rate), population, np.random.default_rng(0))
    assert seen.sum() == round(rate * population * T)
    assert np.ptp(seen.sum(axis=1)) <= 1


def test_fixed_size_draws_every_pair():
    seen = np.stack([presence(FixedSize(1, 0.5), 4, np.random.default_rng(s)) for s in range(1200)])
    pairs = seen[:, 0] @ np.array([1, 2, 4, 8])
    # six pairs, each with probability 1/6
    _assert_near(pairs[:, None] == [3, 5, 9, 6, 10, 12], 1 / 6)


@pytest.mark.parametrize(("rate", "separation"), [(0.125, 5), (0.25, 4), (0.3, 3), (0.2, 1)])
@pytest.mark.parametrize("population", [7, 40, 101])
def test_separation_is_kept(rate, separation, population):
    seen = presence(MinSeparation(60, rate, separation), population, np.random.default_rng(1))
    for t in range(60):
        assert seen[t : t + separation].sum(axis=0).max() <= 1
    sizes = seen.sum(axis=1)
    assert np.ptp(sizes) <= 1
    # one client fewer where rounding would ask for a client who has not rested
    assert abs(sizes.sum() - rate * population * 60) <= 1


def test_separation_draws_uniformly_among_the_rested():
    schedule = MinSeparation(4, 0.25, 3)
    cohorts = [
        [int(c[0]) for c in schedule.cohorts(4, np.random.default_rng(s))] for s in range(2400)
    ]
    codes = np.array(cohorts) @ np.array([64, 16, 4, 1])
    valid = [
        64 * a + 16 * b + 4 * c + d
        for a, b, c, d in np.ndindex(4, 4, 4, 4)
        if len({a, b, c}) == len({b, c, d}) == 3
    ]
    assert len(valid) == 4 * 3 * 2 * 2
    _assert_near(codes[:, None] == valid, 1 / len(valid))


def test_device_classes_have_their_rates_and_shares():
    schedule = DeviceClasses(400, (0.02, 0.5), (0.8, 0.2))
    counts = presence(schedule, 2000, np.random.default_rng(2)).sum(axis=0)
    busy = counts > 100  # 8 ± 3 and 200 ± 10
    assert np.mean(busy) == pytest.approx(0.2, abs=4 * np.sqrt(0.16 / 2000))
    _assert_near(counts[busy] / 400, 0.5)
    _assert_near(counts[~busy] / 400, 0.02)


@pytest.mark.parametrize(("rounds", "epochs"), [(20, 4), (20, 3), (33, 2.5), (50, 7.3), (6, 6)])
@pytest.mark.parametrize("population", [1, 8, 30, 41])
def test_cyclic_gaps_are_constant(rounds, epochs, population):
    seen = presence(Cyclic(rounds, epochs), population, np.random.default_rng(3))
    gap = rounds * population / round(epochs * population)
    gaps = np.concatenate([np.diff(np.flatnonzero(client)) for client in seen.T])
    assert set(gaps) <= {int(np.floor(gap)), int(np.ceil(gap))}
    assert set(seen.sum(axis=0)) <= {int(np.floor(epochs)), int(np.ceil(epochs))}
    assert np.ptp(seen.sum(axis=1)) <= 1


def test_each_block_has_everybody_once():
    schedule = BallsInBins(T, 3)
    seen = presence(schedule, 100, np.random.default_rng(0))
    blocks = np.array_split(seen, 3)
    assert schedule.blocks() == [len(block) for block in blocks]
    assert all(np.all(block.sum(axis=0) == 1) for block in blocks)
    # independent of each other: 200 runs × 100 clients who pick one of 7 rounds
    runs = [presence(schedule, 100, np.random.default_rng(s)) for s in range(200)]
    sizes = np.stack([run[:7].sum(axis=1) for run in runs])
    variance = 100 / 7 * (6 / 7)
    # the sample variance of a normal has relative standard error sqrt(2 / (n - 1))
    assert sizes.var(axis=0, ddof=1).mean() == pytest.approx(
        variance, rel=4 * np.sqrt(2 / (200 * 7 - 1))
    )


@pytest.mark.parametrize(
    ("rounds", "window", "keep"), [(30, 6, 1.0), (30, 4, 0.5), (30, 1, 0.7), (7, 10, 1.0)]
)
def test_check_ins_are_stationary_to_the_edges(rounds, window, keep):
    seen = presence(CheckIn(rounds, window, keep), 20_000, np.random.default_rng(6))
    rate = keep / window
    _assert_near(seen.T, rate)
    # two rounds s apart: in two windows that meet or lie between, each hit by chance 1/window
    for s in (1, 3):
        inside = max(window - s, 0) / window  # both in one window: impossible together
        _assert_near((seen[:-s] & seen[s:]).T, rate**2 * (1 - inside))


def test_check_ins_are_apart_as_windows_are():
    window = 5
    seen = presence(CheckIn(60, window), 500, np.random.default_rng(7))
    for client in seen.T:
        # some phase puts exactly one check-in into every full window
        whole = [
            client[phase : phase + (60 - phase) // window * window].reshape(-1, window)
            for phase in range(window)
        ]
        assert any(np.all(rows.sum(axis=1) == 1) for rows in whole)


def test_nobody_takes_part_outside_its_hours():
    schedule = TimeOfDay(96, 0.1, 24, hours=8)
    seen = presence(schedule, 200, np.random.default_rng(8))
    of_day = seen.reshape(4, 24, 200).any(axis=0)
    nights = schedule.open_zones().T  # (zones, rounds of a day)
    assert np.all(nights.sum(axis=1) == 8)
    fits = ~np.any(of_day[None] & ~nights[:, :, None], axis=1)
    assert np.all(fits.any(axis=0))
    assert schedule.most_participations() == 32


def test_time_of_day_draws_uniformly_among_the_available():
    # two zones, each open for half a day of two rounds
    schedule = TimeOfDay(4, 0.25, 2, hours=12, zones=2)
    runs = np.stack([presence(schedule, 8, np.random.default_rng(s)) for s in range(1500)])
    # the same zone in rounds 0 and 2, and each draws two of its four: 1/2 · 1/2 · 1/2
    _assert_near((runs[:, 0] & runs[:, 2]).mean(axis=1), 1 / 8)
    assert not np.any(runs[:, 0] & runs[:, 1])


def test_a_single_client_is_in_any_zone():
    # asked for in the second round only, when one of the two zones is open
    schedule = TimeOfDay(2, 0.5, 2, hours=12, zones=2)
    seen = np.stack([presence(schedule, 1, np.random.default_rng(s))[1] for s in range(400)])
    _assert_near(seen, 1 / 2)


def test_time_of_day_takes_all_if_few_are_available():
    schedule = TimeOfDay(24, 1 / 3, 24, hours=8)
    # five thirds of a client are asked for; one or two are there
    for seed in range(20):
        sizes = presence(schedule, 5, np.random.default_rng(seed)).sum(axis=1)
        assert set(sizes) == {1, 2}
        assert 24 * 5 / 3 - 24 <= sizes.sum() <= 24 * 5 / 3


def _naive_cap(seen, per_run, per_window, window):
    kept = np.zeros_like(seen)
    for t, i in np.argwhere(seen):
        before = kept[max(t - window + 1, 0) : t, i].sum()
        kept[t, i] = kept[:t, i].sum() < per_run and before < per_window
    return kept


@pytest.mark.parametrize(
    ("per_run", "per_window", "window"),
    [(3, None, None), (None, 1, 4), (None, 2, 7), (4, 2, 5), (9, 3, 100), (2, 1, 1)],
)
@pytest.mark.parametrize("inner", [Poisson(30, 0.4), Cyclic(30, 9)], ids=in_words)
def test_caps_equal_the_naive_ones(inner, per_run, per_window, window):
    schedule = Capped(inner, per_run, per_window, window)
    seen = presence(schedule, 25, np.random.default_rng(9))
    everything = presence(inner, 25, np.random.default_rng(9))
    naive = _naive_cap(everything, per_run or 30, per_window or 1, window or 1)
    assert np.array_equal(seen, naive)
    assert seen.sum(axis=0).max() <= schedule.most_participations()
    for t in range(30 if window else 0):
        assert seen[t : t + window].sum(axis=0).max() <= per_window


@pytest.mark.parametrize(
    ("schedule", "most"),
    [
        (Capped(Poisson(20, 1.0), per_run=3), 3),
        (Capped(Poisson(20, 1.0), per_window=2, window=6), 8),
        (MinSeparation(20, 1 / 6, 6), 4),
        (CheckIn(20, 1), 20),
        (CheckIn(2, 2), 2),
        (BallsInBins(20, 3), 3),
        (TimeOfDay(30, 0.3, 24, hours=8), 14),
    ],
    ids=in_words,
)
def test_the_most_is_reached(schedule, most):
    seen = presence(schedule, 300, np.random.default_rng(0))
    assert schedule.most_participations() == most
    if not isinstance(schedule, TimeOfDay):
        assert seen.sum(axis=0).max() == most


def test_a_cap_that_cannot_matter_is_exact():
    for schedule in (
        Capped(ShuffledEpochs(20, 3), per_run=3),
        Capped(BallsInBins(20, 3), per_run=7, per_window=3, window=9),
        Capped(Poisson(20, 0.3), per_run=20, per_window=9, window=9),
    ):
        assert schedule.participations() == schedule.schedule.participations()
        assert schedule.participations_error() == 0


def test_capped_participations_have_an_honest_error():
    schedule = Capped(Poisson(T, 0.2), per_run=2)
    truth = _sizes(schedule).sum() / CLIENTS
    error = schedule.participations_error()
    # ten runs of 1,000 clients with 0, 1 or 2 participations each; chi with 9 degrees of freedom
    assert 0.3 < error / (0.6 / np.sqrt(10_000)) < 2
    assert abs(schedule.participations() - truth) <= 4 * error
    capped = Capped(TRACE, per_run=3)
    counts = np.bincount(TRACE.client_ids)
    assert capped.participations() == pytest.approx(np.minimum(counts, 3).mean(), rel=1e-12)
    assert capped.participations_error() < 1e-12


def test_drop_outs_are_independent_coins():
    schedule = DropOut(Poisson(4000, 1.0), 0.25)
    seen = presence(schedule, 10, np.random.default_rng(0))
    _assert_near(seen, 0.75)
    _assert_near(seen[:, :5] & seen[:, 5:], 0.75**2)


# Traces.

ROWS = [(12, "b"), (10, "a"), (10, "c"), (14, "a"), (12, "a")]


def _write_csv(path, rows, header=("round", "client_id")):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def _write_parquet(path, **columns):
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table(columns), path)
    return path


def test_a_trace_is_replayed():
    trace = Trace(*zip(*ROWS, strict=True))
    assert (trace.rounds, trace.population, trace.most_participations()) == (5, 3, 3)
    assert trace.participations() == 5 / 3
    assert trace.clients.tolist() == ["a", "b", "c"]
    cohorts = [c.tolist() for c in trace.cohorts(3, np.random.default_rng(0))]
    assert cohorts == [[0, 2], [], [0, 1], [], [0]]
    assert Trace(trace.round_ids, trace.client_ids).round_ids.tolist() == [0, 0, 2, 2, 4]
    with pytest.raises(ValueError, match="Expected population=4 to be 3, as in the trace"):
        next(trace.cohorts(4, np.random.default_rng(0)))


@pytest.mark.parametrize("ids", [["a", "b", "c"], ["7", "07", "10"], [10, 9, -1]])
def test_traces_in_files_are_the_same(tmp_path, ids):
    names = [ids["abc".index(client)] for _, client in ROWS]
    rounds = [t for t, _ in ROWS]
    trace = Trace(rounds, names)
    assert Trace.read(_write_csv(tmp_path / "a.csv", zip(rounds, names, strict=True))) == trace
    swapped = [(name, "x", t) for t, name in zip(rounds, names, strict=True)]
    header = ("client_id", "more", "round")
    assert Trace.read(_write_csv(tmp_path / "b.csv", swapped, header)) == trace
    path = _write_parquet(tmp_path / "c.parquet", round=rounds, client_id=names, more=rounds)
    assert Trace.read(path) == trace
    assert Trace.read(path) != Trace([0], [0])


def test_a_trace_that_is_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("fl_epe.schedules.trace_file._CHUNK", 2)
    path = _write_csv(tmp_path / "a.csv", [(1, 7), (2, 8), (3, "x"), (3, 10), (4, 7)])
    assert Trace.read(path).clients.tolist() == ["10", "7", "8", "x"]
    path = _write_csv(tmp_path / "b.csv", [(1, 7), (2, 8), (3, 10)])
    assert Trace.read(str(path)).clients.tolist() == [7, 8, 10]


@pytest.mark.parametrize("count", [0, 3, 55, 150])
def test_a_sample_of_a_trace_has_its_clients(count):
    seen = TRACE.sampled(count, np.random.default_rng(1))
    assert seen.shape == (T, count)
    assert seen.dtype == bool
    clients = presence(TRACE, TRACE.population, np.random.default_rng(0)).T
    sampled = [tuple(column) for column in seen.T]
    for row in {tuple(client) for client in clients}:
        among = sum(tuple(client) == row for client in clients)
        # without replacement while possible: floor or ceiling of count / population each
        drawn = sampled.count(row)
        assert count // 55 * among <= drawn <= -(-count // 55) * among


def test_any_two_of_a_sample_are_as_likely_to_be_one_client():
    # two clients for three places: one pair of places shares a client, with probability 1/3 each
    trace = Trace([0, 1], ["a", "b"])
    seen = np.stack([trace.sampled(3, np.random.default_rng(s))[0] for s in range(600)])
    _assert_near(seen == np.roll(seen, 1, axis=1), 1 / 3)


BAD_CSV = {
    "empty": ("", r"column 'round' is missing, found \[\]"),
    "no-client-column": (
        "round,client\n1,a\n",
        r"column 'client_id' is missing, found \['round', 'client'\]",
    ),
    "no-row": ("round,client_id\n", "there is no row"),
    "round-is-a-word": ("round,client_id\n1,a\n\nx,b\n", "line 4: round='x' is not an integer"),
    "round-has-a-point": ("round,client_id\n1.0,a\n", "line 2: round='1.0' is not an integer"),
    "round-too-large": (f"round,client_id\n{10**30},a\n", "line 2: round='10+' is not an integer"),
    "client-empty": ("round,client_id\n1,a\n2, \n", "line 3: client_id is empty"),
    "cell-missing": ("round,client_id\n1,a\n2\n", "line 3 has 1 cells, the header 2"),
    "cell-too-many": ("round,client_id\n1,a,b\n", "line 2 has 3 cells, the header 2"),
    "twice-in-a-round": (
        "round,client_id\n\n3,a\n4,a\n3,a\n",
        "line 5: client_id='a' is in round 3 already",
    ),
    "rounds-as-seconds": (
        "round,client_id\n0,a\n1700000000,a\n",
        r"rounds=1700000001 \(from 0 to 1700000000\)",
    ),
}


@pytest.mark.parametrize(("text", "message"), BAD_CSV.values(), ids=BAD_CSV)
def test_bad_csv_traces(tmp_path, text, message):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"Expected \S+bad\.csv to hold a .*{message}"):
        Trace.read(path)


BAD_PARQUET = {
    "no-client-column": ({"round": [1]}, "column 'client_id' is missing"),
    "round-not-integer": (
        {"round": [1.5], "client_id": [1]},
        "column 'round' holds double, not integers",
    ),
    "client-not-integer": (
        {"round": [1], "client_id": [1.5]},
        "column 'client_id' holds double, not strings or int",
    ),
    "client-missing": ({"round": [1, 2], "client_id": ["a", None]}, "row 2: client_id is missing"),
    "round-missing": ({"round": [1, None], "client_id": ["a", "b"]}, "row 2: round is missing"),
    "twice-in-a-round": (
        {"round": [1, 2, 1], "client_id": [5, 5, 5]},
        "row 3: client_id=5 is in round 1 already",
    ),
}


@pytest.mark.parametrize(("columns", "message"), BAD_PARQUET.values(), ids=BAD_PARQUET)
def test_bad_parquet_traces(tmp_path, columns, message):
    path = _write_parquet(tmp_path / "bad.parquet", **columns)
    with pytest.raises(ValueError, match=rf"Expected \S+bad\.parquet to hold a .*{message}"):
        Trace.read(path)


def test_files_that_are_no_traces(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"no")
    (tmp_path / "a.csv").write_bytes(b"round,client_id\n1,\xff\n")
    (tmp_path / "a.txt").write_text("round,client_id\n")
    for name in ("a.parquet", "a.csv"):
        with pytest.raises(ValueError, match=rf"{name} to hold a participation trace"):
            Trace.read(tmp_path / name)
    with pytest.raises(ValueError, match=r"a.txt' to end with one of .csv, .parquet"):
        Trace.read(tmp_path / "a.txt")
    with pytest.raises(FileNotFoundError, match=r"none.csv' to exist"):
        Trace.read(tmp_path / "none.csv")


# Schedules by name.

OPTIONS = {
    "min-separation": {"separation": 4},
    "time-of-day": {"rounds_per_day": 10},
    "device-classes": {"rates": (1, 5), "shares": (0.75, 0.25)},
    "drop-out": {"of": {"kind": "check-in", "window": 5}, "rate": 0.2},
    "capped": {"of": "poisson", "per_run": 20},
}


@pytest.mark.parametrize("kind", SCHEDULES)
def test_every_kind_is_made_with_its_participations(kind, tmp_path):
    options, participations = OPTIONS.get(kind, {}), 3
    if kind.startswith("trace"):
        rows = zip(TRACE.round_ids, TRACE.client_ids, strict=True)
        options = {"path": _write_csv(tmp_path / "trace.csv", rows)}
        participations = TRACE.participations()
    schedule = make_schedule(kind, T, participations, **options)
    assert type(schedule) is SCHEDULES[kind]
    assert schedule.kind == kind
    assert schedule.rounds == T
    assert schedule.participations() == pytest.approx(participations, rel=1e-12)
    for bad in (0, T + 1, float("nan")):
        with pytest.raises(ValueError, match=rf"participations={bad} in \(0, rounds=20\]"):
            make_schedule(kind, T, bad, **options)
    with pytest.raises(ValueError, match=f"Unknown option speed=7 of kind='{kind}'"):
        make_schedule(kind, T, participations, **options, speed=7)


@pytest.mark.parametrize("participations", [0.3, 1, 1.7, 6.4, 13, 20])
def test_check_in_windows_are_chosen_to_fit(participations):
    schedule = make_schedule("check-in", T, participations)
    assert schedule.participations() == pytest.approx(participations, rel=1e-12)
    assert schedule.window == T // participations


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(lambda: FixedSize(0, 0.5), "Expected rounds=0 >= 1", id="rounds=0-at-least-1"),
        pytest.param(
            lambda: FixedSize(3, 1.5), r"Expected rate=1.5 in \(0, 1\]", id="rate=1.5-in-0,1"
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
            r"Expected rates=\(0.1, 2.0\) in \[0, 1",
            id="rates=0.1,2.0-in-0,1",
        ),
        pytest.param(
            lambda: DeviceClasses(9, (0.1, 0.2), (0.5, 0.4)), "to add up to 1", id="to-add-up-to-1"
        ),
        pytest.param(
            lambda: DeviceClasses(9, (0.0, 0.2), (1, 0)),
            "to let some class take part",
            id="to-let-some-class-take-part",
        ),
        pytest.param(
            lambda: Cyclic(3, 4),
            r"Expected epochs=4 in \(0, rounds=3\]",
            id="epochs=4-in-0,rounds=3",
        ),
        pytest.param(
            lambda: BallsInBins(3, 1.5),
            "Expected epochs=1.5 to be an integer >= 1 and <= 3",
            id="epochs=1.5-to-be-an-integer-at-least-1-and-at",
        ),
        pytest.param(
            lambda: BallsInBins(3, 4),
            "Expected epochs=4 to be an integer >= 1 and <= 3",
            id="epochs=4-to-be-an-integer-at-least-1-and-at",
        ),
        pytest.param(
            lambda: CheckIn(3, 0),
            "Expected window=0 to be an integer",
            id="window=0-to-be-an-integer",
        ),
        pytest.param(lambda: CheckIn(3, 2, 0), r"Expected keep=0 in \(0, 1\]", id="keep=0-in-0,1"),
        pytest.param(
            lambda: TimeOfDay(9, 0.5, 24), "Expected rate=0.5 <= 0.33", id="rate=0.5-at-most-0.33"
        ),
        pytest.param(
            lambda: TimeOfDay(9, 0.1, 24, hours=0.5),
            r"Expected hours=0.5 in \[24/zones=1.0, 24\]",
            id="hours=0.5-in-24-zones=1.0,24",
        ),
        pytest.param(
            lambda: TimeOfDay(9, 0.1, 0), "Expected rounds_per_day=0", id="rounds_per_day=0"
        ),
        pytest.param(
            lambda: DropOut(Cyclic(9, 1), 1), r"Expected rate=1 in \[0, 1\)", id="rate=1-in-0,1"
        ),
        pytest.param(
            lambda: Capped(Cyclic(9, 1)),
            "Expected a cap, got per_run=None",
            id="a-cap,got-per_run=None",
        ),
        pytest.param(
            lambda: Capped(Cyclic(9, 1), per_window=2),
            "per_window=2 and window=None together",
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
        pytest.param(lambda: Trace([], []), r"round_ids.shape=\(0,\)", id="round_ids.shape=0"),
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
            r"Expected len\(round_ids\)=2 to equal len\(client_ids\)=1",
            id="round_ids-2-and-client_ids-1-alike",
        ),
        pytest.param(
            lambda: Trace([1, 1], [4, 4]),
            "row 1: client_id=4 is in round 1 already",
            id="row-1:-client_id=4-is-in-round-1-already",
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
            lambda: make_schedule("check-in", 9, 3, window=4),
            "Expected window=4 <= rounds/part",
            id="window=4-at-most-rounds-part",
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
            lambda: make_schedule("drop-out", 9, 1, of={}, rate=0.5),
            "Expected of={} to be a kind",
            id="of=to-be-a-kind",
        ),
        pytest.param(
            lambda: make_schedule("device-classes", 9, 5, rates=(1, 9), shares=(0.9, 0.1)),
            r"rates=\(0.308\S+ 2.77\S+\) in \[0, 1\]",
            id="rates=0.308-2.77-in-0,1",
        ),
    ],
)
def test_schedules_that_cannot_be_met(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_trace_options_agree_with_the_file(tmp_path):
    path = _write_csv(tmp_path / "t.csv", ROWS)
    with pytest.raises(ValueError, match="Expected rounds=6 to be 5, as in "):
        make_schedule("trace", 6, 1, path=path)
    with pytest.raises(ValueError, match=r"Expected participations=1 to be 1.66"):
        make_schedule("trace-sample", 5, 1, path=path)


# ---- by text, and in a run


@pytest.mark.parametrize(
    ("spec", "kind", "options"),
    [
        pytest.param("epochs", "epochs", {}, id="epochs"),
        pytest.param(
            "min-separation:separation=5", "min-separation", {"separation": 5}, id="min-separation"
        ),
        pytest.param(
            "time-of-day:rounds_per_day=24, hours=7.5",
            "time-of-day",
            {"rounds_per_day": 24, "hours": 7.5},
            id="time-of-day",
        ),
        pytest.param(
            "capped:of=poisson,per_run=2", "capped", {"of": "poisson", "per_run": 2}, id="capped"
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
        pytest.param("weekly", "kind='weekly' to be one of", id="kind=weekly-to-be-one-of"),
        pytest.param("capped:per_run", "name=value, got 'per_run'", id="name=value,got-per_run"),
        pytest.param("capped:{oops", "JSON object after capped", id="JSON-object-after-capped"),
    ],
)
def test_text_that_is_no_schedule_is_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        parse_schedule(spec)


RUN_SPECS = [
    "fixed-size",
    "min-separation:separation=3",
    "cyclic",
    "balls-in-bins",
    "check-in",
    "time-of-day:rounds_per_day=4,hours=18",
    pytest.param('device-classes:{"rates": [1, 3], "shares": [0.5, 0.5]}', id="device-classes"),
    "drop-out:of=poisson,rate=0.25",
    "capped:of=poisson,per_run=2",
]


@pytest.mark.parametrize("spec", RUN_SPECS)
def test_a_run_follows_any_schedule_and_knows_what_to_expect(spec):
    config = RunConfig(
        clients=40,
        rounds=12,
        clients_per_round=10,
        num_canaries=60,
        canary_participations=2,
        participation=spec,
    )
    for schedule, population in ((config.client_schedule(), 40), (config.canary_schedule(), 60)):
        sizes = [
            np.mean([len(cohort) for cohort in schedule.cohorts(population, generator(seed))])
            for seed in range(200)
        ]
        error = np.std(sizes) / np.sqrt(len(sizes))
        # "capped" is expected from a simulation of its own, see `Capped.participations_error`.
        assert abs(np.mean(sizes) - schedule.cohort_size(population)) < 4 * error + 0.05
    whole = config.client_schedule().cohort_size(40) + config.canary_schedule().cohort_size(60)
    assert config.cohort_size == pytest.approx(whole)


def test_a_run_refuses_a_recorded_trace():
    with pytest.raises(ValueError, match="no recorded trace"):
        RunConfig(clients=40, rounds=12, clients_per_round=10, participation="trace:path=x.csv")


@pytest.mark.parametrize("spec", RUN_SPECS)
def test_the_limit_meets_theory_at_known_rounds(spec):
    """Each canary's matched filter is N(√R/z, 1) for its own R participations."""
    kind, options = parse_schedule(spec)
    record = limit_record(make_schedule(kind, 24, 3, **options), 0.5, 1e-3, num_canaries=800)
    assert record.mechanism.participation == kind
    scores = scores_from_record(record, "all", "matched-filter").observed
    counts = record.presence.sum(axis=0)
    standard = scores - np.sqrt(counts[counts > 0]) / 0.5
    assert abs(standard.mean()) < 4 / np.sqrt(len(standard))
    assert abs(standard.std() - 1) < 4 / np.sqrt(2 * len(standard))
    assert summarize(record).analytical.epsilon == pytest.approx(
        gaussian_epsilon(0.5, 1e-3, int(counts.max()))
    )
