"""Charts of a report: what is drawn is what was measured, bounded in size, and said in words."""

import dataclasses
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from records import make_record, record_of

import fl_epe.reporting
from fl_epe.accounting import epsilon_of_shift, shift_of_epsilon
from fl_epe.auditing import AuditedClient, answers, epsilon_by_round, seen_by
from fl_epe.limit import limit_record
from fl_epe.reporting.chart_epsilon import epsilon_chart
from fl_epe.reporting.chart_rounds import (
    rounds_chart,
    run_charts,
    training_chart,
)
from fl_epe.reporting.chart_scores import scores_chart
from fl_epe.reporting.charts import (
    MOST_POINTS,
    answer_chart,
    in_legend_once,
    plain,
    spread_out,
)
from fl_epe.reporting.still import PALETTE, still
from fl_epe.reporting.summary import summarize
from fl_epe.schedules import make_schedule
from fl_epe.wording import signed

DELTA = 0.0052


def limit_run(
    kind="epochs", rounds=60, each=12.0, noise=0.25, places=13, clients=120
):
    schedule = make_schedule(kind, rounds, each)
    return limit_record(
        schedule,
        noise,
        DELTA,
        num_canaries=places,
        beside=clients,
        unobserved=20,
        seed=1,
    )


@pytest.fixture(scope="module")
def made():
    record = limit_run().with_values(
        metrics={"train_loss": np.linspace(2, 1, 60)}
    )
    return record, answers(record)


@pytest.fixture(scope="module")
def secret():
    record = limit_run("poisson", each=6, noise=1.0)
    return record, answers(record)


def traces_of(chart, name):
    return [t for t in chart.traces if t["name"] == name and "fill" not in t]


@pytest.mark.slow
def test_every_chart_is_json_with_words_numbers_and_a_still_picture(made):
    charts = run_charts(summarize(made[0]))
    assert [chart.name for chart in charts] == [
        "epsilon",
        "rounds",
        "scores",
        "training",
    ]
    for chart in charts:
        json.dumps([chart.traces, chart.layout], allow_nan=False)
        assert any(letter.isdigit() for letter in chart.alternative)
        assert 1 <= len(chart.points) <= 1000
        assert still(chart).startswith("data:image/svg+xml;base64,")
    assert still(charts[0]) == still(charts[0])


def test_numbers_of_a_chart_stand_under_what_they_are(made):
    record, _ = made
    metrics = {
        "train_loss": np.linspace(2, 1, record.rounds),
        "eval_round": np.array([3.0, 6.0]),
        "eval_loss": np.array([2.0, 1.0]),
        "eval_accuracy": np.array([0.5, 0.6]),
        "eval_auc": np.array([0.7, 0.8]),
    }
    clip_norms = np.linspace(1, 2, record.rounds)
    record = record.with_values(
        metrics=metrics, clip_norms=clip_norms, metric="accuracy"
    )
    epsilon, rounds, scores, training = run_charts(summarize(record))
    assert training.columns == [
        "series",
        "round",
        "loss",
        "accuracy",
        "ROC AUC",
        "clip norm",
    ]
    held_out = [p for p in training.points if p["series"] == "held out"]
    assert [set(p) - {"series", "round"} for p in held_out] == (
        2 * [{"loss"}] + 2 * [{"accuracy"}] + 2 * [{"ROC AUC"}]
    )
    assert [p["ROC AUC"] for p in held_out[-2:]] == [0.7, 0.8]
    clients = [p for p in epsilon.points if p["series"] == "clients"]
    assert clients
    assert all(
        p.keys() == {"series", "participations", "clients"} for p in clients
    )
    # Of an adversary is all but what theory allows both, and the clients.
    for chart in (epsilon, rounds, scores):
        of_nobody = {p["series"] for p in chart.points if "adversary" not in p}
        assert of_nobody == (
            {"theory", "clients"} if chart is epsilon else set()
        )
    median = [p for p in epsilon.points if p["series"] == "median client"]
    assert [p["adversary"] for p in median] == ["final model", "every round"]
    assert [p["ε"] for p in median] == pytest.approx(
        [a.estimate.epsilon for a in answers(record)], rel=1e-4
    )


def test_what_was_not_measured_is_not_drawn():
    assert [chart.name for chart in run_charts(summarize(record_of(1)))] == [
        "training"
    ]
    assert [chart.name for chart in run_charts(summarize(record_of(0)))] == [
        "training"
    ]
    assert run_charts(summarize(record_of(0, 0))) == []


def test_the_picture_goes_through_the_answer_and_through_theory(made):
    record, found = made
    chart = epsilon_chart(record, found)
    (client,) = traces_of(chart, "median client")
    assert client["x"] == [12.0, 12.0]
    assert client["y"] == pytest.approx(
        [a.estimate.epsilon for a in found], rel=1e-4
    )
    (theory,) = traces_of(chart, "theory")
    curves = [
        traces_of(chart, name)[0] for name in ("final model", "every round")
    ]
    for curve, value in (
        (theory, found[0].analytical.epsilon),
        *(
            (curve, a.estimate.epsilon)
            for curve, a in zip(curves, found, strict=True)
        ),
    ):
        assert curve["y"] == sorted(curve["y"])
        assert curve["y"][curve["x"].index(12.0)] == pytest.approx(
            value, rel=1e-4
        )
    assert chart.alternative.count("theory allows 131") == 2


def test_a_point_of_the_picture_is_what_its_canaries_alone_would_say(made):
    record, (_, every) = made
    view, taken = seen_by(record, every.adversary), record.presence.sum(axis=0)
    alone = taken == 6
    sizes, size = (
        view.expected_scores.observed[alone],
        AuditedClient.of(record).expected_score(view),
    )
    scale = every.scores.observed[alone] @ sizes / (sizes @ sizes)
    spread = 1.96 * max(every.fit.width, 1) / math.sqrt(sizes @ sizes)
    expected = epsilon_of_shift(
        (scale + np.array([0, -spread, spread])) * size / math.sqrt(2), DELTA
    )
    (point,) = [
        p
        for p in epsilon_chart(*made).points
        if p["series"] == "canaries, every round"
        and p["participations"] == 6
        and p["ε"] > 50
    ]
    assert point["adversary"] == "every round"
    assert [point["ε"], point["from"], point["to"]] == pytest.approx(
        expected, rel=1e-3
    )


def test_clients_are_counted_below_the_picture():
    record = limit_run(
        'device-classes:{"rates": [1, 4], "shares": [0.5, 0.5]}', each=6
    )
    (bars,) = traces_of(epsilon_chart(record, answers(record)), "clients")
    counts = np.bincount(record.clients.ids, minlength=120)
    assert dict(zip(bars["x"], bars["y"], strict=True)) == dict(
        zip(*np.unique(counts, return_counts=True), strict=True)
    )
    unknown = make_record()
    assert traces_of(epsilon_chart(unknown, answers(unknown)), "clients") == []


def test_secret_rounds_are_never_grouped(secret):
    chart = epsilon_chart(*secret)
    drawn = {trace["name"] for trace in chart.traces}
    assert drawn == {"ε, interval", "at least", "theory allows"}
    (estimate,) = traces_of(chart, "ε, interval")
    assert estimate["y"] == ["final model", "every round"]
    assert estimate["x"] == pytest.approx(
        [a.estimate.epsilon for a in secret[1]], rel=1e-4
    )
    assert "does not know" in chart.caption


def test_one_place_for_canaries_is_said_to_be_less_than_clients_do():
    record = limit_run(rounds=30, each=30, noise=1.0, places=1, clients=10)
    chart = epsilon_chart(record, answers(record))
    assert "No canary took part as often." in chart.caption
    canaries = [p for p in chart.points if p["series"].startswith("canaries")]
    assert max(p["participations"] for p in canaries) == 15


def test_a_proof_of_nothing_and_an_infinite_theory_are_not_drawn(made):
    record, (final, every) = made
    analytical = dataclasses.replace(final.analytical, epsilon=math.inf)
    final, every = (
        dataclasses.replace(a, proved=0.0, analytical=analytical)
        for a in (final, every)
    )
    chart = epsilon_chart(record, (final, every))
    assert traces_of(chart, "theory") == []
    assert [
        t["y"] for t in chart.traces if t["name"].startswith("at least")
    ] == [
        [None],
        [None],
    ]
    assert "theory allows ∞" in chart.alternative


def test_rows_of_answers_keep_unlike_things_apart(made):
    _, (final, every) = made
    endless = dataclasses.replace(every.estimate, high=math.inf)
    missing = dataclasses.replace(final, estimate=None, reason="no model")
    rows = (
        ("A", final),
        ("B", dataclasses.replace(every, estimate=endless)),
        ("C", missing),
    )
    chart = answer_chart(rows, name="runs", title="", caption="")
    json.dumps(chart.traces, allow_nan=False)
    assert [trace["y"] for trace in chart.traces] == [["A", "B"]] * 3
    assert chart.traces[0]["error_x"]["array"][1] == 0
    assert "C: ε not measured" in chart.alternative
    assert answer_chart(rows[2:], name="runs", title="", caption="") is None


def test_epsilon_by_round_is_that_of_the_run_with_theory_of_the_same_adversary(
    made, secret
):
    record, (_, every) = made
    chart = rounds_chart(record, every, record.delta)
    (drawn,), (theory,) = (
        traces_of(chart, "ε so far"),
        traces_of(chart, "theory"),
    )
    kept = [now.estimate.epsilon for now in epsilon_by_round(record)]
    np.testing.assert_allclose(drawn["y"], kept, rtol=1e-4)
    assert theory["y"] == sorted(theory["y"])
    assert theory["y"][-1] == pytest.approx(every.analytical.epsilon, rel=1e-4)
    other = dataclasses.replace(every.analytical, knows_rounds=False)
    unlike = rounds_chart(
        record, dataclasses.replace(every, analytical=other), record.delta
    )
    assert traces_of(unlike, "theory") == []


def test_scores_have_their_line_and_those_that_took_no_part(made):
    record, found = made
    chart = scores_chart(record, found)
    for answer, name in zip(found, ("final model", "every round"), strict=True):
        (line,) = traces_of(chart, f"{name}, κ = {signed(answer.fit.scale)}")
        assert line["y"][1] == pytest.approx(
            answer.fit.scale * line["x"][1], rel=1e-3
        )
        assert (
            sum(len(t["x"]) for t in traces_of(chart, name))
            == record.num_canaries
        )
    null = traces_of(chart, "took no part")
    assert [set(trace["x"]) for trace in null] == [{0.0}, {0.0}]
    assert [trace["showlegend"] for trace in null] == [True, False]


@pytest.mark.slow
def test_a_cloud_of_many_canaries_is_thinned_out_and_says_so():
    record = limit_record(
        make_schedule("epochs", 6, 3), 0.5, 1e-3, num_canaries=2 * MOST_POINTS
    )
    chart = scores_chart(record, answers(record))
    assert len(traces_of(chart, "every round")[0]["x"]) == MOST_POINTS
    assert (
        f"Drawn are {MOST_POINTS} of {2 * MOST_POINTS} canaries"
        in chart.caption
    )


def test_training_shows_what_changed_and_only_that():
    record = make_record(
        metrics={
            "train_loss": np.array([3.0, np.nan, 2.0, 2.0, 1.0, 1.0]),
            "eval_round": np.array([3.0, 6.0]),
            "eval_loss": np.array([2.0, 1.0]),
            "eval_accuracy": np.array([0.5, 0.6]),
        },
        clip_norms=np.ones(6),
    )
    chart = training_chart(record)
    assert [
        (t["name"], t.get("yaxis"), t["showlegend"]) for t in chart.traces
    ] == [
        ("training", "y", True),
        ("held out", "y", True),
        ("held out", "y2", False),
    ]
    assert "accuracy held out from 0.500 to 0.600" in chart.alternative
    assert training_chart(make_record(clip_norms=np.full(6, np.nan))) is None


@pytest.mark.parametrize("epsilon", [0.01, 3.0, 131.0, 1e6])
def test_a_shift_is_that_of_its_epsilon(epsilon):
    shift = shift_of_epsilon(epsilon, 1e-5)
    assert float(epsilon_of_shift(shift, 1e-5)) == pytest.approx(
        epsilon, rel=1e-6
    )


def test_points_are_spread_evenly_from_the_first_to_the_last():
    assert spread_out(5, 10).tolist() == [0, 1, 2, 3, 4]
    assert spread_out(1001, 11).tolist() == list(range(0, 1001, 100))
    assert spread_out(0).tolist() == []


def test_numbers_are_short_and_what_is_not_finite_is_left_out():
    assert plain([1.23456789, math.nan, math.inf]) == [1.2346, None, None]
    assert (signed(-1.5), signed(0.0), signed(2.0)) == ("−1.50", "0", "2.00")


def test_a_legend_names_each_once():
    traces = [
        {"name": "a", "showlegend": False},
        {"name": "a"},
        {"name": "a"},
        {"name": "b"},
    ]
    assert [t["showlegend"] for t in in_legend_once(traces)] == [
        False,
        True,
        False,
        True,
    ]


def _contrast(one: str, other: str) -> float:
    """As in WCAG 2: the ratio of the relative luminances."""

    def luminance(color: str) -> float:
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [
            p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4
            for p in parts
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("role", ["final", "every", "theory", "plain"])
def test_colors_stand_out(role):
    folder = Path(fl_epe.reporting.__file__).parent / "templates"
    style = (folder / "base.html.j2").read_text()
    light, dark = re.findall(rf"--c-{role}: (#\w{{6}});", style)
    assert light == PALETTE[f"@{role}"]
    assert _contrast(light, "#ffffff") >= 4.5
    assert _contrast(dark, "#211f1d") >= 4.5
