"""The contract of schedules, on options, populations and seeds that nobody picked by hand."""

import math
import tempfile
from pathlib import Path

import every_schedule
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_epe.schedules import SCHEDULES, Trace, make_schedule, presence

SIMPLE = sorted(
    {schedule.kind for schedule in every_schedule.SIMPLE} - {"trace"}
)
clients = st.integers(1, 30)
seeds = st.integers(0, 2**32)


def who(schedule, population, seed):
    return presence(schedule, population, np.random.default_rng(seed))


@st.composite
def simple(draw, kinds=SIMPLE):
    """A schedule made by name that contains no other."""
    kind, rounds = draw(st.sampled_from(kinds)), draw(st.integers(1, 20))
    share, options = draw(st.floats(0.05, 1)), {}
    match kind:
        case "min-separation" | "b-min-sep":
            options["separation"] = draw(st.integers(1, rounds))
            share /= options["separation"]
        case "device-classes":
            first = draw(st.floats(0.05, 0.95))
            options["shares"] = (first, 1 - first)
            options["rates"] = (draw(st.floats(0.1, 1)), 1.0)
            share *= first * options["rates"][0] + 1 - first
    times = rounds * share
    if kind in ("balls-in-bins", "k-out-of-t"):
        times = max(1, math.floor(times))
    return make_schedule(kind, rounds, times, **options)


@st.composite
def composed(draw):
    """A cap or drop-outs, by name, on a schedule whose only option is how often."""
    rounds = draw(st.integers(2, 20))
    of = draw(st.sampled_from(["epochs", "poisson", "fixed-size", "cyclic"]))
    if draw(st.booleans()):
        rate = draw(st.floats(0, 0.9))
        share = draw(st.floats(0.1, 0.99)) * (1 - rate)
        return make_schedule(
            "drop-out", rounds, rounds * share, of=of, rate=rate
        )
    window = draw(st.integers(1, rounds))
    options = {"per_window": draw(st.integers(1, window)), "window": window}
    if draw(st.booleans()):
        options["per_run"] = draw(st.integers(1, rounds))
    times = rounds * draw(st.floats(0.1, 1))
    return make_schedule("capped", rounds, times, of=of, **options)


@st.composite
def traces(draw):
    """A trace, by name, from a file."""
    rows = draw(
        st.sets(
            st.tuples(st.integers(0, 9), st.integers(0, 7)),
            min_size=1,
            max_size=30,
        )
    )
    rows |= {
        (t, 0) for t in range(max(rows)[0])
    }  # a log with clients in every round
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log.csv")
        path.write_text(
            "round,client_id\n" + "".join(f"{t},{i}\n" for t, i in sorted(rows))
        )
        trace = Trace.read(path)
        return make_schedule(
            "trace", trace.rounds, trace.participations(), path=str(path)
        )


every = simple() | composed() | traces()


def test_every_kind_is_tried():
    assert {*SIMPLE, "capped", "drop-out", "trace"} == set(SCHEDULES)


@given(every, clients, seeds)
def test_a_cohort_is_a_sorted_set_of_clients(schedule, population, seed):
    cohorts = list(schedule.cohorts(population, np.random.default_rng(seed)))
    assert len(cohorts) == schedule.rounds
    for cohort in cohorts:
        assert np.all(np.diff(cohort) > 0)  # so nobody is in a round twice
        assert not len(cohort) or (cohort[0] >= 0 and cohort[-1] < population)


@given(every, clients, seeds)
def test_the_same_seed_gives_the_same_cohorts(schedule, population, seed):
    assert np.array_equal(
        who(schedule, population, seed), who(schedule, population, seed)
    )


@given(every, clients, seeds)
def test_nobody_takes_part_more_often_than_promised(schedule, population, seed):
    times = who(schedule, population, seed).sum(axis=0)
    assert times.max() <= schedule.most_participations() <= schedule.rounds


@given(simple(["epochs", "cyclic"]), clients, seeds)
def test_epochs_are_rounded_and_spread_evenly(schedule, population, seed):
    seen = who(schedule, population, seed)
    times = seen.sum(axis=0)
    slots = round(schedule.epochs * population)
    assert times.sum() == slots
    assert times.max() - times.min() <= 1
    assert np.ptp(seen.sum(axis=1)) <= 1


@given(simple(["fixed-size", "min-separation"]), clients, seeds)
def test_cohorts_of_fixed_size_differ_by_one_at_most(
    schedule, population, seed
):
    sizes = who(schedule, population, seed).sum(axis=1)
    total = round(schedule.rate * population * schedule.rounds)
    assert sizes.max() <= math.ceil(total / schedule.rounds)
    assert np.ptp(sizes) <= 1


@given(simple(["min-separation"]), clients, seeds)
def test_everybody_rests(schedule, population, seed):
    for client in who(schedule, population, seed).T:
        assert np.all(np.diff(np.flatnonzero(client)) >= schedule.separation)


@given(simple(["balls-in-bins"]), clients, seeds)
def test_everybody_is_in_each_block_once(schedule, population, seed):
    seen = who(schedule, population, seed)
    blocks = np.array_split(seen, int(schedule.epochs))
    assert all(np.all(block.sum(axis=0) == 1) for block in blocks)


@given(composed(), clients, seeds)
def test_a_composition_only_takes_away(schedule, population, seed):
    """A cap refuses by what was drawn alone, so the inner schedule's draws stay as they are."""
    seen = who(schedule, population, seed)
    if schedule.kind == "drop-out":
        assert seen.sum(axis=0).max() <= schedule.schedule.most_participations()
        return
    assert np.all(seen <= who(schedule.schedule, population, seed))
    for start in range(schedule.rounds - schedule.window + 1):
        assert (
            seen[start : start + schedule.window].sum(axis=0).max()
            <= schedule.per_window
        )


@given(every, clients)
def test_what_theorems_may_count_on_is_what_is_promised(schedule, population):
    law, most = schedule.law(population), schedule.most_participations()
    mean = schedule.participations()
    assert mean <= most * (1 + 1e-9)
    assert law.most == most
    assert law.participations == pytest.approx(mean)
    if law.coins is not None:
        assert 0 <= law.coins.rate <= 1
        assert 1 <= law.coins.rounds <= schedule.rounds
    if (
        law.coins is not None and schedule.kind in SIMPLE
    ):  # at least as often as the mean client
        assert law.coins.rounds * law.coins.rate >= mean * (1 - 1e-9)
    if law.cohorts is not None:
        assert 0 <= law.cohorts.size <= law.cohorts.available <= population


@given(simple(["fixed-size"]), clients, seeds)
def test_the_cohort_that_theorems_count_on_is_the_largest(
    schedule, population, seed
):
    law = schedule.law(population)
    assert who(schedule, population, seed).sum(axis=1).max() <= law.cohorts.size
