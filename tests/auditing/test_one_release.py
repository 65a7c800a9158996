"""Cosines of canaries that share one release: ε of one of them alone."""

import json

import numpy as np
import pytest

from fl_epe import CanarySet, epsilon_from_cosines, epsilon_two_gaussians
from fl_epe.auditing import Scores
from fl_epe.auditing.one_release import epsilon_together, overlap, shift_interval, shift_of_one
from fl_epe.auditing.score_summary import summarize_scores
from fl_epe.cli import main
from fl_epe.reporting import score_notes

DELTA = 1e-5


def cosines_of_the_mechanism(dim, count, z, seed=0):
    """Cosines of all canaries with their noisy sum, and the length of the sum without noise."""
    canaries = CanarySet(dim, count, seed)
    total = canaries.vectors(range(count)).astype(float).sum(axis=0)
    released = total + z * np.random.default_rng((1, seed)).standard_normal(dim)
    return canaries.dot(released) / np.linalg.norm(released), float(np.linalg.norm(total))


def test_the_shift_is_that_of_one_canary():
    assert shift_of_one(3.0, 10, 10**9) == pytest.approx(3.0, rel=1e-6)
    assert shift_of_one(1 / np.sqrt(0.01 + 0.1), 1000, 10_000) == pytest.approx(10.0)
    # a sum that is longer than expected says that less was added to it
    assert shift_of_one(0.7, 1000, 1000, np.sqrt(1000) * 1.05) < shift_of_one(0.7, 1000, 1000)
    assert shift_of_one(1.0, 1000, 1000) == np.inf
    assert overlap(0.5, 1000, 1000) == 0.25


@pytest.mark.parametrize(("dim", "count", "z"), [(10_000, 1000, 0.1), (1000, 1000, 1.0)])
def test_epsilon_is_that_of_the_gaussian_mechanism(dim, count, z):
    cosines, sum_norm = cosines_of_the_mechanism(dim, count, z)
    truth = epsilon_two_gaussians(0, 1, 1 / z, 1, DELTA)
    hidden = epsilon_from_cosines(cosines, dim, DELTA)
    assert hidden.high < 0.9 * truth
    for known in (None, sum_norm):
        found = epsilon_from_cosines(cosines, dim, DELTA, together=True, sum_norm=known)
        assert found.low < truth < found.high
        assert found.low < found.epsilon < found.high
        assert "projected out" in found.method
    assert found.epsilon == pytest.approx(truth, rel=0.1)


def test_few_canaries_have_the_plain_estimate():
    cosines = np.array([2.0, 3.0, 4.0, 3.0]) / 1e4
    plain, alone = (
        epsilon_from_cosines(cosines, 10**8, DELTA, together=together) for together in (False, True)
    )
    for name in ("epsilon", "low", "high"):
        assert getattr(alone, name) == pytest.approx(getattr(plain, name), rel=1e-4)


@pytest.mark.parametrize("known", [False, True])
def test_intervals_cover(known):
    dim, count, shift, runs = 500, 500, 2.0, 300
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(runs):
        # the sum of random directions has nearly a gamma-distributed square
        square = count * rng.gamma(dim / 2, 2 / dim) if count > 1 else 1.0
        along = np.sqrt(square) + rng.standard_normal() / shift
        beside = np.sqrt(rng.chisquare(dim - 1)) / shift
        mean = np.sqrt(dim * square) / count * along / np.hypot(along, beside)
        low, high = shift_interval(mean, count, dim, 0.95, np.sqrt(square) if known else None)
        covered += low <= shift <= high
    error = np.sqrt(0.95 * 0.05 / runs)
    assert covered / runs == pytest.approx(0.95, abs=3 * error)


def test_without_the_sum_there_may_be_no_upper_end():
    cosines, sum_norm = cosines_of_the_mechanism(1000, 1000, 0.1)
    assert epsilon_from_cosines(cosines, 1000, DELTA, together=True).high == np.inf
    found = epsilon_from_cosines(cosines, 1000, DELTA, together=True, sum_norm=sum_norm)
    assert found.low < epsilon_two_gaussians(0, 1, 10, 1, DELTA) < found.high < 130


def test_scores_below_zero_are_no_signal():
    found = epsilon_from_cosines([-0.2, -0.3], 100, DELTA, together=True)
    assert (found.epsilon, found.low) == (0, 0)


def test_bad_arguments_are_named():
    cosines = [0.01, 0.02]
    with pytest.raises(ValueError, match=r"sum_norm=1.*together"):
        epsilon_from_cosines(cosines, 100, DELTA, sum_norm=1)
    with pytest.raises(ValueError, match="variance='fitted'"):
        epsilon_from_cosines(cosines, 100, DELTA, variance="fitted", together=True)
    for bad in (0.0, 3.0, np.nan):
        with pytest.raises(ValueError, match=f"sum_norm={bad}"):
            epsilon_from_cosines(cosines, 100, DELTA, together=True, sum_norm=bad)
    with pytest.raises(ValueError, match="too large; leave out together"):
        epsilon_from_cosines(np.full(1000, 0.5), 1000, DELTA, together=True)
    with pytest.raises(ValueError, match="dim=None"):
        epsilon_together(Scores(np.ones(3)), DELTA)
    with pytest.raises(ValueError, match="dim=None to be given with together=True"):
        summarize_scores(cosines, cosines, DELTA, together=True)
    with pytest.raises(ValueError, match=r"sum_norm=1.*together"):
        summarize_scores(cosines, None, DELTA, dim=100, sum_norm=1)


def test_bare_scores_say_that_their_canaries_may_overlap():
    cosines, sum_norm = cosines_of_the_mechanism(1000, 1000, 1.0)
    warned = score_notes(summarize_scores(cosines, None, DELTA, dim=1000))
    assert "Say so with --together" in warned[0]
    said = summarize_scores(cosines, None, DELTA, dim=1000, together=True, sum_norm=sum_norm)
    assert said.overlap == pytest.approx(0.5, abs=0.1)
    assert len(said.estimates) == 3
    assert "projects out the other canaries" in score_notes(said)[0]
    assert score_notes(summarize_scores([0.01, 0.02], None, DELTA, dim=100)) == []
    # Canaries that each had a release of their own cannot be most of one.
    assert score_notes(summarize_scores(np.full(1000, 0.5), None, DELTA, dim=1000)) == []
    loud = cosines_of_the_mechanism(1000, 1000, 0.1)[0]
    lines = score_notes(summarize_scores(loud, None, DELTA, dim=1000, together=True))
    assert "no upper end" in lines[1]


def test_the_command_takes_them_out(tmp_path, capsys):
    cosines, sum_norm = cosines_of_the_mechanism(1000, 1000, 1.0)
    np.save(tmp_path / "x.npy", cosines)
    command = ["estimate", str(tmp_path / "x.npy"), "--dim", "1000", "--delta", str(DELTA)]
    assert main([*command, "--together", "--sum-norm", str(sum_norm), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    expected = epsilon_from_cosines(cosines, 1000, DELTA, together=True, sum_norm=sum_norm)
    assert result["estimates"][0]["epsilon"] == pytest.approx(expected.epsilon)
    assert result["together"] is True
    assert main(command) == 0
    assert "--together" in capsys.readouterr().out


def test_a_length_that_is_too_short_is_named():
    with pytest.raises(ValueError, match=r"sum_norm=0.001 >= 0.5, as 50 cosines of 0.01"):
        epsilon_from_cosines(np.full(50, 0.01), 10_000, DELTA, together=True, sum_norm=1e-3)
