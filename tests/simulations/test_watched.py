"""`simulations/studies/watched.py`: its figures, and that its docstring has them."""

import math

import pytest

from simulations.studies import watched

pytestmark = pytest.mark.slow


def test_what_is_shown_now_misleads_rarely_and_what_was_shown_before_did_not():
    runs = 400
    misled = watched.misleading(runs, 300)
    assert misled["fixed-time"] > 0.15
    limit = 0.025 + 3 * math.sqrt(0.025 * 0.975 / runs)
    assert all(
        share < limit for name, share in misled.items() if name != "fixed-time"
    )


def test_the_widths_at_the_end():
    widths = watched.widths(1000)
    assert widths["fixed-time"] == 1
    assert (
        1
        < widths["planned"]
        < widths["plan 10% off"]
        < 1.35
        < widths["no plan"]
        < 1.7
    )


def test_the_fixed_design_has_its_power():
    for claim in watched.CLAIMS:
        count = watched.fixed_design(claim, 0.975, 0.95)
        drift = watched.shift(2 * claim) - watched.shift(claim)
        powers = [
            1
            - 0.5 * math.erfc((drift * math.sqrt(n) - 1.959964) / math.sqrt(2))
            for n in (count - 1, count)
        ]
        assert powers[0] < 0.95 <= powers[1]


def test_three_fifths_of_the_canaries_are_enough():
    for claim in watched.CLAIMS:
        count, share, declared = watched.stopping(claim, 0.975, 0.95, 400)
        assert share < 0.6 + 1 / count
        assert declared > 0.85


def test_uneven_runs_mislead_rarely():
    runs = 300
    limit = 0.025 + 3 * math.sqrt(0.025 * 0.975 / runs)
    for name in ("five times", "device classes", "most rounds empty"):
        shares = watched.uneven(watched.UNEVEN[name], runs)
        assert max(shares.values()) < limit, name


def test_the_quick_form_prints_every_table(capsys):
    watched.main(20, 30)
    printed = capsys.readouterr().out
    assert [line[:2] for line in printed.splitlines() if line[0] != " "] == [
        f"{table}." for table in range(1, 6)
    ]
    assert printed.count("%") == 4 + 2 + 2 * 12 + 2 + 2 * 6 + 1 + 3 * len(
        watched.UNEVEN
    )


def test_the_docstring_has_what_needs_no_simulation():
    for name, ratio in watched.widths(watched.ROUNDS).items():
        assert f"{name:14} {ratio:7.3f}" in watched.__doc__
    heights = dict(watched.heights())
    assert heights[0.0] == pytest.approx(2.2414, abs=1e-3)
    for exponent, height in heights.items():
        assert f"{exponent:7} {height:6.3f}" in watched.__doc__
