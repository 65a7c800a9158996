"""`simulations/nasr_2023/dp_sgd.py` and `simulations/apps/opacus_audit.py`, the short forms."""

import inspect
import re

import opacus_audit
import pytest
import torch

from fl_epe.accounting import gaussian_epsilon
from simulations.nasr_2023 import dp_sgd

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
]


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.weekly
def test_the_quick_form_prints_every_table(capsys, monkeypatch):
    monkeypatch.setattr(
        dp_sgd, "against_theory", lambda *_: iter([])
    )  # the test below
    dp_sgd.main(["--quick"])
    printed = capsys.readouterr().out
    assert re.findall(r"^(\d)\. ", printed, re.M) == ["1", "2", "3"]
    for row in ("known", "unknown", "digits"):
        assert f"  {row} " in printed
    assert "fashion" not in printed


@pytest.mark.weekly
def test_epsilon_against_theory():
    setting = dp_sgd.Setting(batch=0, epochs=3, z=0.5, canaries=300)
    audit, _, took = dp_sgd.audited(setting)
    estimate = audit.epsilon(confidence=0.999)
    theory = gaussian_epsilon(0.5, dp_sgd.DELTA, 3)
    assert estimate.low < theory < estimate.high
    assert abs(estimate.epsilon / theory - 1) < 0.1
    assert took > 0


@pytest.mark.weekly
def test_the_app_audits_in_three_lines(tmp_path):
    lines = [
        line
        for line in inspect.getsource(opacus_audit).splitlines()
        if "# audit" in line
    ]
    assert len(lines) == 3
    torch.manual_seed(0)
    printed = opacus_audit.main(["--epochs", "1", "--output", str(tmp_path)])
    assert "adversary knows its updates, not its rounds" in " ".join(
        printed.split()
    )
    assert "Accuracy on 297" in printed
    assert (tmp_path / "record.npz").is_file()
    assert (tmp_path / "report.html").is_file()
