"""Scores that are not Gaussian: no number from fitted Gaussians, and what needs no law."""

import json

import numpy as np
import pytest
from scipy import special, stats

from fl_epe import epsilon_from_scores
from fl_epe.auditing import NotMeasured, Scores, epsilon_of
from fl_epe.auditing.answer.estimators import epsilon_of_thresholds
from fl_epe.auditing.bounds.thresholds import band_upper
from fl_epe.auditing.scoring.assumptions import not_gaussian
from fl_epe.cli.main import main

GRID = (np.arange(1000) + 0.5) / 1000
ONES = 1.0 * (special.expit(-1.0) < GRID)
NORMAL = stats.norm.ppf(GRID)
NOT_GAUSSIAN = {
    "Cauchy": (stats.cauchy.ppf(GRID) + 1, stats.cauchy.ppf(GRID)),
    "response": (ONES, 1 - ONES),
    "Laplace": (stats.laplace.ppf(GRID) + 1, stats.laplace.ppf(GRID)),
    "exposed": (NORMAL + 1 + 12 * (np.arange(1000) % 50 == 0), NORMAL),
    "equal": (np.ones(8), np.zeros(8)),
}


@pytest.mark.parametrize("law", NOT_GAUSSIAN)
def test_no_number_where_the_law_is_refuted(law):
    """ε of 399, 4.28, 3.69 and 19.4 once, where 0.96, 1, 1 and 106.7 are true."""
    with pytest.raises(NotMeasured, match="these scores are not Gaussian"):
        epsilon_from_scores(*NOT_GAUSSIAN[law], 1e-5)


def test_gaussian_scores_are_not_refused():
    refused = 0
    for run in range(400):
        rng = np.random.default_rng((1, run))
        scores = Scores(rng.normal(2, 1.3, 60), rng.normal(0, 1, 60))
        refused += not_gaussian(scores) is not None
    assert refused <= 4  # of 0.4 expected: more with probability 10⁻⁴


def test_the_two_sides_are_tested_together():
    """Each side alone is not certainly Laplace."""
    few = stats.laplace.ppf((np.arange(110) + 0.5) / 110)
    assert not_gaussian(Scores(few, standard_null=True)) is None
    assert not_gaussian(Scores(3 * few + 1, few)) is not None


def test_a_few_scores_are_not_tested():
    assert not_gaussian(Scores([1.0, 1.0], [0.0, 0.0])) is None


@pytest.mark.parametrize(
    ("law", "exact"),
    [("response", 1 + np.log1p(-0.01 / special.expit(1.0))), ("Laplace", 0.98)],
)
def test_enough_scores_need_no_law(law, exact):
    """At δ = 0.01, with 5,000 scores of each side."""
    observed, unobserved = (
        np.tile(side, 5) + 1e-9 * np.arange(5000) * (law != "response")
        for side in NOT_GAUSSIAN[law]
    )
    found = epsilon_from_scores(observed, unobserved, 0.01)
    assert found.method == "scores, best threshold, any law"
    assert found.low < exact < found.high < 4
    assert found.epsilon == pytest.approx(exact, abs=0.15)


def test_thresholds_are_their_formula():
    rng = np.random.default_rng(2)
    observed, unobserved = rng.laplace(1, 1, 400), rng.laplace(0, 1, 300)
    found = epsilon_of_thresholds(Scores(observed, unobserved), 0.1)
    low = high = value = 0.0
    for threshold in [*observed, *unobserved, np.inf]:
        missed, alarms = (
            np.sum(observed < threshold),
            np.sum(unobserved >= threshold),
        )
        upper = [
            float(band_upper(np.array(float(count)), total, 0.05 / 4))
            for count, total in (
                (missed, 400),
                (alarms, 300),
                (400 - missed, 400),
                (300 - alarms, 300),
            )
        ]
        rates = [(missed + 0.5) / 401, (alarms + 0.5) / 301]
        ends = [
            _epsilon(*each)
            for each in (rates, upper[:2], [1 - one for one in upper[2:]])
        ]
        value, low, high = (
            max(a, b) for a, b in zip((value, low, high), ends, strict=True)
        )
    assert (found.epsilon, found.low, found.high) == pytest.approx(
        (value, low, high)
    )


def _epsilon(fnr, fpr, delta=0.1):
    """By the definition of (ε, δ)-DP; 0 where nothing is left."""
    values = [0.0]
    for more, less in ((1 - fnr - delta, fpr), (1 - fpr - delta, fnr)):
        if more > 0:
            values.append(np.log(more / less) if less > 0 else np.inf)
    return max(values)


def test_gaussians_are_still_fitted_where_nobody_asks():
    """The paper's maximum over rounds is not Gaussian, and its number is that of the paper."""
    found = epsilon_of(Scores(*NOT_GAUSSIAN["Laplace"]), 1e-5)
    assert found.method == "scores, two fitted Gaussians"
    assert found.low > 2


@pytest.mark.slow
def test_estimate_prints_no_number_and_the_proof(tmp_path, capsys):
    path = str(tmp_path / "scores.npz")
    observed, unobserved = NOT_GAUSSIAN["response"]
    np.savez(path, observed=observed, unobserved=unobserved)
    assert main(["estimate", path, "--details"]) == 3
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith(
        "Not measured, as these scores are not Gaussian (Anderson–Darling A² = 2"
    )
    assert "needs at least 1,000,000 scores of each side." in printed
    assert main(["estimate", path, "--json"]) == 3
    values = json.loads(capsys.readouterr().out)
    assert values["status"] == "not measured"
    assert values["answer"]["epsilon"] is values["answer"]["high"] is None
    assert 0.5 < values["answer"]["proved"] < 1
    assert main(["estimate", path, "--claim", "0.3"]) == 3
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith(
        "Faulty, as the measured leakage exceeds the claim"
    )
    assert "The claim of ε ≤ 0.300 is refuted at 95% confidence. " in printed
    assert main(["estimate", path, "--claim", "3"]) == 3
    printed = " ".join(capsys.readouterr().out.split())
    assert (
        "Whether ε ≤ 3.00 holds is undecided, as the scores are not Gaussian"
        in printed
    )
