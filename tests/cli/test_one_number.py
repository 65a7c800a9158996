"""One run says one ε for each adversary: progress, log, record, chart, report.json and table."""

import json
import re
from pathlib import Path

import pytest

from fl_epe import AuditRecord
from fl_epe.auditing import REAL_UPDATES_LEFT_OUT, answers, epsilon_by_round
from fl_epe.checks import finite
from fl_epe.cli.main import main
from fl_epe.reporting import number

MODULE = """
import torch
from own_data import rows
from fl_epe.tasks import from_datasets

def net():
    return torch.nn.Sequential(
        torch.nn.Linear(4, 400), torch.nn.ReLU(), torch.nn.Linear(400, 3)
    )

task = from_datasets(
    net, lambda: rows(300), inputs="x", targets="y", partition="iid:60",
    defaults={"rounds": 10, "clients_per_round": 24, "local_epochs": 1, "noise_multiplier": 1.0},
)
"""
RUNS = {
    "plain": (),
    "no-noise": ("--noise-multiplier", "0"),
    "no-momentum": ("--server-momentum", "0"),
    "adam": ("--server-optimizer", "adam", "--server-learning-rate", "0.01"),
    "poisson": ("--participation", "poisson", "--noise-multiplier", "2"),
    "fixed-size": ("--participation", "fixed-size"),
    "bins": ("--participation", "balls-in-bins", "--clients-per-round", "12"),
    "banded": ("--mechanism", "banded:bands=3"),
    "paper": ("--canary-design", "paper", "--num-canaries", "20"),
    "stopped": (
        "--stop-when",
        "epsilon-all-low > 2",
        "--noise-multiplier",
        "0.3",
    ),
}
SLOW = ("fixed-size", "bins", "banded", "paper")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "onenumber.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(
            words, id=name, marks=pytest.mark.slow if name in SLOW else ()
        )
        for name, words in RUNS.items()
    ],
)
def test_every_output_says_the_same(words, folder, capsys):
    command = [
        "run",
        "onenumber:task",
        "--seed",
        "1",
        "--workers",
        "1",
        "--output",
        "out",
        *words,
    ]
    assert main(command) in (0, 3)
    printed = capsys.readouterr().out
    record = AuditRecord.load(Path("out/record.npz"))
    estimates = [each.estimate for each in answers(record)]
    assert all(estimates)
    said = [number(each.epsilon) for each in estimates]

    last = [line for line in printed.splitlines() if line.startswith("round ")][
        -1
    ]
    assert last.startswith(f"round {record.rounds}/10 ")
    assert (
        re.findall(r"(?:final model|every round) (\S+?),?(?=\s|$)", last)
        == said
    )
    log = [
        json.loads(line)
        for line in Path("out/run.log").read_text().splitlines()
    ]
    noted = [line for line in log if line["event"] == "round"][-1]
    for name, found in zip(
        ("epsilon-final", "epsilon-all"), estimates, strict=True
    ):
        assert [
            noted[name],
            noted[f"{name}-low"],
            noted[f"{name}-high"],
        ] == pytest.approx(
            [finite(value) for value in (found.epsilon, found.low, found.high)],
            rel=1e-9,
        )
    assert epsilon_by_round(record)[-1].estimate == estimates[1]
    report = json.loads(Path("out/report.json").read_text())
    if "answer" in report:
        assert [number(each["epsilon"]) for each in report["answer"]] == said
        table = re.sub(r"\s+", " ", printed.rpartition(last)[2])
        assert all(
            re.search(rf"(?<![\d.,]){re.escape(text)}(?![\d.,]\d)", table)
            for text in said
        )


@pytest.mark.slow
def test_before_it_starts_a_run_says_what_its_canaries_can_show(folder, capsys):
    assert (
        main(
            [
                "run",
                "onenumber:task",
                "--seed",
                "1",
                "--workers",
                "1",
                "--output",
                "out",
            ]
        )
        == 0
    )
    printed = capsys.readouterr().out
    plan = " ".join(printed.partition("round 0/10")[0].split())
    load = "like 6 more clients beside 60 clients: 9.1% of a round."
    assert plan.startswith(f"Canaries (synthetic clients) take part {load}")
    (line,) = re.findall(
        r"Forecast: ε is at most about .+?; .+?\(in 95% of runs\)\.", plan
    )
    limits, shown = (re.findall(r"\d[\d.]*", part) for part in line.split(";"))
    assert len(limits) == len(shown[:2]) == 2
    assert plan.count(REAL_UPDATES_LEFT_OUT) == 1
    record = AuditRecord.load(Path("out/record.npz"))
    assert list(record.findings.plan) != []
    # A forecast that leaves out real updates is an upper line, and no interval around ε.
    for answer, high in zip(answers(record), shown[:2], strict=True):
        assert answer.estimate is not None
        assert answer.estimate.epsilon < float(high)


def test_a_run_without_canaries_measures_nothing_and_goes_on(folder, capsys):
    command = [
        "run",
        "onenumber:task",
        "--seed",
        "1",
        "--workers",
        "1",
        "--output",
        "out",
    ]
    assert main([*command, "--num-canaries", "0"]) == 3
    assert "The run has no canaries" in capsys.readouterr().out
    record = AuditRecord.load(Path("out/record.npz"))
    assert (
        record.rounds,
        record.num_canaries,
        record.mechanism.cohort_size,
    ) == (
        10,
        0,
        24.0,
    )
    assert [each.estimate for each in answers(record)] == [None, None]
