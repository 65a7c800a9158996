"""A run that stops as soon as its rule is met, and one that was killed and does the same."""

import dataclasses

import numpy as np
import pytest
from tiny import Tiny

from fl_epe import AuditRecord
from fl_epe.auditing import (
    answer_metrics,
    answers,
    epsilon_by_round,
    epsilon_metrics,
)
from fl_epe.config import RunConfig
from fl_epe.reporting import as_text, summarize
from fl_epe.seeding import Seeds
from fl_epe.simulation import Job, Progress, simulate
from fl_epe.simulation.checkpoint import (
    previous_of,
    read_checkpoint,
    write_checkpoint,
)

ROUNDS = 20
CONFIG = RunConfig(
    clients=20,
    rounds=ROUNDS,
    clients_per_round=5,
    num_canaries=200,
    unobserved=40,
    canary_participations=1,
    noise_multiplier=1.0,
    clipping="fixed",
    delta=1e-3,
)
RULE = "epsilon-all-low > 1.5"


def job(rule=RULE, **changes):
    config = dataclasses.replace(CONFIG, stop_when=rule, **changes)
    return Job(Tiny(), config, Seeds.derive(7), 5)


@pytest.fixture(scope="module")
def stopped():
    progress: list[Progress] = []
    return simulate(job(), on_round=progress.append), progress


def test_the_run_stops_when_its_rule_is_met(stopped):
    record, progress = stopped
    assert 1 < record.rounds < ROUNDS
    found = record.findings.stopped
    assert found.after == record.rounds == progress[-1].round
    assert found.estimate.low > 1.5
    assert all(p.epsilons["epsilon-all-low"] <= 1.5 for p in progress[2:-1])
    for before, each in zip(
        progress[2:-1], epsilon_by_round(record)[1:-1], strict=True
    ):
        assert (
            epsilon_metrics("all", each.estimate).items()
            <= before.epsilons.items()
        )
    found = answers(record)
    assert progress[-1].epsilons == answer_metrics(found)
    assert epsilon_by_round(record)[-1].estimate == found[1].estimate
    # Those whose turn did not come are unobserved.
    assert record.num_canaries == 10 * record.rounds
    assert record.unobserved.count == 240 - record.num_canaries
    assert record.presence.any(axis=0).all()
    assert record.metrics["eval_round"][-1] == record.rounds


@pytest.mark.slow
def test_up_to_there_it_is_the_run_without_a_rule(stopped):
    record, _ = stopped
    whole = simulate(job(None))
    assert whole.rounds == ROUNDS
    assert whole.findings.stopped is None
    np.testing.assert_array_equal(
        whole.norms.means[: record.rounds], record.norms.means
    )
    never = simulate(job("epsilon-all-low > 900"))
    assert never.rounds == ROUNDS
    assert never.findings.stopped is None
    np.testing.assert_array_equal(never.observed.final, whole.observed.final)


@pytest.mark.slow
def test_the_report_says_so(stopped, tmp_path):
    record, _ = stopped
    loaded = AuditRecord.load(record.save(tmp_path / "record.npz"))
    summary = summarize(loaded)
    text = " ".join(as_text(summary, details=True).split())
    assert (
        f"ended after round {record.rounds} because of its scores ({RULE})"
        in text
    )
    assert "stopped" in [one.code for one in summary.warnings]
    others = summarize(
        simulate(job("epsilon-all-high < 0.01", rounds=2))
    ).warnings
    assert "stopped" not in [one.code for one in others]


class KilledError(Exception):
    pass


def test_a_run_that_was_killed_stops_where_it_would_have(stopped, tmp_path):
    record, _ = stopped
    path = tmp_path / "checkpoint.npz"

    def kill(progress):
        if progress.round == record.rounds - 1:
            raise KilledError

    with pytest.raises(KilledError):
        simulate(job(), checkpoint=path, checkpoint_every=1, on_round=kill)
    again = simulate(job(), checkpoint=path, checkpoint_every=1)
    assert again.rounds == record.rounds
    assert again.findings.stopped == record.findings.stopped
    np.testing.assert_array_equal(again.observed.final, record.observed.final)
    # With the checkpoint of its last round it stops at once.
    once_more = simulate(job(), checkpoint=path)
    assert once_more.rounds == record.rounds
    assert once_more.findings.stopped == record.findings.stopped


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"auditor.signals": None}, "it has no 'signals'"),
        (
            {"auditor.signals": np.zeros((2, 3))},
            r"signals.shape=\(2, 3\) to be",
        ),
        ({"auditor.factor": np.zeros(5)}, r"factor.shape=\(5,\) to be"),
    ],
    ids=["missing", "shape", "length"],
)
def test_a_checkpoint_without_what_the_rule_needs_is_refused(
    change, message, tmp_path
):
    path = tmp_path / "checkpoint.npz"

    def kill(progress):
        if progress.round == 2:
            raise KilledError

    with pytest.raises(KilledError):
        simulate(job(), checkpoint=path, checkpoint_every=1, on_round=kill)
    state = {**read_checkpoint(path)[1], **change}
    kept = {name: value for name, value in state.items() if value is not None}
    write_checkpoint(path, read_checkpoint(path)[0], kept)
    previous_of(path).unlink()
    with pytest.raises(ValueError, match=message):
        simulate(job(), checkpoint=path)
