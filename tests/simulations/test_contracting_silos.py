"""`simulations/studies/contracting_silos.py`: the linear limit is no upper bound."""

import re
from pathlib import Path

import numpy as np
import pytest

from fl_epe.accounting import hidden_rounds_epsilon
from fl_epe.schedules import Events
from simulations.studies import contracting_silos as study

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("contraction", "noise", "expected"),
    [
        (1.0, 0.4, 7.9),
        (0.4, 0.4, 11.05),
        (0.1, 0.4, 12.41),
        (1.0, 1.0, 2.152),
        (0.4, 1.0, 1.01),
    ],
    ids=["linear", "contracting", "fast", "more-noise", "lower"],
)
def test_exact_epsilon_of_uploads(contraction, noise, expected):
    epsilon = study.uploads_epsilon(contraction, noise)
    assert epsilon == pytest.approx(expected, rel=0.01)
    assert epsilon < study.every_step_epsilon(noise)


def test_every_step():
    assert study.every_step_epsilon(0.4) == pytest.approx(37.5, rel=0.01)


def test_whoever_forgets_all_steps_but_the_last_has_one_step_a_round():
    coins = Events.coins(np.full(study.ROUNDS, study.RATE))
    one_step = hidden_rounds_epsilon(
        coins, np.full(study.ROUNDS, 1 / 0.4), study.DELTA
    )
    assert study.uploads_epsilon(1e-9, 0.4) == pytest.approx(
        one_step, rel=0.005
    )


def test_lines(capsys, monkeypatch):
    monkeypatch.setattr(study, "NOISE", (0.4,))
    monkeypatch.setattr(study, "CONTRACTIONS", (1.0, 0.1))
    study.main()
    head, linear, contracting = capsys.readouterr().out.splitlines()
    assert head.split() == [
        "z",
        "ρ",
        "exact",
        "linear",
        "limit",
        "every",
        "step",
    ]
    assert linear.split() == ["0.4", "1.0", "7.90", "7.90", "37.46"]
    assert contracting.split() == ["0.4", "0.1", "12.41", "7.90", "37.46"]


@pytest.mark.slow
def test_nothing_calls_the_linear_limit_a_bound():
    """Where a sentence names both, it denies that the one is the other."""
    texts = [
        *ROOT.glob("fl_epe/**/*.py"),
        *ROOT.glob("fl_epe/**/*.j2"),
        *ROOT.glob("docs/**/*.md"),
    ]
    naming = []
    for path in [*texts, ROOT / "README.md"]:
        flat = " ".join(path.read_text("utf-8").split())
        naming += re.findall(
            r"[^.!?|]*linear limit[^.!?|]*", flat, re.IGNORECASE
        )
    assert len(naming) > 3
    bounding = [
        text
        for text in naming
        if re.search(r"\b(bound|ceiling|at most)\b", text)
    ]
    assert [
        text for text in bounding if not re.search(r"\b(no|not|never)\b", text)
    ] == []
