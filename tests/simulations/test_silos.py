"""`simulations/studies/silos.py`: a record's ε, from what a federation of silos releases."""

import pytest

from fl_epe.accounting import poisson_epsilon
from simulations.studies import silos as study
from simulations.studies.silos import Setting, Silo

SMALL = Setting(12, (Silo(10, 0.05, noise=0.8),) * 3)
SIZES = study.SETTINGS["sizes"]


@pytest.mark.slow
@pytest.mark.parametrize("adversary", study.ADVERSARIES)
def test_each_adversary_has_its_line(adversary):
    exact = study.exact_epsilon(SMALL, 0, adversary)
    runs = [
        study.measured(SMALL, 0, adversary, canaries=150, dim=3000, seed=s)
        for s in range(5)
    ]
    held = [
        run.estimate is not None
        and run.estimate.low < exact < run.estimate.high
        for run in runs
    ]
    assert sum(held) >= 4  # of 60 seeds 98%
    answer, *_ = runs
    assert not answer.adversary.knows_rounds
    assert answer.participations == pytest.approx(6)
    # Theory is of every step, and holds for all of them.
    every_step = poisson_epsilon(0.8, 0.05, 120, study.DELTA)
    assert answer.analytical.epsilon == pytest.approx(every_step)
    assert answer.analytical.adjacency == "add-or-remove"
    assert exact < every_step


def test_who_sees_less_learns_less():
    epsilons = [
        study.exact_epsilon(SMALL, 0, adversary)
        for adversary in study.ADVERSARIES
    ]
    assert epsilons == sorted(epsilons, reverse=True)


@pytest.mark.parametrize(
    ("audited", "upload", "average"),
    [(0, 11.7, 0.10), (1, 4.6, 0.42), (2, 2.0, 2.00)],
    ids=["small", "middle", "large"],
)
def test_the_largest_silo_need_not_leak_most(audited, upload, average):
    assert study.exact_epsilon(SIZES, audited, "server") == pytest.approx(
        upload, abs=0.05
    )
    assert study.exact_epsilon(SIZES, audited, "outsider") == pytest.approx(
        average, abs=0.005
    )


def test_the_noise_of_unequal_silos():
    silo = Silo(
        4, 0.1, noise=0.5, clip_norm=2.0, step_size=3.0, batch=6.0, weight=5.0
    )
    two = Silo(
        9, 0.1, noise=1.0, clip_norm=1.0, step_size=2.0, batch=4.0, weight=1.0
    )
    # A record adds 5·3·2/6 = 5 and 1·2·1/4 = 1/2; deviations are 5·0.5·2 = 5 and 0.5·1·3 = 1.5.
    assert study.deviation((silo, two), 0, "server") == pytest.approx(1)
    assert study.deviation((silo, two), 1, "server") == pytest.approx(3)
    assert study.deviation((silo, two), 1, "partner") == pytest.approx(
        3
    )  # who is the only one
    assert study.deviation((silo, two), 1, "outsider") == pytest.approx(
        (25 + 2.25) ** 0.5 / 0.5
    )
    three = (silo, two, two)
    assert study.deviation(three, 1, "partner") == pytest.approx(
        (2 * 2.25) ** 0.5 / 0.5
    )


@pytest.mark.slow
def test_lines(monkeypatch, capsys):
    monkeypatch.setitem(study.SETTINGS, "three", SMALL)
    monkeypatch.setattr(
        "sys.argv",
        [
            "silos",
            "--setting",
            "three",
            "--runs",
            "1",
            "--proofs",
            "1",
            "--canaries",
            "60",
            "--dim",
            "1500",
        ],
    )
    study.main()
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["setting", "silo", "adversary"]
    assert [row.split()[2] for row in rows] == list(study.ADVERSARIES)
