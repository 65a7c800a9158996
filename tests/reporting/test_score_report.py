"""The answer of a file of scores: the same form, one screen."""

import json

import numpy as np
import pytest
from scipy import stats

from fl_epe.accounting import gaussian_epsilon
from fl_epe.cli.main import main

RNG = np.random.default_rng(0)


@pytest.fixture
def scores(tmp_path):
    """A file of scores two deviations apart."""
    path = tmp_path / "scores.npz"
    np.savez(
        path,
        observed=RNG.standard_normal(200) + 2,
        unobserved=RNG.standard_normal(200),
    )
    return str(path)


def _values(words, capsys):
    status = main(["estimate", *words, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_one_screen_with_the_answer_first(scores, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["estimate", scores]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(
        "By these scores, if they are Gaussian, this attack guesses right"
    )
    assert len(printed.splitlines()) <= 10
    assert len(printed.split()) <= 80
    assert "clopper-pearson" not in printed
    assert main(["estimate", scores, "--details"]) == 0
    longer = capsys.readouterr().out
    assert longer.startswith(printed)
    for words in (
        "clopper-pearson",
        "not valid",
        "primary bound, chosen",
        "are Gaussian",
    ):
        assert words in longer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("claim", "status", "code", "words"),
    [
        pytest.param(
            "0.1",
            "faulty",
            3,
            "The claim of ε ≤ 0.100 is refuted",
            id="refuted",
        ),
        pytest.param(
            "50", "ok", 3, "Whether ε ≤ 50.0 holds is undecided", id="large"
        ),
        pytest.param(
            "4", "ok", 3, "cannot tell whether they are Gaussian", id="below"
        ),
    ],
)
def test_few_scores_of_an_unknown_law_refute_a_claim_by_a_proof_alone(
    scores, capsys, claim, status, code, words
):
    found, values = _values([scores, "--claim", claim], capsys)
    assert (found, values["status"]) == (code, status)
    answer = values["answer"]
    assert answer["claimed"] == float(claim)
    assert (answer["proved"] > float(claim)) is (status == "faulty")
    assert main(["estimate", scores, "--claim", claim]) == code
    assert words in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_many_scores_decide_about_a_claim(tmp_path, capsys):
    path = tmp_path / "scores.npz"
    rng = np.random.default_rng(1)
    np.savez(
        path,
        observed=rng.standard_normal(2000) + 1,
        unobserved=rng.standard_normal(2000),
    )
    exact = gaussian_epsilon(1.0, 1e-5)
    for claim, verdict, code in (
        (exact, "not violated", 0),
        (exact / 2, "violated", 3),
    ):
        found, values = _values([str(path), "--claim", str(claim)], capsys)
        assert (found, values["answer"]["verdict"]) == (code, verdict)
        assert values["answer"]["proved"] < exact


def test_scores_that_refute_the_model_are_unreliable(tmp_path, capsys):
    path = tmp_path / "cosines.npy"
    np.save(path, 0.02 * stats.norm.ppf((np.arange(400) + 0.5) / 400) + 0.03)
    found, values = _values([str(path), "--dim", "10000"], capsys)
    assert (found, values["status"]) == (3, "unreliable")
    assert "width" in [one["code"] for one in values["warnings"]]
    assert values["answer"]["method"] == "cosines, fitted variance"


def test_two_kinds_of_canaries_have_no_estimate(tmp_path, capsys):
    path = tmp_path / "cosines.npy"
    np.save(path, np.where(np.arange(400) < 200, 0.001, 0.03))
    found, values = _values([str(path), "--dim", "10000"], capsys)
    assert (found, values["status"]) == (3, "not measured")
    assert values["answer"]["epsilon"] is None
    assert values["answer"]["proved"] > 1


def test_a_negative_claim_is_refused(scores, capsys):
    assert main(["estimate", scores, "--claim=-1"]) == 2
    assert "--claim=-1" in capsys.readouterr().err
