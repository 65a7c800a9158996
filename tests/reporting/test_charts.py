"""Charts of a report: what is drawn is what was measured, bounded in size, and said in words."""

import dataclasses
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import scipy
from records import make_record, record_of

import fl_epe.reporting
from fl_epe.accounting import delta_two_gaussians
from fl_epe.auditing import EVERY_ROUND, Scores, seen_by
from fl_epe.limit import limit_record
from fl_epe.reporting import summarize
from fl_epe.reporting.chart_rounds import by_round, chart_of_rows, run_charts, schedule
from fl_epe.reporting.chart_scores import by_canary, claimed_misses, error_rates, histogram
from fl_epe.reporting.charts import MOST_POINTS, plain, spread_out
from fl_epe.reporting.numbers import signed
from fl_epe.reporting.still import PALETTE, still
from fl_epe.schedules import Poisson


@pytest.fixture(scope="module")
def made():
    record = make_record(metrics={"train_loss": np.linspace(2, 1, 6)}).in_order()
    return record, summarize(record)


def _trace(chart, name):
    (found,) = [trace for trace in chart.traces if trace["name"] == name]
    return found


def test_every_chart_is_json_with_words_numbers_and_a_still_picture(made):
    charts = run_charts(*made)
    assert len({chart.name for chart in charts}) == len(charts) == 13
    for chart in charts:
        json.dumps([chart.traces, chart.layout], allow_nan=False)
        assert any(letter.isdigit() for letter in chart.alternative)
        assert chart.rows
        assert {len(row) for row in chart.rows} == {len(chart.headings)}
        assert still(chart).startswith("data:image/svg+xml;base64,")
        assert set(chart.logs) <= {"x", "y"}
    assert still(charts[0]) == still(charts[0])


def test_without_canaries_there_is_nothing_to_draw_but_the_clip_norm():
    record = record_of(0)
    assert [chart.name for chart in run_charts(record, summarize(record))] == ["clip-norm"]
    record = record_of(0, 0)
    assert run_charts(record, summarize(record)) == []


def test_rows_are_drawn_with_their_numbers(made):
    _, summary = made
    chart = chart_of_rows(summary)
    estimate = summary.final.headline.estimate
    drawn = _trace(chart, "estimate, interval")
    assert drawn["x"][0] == pytest.approx(estimate.epsilon, rel=1e-4)
    assert drawn["error_x"]["array"][0] == pytest.approx(estimate.high - estimate.epsilon)
    assert _trace(chart, "analytical")["x"][0] == pytest.approx(
        summary.analytical.epsilon, rel=1e-4
    )
    row = dict(zip(chart.headings, chart.rows[0], strict=True))
    assert row["row"] == "final model, displacement"
    assert row["ε"] in chart.alternative


def test_an_infinite_interval_is_drawn_without_an_upper_end(made):
    _, summary = made
    part = summary.final.headline
    endless = dataclasses.replace(part.estimate, high=math.inf)
    final = dataclasses.replace(summary.final, headline=dataclasses.replace(part, estimate=endless))
    chart = chart_of_rows(dataclasses.replace(summary, final=final))
    drawn = _trace(chart, "estimate, interval")
    json.dumps(drawn, allow_nan=False)
    assert drawn["error_x"]["array"][0] == 0
    assert drawn["customdata"][0][2] == chart.rows[0][3] == "∞"


def test_theory_so_far_grows_with_participations_and_ends_at_that_of_the_run(made):
    record, summary = made
    assert "does not know the rounds" not in "".join(c.caption for c in run_charts(*made))
    curve = _trace(by_round(record, summary), "analytical so far")["y"]
    assert curve == sorted(curve)
    assert len(set(curve)) == 3  # each canary takes part three times
    assert curve[-1] == pytest.approx(summary.analytical.epsilon, rel=1e-4)


@pytest.mark.slow
def test_theory_that_averages_over_schedules_grows_with_the_rounds():
    record = limit_record(Poisson(6, 0.3), 0.5, 1e-3, num_canaries=40, unobserved=40).in_order()
    summary = summarize(record)
    curve = _trace(by_round(record, summary), "analytical so far")["y"]
    assert curve == sorted(curve)
    assert curve[-1] == pytest.approx(summary.analytical.epsilon, rel=1e-4)
    assert summary.analytical.rounds_known is False
    beyond = "Theory's value is for an attacker who does not know the rounds"
    for chart in run_charts(record, summary):
        knowing = chart.name in ("epsilon", "by-round", "trade-off-all")
        assert (beyond in chart.caption) is knowing


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0])
def test_the_claimed_region_is_that_of_differential_privacy(epsilon):
    """A pair of Gaussians with that (ε, δ) touches the limit and never crosses it."""
    shift = 1.0
    delta = delta_two_gaussians(0, 1, shift, 1, epsilon)
    false_alarms = np.linspace(0, 1, 20_001)
    misses = scipy.stats.norm.cdf(scipy.stats.norm.isf(false_alarms) - shift)
    above = misses - claimed_misses(false_alarms, epsilon, delta)
    assert above.min() > -1e-9
    assert above.min() < 1e-4
    assert claimed_misses(np.array([0.0]), epsilon, delta)[0] == pytest.approx(1 - delta)


def test_error_rates_are_those_of_the_scores():
    observed, others = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.0, 1.5, 2.5, 0.5])
    false_alarms, misses, source = error_rates(Scores(observed, others))
    rates = list(zip(false_alarms.tolist(), misses.tolist(), strict=True))
    assert rates[0] == (1.0, 0.0)
    assert (0.25, 0.25) in rates  # from 2 on: one of four others, and three that took part
    assert "counted on 4" in source
    exact, _, source = error_rates(Scores(observed, standard_null=True))
    assert exact.tolist() == pytest.approx(scipy.stats.norm.sf(observed))
    assert "exact" in source


def test_a_histogram_tells_groups_apart_without_color():
    scores = Scores(np.arange(10.0), np.arange(5.0))
    chart = histogram(scores, "some", 0)
    took, took_no = _trace(chart, "took part"), _trace(chart, "took no part")
    assert sum(took["customdata"]) == 10
    assert sum(took_no["customdata"]) == 5
    assert "pattern" not in took["marker"]
    assert took_no["marker"]["pattern"]["shape"] == "/"
    assert sum(int(row[2]) for row in chart.rows) == 10


@pytest.mark.slow
def test_a_cloud_of_many_canaries_is_thinned_out_and_says_so():
    record = limit_record(
        Poisson(6, 0.5), 0.5, 1e-3, num_canaries=3 * MOST_POINTS, unobserved=40
    ).in_order()
    summary = summarize(record)
    chart = by_canary(
        seen_by(record, EVERY_ROUND), summary.every_round.headline, "every round's model"
    )
    here = int(record.presence.any(axis=0).sum())
    assert len(chart.rows) == len(chart.traces[0]["x"]) == MOST_POINTS
    assert f"Drawn are 1,000 of {here:,} canaries" in chart.caption
    first = chart.traces[0]
    for canary, times in first["customdata"][:20]:
        assert times == record.presence[:, canary].sum()


def test_the_schedule_of_a_large_run_is_drawn_in_blocks(made):
    record, _ = made
    small = schedule(record).traces[0]
    assert np.array_equal(np.array(small["z"], bool), record.presence.T)
    rng = np.random.default_rng(0)
    presence = rng.random((1000, 400)) < 0.1
    zeros = np.zeros((1000, 400))
    large = record_of(0).with_values(
        **{"observed.means": zeros},
        presence=presence,
        **{
            "observed.final": np.zeros(400),
            "observed.displacement": np.zeros(400),
            "unobserved.means": np.zeros((1000, 30)),
        },
        clip_norms=np.ones(1000),
        learning_rates=np.ones(1000),
        **{"norms.means": np.ones(1000), "norms.deltas": np.ones(1000)},
        absent=np.zeros(1000, np.int64),
    )
    chart = schedule(large)
    shares = np.array(chart.traces[0]["z"])
    assert shares.shape == (60, 100)
    assert "up to 7 canaries and 10 rounds" in chart.caption
    assert shares[0, 0] == pytest.approx(presence[:10, :7].mean(), abs=1e-4)
    assert len(chart.rows) == 100


def test_points_are_spread_evenly_from_the_first_to_the_last():
    assert spread_out(5, 10).tolist() == [0, 1, 2, 3, 4]
    chosen = spread_out(1001, 11)
    assert chosen.tolist() == list(range(0, 1001, 100))


def test_numbers_are_short_and_what_is_not_finite_is_left_out():
    assert plain([1.23456789, math.nan, math.inf]) == [1.2346, None, None]
    assert (signed(-1.5), signed(0.0), signed(2.0)) == ("−1.50", "0", "2.00")


def _contrast(one: str, other: str) -> float:
    """As in WCAG 2: the ratio of the relative luminances."""

    def luminance(color: str) -> float:
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("role", ["observed", "unobserved", "null", "analytical", "bound"])
def test_colors_stand_out(role):
    folder = Path(fl_epe.reporting.__file__).parent / "templates"
    style = (folder / "base.html.j2").read_text()
    light, dark = re.findall(rf"--c-{role}: (#\w{{6}});", style)
    assert light == PALETTE[f"@{role}"]
    assert _contrast(light, "#ffffff") >= 4.5
    assert _contrast(dark, "#211f1d") >= 4.5
