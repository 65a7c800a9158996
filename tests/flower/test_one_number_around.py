"""A run around any strategy says one ε for each adversary: metrics, record, table, report.json."""

import json

import pytest
from flower_audits import PLAIN, fixed, run
from flwr.serverapp import strategy as flower

from fl_epe.auditing import answers
from fl_epe.reporting import number

ROUNDS = 12
STRATEGIES = {
    "plain": lambda: flower.FedAvg(**PLAIN),
    "noise": lambda: fixed(expected=10),
    "momentum": lambda: flower.FedAvgM(**PLAIN, server_momentum=0.9),
    "adam": lambda: flower.FedAdam(**PLAIN),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_output_says_the_same(name, tmp_path):
    audit, result = run(
        STRATEGIES[name](), rounds=ROUNDS, num_canaries=None, max_share=0.1
    )
    estimates = [answer.estimate for answer in answers(audit.record())]
    assert all(estimates)
    metrics = result.train_metrics_clientapp
    for sees, estimate in zip(("final", "all"), estimates, strict=True):
        values = [
            metrics[ROUNDS][f"epsilon-{sees}{end}"]
            for end in ("", "-low", "-high")
        ]
        # But for the last bit: a sum of BLAS depends on where in memory its numbers are.
        assert values == pytest.approx(
            [estimate.epsilon, estimate.low, estimate.high], rel=1e-14
        )
    if (
        name == "noise"
    ):  # a round before it is of the same client, who has taken part once less
        before = float(str(metrics[ROUNDS - 1]["epsilon-all"]))
        assert 0.7 < before / estimates[1].epsilon < 1.1
    else:  # canaries took part half as often, and how the others react is known at the end
        assert "epsilon-all" not in metrics[ROUNDS - 1]
    printed = audit.report(tmp_path)
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))["answer"]
    epsilons = [estimate.epsilon for estimate in estimates]
    assert [entry["epsilon"] for entry in report] == pytest.approx(
        epsilons, rel=1e-14
    )
    for row, estimate in zip(
        ("final model ", "every round "), estimates, strict=True
    ):
        line = next(
            line for line in printed.splitlines() if line.startswith(row)
        )
        assert line.split()[2].rstrip("†") == number(estimate.epsilon)
