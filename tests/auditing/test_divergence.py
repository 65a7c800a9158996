"""When a run has diverged: each sign at its edge."""

import numpy as np
import pytest
from records import make_record

from fl_epe.auditing import answers, divergence
from fl_epe.auditing.record.measured import at_chance, updates_lost
from fl_epe.reporting import summarize
from fl_epe.reporting.reliability import warnings_of

EVALUATED = {"eval_round": np.array([0.0, 5, 10, 15, 20])}


def _accuracy(
    *values: float,
    rounds=EVALUATED["eval_round"],
    chance: object = 0.1,
    **metrics,
):
    series = {
        "eval_round": np.array(rounds, float),
        "eval_accuracy": np.array(values),
        **metrics,
    }
    return make_record(metrics=series, chance_accuracy=chance)


def test_a_good_run_has_not_diverged():
    assert divergence(make_record()) == ()
    losses = {
        "eval_loss": np.array([2.0, 1.0]),
        "train_loss": np.ones(6),
        "cohort": np.ones(6),
    }
    assert divergence(make_record(metrics=losses)) == ()


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["eval_loss", "train_loss"])
def test_the_last_loss_must_be_finite(name: str, value: float):
    (reason,) = divergence(
        make_record(metrics={name: np.array([1.0, 2.0, value])})
    )
    assert f"is {value} at the end" in reason
    assert (
        divergence(make_record(metrics={name: np.array([1.0, value, 2.0])}))
        == ()
    )


def test_a_round_that_nobody_trained_in_has_no_loss_and_is_no_fault():
    loss = np.array([1.0, 1.0, 1.0, 1.0, 1.0, np.nan])
    empty = make_record(
        metrics={"train_loss": loss, "cohort": np.array([2.0, 2, 2, 2, 2, 0])}
    )
    assert divergence(empty) == ()
    trained = make_record(
        metrics={"train_loss": loss, "cohort": np.full(6, 2.0)}
    )
    assert len(divergence(trained)) == 1


def test_a_model_that_is_not_finite():
    nan = np.full(40, np.nan)
    record = make_record(
        **{
            "norms.final": np.nan,
            "observed.final": nan,
            "observed.displacement": nan,
        }
    )
    assert divergence(record) == ("the final model is not finite",)


@pytest.mark.parametrize(
    ("record", "diverged"),
    [
        pytest.param(_accuracy(0.1, 0.5, 0.1, 0.1, 0.1), True, id="at-chance"),
        pytest.param(_accuracy(0.1, 0.5, 0.05, 0.0, 0.1), True, id="below"),
        pytest.param(
            _accuracy(0.1, 0.5, 0.1, 0.1, 0.11), False, id="last-above"
        ),
        pytest.param(
            _accuracy(0.1, 0.5, 0.11, 0.1, 0.1), False, id="third-last-above"
        ),
        pytest.param(
            _accuracy(*[0.1] * 5, rounds=[0, 2, 4, 6, 8]), False, id="short-run"
        ),
        pytest.param(
            _accuracy(*[0.1] * 5, rounds=[0, 3, 6, 9, 12]), False, id="one-late"
        ),
        pytest.param(
            _accuracy(*[0.1] * 4, rounds=[9, 10, 11, 12]), True, id="three-late"
        ),
        pytest.param(
            _accuracy(*[0.1] * 5, chance=None), False, id="chance-unknown"
        ),
        pytest.param(_accuracy(*[np.nan] * 5), True, id="nan"),
        pytest.param(make_record(), False, id="no-metrics"),
    ],
)
def test_accuracy_at_chance(record, diverged: bool):
    reasons = divergence(record)
    assert bool(reasons) is diverged
    assert all("chance (10.0%)" in reason for reason in reasons)


@pytest.mark.parametrize(
    ("losses", "chance", "diverged"),
    [
        pytest.param([9.0, 5, 4, 4, 4.1], 4.0, True, id="at-chance"),
        pytest.param([9.0, 5, 4, 4, 3.9], 4.0, False, id="last-below"),
        pytest.param([9.0, 5, 3, 4, 4], 4.0, False, id="third-last-below"),
        pytest.param([9.0, 5, 4, 4, 4], None, False, id="classes"),
    ],
)
def test_a_regression_no_better_than_the_mean(losses, chance, diverged: bool):
    series = {**EVALUATED, "eval_loss": np.array(losses)}
    reasons = divergence(make_record(metrics=series, chance_loss=chance))
    assert bool(reasons) is diverged
    assert all(
        "that of the same prediction for everybody (4)" in reason
        for reason in reasons
    )
    late = {**series, "eval_round": np.array([0.0, 2, 4, 6, 8])}
    assert divergence(make_record(metrics=late, chance_loss=chance)) == ()


@pytest.mark.parametrize(
    ("accuracies", "losses", "reason"),
    [
        pytest.param(
            [0.955] * 5,
            [0.2, 0.16, 0.16, 0.15, 0.149],
            None,
            id="rare-class-learned",
        ),
        pytest.param(
            [0.955] * 5,
            [0.3, 0.2, 0.17, 0.169, 0.168],
            "the loss",
            id="rare-class",
        ),
        pytest.param(
            [0.955] * 4 + [0.96], [0.3] * 5, None, id="right-but-overconfident"
        ),
        pytest.param([0.955] * 5, [np.nan] * 5, "the loss", id="not-finite"),
    ],
)
def test_the_loss_decides_where_one_class_is_rare(accuracies, losses, reason):
    series = {
        "eval_accuracy": np.array(accuracies),
        "eval_loss": np.array(losses),
    }
    design = {"chance_accuracy": 0.955, "chance_loss": 0.168}
    record = make_record(metrics=EVALUATED | series, **design)
    for evaluations in (1, 3):
        found = at_chance(record, evaluations)
        assert (
            found is None
            if reason is None
            else found is not None and found.startswith(reason)
        )
    if reason is None:
        assert divergence(record) == ()
        return
    assert (
        "no better than that of the same prediction for everybody (0.168)"
        in str(divergence(record))
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("accuracy", "area", "loss", "learned", "said"),
    [
        pytest.param(
            0.922, 0.956, 17.6, True, True, id="right-and-much-too-sure"
        ),
        pytest.param(0.833, 0.94, 12.8, True, True, id="ranks-well"),
        pytest.param(
            0.856, 0.956, 0.502, True, True, id="a-little-worse-than-constant"
        ),
        pytest.param(
            0.845, 0.54, 0.502, False, True, id="one-example-more-is-chance"
        ),
        pytest.param(0.833, np.nan, 0.46, False, True, id="constant"),
        pytest.param(0.833, 0.5, 0.44, True, False, id="a-better-loss"),
    ],
)
def test_a_large_loss_is_no_failure_where_examples_are_told_apart(
    accuracy, area, loss, learned, said
):
    last = {"eval_accuracy": accuracy, "eval_auc": area, "eval_loss": loss}
    series = EVALUATED | {
        name: np.full(5, value) for name, value in last.items()
    }
    record = make_record(
        metrics=series, chance_accuracy=0.833, chance_loss=0.451
    )
    assert (at_chance(record) is None) is learned
    assert (divergence(record) == ()) is learned
    found = [
        one
        for one in warnings_of(record, answers(record))
        if "held-out" in one.text
    ]
    codes = ["caveat" if learned else "diverged"] if said else []
    assert [one.code for one in found] == codes
    if said and learned:
        assert "0.451), but the model tells examples apart" in found[0].text
    close = "(majority class: 83.3%)"
    assert (close in summarize(record).performance()[0]) is (accuracy < 0.9165)


def test_a_training_loss_that_explodes_while_the_model_stays_as_it_was():
    series = {
        "eval_round": np.array([0.0, 6]),
        "train_loss": np.array([1.0, 9e25, np.nan]),
    }
    for last, found in ((1.99, 1), (1.0, 0)):  # the model learned all the same
        losses = {
            **series,
            "eval_loss": np.array([2.0, last]),
            "cohort": np.array([5, 5, 0]),
        }
        assert len(divergence(make_record(metrics=losses))) == found


@pytest.mark.parametrize(
    ("lost", "arrived", "text"),
    [
        (0, 0, None),
        (0, 5, None),
        (5, 5, None),
        (6, 5, "6 of 11 updates were lost"),
        (1, 0, "1 of 1 updates were lost"),
        (2, 0, "2 of 2 updates were lost"),
    ],
    ids=["none", "all-arrived", "half", "more-than-half", "only-one", "all"],
)
def test_most_updates_lost(lost: int, arrived: int, text: str | None):
    record = make_record(
        presence=np.zeros((6, 40), bool),
        absent=np.array([lost, 0, 0, 0, 0, 0]),
        metrics={"cohort": np.array([arrived, 0, 0, 0, 0, 0])},
    )
    assert updates_lost(record) == text


def test_lost_updates_are_counted_by_what_a_record_knows():
    half = np.full(6, 30)  # 20 canaries and 10 clients arrived in every round
    cohort = {"cohort": np.full(6, 10.0)}
    assert updates_lost(make_record(absent=half, metrics=cohort)) is None
    reason = updates_lost(make_record(absent=half + 1, metrics=cohort))
    assert reason == "186 of 366 updates were lost"
    offsets = np.arange(7) * 10
    same = updates_lost(
        make_record(
            absent=half + 1,
            **{"clients.ids": np.zeros(60, int), "clients.offsets": offsets},
        )
    )
    assert same == reason
    # A deployment knows the mean number of replies, canaries among them.
    assert (
        updates_lost(make_record(absent=np.full(6, 10), cohort_size=10.0))
        is None
    )
    assert (
        updates_lost(make_record(absent=np.full(6, 11), cohort_size=10.0))
        is not None
    )
    assert (
        updates_lost(make_record(absent=np.full(6, 11), cohort_size=np.nan))
        is None
    )
    reason = updates_lost(make_record(absent=np.full(6, 5), cohort_size=0.0))
    assert reason == "30 of 30 updates were lost"


@pytest.mark.parametrize(("rounds", "lost"), [(2, False), (3, True)])
def test_a_run_whose_clients_all_fail_at_the_end(rounds: int, lost: bool):
    presence = make_record().presence.copy()
    cohort = np.full(6, 1000.0)
    absent = np.zeros(6, np.int64)
    presence[-rounds:], cohort[-rounds:], absent[-rounds:] = False, 0, 7
    record = make_record(
        presence=presence, absent=absent, metrics={"cohort": cohort}
    )
    expected = "every update was lost in 3 rounds at the end" if lost else None
    assert updates_lost(record) == expected
    assert divergence(record) == ()


@pytest.mark.parametrize(
    ("losses", "reasons"),
    [
        pytest.param([0.7, 1595.0], 1, id="exploded"),
        pytest.param([0.7, 70.0], 0, id="just-below"),
        pytest.param([0.7, 1595.0, 0.5], 0, id="recovered"),
        pytest.param([np.nan, 1595.0], 0, id="no-first-loss"),
    ],
)
def test_a_loss_of_a_hundred_times_the_first_is_a_run_that_went_wrong(
    losses, reasons
):
    rounds = np.arange(len(losses), dtype=float)
    found = divergence(
        make_record(
            metrics={"eval_loss": np.array(losses), "eval_round": rounds}
        )
    )
    assert len(found) == reasons
    assert all("rose from 0.7 to" in reason for reason in found)
    later = {
        "eval_loss": np.array(losses),
        "eval_round": rounds + 1,
    }  # not from the start
    assert divergence(make_record(metrics=later)) == ()
