"""Reports say whether canaries hide each other, and which rows have too few of them for a bound."""

import dataclasses

import numpy as np
import pytest

from fl_epe import CanarySet, RoundFacts, RunAuditor, epsilon_from_record
from fl_epe.auditing import EVERY_ROUND, Adversary, seen_by
from fl_epe.auditing.leave_one_out import all_canaries
from fl_epe.mechanism import strategy_matrix
from fl_epe.reporting.notes import notes
from fl_epe.reporting.summary import summarize

DIM, SEED = 2000, 3


def audited(count, unobserved=20, rounds=2, server="sgd", times=1, **settings):
    """Every canary in the first ``times`` rounds, of five times the noise along it."""
    settings |= {} if server == "sgd" else {"server": server}
    auditor = RunAuditor(count, unobserved, seed=SEED, delta=1e-5, **settings)
    canaries = CanarySet(DIM, count, SEED).vectors(range(count)).astype(float)
    rng, theta, added = np.random.default_rng(0), np.zeros(DIM), 5 / np.sqrt(DIM)
    auditor.begin(theta)
    for t in range(rounds):
        present = list(range(count)) if t < times else []
        noise = rng.standard_normal(DIM) / np.sqrt(DIM)
        theta = theta + noise + added * canaries[present].sum(axis=0)
        auditor.observe(theta, RoundFacts(present, added, replies=count + 10))
    return auditor.record()


def test_the_headline_is_for_one_canary_and_raw_stands_beside_it():
    record = audited(100)
    summary = summarize(record)
    found = summary.to_dict()
    for sees, key in (("all", "all"), ("final", "final")):
        raw = epsilon_from_record(record, adversary=Adversary(sees), leave_one_out=False)
        assert (
            found[key]["epsilon"] == epsilon_from_record(record, adversary=Adversary(sees)).epsilon
        )
        assert found[key]["raw"]["epsilon"] == raw.epsilon < 0.8 * found[key]["epsilon"]
    # Measured by the mean score, to 2%, and canaries overlap by 3%; both are squared.
    assert found["others_share"] == pytest.approx(100 * 25 / (100 * 25 + DIM), abs=0.1)
    text = " ".join(notes(summary))
    assert "they are taken out" in text
    assert "hides one" not in text


def test_a_record_that_cannot_tell_says_so():
    summary = summarize(all_canaries(audited(100)))
    assert "raw" not in summary.to_dict()["all"]
    assert "ε would be larger for one canary among real clients" in " ".join(notes(summary))


def test_a_final_model_that_is_no_sum_of_rounds_says_so():
    summary = summarize(audited(100, server="median"))
    assert summary.final.raw is None
    assert "not a known sum of the rounds" in " ".join(notes(summary))


@pytest.mark.parametrize(
    ("mechanism", "window", "said"), [("tree", 4, True), ("tree", 8, False), ("banded", 4, False)]
)
def test_noise_that_reaches_farther_than_correlations_are_followed_is_said(mechanism, window, said):
    option = ":bands=4" if mechanism == "banded" else ""
    record = audited(20, rounds=8, times=2, window=window)
    record = record.with_values(strategy=strategy_matrix(mechanism + option, 8))
    scores = seen_by(record, EVERY_ROUND).scores()
    assert scores.followed == (window if said else None)
    text = " ".join(notes(summarize(record)))
    assert (f"more rounds than the {window} that scores are whitened with" in text) is said


def test_few_canaries_hide_nothing():
    text = " ".join(notes(summarize(audited(2))))
    assert "other canaries" not in text.lower()


def test_too_few_canaries_to_bound_is_said_where_the_null_is_not_exact():
    unknown = {"correlation.factor": None, "running.scores": None, "running.signals": None}
    summary = summarize(audited(4, unobserved=4, times=2).with_values(**unknown))
    part = summary.every_round.headline
    assert (part.lower_bound, part.bound_method) == (None, None)
    assert summary.to_dict()["all"]["lower_bound"] is None
    said = "Too few canaries to bound “every round matched filter”: at least 7"
    assert said in " ".join(notes(summary))
    # One participation has an exact null, for which two canaries are enough.
    exact = summarize(audited(4, unobserved=4)).to_dict()["all"]
    assert exact["bound_method"] == "simultaneous"
    assert exact["lower_bound"] > 1


def test_the_headline_bound_is_the_one_that_the_design_chooses():
    record = audited(30, unobserved=30, times=2)
    part = summarize(record).every_round.headline
    assert part.bound_method == "weighted"
    # Other scores of the same design do not change the choice.
    silent = dataclasses.replace(
        record, observed=dataclasses.replace(record.observed, means=record.observed.means * 0.01)
    )
    assert summarize(silent).every_round.headline.bound_method == "weighted"
