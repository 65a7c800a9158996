"""ε of every client of the log, from its own rounds and κ."""

import csv
import io
import re
import shlex

import numpy as np
import pytest
from records import limit_with_clients, make_record, record_of

from fl_epe.auditing import (
    Adversary,
    AuditedClient,
    NotMeasured,
    client_epsilon,
    seen_by,
)
from fl_epe.cli.main import main
from fl_epe.reporting import summarize, write_clients
from fl_epe.reporting.clients import client_leakage

UNEVEN = 'device-classes:{"rates": [1, 4], "shares": [0.5, 0.5]}'


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["epochs", UNEVEN, "poisson"], ids=["epochs", "uneven", "poisson"]
)
def test_each_client_has_that_of_its_own_rounds(kind):
    record = limit_with_clients(kind)
    summary = summarize(record)
    found = client_leakage(summary)
    rounds = np.repeat(
        np.arange(record.rounds), np.diff(np.asarray(record.clients.offsets))
    )
    for place in (0, len(found.ids) // 2, len(found.ids) - 1):
        presence = np.zeros((record.rounds, 1), bool)
        presence[rounds[record.clients.ids == found.ids[place]], 0] = True
        client = AuditedClient(float(presence.sum()), presence)
        assert found.participations[place] == presence.sum()
        for one in summary.answers:
            sees = one.adversary.sees
            view = seen_by(record, Adversary(sees))
            expected = client_epsilon(view, client, one.fit.scale, record.delta)
            assert found.epsilon[sees][place] == pytest.approx(
                expected, rel=1e-6
            )


def test_the_median_client_has_the_answer():
    record = limit_with_clients()
    summary = summarize(record)
    found = client_leakage(summary)
    for one in summary.answers:
        same = found.epsilon[one.adversary.sees][
            found.participations == one.participations
        ]
        assert one.estimate.epsilon == pytest.approx(np.mean(same), rel=1e-3)


@pytest.mark.slow
def test_the_advice_to_raise_the_noise_can_be_pasted(tmp_path, capsys):
    folder = tmp_path / "a run"
    folder.mkdir()
    limit_with_clients().save(folder / "record.npz")
    assert main(["report", str(folder)]) == 0
    (command,) = re.findall(r"Noise: fl-epe (.*)", capsys.readouterr().out)
    assert main(shlex.split(command)) == 0
    assert "Noise multiplier z = " in capsys.readouterr().out


@pytest.mark.slow
def test_the_file(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record = limit_with_clients("poisson")
    record.save(tmp_path / "record.npz")
    assert main(["report", "."]) == 0
    assert not (tmp_path / "clients.csv").exists()  # only if asked for
    capsys.readouterr()
    assert main(["report", ".", "--clients"]) == 0
    assert "personal data" in capsys.readouterr().out
    assert (tmp_path / "clients.csv").stat().st_mode & 0o077 == 0
    rows = list(
        csv.reader(io.StringIO((tmp_path / "clients.csv").read_text("utf-8")))
    )
    seen = ["epsilon_final_rounds_known", "epsilon_all_rounds_known"]
    head = ["client", "participations", "weight", *seen]
    assert rows[0] == head
    assert len(rows) - 1 == len(np.unique(record.clients.ids))


def test_what_cannot_be_told(tmp_path):
    with pytest.raises(ValueError, match="which client took part"):
        write_clients(summarize(make_record()), tmp_path / "x.csv")
    with pytest.raises(NotMeasured, match="no canary"):
        write_clients(summarize(record_of(0)), tmp_path / "x.csv")
