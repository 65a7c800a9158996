"""How many canaries it takes to show that ε exceeds a claim."""

import json
import math

import numpy as np
import pytest

from fl_epe import epsilon_two_gaussians
from fl_epe.accounting import gaussian_epsilon
from fl_epe.auditing import Scores
from fl_epe.auditing.bounds import lower_bound, method_by_design
from fl_epe.cli.main import main
from fl_epe.limit import canaries_for_epsilon
from fl_epe.limit.canaries_needed import shift_of

DELTA, METHOD = 1e-5, "gdp"


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    """The bound by design takes seconds."""
    monkeypatch.setattr("fl_epe.limit.canaries_needed.method_by_design", lambda *_: METHOD)


def test_the_bound_is_the_one_by_design(monkeypatch):
    monkeypatch.undo()  # for so large an ε two canaries are enough, and no audit is slow
    found = canaries_for_epsilon(30.0, 0.5, DELTA)
    scores = Scores.from_cosines(np.full(found.canaries, found.shift / 1e4), 10**8)
    assert found.method == method_by_design(scores, DELTA, 0.95) != METHOD
    assert found.power >= 0.8


@pytest.mark.parametrize("epsilon", [0.1, 4.0, 60.0])
def test_the_shift_has_the_epsilon(epsilon):
    assert epsilon_two_gaussians(0, 1, shift_of(epsilon, DELTA), 1, DELTA) == pytest.approx(epsilon)
    assert shift_of(0.0, DELTA) == 0.0


@pytest.mark.parametrize("exact", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_audits_of_that_size_have_the_power_and_smaller_ones_do_not(exact):
    """Checked with other draws than those by which the number was found."""
    found = canaries_for_epsilon(9.0, 2.0, DELTA, participations=1 if exact else 2)
    assert found.canaries is not None
    assert found.unobserved == (0 if exact else found.canaries)
    assert found.power >= 0.8
    assert found.ceiling is not None
    assert found.ceiling > 2.0
    draws = 100

    def power(count):
        wins = 0
        for seed in range(draws):
            rng = np.random.default_rng((9, seed))
            observed, others = rng.normal(found.shift, 1, count), rng.normal(0, 1, count)
            scores = Scores.from_cosines(observed / 1e4, 10**8) if exact else None
            scores = scores or Scores(observed, others)
            wins += lower_bound(scores, DELTA, method=METHOD) > 2.0
        return wins / draws

    error = math.hypot(0.4 / math.sqrt(draws), found.power_error)
    assert power(found.canaries) > 0.8 - 3 * error
    assert power(max(2, found.canaries // 2)) < 0.8


def test_more_power_takes_more_canaries_and_a_true_claim_cannot_be_disproved(monkeypatch):
    monkeypatch.setattr("fl_epe.limit.canaries_needed._DRAWS", 12)
    low, high = (canaries_for_epsilon(9.0, 4.0, DELTA, power=p).canaries for p in (0.5, 0.95))
    assert low is not None
    assert high is not None
    assert low < high
    assert canaries_for_epsilon(4.0, 4.0, DELTA).canaries is None
    assert canaries_for_epsilon(4.0, 4.0, DELTA).power == 0.0


def test_rounds_have_room_for_the_canaries():
    found = canaries_for_epsilon(30.0, 1.0, DELTA, participations=3, room=0.5)
    assert found.canaries is not None
    assert found.rounds == math.ceil(found.canaries * 3 / 0.5)
    roomy = canaries_for_epsilon(30.0, 1.0, DELTA, participations=3, room=1e3)
    assert roomy.rounds == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"power": 1.0}, "power=1.0"),
        ({"confidence": 0.0}, "confidence=0.0"),
        ({"claimed": -1.0}, "claimed=-1.0"),
        ({"true_epsilon": math.inf}, "true_epsilon=inf"),
    ],
    ids=["power", "confidence", "claimed", "true-epsilon"],
)
def test_bad_input_is_named(changes, message):
    given = {"true_epsilon": 8.0, "claimed": 4.0, "delta": DELTA} | changes
    with pytest.raises(ValueError, match=message):
        canaries_for_epsilon(**given)


class TestCommandLine:
    COMMON = ("advise", "canaries", "--claimed", "2")

    @pytest.fixture(autouse=True)
    def few_audits(self, monkeypatch):
        monkeypatch.setattr("fl_epe.limit.canaries_needed._DRAWS", 8)

    def _json(self, capsys, *more):
        assert main([*self.COMMON, *more, "--json"]) == 0
        return json.loads(capsys.readouterr().out)["advice"]

    def test_a_true_epsilon(self, capsys):
        (row,) = self._json(capsys, "--true-epsilon", "8", "--clients-per-round", "10")
        direct = canaries_for_epsilon(8.0, 2.0, DELTA, room=10.0)
        assert row["canaries"] == direct.canaries
        assert row["rounds"] == direct.rounds
        assert main([*self.COMMON, "--true-epsilon", "8"]) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert f"{direct.canaries} canaries against the exact null" in printed
        assert "To show ε > 2.00" in printed

    def test_a_noise_multiplier_tries_several_participations(self, capsys):
        rows = self._json(capsys, "--noise-multiplier", "3")
        assert [row["participations"] for row in rows] == [1, 2, 4, 8, 16]
        for row in rows:
            exact = gaussian_epsilon(3.0, DELTA, row["participations"])
            assert row["true_epsilon"] == pytest.approx(exact)
            assert bool(row["unobserved"]) == (row["participations"] > 1 and bool(row["canaries"]))
        assert rows[0]["canaries"] is None  # ε is 1.25 there
        assert main([*self.COMMON, "--noise-multiplier", "3", "--participations", "1"]) == 0
        assert "impossible, as the claim is true" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            ((), "--true-epsilon"),
            (("--true-epsilon", "8", "--noise-multiplier", "1"), "--noise-multiplier"),
            (("--true-epsilon", "8", "--participations", "0"), "--participations"),
        ],
    )
    def test_bad_input_is_named(self, capsys, more, message):
        assert main([*self.COMMON, *more]) == 2
        assert message in capsys.readouterr().err


def test_the_power_is_that_of_draws_that_did_not_choose_the_number():
    """The number is raised until the power of other draws is enough."""
    found = canaries_for_epsilon(8.0, 4.0, DELTA)
    assert found.canaries is not None
    assert found.power >= 0.8


@pytest.mark.parametrize("epsilon", [1e7, 1e308])
def test_an_absurd_epsilon_is_named(epsilon):
    with pytest.raises(ValueError, match="true_epsilon="):
        canaries_for_epsilon(epsilon, 1.0, DELTA)
